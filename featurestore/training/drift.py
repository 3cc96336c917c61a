"""What a training dataset was made from, beside what its sources hold today."""

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
    """One source of a dataset: the Delta version it was read at, and the present one.

    ``commits`` counts the commits since that changed rows. ``report`` compares the statistics of
    both; None where nothing changed, or where one of them cannot be read any more (``problem``).
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
        """Whether the source changed since, or is gone."""
        return self.commits > 0 or self.delta_version_now is None

    @property
    def drifted(self) -> tuple[str, ...]:
        """The features whose distributions changed."""
        if self.report is None:
            return ()
        return tuple(each.name for each in self.report.drifted)


@dataclass(frozen=True, repr=False)
class DatasetDrift:
    """What changed in the sources of a training dataset since it was made."""

    name: str
    version: int
    sources: tuple[SourceDrift, ...] = field(default=())

    @property
    def stale(self) -> bool:
        """Whether any source changed."""
        return any(each.stale for each in self.sources)

    @property
    def ok(self) -> bool:
        """Whether no feature drifted and every source is there."""
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
            lines.append(f"  {each.featuregroup}@v{each.version}: {_told(each)}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows: list[dict[str, object]] = []
        for each in self.sources:
            rows.append(
                {
                    "source": f"{each.featuregroup}@v{each.version}",
                    "delta_version": each.delta_version,
                    "now": each.delta_version_now,
                    "commits": each.commits,
                    "drifted": list(each.drifted),
                    "problem": each.problem,
                }
            )
        return html.records_table(rows, caption=str(self).partition("\n")[0])


def is_stale(session: Session, manifest: Manifest) -> bool:
    """Tell whether any source of a dataset changed since, from the logs alone."""
    return any(_looked_at(session, source).stale for source in manifest.sources)


def drift_of(session: Session, manifest: Manifest) -> DatasetDrift:
    """Return how the sources of a dataset differ from what it was made from."""
    found = []
    for source in manifest.sources:
        looked_at = _looked_at(session, source)
        if looked_at.commits:
            looked_at = _compared(session, looked_at)
        found.append(looked_at)
    return DatasetDrift(manifest.name, manifest.version, tuple(found))


def _looked_at(session: Session, source: Mapping[str, Any]) -> SourceDrift:
    name, version, seen = source["featuregroup"], source["version"], source["delta_version"]
    path = session.featuregroup_path(name, version)
    if not is_delta_table(path):
        return SourceDrift(name, version, seen, None, problem="the group is gone")
    latest = latest_version(path)
    snapshot = read_snapshot(path, latest)
    if source.get("live"):
        return SourceDrift(name, version, seen, None, problem="external, and no snapshot was kept")
    made = source.get("table_id")
    if made is not None and made != snapshot.table_id:
        return SourceDrift(name, version, seen, None, problem="another group has its name")
    changed = 0
    last = commits.latest_data_version(path, latest)
    while last > seen:
        changed += 1
        last = commits.latest_data_version(path, last - 1)
    return SourceDrift(name, version, seen, latest, changed)


def _compared(session: Session, source: SourceDrift) -> SourceDrift:
    try:
        before = _statistics(session, source, source.delta_version)
        now = _statistics(session, source, source.delta_version_now or 0)
    except FeatureStoreError as error:
        return _with(source, problem=error.message)
    return _with(source, report=compare_statistics(before, now))


def _with(
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
    """Return the statistics of a source: those stored, or counted now."""
    path = session.featuregroup_path(source.featuregroup, source.version)
    told = {"featuregroup": source.featuregroup, "version": source.version}
    counted = commits.latest_data_version(path, delta_version)
    found = StatisticsFiles(path, told).get(counted)
    snapshot = read_snapshot(path, delta_version)
    spec = commits.spec_of(snapshot)
    if found is not None and [each.name for each in found.columns] == spec.schema.names:
        return found
    rows = session.engine.read_table(path, version=delta_version, schema=spec.schema)
    state = count_statistics(session.engine, rows, spec, rows=snapshot.rows)
    return finish(state, source={**told, "delta_version": counted})


def _told(source: SourceDrift) -> str:
    if source.problem is not None:
        return source.problem
    if not source.commits:
        return f"unchanged since Delta version {source.delta_version}"
    drifted = "no feature drifted"
    if source.drifted:
        drifted = f"drifted: {', '.join(source.drifted)}"
    return f"{source.commits} commits since Delta version {source.delta_version}; {drifted}"
