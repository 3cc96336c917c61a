"""Inputs of a job, pinned to Delta versions before it computes, and cut to what a window sees.

Of Parquet files the footers tell rows and times, which is faster than any query over the rows.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal

from featurestore.delta.log import is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import ExternalRowsError, InvalidJob
from featurestore.featuregroups.table import open_group
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import JobSpec
from featurestore.model.references import parse_group_reference
from featurestore.model.times import shifted, to_micros
from featurestore.model.types import feature_type
from featurestore.model.window import Window
from featurestore.model.window_job import WindowJob, input_name
from featurestore.model.window_lineage import WindowLineage
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.session import Session
from featurestore.sources.registration import get as source_of
from featurestore.storage import files

_log = logging.getLogger("featurestore.jobs")


@dataclass(frozen=True)
class PinnedInput:
    """One input as it stood when a run began; ``time`` is the column that cuts it, if any.

    A registered source is pinned when its rows are read: all of a run in one snapshot of it.
    """

    name: str
    kind: Literal["group", "delta", "parquet", "source"]
    source: str
    path: str
    time: str | None
    version: int | None = None
    delta_version: int | None = None
    fingerprint: str | None = None
    spec: FeatureGroupSpec | None = None
    windows: tuple[WindowLineage, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what lineage and stale windows need."""
        found: dict[str, Any] = {"input": self.name, "source": self.source, "version": self.version}
        found["delta_version"] = self.delta_version
        if self.fingerprint is not None:
            found["fingerprint"] = self.fingerprint
        if self.windows:
            found["windows"] = [each.to_json() for each in self.windows]
        return found


def pin(session: Session, spec: JobSpec) -> tuple[PinnedInput, ...]:
    """Return the inputs of a job at their present versions.

    Raises:
        FeatureGroupNotFound: A group does not exist.
        SourceNotFound: A source is not registered.
        InvalidJob: A path holds neither a Delta table nor Parquet files.
    """
    pinned = []
    for name, source in spec.inputs.items():
        time_column = spec.input_times.get(name)
        if name in spec.sources:
            registered = source_of(session, spec.sources[name].source)
            pinned.append(PinnedInput(name, "source", source, registered.uri, time_column))
        elif "/" in source:
            pinned.append(_pin_path(name, source, time_column, job=spec.name))
        else:
            pinned.append(_pin_group(session, name, source, time_column))
    if spec.kind == "window":
        return _with_windows(pinned, WindowJob.of(spec))
    return tuple(pinned)


def _with_windows(pinned: Sequence[PinnedInput], job: WindowJob) -> tuple[PinnedInput, ...]:
    """Return the inputs of a window job, each with the aggregates that are made of it."""
    made: dict[str, list[WindowLineage]] = {each.name: [] for each in pinned}
    versions = {each.name: each.version for each in pinned}
    for wanted in job.windows:
        name = input_name(wanted)
        made[name].append(WindowLineage.of(wanted, version=versions[name]))
    return tuple([replace(each, windows=tuple(made[each.name])) for each in pinned])


def seen_by(spec: JobSpec) -> Callable[[Window], tuple[int, int]]:
    """Return what tells the range of times, ``[first, last)`` in microseconds, that a window sees."""
    if spec.kind == "window":
        return WindowJob.of(spec).seen
    later = timedelta(0)
    if spec.watched is not None and spec.watched.model is not None:
        later = spec.watched.model.within  # labels may come so long after their predictions
    return lambda window: (
        to_micros(shifted(window.start, -spec.lookback)),
        to_micros(shifted(window.end, later)),
    )


def read(session: Session, given: PinnedInput, window: Window, *, lookback: timedelta) -> Relation:
    """Return the rows of an input that lie in ``[window.start - lookback, window.end)``."""
    engine = session.engine
    if given.kind == "parquet":
        relation = engine.read_files([given.path])
    elif given.spec is not None:
        schema = given.spec.schema
        relation = engine.read_table(given.path, version=given.delta_version, schema=schema)
    else:
        columns = _readable_columns(given)
        relation = engine.read_table(given.path, version=given.delta_version, columns=columns)
    return cut(session, relation, given.time, window, lookback=lookback)


def cut(
    session: Session,
    relation: Relation,
    time_column: str | None,
    window: Window,
    *,
    lookback: timedelta = timedelta(0),
) -> Relation:
    """Return the rows of a relation that a window may see."""
    if time_column is None:
        return relation
    visible = TimeRange(time_column, shifted(window.start, -lookback), window.end)
    return session.engine.within(relation, visible)


def _readable_columns(given: PinnedInput) -> list[str]:
    """Return the columns of a foreign Delta table that have feature types; maps have none.

    The others are left out, so that a job which does not ask for them can read the table.
    """
    readable, others = [], []
    for column in read_snapshot(given.path, given.delta_version).schema:
        if feature_type(column.type) is None:
            others.append(f"{column.name!r} ({column.type})")
        else:
            readable.append(column.name)
    if others:
        _log.warning("input %r has no columns %s: they have no feature type", given.name, others)
    return readable


def fingerprint(paths: Iterable[str]) -> str:
    """Return a hash of names, sizes and times of files."""
    digest = hashlib.sha256()
    for file in paths:
        status = files.status(file)
        digest.update(f"{file} {status.size} {status.modified_ns}\n".encode())
    return digest.hexdigest()


def _pin_group(session: Session, name: str, reference: str, time_column: str | None) -> PinnedInput:
    group = open_group(session, *parse_group_reference(reference))
    spec = group.spec
    if spec.external is not None:
        raise ExternalRowsError(
            f"Feature group {spec.name!r} is external: jobs and monitors read the versions of a "
            f"group, and its rows are those of {spec.external}.",
            hint=f"inputs={{{name!r}: featurestore.source({spec.external.source!r}, ...)}}",
        )
    return PinnedInput(
        name,
        "group",
        source=spec.name,
        path=group.path,
        time=time_column or spec.event_time,
        version=spec.version,
        delta_version=group.delta_version,
        spec=spec,
    )


def _pin_path(name: str, source: str, time_column: str | None, *, job: str) -> PinnedInput:
    path = os.path.abspath(os.path.expanduser(source))
    if is_delta_table(path):
        version = latest_version(path)
        return PinnedInput(name, "delta", path, path, time_column, delta_version=version)
    found = list(parquet_files(path))
    if not found:
        raise InvalidJob(
            f"Job {job!r}: its input {name!r} is {path}, "
            "which holds neither a Delta table nor Parquet files.",
            hint="a group reference has no '/' in it",
        )
    return PinnedInput(name, "parquet", path, path, time_column, fingerprint=fingerprint(found))


# -- Parquet files --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeBounds:
    """Least and greatest time of some rows in microseconds, nulls, rows.

    Without a time the least is above the greatest.
    """

    low: int = 2**63 - 1
    high: int = -(2**63)
    nulls: int = 0
    rows: int = 0

    def merge(self, other: TimeBounds) -> TimeBounds:
        """Return the bounds of both."""
        return TimeBounds(
            min(self.low, other.low),
            max(self.high, other.high),
            self.nulls + other.nulls,
            self.rows + other.rows,
        )

    @property
    def times(self) -> tuple[int, int] | None:
        """Least and greatest time; None without a time."""
        return (self.low, self.high) if self.low <= self.high else None


def parquet_files(path: str) -> Iterator[str]:
    """Yield the Parquet files below a folder, in the order of their paths."""
    for file in sorted(files.walk(path), key=os.path.split):
        if file.endswith(".parquet"):
            yield file


def time_bounds(file: str, column: str) -> TimeBounds | None:
    """Return the bounds of a column of a Parquet file; None where its footer does not tell."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(files.opened_by_ranges(file))
    index = metadata.schema.to_arrow_schema().get_field_index(column)
    if index < 0:
        return None
    bounds = TimeBounds()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(index).statistics
        if statistics is None or not statistics.has_null_count:
            return None
        nulls, rows = statistics.null_count, group.num_rows
        if nulls < rows:
            if not statistics.has_min_max:
                return None
            low, high = _micros(statistics.min), _micros(statistics.max)
            if low is None or high is None:
                return None
            bounds = bounds.merge(TimeBounds(low, high))
        bounds = bounds.merge(TimeBounds(nulls=nulls, rows=rows))
    return bounds


def volume(file: str, column: str | None) -> tuple[int, int, tuple[int, int] | None]:
    """Return rows and bytes of a file, and the bounds of a time column where its footer tells.

    Times are microseconds since 1970.
    """
    from pyarrow import parquet

    rows = parquet.read_metadata(files.opened_by_ranges(file)).num_rows
    size = files.status(file).size
    if column is None:
        return rows, size, None
    bounds = time_bounds(file, column)
    if bounds is None:
        return rows, size, None
    return rows, size, bounds.times


def _micros(value: object) -> int | None:
    """Return a time of a footer in microseconds; None when it is none."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        return None
    return to_micros(value if value.tzinfo else value.replace(tzinfo=UTC))
