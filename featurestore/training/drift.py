"""Drift of a training dataset: its pinned sources compared with their present state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.delta import commits
from featurestore.delta.log import is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError
from featurestore.model import html
from featurestore.model.drift import DriftReport
from featurestore.model.manifest import Manifest
from featurestore.model.statistics import Statistics
from featurestore.session import Session
from featurestore.statistics import (
    StatisticsFiles,
    compare_statistics,
    count_statistics,
    finish,
)


@dataclass(frozen=True)
class SourceDrift:
    """One source of a dataset: its pinned Delta version and the present one.

    ``commits`` counts the later commits that changed rows. ``report`` compares the statistics of
    both versions; None if nothing changed, or if one cannot be read any more (``problem``).
    """

    featuregroup: str
    version: int
    delta_version: int
    delta_version_now: int | None
    commits: int = 0
    report: DriftReport | None = None
    problem: str | None = None

    @property
    def stale(self) -> bool:
        """Whether the source changed since, or was deleted."""
        return self.commits > 0 or self.delta_version_now is None

    @property
    def drifted(self) -> tuple[str, ...]:
        """The features whose distributions changed."""
        if self.report is None:
            return ()
        return tuple(each.name for each in self.report.drifted)


@dataclass(frozen=True, repr=False)
class DatasetDrift:
    """The changes in the sources of a training dataset since its creation."""

    name: str
    version: int
    sources: tuple[SourceDrift, ...] = field(default=())

    @property
    def stale(self) -> bool:
        """Whether any source changed."""
        return any(each.stale for each in self.sources)

    @property
    def ok(self) -> bool:
        """Whether no feature drifted and every source still exists."""
        for each in self.sources:
            changed = each.report is not None and not each.report.ok
            if changed or each.problem is not None or each.delta_version_now is None:
                return False
        return True

    def __str__(self) -> str:
        if not self.sources:
            return f"{self.name} v{self.version} has no feature groups as sources"
        lines = [f"{self.name} v{self.version}: {'stale' if self.stale else 'up to date'}"]
        for each in self.sources:
            lines.append(f"  {each.featuregroup}@v{each.version}: {_drift_text(each)}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows: list[dict[str, object]] = [
            {
                "source": f"{each.featuregroup}@v{each.version}",
                "delta_version": each.delta_version,
                "now": each.delta_version_now,
                "commits": each.commits,
                "drifted": list(each.drifted),
                "problem": each.problem,
            }
            for each in self.sources
        ]
        return html.records_table(rows, caption=str(self).partition("\n")[0])


def is_stale(session: Session, manifest: Manifest) -> bool:
    """Return whether any source of a dataset changed since, from the logs only."""
    return any(_commits_since(session, source).stale for source in manifest.sources)


def dataset_drift(session: Session, manifest: Manifest) -> DatasetDrift:
    """Return the drift of each source of a dataset since its creation."""
    drifts = []
    for source in manifest.sources:
        drift = _commits_since(session, source)
        if drift.commits:
            drift = _compared(session, drift)
        drifts.append(drift)
    return DatasetDrift(manifest.name, manifest.version, tuple(drifts))


def _commits_since(session: Session, source: Mapping[str, Any]) -> SourceDrift:
    name, version, pinned_version = (
        source["featuregroup"],
        source["version"],
        source["delta_version"],
    )
    path = session.featuregroup_path(name, version)
    if not is_delta_table(path):
        return SourceDrift(name, version, pinned_version, None, problem="the group is gone")
    latest = latest_version(path)
    snapshot = read_snapshot(path, latest)
    if source.get("live"):
        return SourceDrift(
            name, version, pinned_version, None, problem="external, and no snapshot was kept"
        )
    pinned_table_id = source.get("table_id")
    if pinned_table_id is not None and pinned_table_id != snapshot.table_id:
        return SourceDrift(
            name, version, pinned_version, None, problem="another group has its name"
        )
    changed = 0
    data_version = commits.latest_data_version(path, latest)
    while data_version > pinned_version:
        changed += 1
        data_version = commits.latest_data_version(path, data_version - 1)
    return SourceDrift(name, version, pinned_version, latest, changed)


def _compared(session: Session, source: SourceDrift) -> SourceDrift:
    try:
        before = _statistics(session, source, source.delta_version)
        now = _statistics(session, source, source.delta_version_now or 0)
    except FeatureStoreError as error:
        return _with_comparison(source, problem=error.message)
    return _with_comparison(source, report=compare_statistics(before, now))


def _with_comparison(
    source: SourceDrift, *, report: DriftReport | None = None, problem: str | None = None
) -> SourceDrift:
    return SourceDrift(
        source.featuregroup,
        source.version,
        source.delta_version,
        source.delta_version_now,
        source.commits,
        report,
        problem,
    )


def _statistics(session: Session, source: SourceDrift, delta_version: int) -> Statistics:
    """Return the statistics of a source at a Delta version: stored ones, or computed now."""
    path = session.featuregroup_path(source.featuregroup, source.version)
    group_key = {"featuregroup": source.featuregroup, "version": source.version}
    data_version = commits.latest_data_version(path, delta_version)
    stored_statistics = StatisticsFiles(path, group_key).get(data_version)
    snapshot = read_snapshot(path, delta_version)
    spec = commits.spec_of(snapshot)
    if (
        stored_statistics is not None
        and [each.name for each in stored_statistics.columns] == spec.schema.names
    ):
        return stored_statistics
    rows = session.engine.read_table(path, version=delta_version, schema=spec.schema)
    state = count_statistics(session.engine, rows, spec, rows=snapshot.rows)
    return finish(state, source={**group_key, "delta_version": data_version})


def _drift_text(source: SourceDrift) -> str:
    if source.problem is not None:
        return source.problem
    if not source.commits:
        return f"unchanged since Delta version {source.delta_version}"
    drifted = "no feature drifted"
    if source.drifted:
        drifted = f"drifted: {', '.join(source.drifted)}"
    return f"{source.commits} commits since Delta version {source.delta_version}; {drifted}"
