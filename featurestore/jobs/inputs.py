"""Inputs of a job: pinned to Delta versions before it computes, and filtered to a window.

Rows and time bounds of Parquet files come from their footers, faster than by a query.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal

from featurestore.arrow.types import feature_type
from featurestore.delta.log import is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import ExternalRowsError, InvalidJob
from featurestore.featuregroups.table import open_group
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import JobSpec, WindowJob, input_name
from featurestore.model.names import parse_group_reference
from featurestore.model.times import Window, shifted, to_micros
from featurestore.model.window_features import WindowLineage
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.session import Session
from featurestore.sources.registration import get as source_of
from featurestore.storage import files

_log = logging.getLogger("featurestore.jobs")


@dataclass(frozen=True)
class PinnedInput:
    """An input at the version that a run reads; ``time`` is the column that filters it, if any.

    A registered source is pinned when its rows are read: a run reads one snapshot.
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
        """Return the version and lineage of the input, as recorded with the run."""
        data: dict[str, Any] = {"input": self.name, "source": self.source, "version": self.version}
        data["delta_version"] = self.delta_version
        if self.fingerprint is not None:
            data["fingerprint"] = self.fingerprint
        if self.windows:
            data["windows"] = [each.to_json() for each in self.windows]
        return data


def pin_inputs(session: Session, spec: JobSpec) -> tuple[PinnedInput, ...]:
    """Return the inputs of a job at their current versions.

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
        return _with_windows(pinned, WindowJob.from_spec(spec))
    return tuple(pinned)


def _with_windows(pinned: Sequence[PinnedInput], job: WindowJob) -> tuple[PinnedInput, ...]:
    """Return the inputs of a window job, each with the lineage of the aggregates over it."""
    lineages: dict[str, list[WindowLineage]] = {each.name: [] for each in pinned}
    versions = {each.name: each.version for each in pinned}
    for feature in job.windows:
        name = input_name(feature)
        lineages[name].append(WindowLineage.from_feature(feature, version=versions[name]))
    return tuple([replace(each, windows=tuple(lineages[each.name])) for each in pinned])


def times_read_by(spec: JobSpec) -> Callable[[Window], tuple[int, int]]:
    """Return a function from a window to the times ``[first, last)`` that it reads, in µs."""
    if spec.kind == "window":
        return WindowJob.from_spec(spec).event_time_range
    label_delay = timedelta(0)
    if spec.watched is not None and spec.watched.model is not None:
        label_delay = spec.watched.model.within  # labels may follow their predictions by so much
    return lambda window: (
        to_micros(shifted(window.start, -spec.lookback)),
        to_micros(shifted(window.end, label_delay)),
    )


def read_input(
    session: Session, pinned: PinnedInput, window: Window, *, lookback: timedelta
) -> Relation:
    """Return the rows of an input in ``[window.start - lookback, window.end)``."""
    engine = session.engine
    if pinned.kind == "parquet":
        relation = engine.read_files([pinned.path])
    elif pinned.spec is not None:
        schema = pinned.spec.schema
        relation = engine.read_table(pinned.path, version=pinned.delta_version, schema=schema)
    else:
        columns = _readable_columns(pinned)
        relation = engine.read_table(pinned.path, version=pinned.delta_version, columns=columns)
    return filter_window(session, relation, pinned.time, window, lookback=lookback)


def filter_window(
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


def _readable_columns(pinned: PinnedInput) -> list[str]:
    """Return the columns of a foreign Delta table that have feature types.

    Others, such as maps, are left out, so that jobs that do not use them can read the table.
    """
    readable, unreadable = [], []
    for column in read_snapshot(pinned.path, pinned.delta_version).schema:
        if feature_type(column.type) is None:
            unreadable.append(f"{column.name!r} ({column.type})")
        else:
            readable.append(column.name)
    if unreadable:
        _log.warning(
            "input %r has no columns %s: they have no feature type", pinned.name, unreadable
        )
    return readable


def fingerprint_files(paths: Iterable[str]) -> str:
    """Return a hash of the names, sizes and modification times of files."""
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
    file_paths = list(parquet_files(path))
    if not file_paths:
        raise InvalidJob(
            f"Job {job!r}: its input {name!r} is {path}, "
            "which contains neither a Delta table nor Parquet files.",
            hint="a group reference has no '/' in it",
        )
    return PinnedInput(
        name, "parquet", path, path, time_column, fingerprint=fingerprint_files(file_paths)
    )


# -- Parquet files --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeBounds:
    """Minimum and maximum of times in microseconds, with counts of nulls and rows.

    Without a time the minimum is greater than the maximum.
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
        """Minimum and maximum time; None without a time."""
        return (self.low, self.high) if self.low <= self.high else None


def parquet_files(path: str) -> Iterator[str]:
    """Yield the Parquet files below a folder, in the order of their paths."""
    for file in sorted(files.walk(path), key=os.path.split):
        if file.endswith(".parquet"):
            yield file


def time_bounds(file: str, column: str) -> TimeBounds | None:
    """Return the bounds of a column of a Parquet file, None if its footer lacks them."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(files.open_ranges(file))
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


def file_volume(file: str, column: str | None) -> tuple[int, int, tuple[int, int] | None]:
    """Return rows and bytes of a file, and the bounds of a time column if its footer has them.

    Times are microseconds since 1970.
    """
    from pyarrow import parquet

    rows = parquet.read_metadata(files.open_ranges(file)).num_rows
    size = files.status(file).size
    if column is None:
        return rows, size, None
    bounds = time_bounds(file, column)
    if bounds is None:
        return rows, size, None
    return rows, size, bounds.times


def _micros(value: object) -> int | None:
    """Return a time of a footer in microseconds, None if the value is not a time."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        return None
    return to_micros(value if value.tzinfo else value.replace(tzinfo=UTC))
