"""Compare two training datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore.hashing import row_hash
from featurestore.model.manifest import Manifest, ManifestColumn
from featurestore.statistics import compare_statistics
from featurestore.training.reading import split_batches
from featurestore.training.verification.label_shares import label_changes

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset

UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SplitDiff:
    """The rows of a split, matched by key: added, removed, changed and unchanged."""

    added: int
    removed: int
    changed: int
    unchanged: int


@dataclass(frozen=True)
class DatasetDiff:
    """The changes from one dataset to another; ``same`` if rows, columns and splits are equal."""

    dataset: str
    other: str
    columns: tuple[str, ...]
    sources: tuple[str, ...]
    splits: Mapping[str, SplitDiff]
    rules: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    drift: Mapping[str, Any] | None = None

    @property
    def same(self) -> bool:
        """Whether both have the same columns, and the same rows in the same splits."""
        if self.columns:
            return False
        return all(each.added == each.removed == each.changed == 0 for each in self.splits.values())

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        splits = {name: vars(each) for name, each in self.splits.items()}
        return {
            "dataset": self.dataset,
            "other": self.other,
            "same": self.same,
            "columns": list(self.columns),
            "sources": list(self.sources),
            "rules": list(self.rules),
            "labels": list(self.labels),
            "splits": splits,
            "drift": self.drift,
        }

    def __str__(self) -> str:
        outcome = "the same rows" if self.same else "different"
        lines = [f"{self.dataset} -> {self.other}: {outcome}"]
        for change in (*self.columns, *self.sources, *self.rules):
            lines.append(f"  {change}")
        for name, each in self.splits.items():
            counts = f"+{each.added:,} -{each.removed:,} ~{each.changed:,} ={each.unchanged:,}"
            lines.append(f"  {name}: {counts} rows")
        for change in (*self.labels, *self._drifted()):
            lines.append(f"  {change}")
        return "\n".join(lines)

    def _drifted(self) -> list[str]:
        lines = []
        for split, report in (self.drift or {}).items():
            for each in report["features"]:
                if each["reasons"]:
                    reasons = "; ".join(each["reasons"])
                    lines.append(f"drift of {split}.{each['name']}: {reasons}")
        return lines


def diff(
    directory: str,
    manifest: Manifest,
    other_directory: str,
    other: Manifest,
    *,
    drift: Mapping[str, Any] | None = None,
) -> DatasetDiff:
    """Return the changes from one dataset to another.

    Rows are matched by the key of the first dataset, or by all shared columns if the second one
    lacks the key.
    """
    columns = _column_changes(manifest, other)
    other_names = {column.name for column in other.columns}
    shared = [column.name for column in manifest.columns if column.name in other_names]
    key = list(manifest.key) if set(manifest.key) <= set(shared) else shared
    splits = {}
    names = [split.name for split in (*manifest.splits, *other.splits)]
    for name in dict.fromkeys(names):
        rows = _rows(directory, manifest, name, key=key, columns=shared)
        other_rows = _rows(other_directory, other, name, key=key, columns=shared)
        splits[name] = _compare(rows, other_rows)
    return DatasetDiff(
        dataset=f"{manifest.name} version {manifest.version}",
        other=f"{other.name} version {other.version}",
        columns=tuple(columns),
        sources=tuple(_source_changes(manifest, other)),
        rules=tuple(_rule_changes(manifest, other)),
        labels=tuple(label_changes(manifest, other)),
        splits=splits,
        drift=drift,
    )


def drift_between(dataset: TrainingDataset, other: TrainingDataset) -> dict[str, Any] | None:
    """Return the drift report of each common split with statistics; None without any."""
    reports = {}
    for split in dataset.splits:
        if split in dataset.manifest.statistics and split in other.manifest.statistics:
            report = compare_statistics(dataset.statistics(split), other.statistics(split))
            reports[split] = report.to_json()
    return reports or None


def _column_changes(manifest: Manifest, other: Manifest) -> list[str]:
    columns = {column.name: column for column in manifest.columns}
    other_columns = {column.name: column for column in other.columns}
    changes = _appearances("column", list(map(repr, columns)), list(map(repr, other_columns)))
    for name, column in columns.items():
        if name in other_columns and _kind(column) != _kind(other_columns[name]):
            changes.append(f"column {name!r}: {_kind(column)} -> {_kind(other_columns[name])}")
    return changes


def _kind(column: ManifestColumn) -> str:
    return f"{column.type} ({column.role})"


def _source_changes(manifest: Manifest, other: Manifest) -> list[str]:
    versions, other_versions = _delta_versions(manifest), _delta_versions(other)
    changes = _appearances("source", list(versions), list(other_versions))
    for name, version in versions.items():
        if name in other_versions and version != other_versions[name]:
            changes.append(f"source {name}: Delta version {version} -> {other_versions[name]}")
    return changes


def _delta_versions(manifest: Manifest) -> dict[str, int]:
    """Return the Delta version of each source, by ``group@v1``."""
    versions = {
        f"{each['featuregroup']}@v{each['version']}": each["delta_version"]
        for each in manifest.sources
    }
    return versions


def _appearances(noun: str, names: Sequence[str], other_names: Sequence[str]) -> list[str]:
    changes = [f"{noun} {name} removed" for name in names if name not in other_names]
    for name in other_names:
        if name not in names:
            changes.append(f"{noun} {name} added")
    return changes


def _rule_changes(manifest: Manifest, other: Manifest) -> list[str]:
    changes = []
    for rule in ("seed", "key", "split_rule", "data_format", "compression"):
        before, after = getattr(manifest, rule), getattr(other, rule)
        if before != after:
            changes.append(f"{rule}: {before!r} -> {after!r}")
    return changes


def _rows(
    directory: str, manifest: Manifest, split: str, *, key: Sequence[str], columns: Sequence[str]
) -> tuple[UInt64s, UInt64s, npt.NDArray[np.int64]]:
    """Return the unique keys of a split, sorted, with sums and counts of their rows."""
    if split not in {each.name for each in manifest.splits}:
        return np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64)
    keys, digests = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for batch in split_batches(directory, manifest, split, columns=columns):
        keys.append(row_hash(batch, columns=list(key), seed=0))
        digests.append(row_hash(batch, columns=list(columns), seed=1))
    unique, inverse, counts = np.unique(
        np.concatenate(keys), return_inverse=True, return_counts=True
    )
    summed = np.zeros(len(unique), dtype=np.uint64)
    np.add.at(summed, inverse.reshape(-1), np.concatenate(digests))
    return unique, summed, counts


def _compare(
    rows: tuple[UInt64s, UInt64s, Any], other_rows: tuple[UInt64s, UInt64s, Any]
) -> SplitDiff:
    _, indexes, other_indexes = np.intersect1d(
        rows[0], other_rows[0], assume_unique=True, return_indices=True
    )
    is_equal = (rows[1][indexes] == other_rows[1][other_indexes]) & (
        rows[2][indexes] == other_rows[2][other_indexes]
    )
    common_counts = np.minimum(rows[2][indexes], other_rows[2][other_indexes])
    return SplitDiff(
        added=int(other_rows[2].sum() - common_counts.sum()),
        removed=int(rows[2].sum() - common_counts.sum()),
        changed=int(common_counts[~is_equal].sum()),
        unchanged=int(common_counts[is_equal].sum()),
    )
