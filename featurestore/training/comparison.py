"""Comparison of two training datasets, or of pinned sources with their current state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore.delta import commits
from featurestore.delta.log import is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError
from featurestore.hashing import row_hash
from featurestore.model import display
from featurestore.model.drift import DriftReport
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.manifest import Manifest
from featurestore.model.names import format_group_reference
from featurestore.model.records import Record
from featurestore.model.statistics import Statistics
from featurestore.statistics import (
    StatisticsFiles,
    compare_statistics,
    count_statistics,
    finish,
)
from featurestore.training.reading import split_batches

if TYPE_CHECKING:
    from featurestore.session import Session
    from featurestore.training.dataset import TrainingDataset

_MAX_LISTED = 5
Shares = dict[str, dict[str, float]]
UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SplitDiff:
    """The numbers of added, removed, changed and unchanged rows of a split, matched by key."""

    added: int
    removed: int
    changed: int
    unchanged: int

    __repr__ = display.record_repr


_KEYS = ("dataset", "other", "same", "columns", "sources", "rules", "labels", "splits", "drift")


@dataclass(frozen=True)
class DatasetDiff(Record, keys=_KEYS):
    """The differences between two datasets; ``same`` if rows, columns and splits are equal."""

    dataset: str
    other: str
    columns: tuple[str, ...]
    sources: tuple[str, ...]
    splits: Mapping[str, SplitDiff]
    rules: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    drift: JsonMapping | None = None

    __repr__ = display.record_repr

    @property
    def same(self) -> bool:
        """Whether the datasets have equal columns, and equal rows in equal splits."""
        if self.columns:
            return False
        return all(
            split_diff.added == split_diff.removed == split_diff.changed == 0
            for split_diff in self.splits.values()
        )

    def __str__(self) -> str:
        outcome = "the same rows" if self.same else "different"
        lines = [f"{self.dataset} -> {self.other}: {outcome}"]
        lines += [f"  {change}" for change in (*self.columns, *self.sources, *self.rules)]
        for name, split in self.splits.items():
            counts = f"+{split.added:,} -{split.removed:,} ~{split.changed:,} ={split.unchanged:,}"
            lines.append(f"  {name}: {counts} rows")
        lines += [f"  {change}" for change in (*self.labels, *self._drift_lines())]
        return "\n".join(lines)

    def _drift_lines(self) -> list[str]:
        lines = []
        for split, report in (self.drift or {}).items():
            for feature in report["features"]:
                if feature["reasons"]:
                    reasons = "; ".join(feature["reasons"])
                    lines.append(f"drift of {split}.{feature['name']}: {reasons}")
        return lines


def diff(
    directory: str,
    manifest: Manifest,
    other_directory: str,
    other_manifest: Manifest,
    *,
    drift: JsonMapping | None = None,
) -> DatasetDiff:
    """Compare two datasets.

    Rows are matched by the key of the first dataset, or by all shared columns if the second dataset
    lacks the key.
    """
    versions, other_versions = _delta_versions(manifest), _delta_versions(other_manifest)
    other_names = {column.name for column in other_manifest.columns}
    shared = [column.name for column in manifest.columns if column.name in other_names]
    # Without the key in both datasets, a changed row counts as one removed and one added row.
    key = list(manifest.key) if set(manifest.key) <= set(shared) else shared
    splits = {}
    # Splits of both datasets: a split of only one dataset counts as added or removed rows.
    names = [split.name for split in (*manifest.splits, *other_manifest.splits)]
    for name in dict.fromkeys(names):
        rows = _rows(directory, manifest, name, key=key, columns=shared)
        other_rows = _rows(other_directory, other_manifest, name, key=key, columns=shared)
        splits[name] = _compare(rows, other_rows)
    return DatasetDiff(
        dataset=f"{manifest.name} version {manifest.version}",
        other=f"{other_manifest.name} version {other_manifest.version}",
        columns=tuple(_describe_changes("column", _columns(manifest), _columns(other_manifest))),
        sources=tuple(
            _describe_changes("source", versions, other_versions, prefix="Delta version ")
        ),
        rules=tuple(_describe_rule_changes(manifest, other_manifest)),
        labels=tuple(label_changes(manifest, other_manifest)),
        splits=splits,
        drift=drift,
    )


def drift_between(dataset: TrainingDataset, other: TrainingDataset) -> JsonDict | None:
    """Return the drift report of each common split, or None if no split has statistics."""
    reports = {}
    for split in dataset.splits:
        if split in dataset.manifest.statistics and split in other.manifest.statistics:
            report = compare_statistics(dataset.statistics(split), other.statistics(split))
            reports[split] = report.to_json()
    return reports or None


def _columns(manifest: Manifest) -> dict[str, str]:
    return {repr(column.name): f"{column.type} ({column.role})" for column in manifest.columns}


def _delta_versions(manifest: Manifest) -> dict[str, int]:
    """Return the Delta version of each source by its reference, such as ``group@v1``."""
    return {
        f"{source['featuregroup']}@v{source['version']}": source["delta_version"]
        for source in manifest.sources
    }


def _describe_changes(
    noun: str, before: JsonMapping, after: JsonMapping, *, prefix: str = ""
) -> list[str]:
    """Return a line for each added or removed name, and for each changed value."""
    changes = [f"{noun} {name} removed" for name in before if name not in after]
    changes += [f"{noun} {name} added" for name in after if name not in before]
    changes += [
        f"{noun} {name}: {prefix}{value} -> {after[name]}"
        for name, value in before.items()
        if name in after and value != after[name]
    ]
    return changes


def _describe_rule_changes(manifest: Manifest, other_manifest: Manifest) -> list[str]:
    changes = []
    for rule in ("seed", "key", "split_rule", "data_format", "compression"):
        before, after = getattr(manifest, rule), getattr(other_manifest, rule)
        if before != after:
            changes.append(f"{rule}: {before!r} -> {after!r}")
    return changes


def _rows(
    directory: str, manifest: Manifest, split: str, *, key: Sequence[str], columns: Sequence[str]
) -> tuple[UInt64s, UInt64s, npt.NDArray[np.int64]]:
    """Return the sorted unique key hashes of a split, with row hash sums and row counts."""
    if split not in {split.name for split in manifest.splits}:
        return np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64)
    keys, digests = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for batch in split_batches(directory, manifest, split, columns=columns):
        keys.append(row_hash(batch, columns=list(key), seed=0))
        # The other seed makes the row hash independent of the key hash.
        digests.append(row_hash(batch, columns=list(columns), seed=1))
    unique, inverse, counts = np.unique(
        np.concatenate(keys), return_inverse=True, return_counts=True
    )
    # Several rows may have one key. Sums modulo 2**64 compare them as a set, in any order.
    summed = np.zeros(len(unique), dtype=np.uint64)
    # Unlike ``summed[inverse] += ...``, add.at counts an index as often as it occurs.
    np.add.at(summed, inverse.reshape(-1), np.concatenate(digests))
    return unique, summed, counts


def _compare(
    rows: tuple[UInt64s, UInt64s, Any], other_rows: tuple[UInt64s, UInt64s, Any]
) -> SplitDiff:
    """Compare the key hashes, row hash sums and row counts of two splits."""
    _, indexes, other_indexes = np.intersect1d(
        rows[0], other_rows[0], assume_unique=True, return_indices=True
    )
    is_equal = (rows[1][indexes] == other_rows[1][other_indexes]) & (
        rows[2][indexes] == other_rows[2][other_indexes]
    )
    # Rows of a key beyond the common count are added or removed, not changed.
    common_counts = np.minimum(rows[2][indexes], other_rows[2][other_indexes])
    return SplitDiff(
        added=int(other_rows[2].sum() - common_counts.sum()),
        removed=int(rows[2].sum() - common_counts.sum()),
        changed=int(common_counts[~is_equal].sum()),
        unchanged=int(common_counts[is_equal].sum()),
    )


def label_proportions(manifest: Manifest) -> dict[str, Shares]:
    """Return the label proportions as ``{split: {label: {value: proportion}}}``."""
    proportions: dict[str, Shares] = {}
    for split in manifest.splits:
        proportions[split.name] = {}
        for label, counts in split.label_counts.items():
            proportions[split.name][label] = _proportions(counts)
    return proportions


def label_changes(manifest: Manifest, other_manifest: Manifest) -> Iterator[str]:
    """Yield a line for each label and split whose value proportions differ."""
    proportions, other_proportions = label_proportions(manifest), label_proportions(other_manifest)
    for split in proportions:
        for label, before in proportions[split].items():
            after = other_proportions.get(split, {}).get(label)
            if after is None or before == after:
                continue
            yield f"label {label!r} in {split}: {_describe_proportions(before, after)}"


def _describe_proportions(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Describe the largest changes in the value proportions of a label."""
    changes = {
        value: abs(before.get(value, 0.0) - after.get(value, 0.0)) for value in {*before, *after}
    }
    # The value breaks ties, so that the description is deterministic.
    values = sorted(changes, key=lambda value: (-changes[value], value))
    lines = [
        f"{value}: {before.get(value, 0.0):.2%} -> {after.get(value, 0.0):.2%}"
        for value in values[:_MAX_LISTED]
    ]
    if len(values) > _MAX_LISTED:
        lines[-1] += f" and {len(values) - _MAX_LISTED} more"
    return ", ".join(lines)


def _proportions(counts: Mapping[str, int]) -> dict[str, float]:
    rows = sum(counts.values())
    if not rows:
        return {}
    shares = {value: count / rows for value, count in counts.items()}
    return shares


@dataclass(frozen=True)
class SourceChange:
    """The commits to one source of a dataset since its pinned Delta version.

    ``commits`` is the number of later commits that changed rows. ``problem`` is the reason if the
    pinned rows can no longer be compared.
    """

    featuregroup: str
    version: int
    delta_version: int
    delta_version_now: int | None
    commits: int = 0
    problem: str | None = None

    __repr__ = display.record_repr

    @property
    def stale(self) -> bool:
        """Whether the source has changed since the export, or was deleted."""
        return self.commits > 0 or self.delta_version_now is None

    @property
    def reference(self) -> str:
        """The group and its version, such as ``weather@v1``."""
        return format_group_reference(self.featuregroup, self.version)

    def __str__(self) -> str:
        text = f"{self.reference}: {self.commits} commits since Delta version {self.delta_version}"
        return f"{text}; {self.problem}" if self.problem is not None else text


@dataclass(frozen=True, repr=False)
class DatasetStaleness:
    """The changes of all sources of a training dataset since its creation."""

    name: str
    version: int
    sources: tuple[SourceChange, ...] = ()

    @property
    def stale(self) -> bool:
        """Whether any source has changed."""
        return any(source.stale for source in self.sources)

    def __str__(self) -> str:
        lines = [f"{self.name} v{self.version}: {'stale' if self.stale else 'up to date'}"]
        return "\n  ".join([*lines, *map(str, self.sources)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows: list[dict[str, object]] = [
            {
                "source": source.reference,
                "delta_version": source.delta_version,
                "now": source.delta_version_now,
                "commits": source.commits,
                "problem": source.problem,
            }
            for source in self.sources
        ]
        return display.records_table(rows, caption=str(self).partition("\n")[0])


@dataclass(frozen=True)
class SourceDrift:
    """The distributions of one source of a dataset, at its pinned Delta version and now.

    ``report`` is None if nothing changed, or if a version can no longer be read; then
    ``problem`` is the reason.
    """

    source: SourceChange
    report: DriftReport | None = None
    problem: str | None = None

    __repr__ = display.record_repr

    @property
    def featuregroup(self) -> str:
        """The name of the feature group."""
        return self.source.featuregroup

    @property
    def drifted(self) -> tuple[str, ...]:
        """The names of the features whose distributions have changed."""
        if self.report is None:
            return ()
        return tuple(feature.name for feature in self.report.drifted)

    def __str__(self) -> str:
        text = "no drift"
        if self.problem is not None:
            text = self.problem
        elif self.drifted:
            text = f"drifted: {', '.join(self.drifted)}"
        return f"{self.source.reference}: {text}"


@dataclass(frozen=True, repr=False)
class DatasetDrift:
    """The drift of the distributions of all sources of a training dataset since its creation."""

    name: str
    version: int
    sources: tuple[SourceDrift, ...] = ()

    @property
    def drifted(self) -> tuple[str, ...]:
        """The features whose distributions have changed, as references."""
        return tuple(
            f"{drift.source.reference}.{name}" for drift in self.sources for name in drift.drifted
        )

    @property
    def ok(self) -> bool:
        """Whether no feature has drifted and all sources can be compared."""
        for source in self.sources:
            is_drifted = source.report is not None and not source.report.ok
            if is_drifted or source.problem is not None:
                return False
        return True

    def __str__(self) -> str:
        if not self.sources:
            return f"{self.name} v{self.version} has no feature groups as sources"
        state = "no drift" if self.ok else f"{len(self.drifted)} features drifted"
        return "\n  ".join([f"{self.name} v{self.version}: {state}", *map(str, self.sources)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows: list[dict[str, object]] = [
            {
                "source": drift.source.reference,
                "drifted": list(drift.drifted),
                "problem": drift.problem,
            }
            for drift in self.sources
        ]
        return display.records_table(rows, caption=str(self).partition("\n")[0])


def is_stale(session: Session, manifest: Manifest) -> bool:
    """Return whether any source of a dataset has changed since its export; reads only logs."""
    return any(_commits_since(session, source).stale for source in manifest.sources)


def dataset_staleness(session: Session, manifest: Manifest) -> DatasetStaleness:
    """Return the changes of each source of a dataset since its creation; reads only logs."""
    changes = tuple(_commits_since(session, source) for source in manifest.sources)
    return DatasetStaleness(manifest.name, manifest.version, changes)


def dataset_drift(session: Session, manifest: Manifest) -> DatasetDrift:
    """Return the drift of the distributions of each source since the creation of a dataset."""
    changes = dataset_staleness(session, manifest).sources
    drifts = tuple(_compare_statistics(session, change) for change in changes)
    return DatasetDrift(manifest.name, manifest.version, drifts)


def _commits_since(session: Session, source: JsonMapping) -> SourceChange:
    """Count the later commits of a source that changed rows, or name the problem."""
    name, version, pinned_version = (
        source["featuregroup"],
        source["version"],
        source["delta_version"],
    )
    path = session.featuregroup_path(name, version)
    if not is_delta_table(path):
        return SourceChange(
            name, version, pinned_version, None, problem="the group no longer exists"
        )
    latest = latest_version(path)
    snapshot = read_snapshot(path, latest)
    if source.get("live"):
        return SourceChange(
            name, version, pinned_version, None, problem="external, without a stored snapshot"
        )
    # A group that was deleted and created again has other rows under equal version numbers.
    pinned_table_id = source.get("table_id")
    if pinned_table_id is not None and pinned_table_id != snapshot.table_id:
        return SourceChange(
            name, version, pinned_version, None, problem="another table has replaced the group"
        )
    # Commits that only compact or annotate the table do not change rows and are not counted.
    changed = 0
    data_version = commits.latest_data_version(path, latest)
    while data_version > pinned_version:
        changed += 1
        data_version = commits.latest_data_version(path, data_version - 1)
    return SourceChange(name, version, pinned_version, latest, changed)


def _compare_statistics(session: Session, source: SourceChange) -> SourceDrift:
    """Compare the statistics of a source at the pinned version with the current ones."""
    if source.problem is not None or not source.commits:
        return SourceDrift(source, problem=source.problem)
    try:
        before = _statistics(session, source, source.delta_version)
        now = _statistics(session, source, source.delta_version_now or 0)
    except FeatureStoreError as error:
        # A vacuum may have removed the files of the pinned version. The other sources are still
        # compared.
        return SourceDrift(source, problem=error.message)
    return SourceDrift(source, compare_statistics(before, now))


def _statistics(session: Session, source: SourceChange, delta_version: int) -> Statistics:
    """Return the statistics of a source at a Delta version; compute them if none are stored."""
    path = session.featuregroup_path(source.featuregroup, source.version)
    group_key = {"featuregroup": source.featuregroup, "version": source.version}
    data_version = commits.latest_data_version(path, delta_version)
    stored_statistics = StatisticsFiles(path, group_key).get(data_version)
    snapshot = read_snapshot(path, delta_version)
    spec = commits.spec_of(snapshot)
    # Columns that were added later have no statistics in an earlier file.
    if (
        stored_statistics is not None
        and [column.name for column in stored_statistics.columns] == spec.schema.names
    ):
        return stored_statistics
    rows = session.engine.read_table(path, version=delta_version, schema=spec.schema)
    state = count_statistics(session.engine, rows, spec, rows=snapshot.rows)
    return finish(state, source={**group_key, "delta_version": data_version})
