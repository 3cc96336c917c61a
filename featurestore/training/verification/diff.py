"""diff: what changed between two training datasets."""

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
    """Rows of one split by key.

    Only in the other dataset, only in this one, in both with other values.
    """

    added: int
    removed: int
    changed: int
    unchanged: int


@dataclass(frozen=True)
class DatasetDiff:
    """What changed from one dataset to another.

    ``same`` when the rows, columns and splits are equal.
    """

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
        """Whether both hold the same columns and rows in the same splits."""
        if self.columns:
            return False
        return all(each.added == each.removed == each.changed == 0 for each in self.splits.values())

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        splits = {}
        for name, each in self.splits.items():
            splits[name] = vars(each)
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
    """Return what changed from one dataset to another.

    Rows meet by the key of the first where both have it.
    """
    columns = _column_changes(manifest, other)
    theirs_too = {column.name for column in other.columns}
    shared = [column.name for column in manifest.columns if column.name in theirs_too]
    key = list(manifest.key) if set(manifest.key) <= set(shared) else shared
    splits = {}
    names = [split.name for split in (*manifest.splits, *other.splits)]
    for name in dict.fromkeys(names):
        mine = _rows(directory, manifest, name, key=key, columns=shared)
        theirs = _rows(other_directory, other, name, key=key, columns=shared)
        splits[name] = _compare(mine, theirs)
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
    """Return the drift report of each split that both have with statistics; None without any."""
    reports = {}
    for split in dataset.splits:
        if split in dataset.manifest.statistics and split in other.manifest.statistics:
            report = compare_statistics(dataset.statistics(split), other.statistics(split))
            reports[split] = report.to_json()
    return reports or None


def _column_changes(manifest: Manifest, other: Manifest) -> list[str]:
    mine = {column.name: column for column in manifest.columns}
    theirs = {column.name: column for column in other.columns}
    changes = _appearances("column", list(map(repr, mine)), list(map(repr, theirs)))
    for name, column in mine.items():
        if name in theirs and _kind(column) != _kind(theirs[name]):
            changes.append(f"column {name!r}: {_kind(column)} -> {_kind(theirs[name])}")
    return changes


def _kind(column: ManifestColumn) -> str:
    return f"{column.type} ({column.role})"


def _source_changes(manifest: Manifest, other: Manifest) -> list[str]:
    mine, theirs = _delta_versions(manifest), _delta_versions(other)
    changes = _appearances("source", list(mine), list(theirs))
    for name, version in mine.items():
        if name in theirs and version != theirs[name]:
            changes.append(f"source {name}: Delta version {version} -> {theirs[name]}")
    return changes


def _delta_versions(manifest: Manifest) -> dict[str, int]:
    """Return the Delta version of each source, by ``group@v1``."""
    versions = {}
    for each in manifest.sources:
        versions[f"{each['featuregroup']}@v{each['version']}"] = each["delta_version"]
    return versions


def _appearances(noun: str, mine: Sequence[str], theirs: Sequence[str]) -> list[str]:
    changes = []
    for name in mine:
        if name not in theirs:
            changes.append(f"{noun} {name} removed")
    for name in theirs:
        if name not in mine:
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


def _compare(mine: tuple[UInt64s, UInt64s, Any], theirs: tuple[UInt64s, UInt64s, Any]) -> SplitDiff:
    _, here, there = np.intersect1d(mine[0], theirs[0], assume_unique=True, return_indices=True)
    equal = (mine[1][here] == theirs[1][there]) & (mine[2][here] == theirs[2][there])
    both = np.minimum(mine[2][here], theirs[2][there])
    return SplitDiff(
        added=int(theirs[2].sum() - both.sum()),
        removed=int(mine[2].sum() - both.sum()),
        changed=int(both[~equal].sum()),
        unchanged=int(both[equal].sum()),
    )
