"""Job inputs, pinned to their versions; rows of registered sources are staged from one snapshot."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from featurestore import usersql
from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.types import feature_type
from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import ExternalRowsError, InvalidJob
from featurestore.external import reading
from featurestore.external.renaming import RenamedSnapshot
from featurestore.featuregroups.table import open_group
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import (
    JobSpec,
    MonitorWork,
    SqlWork,
    TransformWork,
    WindowWork,
)
from featurestore.model.names import parse_group_reference
from featurestore.model.source import SourceInput, SourceRead, SourceSpec
from featurestore.model.times import Window, shift_time, to_micros
from featurestore.model.window_features import WindowLineage
from featurestore.model.window_job import WindowJob, input_name
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.plugins.source import PartitionedSnapshot, SourceQuery
from featurestore.session import Session
from featurestore.sources.frame import build_query, check_time
from featurestore.sources.registration import get
from featurestore.sources.registration import get as source_of
from featurestore.storage import storage_for

_log = logging.getLogger("featurestore.jobs")


@dataclass(frozen=True)
class PinnedInput:
    """An input pinned to the version that a run reads; ``time`` is its filter column, if any.

    A registered source is pinned when its rows are read: each run reads one snapshot.

    ``identity`` is the id of the Delta table, or a hash of the registration of a source: it differs
    if the input was removed and created again, even with the same versions.
    """

    name: str
    source_type: Literal["group", "delta", "parquet", "source"]
    source: str
    path: str
    time: str | None
    version: int | None = None
    delta_version: int | None = None
    fingerprint: str | None = None
    identity: str | None = None
    spec: FeatureGroupSpec | None = None
    windows: tuple[WindowLineage, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the version and lineage of the input, as recorded with the run."""
        data: dict[str, Any] = {"input": self.name, "source": self.source, "version": self.version}
        data["delta_version"] = self.delta_version
        optional_values = {"fingerprint": self.fingerprint, "identity": self.identity}
        data |= {name: value for name, value in optional_values.items() if value is not None}
        if self.windows:
            data["windows"] = [window.to_json() for window in self.windows]
        return data


def pin_inputs(session: Session, spec: JobSpec) -> tuple[PinnedInput, ...]:
    """Pin the inputs of a job to their current versions.

    Raises:
        FeatureGroupNotFound: A group does not exist.
        SourceNotFound: A source is not registered.
        InvalidJob: A path contains neither a Delta table nor Parquet files.
    """
    work, pinned = spec.work, list[PinnedInput]()
    # A monitor of nothing but the age of the event time reads no rows.
    needs_rows = not (isinstance(work, MonitorWork) and work.watched.is_freshness_only)
    input_times: Mapping[str, str] = {}
    sources: Mapping[str, SourceInput] = {}
    if isinstance(work, TransformWork):
        input_times, sources = work.input_times, work.sources
    for name, source in work.inputs.items():
        time_column = input_times.get(name)
        if name in sources:
            registered = source_of(session, sources[name].source)
            # Descriptions and references to secrets do not change the rows.
            address = [registered.kind, registered.uri, sorted(registered.options.items())]
            identity = hashlib.sha256(json.dumps(address).encode()).hexdigest()
            pinned.append(
                PinnedInput(name, "source", source, registered.uri, time_column, identity=identity)
            )
        elif "/" in source:
            pinned.append(_pin_path(name, source, time_column, job=spec.name))
        else:
            pinned.append(_pin_group(session, name, source, time_column, needs_rows=needs_rows))
    if isinstance(work, WindowWork):
        return _add_aggregate_lineage(pinned, WindowJob.from_work(work))
    return tuple(pinned)


def _pin_group(
    session: Session, name: str, reference: str, time_column: str | None, *, needs_rows: bool
) -> PinnedInput:
    """Pin a feature group to its current Delta version."""
    group = open_group(session, *parse_group_reference(reference))
    spec = group.spec
    if spec.external is not None and needs_rows:
        raise ExternalRowsError(
            f"Feature group {spec.name!r} is external, with the rows of {spec.external}. Jobs and "
            "monitors read only groups whose versions are in the store, except monitors of nothing "
            "but the age of the event time.",
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
        identity=group.state.table_id,
        spec=spec,
    )


def _pin_path(name: str, source: str, time_column: str | None, *, job: str) -> PinnedInput:
    """Pin a Delta table to its version, or a folder of Parquet files to a hash of its files."""
    path = os.path.abspath(os.path.expanduser(source))
    if is_delta_table(path):
        state = read_snapshot(path)
        return PinnedInput(
            name,
            "delta",
            path,
            path,
            time_column,
            delta_version=state.version,
            identity=state.table_id,
        )
    file_paths = list(parquet_files(path))
    if not file_paths:
        raise InvalidJob(
            f"Job {job!r}: the path {path} of input {name!r} contains neither a Delta table nor "
            "Parquet files.",
            hint="a group reference contains no '/'",
        )
    return PinnedInput(
        name, "parquet", path, path, time_column, fingerprint=fingerprint_files(file_paths)
    )


def _add_aggregate_lineage(
    pinned: Sequence[PinnedInput], job: WindowJob
) -> tuple[PinnedInput, ...]:
    """Add the lineage of the aggregates to the inputs of a window job."""
    lineages: dict[str, list[WindowLineage]] = {pinned_input.name: [] for pinned_input in pinned}
    versions = {pinned_input.name: pinned_input.version for pinned_input in pinned}
    for feature in job.windows:
        name = input_name(feature)
        lineages[name].append(WindowLineage.from_feature(feature, version=versions[name]))
    return tuple(
        [
            replace(pinned_input, windows=tuple(lineages[pinned_input.name]))
            for pinned_input in pinned
        ]
    )


def make_read_range(spec: JobSpec) -> Callable[[Window], tuple[int, int]]:
    """Return a function from a window to the time range ``[first, last)`` that it reads, in µs."""
    work = spec.work
    if isinstance(work, WindowWork):
        return WindowJob.from_work(work).event_time_range
    label_delay = timedelta(0)
    if isinstance(work, MonitorWork) and work.watched.model is not None:
        label_delay = work.watched.model.within  # labels may follow their predictions by so much
    lookback = work.lookback if isinstance(work, TransformWork) else timedelta(0)
    return lambda window: (
        to_micros(shift_time(window.start, -lookback)),
        to_micros(shift_time(window.end, label_delay)),
    )


def read_input(
    session: Session, pinned: PinnedInput, window: Window, *, lookback: timedelta
) -> Relation:
    """Read the rows of an input in ``[window.start - lookback, window.end)``."""
    engine = session.engine
    if pinned.source_type == "parquet":
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
    """Filter a relation to the rows that a window may read."""
    if time_column is None:
        return relation
    visible = TimeRange(time_column, shift_time(window.start, -lookback), window.end)
    return session.engine.within(relation, visible)


def _readable_columns(pinned: PinnedInput) -> list[str]:
    """Return the columns of an external Delta table that have feature types.

    Columns of other types, such as maps, are excluded, so that jobs that do not use them can
    read the table.
    """
    readable, unreadable = [], []
    for column in read_snapshot(pinned.path, pinned.delta_version).schema:
        if feature_type(column.type) is None:
            unreadable.append(f"{column.name!r} ({column.type})")
        else:
            readable.append(column.name)
    if unreadable:
        _log.warning(
            "the columns %s of input %r are omitted, because features cannot have these types",
            unreadable,
            pinned.name,
        )
    return readable


@dataclass
class SourceInputs:
    """The staged rows of a run's registered sources, with records of the reads.

    Each range is read only once, so that everything that a run computes from it is consistent.
    ``keys`` contains all keys of the source from the same snapshot, for a job that deletes missing
    keys.
    """

    session: Session
    work: TransformWork
    inputs: tuple[PinnedInput, ...]
    staging: str
    reads: list[SourceRead] = field(default_factory=list)
    keys: Relation | None = None
    _staged: dict[Window, dict[str, Relation]] = field(default_factory=dict)

    def within(self, window: Window) -> dict[str, Relation]:
        """Return the staged rows that a window reads, by input name.

        Raises:
            SourceUnavailable: A source cannot be reached.
            SourceTableNotFound: A table or a column that the job needs does not exist.
        """
        if window not in self._staged:
            self._staged[window] = self._read(window)
        return self._staged[window]

    def _read(self, window: Window) -> dict[str, Relation]:
        """Read and stage all source inputs of a window, each source from one snapshot."""
        # All inputs from one source are read from one snapshot, so that joins between these inputs
        # are consistent.
        by_source: dict[str, list[PinnedInput]] = {}
        for pinned in self.inputs:
            if pinned.source_type == "source":
                name = self.work.sources[pinned.name].source
                by_source.setdefault(name, []).append(pinned)
        staged = {}
        for name, inputs in by_source.items():
            registered = get(self.session, name)
            snapshot = reading.open_snapshot(self.session, registered)
            try:
                for pinned in inputs:
                    staged[pinned.name] = self._stage(pinned, window, registered, snapshot)
                    if self.work.delete_missing:
                        self.keys = self._stage_keys(pinned, snapshot)
            finally:
                snapshot.close()
        return staged

    def _stage(
        self, pinned: PinnedInput, window: Window, registered: SourceSpec, snapshot: RenamedSnapshot
    ) -> Relation:
        """Stage the rows of one input from a snapshot, and record the read."""
        query = self._query(pinned, window, snapshot)
        schema = snapshot.schema(query)
        check_feature_names(schema.names)
        if pinned.time is not None:
            check_time(registered, query, schema, pinned.time)
        read = SourceRead(
            registered.name, registered.kind, query.hash, snapshot.identity, input=pinned.name
        )
        self.reads.append(read)
        name = f"source-{pinned.name}"
        # Tasks of the engine read partitions of the snapshot themselves; all other sources are read
        # in this process.
        if reading.has_parts(self.session, registered):
            assert isinstance(snapshot, PartitionedSnapshot)
            directory = os.path.join(self.staging, name)
            return reading.stage_and_record(
                self.session, snapshot, query, read, directory, time=pinned.time
            )
        # The count of the snapshot includes the inputs that were read before.
        earlier_bad_rows = snapshot.bad_row_count
        reader = snapshot.read(query)
        batches = reading.read_in_background(
            partial(reading.record_batches, reader, read, time=pinned.time)
        )
        staged = self._stage_rows(batches, reader.schema, name)
        read.quarantined = snapshot.bad_row_count - earlier_bad_rows
        return staged

    def _stage_keys(self, pinned: PinnedInput, snapshot: RenamedSnapshot) -> Relation:
        """Stage all keys of a source, for the deletion of missing keys."""
        source_input = self.work.sources[pinned.name]
        query = build_query(
            table=source_input.table,
            sql=source_input.sql,
            path=source_input.path,
            rename=source_input.rename,
        )
        reader = snapshot.read(replace(query, columns=self.work.options.primary_key))
        return self._stage_rows(
            reading.read_in_background(partial(iter, reader)), reader.schema, "source-keys"
        )

    def _stage_rows(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, name: str
    ) -> Relation:
        """Stage record batches as a relation of the engine."""
        engine = self.session.engine
        rows = engine.from_arrow(pa.RecordBatchReader.from_batches(schema, iter(batches)))
        # On Spark, from_arrow has written the rows to temporary files, which are not needed after
        # staging.
        try:
            return engine.stage(rows, os.path.join(self.staging, name))
        finally:
            engine.release(rows)

    def _query(self, pinned: PinnedInput, window: Window, snapshot: RenamedSnapshot) -> SourceQuery:
        """Build the query for an input: the columns that the SQL uses, filtered by time."""
        source_input = self.work.sources[pinned.name]
        query = build_query(
            table=source_input.table,
            sql=source_input.sql,
            path=source_input.path,
            rename=source_input.rename,
        )
        # Only a query shows which columns it uses; a function may use any column.
        columns = None
        if isinstance(self.work, SqlWork):
            used_columns = usersql.find_columns(self.work.code, list(snapshot.names(query)))
            names = list(used_columns)
            if pinned.time is not None and pinned.time not in names:
                names.append(pinned.time)  # the filter below needs it
            columns = tuple(names)
        time_range = None
        if pinned.time is not None:
            time_range = TimeRange(pinned.time, window.start - self.work.lookback, window.end)
        return replace(query, columns=columns, window=time_range)


# -- Parquet files --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeBounds:
    """The minimum and maximum of times in microseconds, with the counts of nulls and rows.

    Without any time, the minimum is greater than the maximum.
    """

    low: int = 2**63 - 1
    high: int = -(2**63)
    nulls: int = 0
    rows: int = 0

    def merge(self, bounds: TimeBounds) -> TimeBounds:
        """Return the combined bounds."""
        return TimeBounds(
            min(self.low, bounds.low),
            max(self.high, bounds.high),
            self.nulls + bounds.nulls,
            self.rows + bounds.rows,
        )

    @property
    def times(self) -> tuple[int, int] | None:
        """The minimum and maximum time, or None if there is no time."""
        return (self.low, self.high) if self.low <= self.high else None


def fingerprint_files(paths: Iterable[str]) -> str:
    """Return a hash of the names, sizes and modification times of files."""
    digest = hashlib.sha256()
    for file in paths:
        # Sizes and times are compared instead of contents, which would have to be read for every
        # run.
        status = storage_for(file).status(file)
        digest.update(f"{file} {status.size} {status.modified_ns}\n".encode())
    return digest.hexdigest()


def parquet_files(path: str) -> Iterator[str]:
    """Yield the Parquet files below a folder, in path order."""
    # The fingerprint hashes the files in this order, which must not depend on the storage.
    for file in sorted(storage_for(path).walk(path), key=os.path.split):
        if file.endswith(".parquet"):
            yield file


def read_time_bounds(file: str, column: str) -> TimeBounds | None:
    """Return the bounds of a Parquet column, or None if the file footer lacks them."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(storage_for(file).open_ranges(file))
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
        # A row group that contains only nulls has no minimum and maximum.
        if nulls < rows:
            if not statistics.has_min_max:
                return None
            low, high = _to_microseconds(statistics.min), _to_microseconds(statistics.max)
            if low is None or high is None:
                return None
            bounds = bounds.merge(TimeBounds(low, high))
        bounds = bounds.merge(TimeBounds(nulls=nulls, rows=rows))
    return bounds


def read_file_volume(file: str, column: str | None) -> tuple[int, int, tuple[int, int] | None]:
    """Return the row count and size of a file, and the time bounds if its footer has them.

    Times are microseconds since 1970.
    """
    storage = storage_for(file)
    from pyarrow import parquet

    rows = parquet.read_metadata(storage.open_ranges(file)).num_rows
    size = storage.status(file).size
    if column is None:
        return rows, size, None
    bounds = read_time_bounds(file, column)
    if bounds is None:
        return rows, size, None
    return rows, size, bounds.times


def _to_microseconds(value: object) -> int | None:
    """Convert a time in a footer to microseconds; return None if the value is not a time."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        return None
    # Times without a time zone are UTC, as in feature groups.
    return to_micros(value if value.tzinfo else value.replace(tzinfo=UTC))
