"""Compute the rows of windows.

Functions are called once per window. A query computes many windows at once if it is proven that
this gives the same rows.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore import usersql
from featurestore.arrow.fitting import can_widen
from featurestore.arrow.frames import library_name
from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.untyped import adopt_types
from featurestore.errors import InvalidJob, RowsOutsideWindow, SchemaMismatch
from featurestore.featuregroups.table import OpenGroup
from featurestore.ingest import count_known_rows, open_relation, refuse_encoded_bytes
from featurestore.jobs.inputs import (
    SourceInputs,
    TimeBounds,
    filter_window,
    parquet_files,
    read_input,
    read_time_bounds,
)
from featurestore.jobs.query import WINDOW_COLUMNS, JobQuery, Unproven
from featurestore.jobs.run import JobRun
from featurestore.jobs.window_jobs import WindowRows
from featurestore.jobs.window_proofs import prove_chunk, windows_to_micros
from featurestore.model.job import SqlWork, TransformWork, WindowedWork, WindowWork
from featurestore.model.times import Window, from_micros, to_micros
from featurestore.plugins.engine import Accumulator, Engine, Relation, TimeRange
from featurestore.retrieval.labels import typed_relation

_log = logging.getLogger("featurestore.jobs")


def compute_aggregates(run: JobRun, work: WindowWork) -> Relation:
    """Compute and stage the rows of a window job for neighboring windows."""
    rows = WindowRows(run.session, work, run.inputs, run.staging).compute(run.windows)
    return _stage_and_check(run, work, run.window, rows, name="rows")[0]


def compute_transform(run: JobRun, work: TransformWork, sources: SourceInputs) -> Relation | None:
    """Compute and stage the rows of neighboring windows; None if a function returned no rows.

    Raises:
        RowsOutsideWindow: A row's event time is outside the window that computed it.
    """
    # The rows that any window of the chunk may read.
    chunk_range, lookback = run.window, work.lookback
    inputs = {}
    for name, relation in sources.within(chunk_range).items():
        # A source may return more rows than its filter selects, for example with coarser times.
        time = work.input_times.get(name)
        inputs[name] = filter_window(run.session, relation, time, chunk_range, lookback=lookback)
    for pinned in run.inputs:
        if pinned.source_type != "source":
            inputs[pinned.name] = read_input(run.session, pinned, chunk_range, lookback=lookback)
    if isinstance(work, SqlWork) and len(run.windows) > 1:
        try:
            rows = _compute_in_one_query(run, work, inputs)
        except Unproven as obstacle:
            _log.info("computing %d windows one by one: %s", len(run.windows), obstacle)
        else:
            return _stage_and_check(run, work, run.window, rows, name="rows")[0]
    return _compute_one_by_one(run, work, inputs)


def _compute_in_one_query(run: JobRun, work: SqlWork, inputs: Mapping[str, Relation]) -> Relation:
    """Return the rows of all windows.

    Raises:
        Unproven: Separate queries may return other rows.
        InvalidSql: The query of the job is invalid.
    """
    engine = run.session.engine
    times = {pinned.name: pinned.time for pinned in run.inputs if pinned.time is not None}
    schemas = {name: relation.schema for name, relation in inputs.items()}
    chunk = prove_chunk(work, run.windows, schemas=schemas, times=times)
    rows = JobQuery(work.code, engine).run(inputs, run.window)
    if chunk.input is None:
        return rows
    add_bounds = AddWindowBounds(times[chunk.input], windows_to_micros(run.windows))
    used_columns = usersql.find_columns(chunk.code, inputs[chunk.input].schema.names)
    columns = dict.fromkeys([*used_columns, times[chunk.input]])
    relation = engine.select(inputs[chunk.input], {name: name for name in columns})
    schema = pa.schema([*relation.schema, *((name, TIMESTAMP) for name in WINDOW_COLUMNS)])
    inputs = {**inputs, chunk.input: engine.map_batches(relation, add_bounds, schema=schema)}
    chunk_rows = JobQuery(chunk.code, engine).run(inputs, run.window)
    event_time = str(work.options.event_time)
    expected_schema = rows.schema
    if event_time not in rows.schema.names:
        expected_schema = rows.schema.append(pa.field(event_time, TIMESTAMP))
    if chunk_rows.schema != expected_schema:
        raise Unproven(f"columns of windows change the types of the result to {chunk_rows.schema}")
    return chunk_rows


def _compute_one_by_one(
    run: JobRun, work: TransformWork, inputs: Mapping[str, Relation]
) -> Relation | None:
    """Compute each window separately, from inputs that are read once."""
    engine, windows = run.session.engine, run.windows
    # A single window reads its inputs only once, so staging them would be an additional pass.
    if len(windows) > 1:
        inputs = _stage_inputs(run, inputs)
    schema_by_path: dict[str, pa.Schema] = {}
    schema, first_rows = (None if run.group is None else run.group.spec.schema), None
    for number, window in enumerate(windows):
        visible = {
            pinned.name: filter_window(
                run.session, inputs[pinned.name], pinned.time, window, lookback=work.lookback
            )
            for pinned in run.inputs
        }
        rows = _compute_window(run, work, visible, window)
        if rows is None:
            continue
        name = f"w{number:06d}"
        with open_relation(rows, engine=engine, like=schema) as window_rows:
            # With a lookback, the window of an upsert also returns late rows from before its start.
            # Only the first window of a chunk writes them, because the rows before the start of any
            # other window were computed by the windows before it.
            if number == 0:
                allowed_range = Window(window.start - work.row_lookback, window.end)
            else:
                allowed_range = window
                window_rows = _drop_late_rows(work, engine, window, window_rows)
            staged, bounds = _stage_and_check(run, work, allowed_range, window_rows, name=name)
        first_rows = first_rows or staged
        schema = _merge_schema(staged.schema, schema if schema_by_path else None, run.spec.name)
        if bounds.rows:
            schema_by_path[os.path.join(run.staging, name)] = staged.schema
    # If no window has rows, the empty result still needs a schema.
    if first_rows is None or schema is None or not schema_by_path:
        return first_rows
    if len(windows) == 1:
        return first_rows
    files = [
        _stage_with_types(engine, path, staged, schema) for path, staged in schema_by_path.items()
    ]
    return engine.read_files(files, schema=schema)


def _stage_with_types(
    engine: Engine, path: str, staged_schema: pa.Schema, schema: pa.Schema
) -> str:
    """Return a path to the staged files, with untyped columns cast to other windows' types."""
    if adopt_types(staged_schema, schema) == staged_schema:
        return path
    rows = engine.read_files([path], schema=staged_schema)
    engine.stage(_cast_untyped_columns(engine, rows, schema), f"{path}-typed")
    return f"{path}-typed"


def _cast_untyped_columns(
    engine: Engine, rows: Relation, like: pa.Schema | Mapping[str, pa.DataType]
) -> Relation:
    """Cast untyped columns to the types that ``like`` has for the same names."""
    return typed_relation(engine, rows, adopt_types(rows.schema, like))


def _drop_late_rows(
    work: TransformWork, engine: Engine, window: Window, rows: Relation
) -> Relation:
    """Drop the late rows of a window, which belong to an earlier window of the run."""
    column = str(work.options.event_time)
    if not work.row_lookback or column not in rows.schema.names:
        return rows
    return engine.within(rows, TimeRange(column, window.start, window.end, work.closed))


def _merge_schema(new: pa.Schema, previous: pa.Schema | None, job: str) -> pa.Schema:
    """Merge a schema into the common schema of all previous windows.

    Raises:
        SchemaMismatch: Columns differ, or have types without a common wider type.
    """
    if previous is None or new == previous:
        return new
    if sorted(new.names) != sorted(previous.names):
        raise SchemaMismatch(
            f"Job {job!r} returned the columns {previous.names} in one window and "
            f"{new.names} in a later one."
        )
    fields = []
    previous, new = adopt_types(previous, new), adopt_types(new, previous)
    for field in previous:
        new_field = new.field(field.name)
        if not can_widen(new_field.type, field.type) and not can_widen(field.type, new_field.type):
            raise SchemaMismatch(
                f"Job {job!r} returned {field.name!r} as {field.type} in one window and as "
                f"{new_field.type} in another.",
                hint="cast it in the job",
            )
        if can_widen(new_field.type, field.type):
            new_field = field
        fields.append(new_field)
    return pa.schema(fields)


def _compute_window(
    run: JobRun, work: TransformWork, visible: Mapping[str, Relation], window: Window
) -> Any:
    """Run the query or call the function of a job for one window; None without rows."""
    if isinstance(work, SqlWork):
        return JobQuery(work.code, run.session.engine).run(visible, window).native
    engine = run.session.engine
    native_inputs = {name: engine.user_frame(relation) for name, relation in visible.items()}
    try:
        returned = run.definition(window=window, **native_inputs)
    except SystemExit as error:  # it must not end the process of the scheduler
        raise InvalidJob(f"Job {run.spec.name!r} called exit({error.code!r}).") from error
    return None if _is_empty(returned, run.group) else returned


def _is_empty(returned: Any, group: OpenGroup | None) -> bool:
    """Return whether a result has neither rows nor a schema, so that it cannot be staged."""
    if isinstance(returned, list):
        return not returned
    if count_known_rows(returned) != 0:
        return False
    # The types of an empty pandas frame are not those of its rows.
    return len(returned.columns) == 0 or (group is None and library_name(returned) == "pandas")


def _stage_inputs(run: JobRun, inputs: Mapping[str, Relation]) -> dict[str, Relation]:
    """Stage the inputs of a chunk, so that each window does not read the entire table again."""
    staged_inputs = {}
    source_names = [pinned.name for pinned in run.inputs if pinned.source_type == "source"]
    for name, relation in inputs.items():
        if name in source_names:
            staged_inputs[name] = relation  # sources are staged when they are read
            continue
        path = os.path.join(run.staging, f"input-{name}")
        staged_inputs[name] = run.session.engine.stage(relation, path)
    return staged_inputs


def _stage_and_check(
    run: JobRun, work: WindowedWork, window: Window, rows: Relation, *, name: str
) -> tuple[Relation, TimeBounds]:
    """Stage the rows of a window, and check that their event times are inside the window.

    Raises:
        RowsOutsideWindow: Rows are outside the window or have no event time.
    """
    engine, job = run.session.engine, run.spec.name
    column = str(work.options.event_time)
    if column not in rows.schema.names:
        rows = _add_window_end(run, work, window, rows)
    # An event time column without values has no type, for example in an empty window. It must not
    # fail the type check below.
    rows = _cast_untyped_columns(engine, rows, {column: TIMESTAMP})
    dtype = rows.schema.field(column).type
    if not (pat.is_timestamp(dtype) or pat.is_date(dtype)):
        raise InvalidJob(
            f"Job {job!r}: its event time {column!r} has type {dtype}, which is not a time."
        )
    folder = os.path.join(run.staging, name)
    # The rows are staged before they are checked: a job may return a stream, which can be read only
    # once, and the footers of the staged files already contain the time bounds.
    staged = engine.stage(rows, folder)
    if any(pinned.source_type == "source" for pinned in run.inputs):
        # A group without rows may be the result of an empty window: its schema proves nothing.
        like = run.group.spec.schema if run.group is not None and run.group.state.rows else None
        refuse_encoded_bytes(staged, engine=engine, like=like)
    bounds = _read_time_bounds(engine, staged, folder, column)
    if bounds.nulls:
        raise RowsOutsideWindow(f"Job {job!r}: {bounds.nulls:,} rows have no {column!r}.")
    _check_event_times(job, work, window, bounds)
    return staged, bounds


def _check_event_times(job: str, work: WindowedWork, window: Window, bounds: TimeBounds) -> None:
    """Raise an error if a window computed rows outside of itself."""
    if bounds.times is None:
        return
    low, high = bounds.times
    start, end = to_micros(window.start), to_micros(window.end)
    if work.closed == "right":
        rule, is_inside = "(start, end]", start < low and high <= end
    else:
        rule, is_inside = "[start, end)", start <= low and high < end
    if not is_inside:
        first, last = from_micros(low).isoformat(), from_micros(high).isoformat()
        raise RowsOutsideWindow(
            f"Job {job!r}: rows have {work.options.event_time!r} from {first} to {last}, outside the "
            f"window {rule} from {window.start.isoformat()} to {window.end.isoformat()}.",
            hint="stamp rows with the time when they became known (closed='right'), "
            "or use closed='left'",
        )


def _read_time_bounds(engine: Engine, staged: Relation, folder: str, column: str) -> TimeBounds:
    """Return the bounds of a time column, from the footers of the staged files if possible."""
    bounds = TimeBounds()
    for file in parquet_files(folder):
        of_file = read_time_bounds(file, column)
        if of_file is None:  # Spark writes no statistics for INT96 times
            times = engine.select(staged, {column: column})
            return engine.aggregate(times, BoundsAccumulator(column))
        bounds = bounds.merge(of_file)
    return bounds


def _add_window_end(run: JobRun, work: WindowedWork, window: Window, rows: Relation) -> Relation:
    """Add the event time column to rows that lack it: the end of their window."""
    if work.closed == "left":
        raise InvalidJob(
            f"Job {run.spec.name!r}: its rows have no column {work.options.event_time!r}.",
            hint="with closed='left', the rows need a column with the time of their values",
        )
    # The rows of a window are known at its end. An earlier event time would leak them into labels
    # of the window itself.
    stamp = AddConstantTime(str(work.options.event_time), to_micros(window.end))
    schema = rows.schema.append(pa.field(stamp.column, TIMESTAMP))
    return run.session.engine.map_batches(rows, stamp, schema=schema)


@dataclass(frozen=True)
class AddConstantTime:
    """A batch function that adds a column with a constant time."""

    column: str
    micros: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Append the column to a batch."""
        values = pa.array(np.full(batch.num_rows, self.micros, dtype=np.int64)).view(TIMESTAMP)
        return pa.RecordBatch.from_arrays(
            [*batch.columns, values], names=[*batch.schema.names, self.column]
        )


@dataclass(frozen=True)
class AddWindowBounds:
    """A batch function that adds the bounds of the window of each row, as ``WINDOW_COLUMNS``.

    ``bounds`` has the starts and ends of consecutive windows in microseconds, one row per window.
    """

    time: str
    bounds: npt.NDArray[np.int64]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Append the columns to a batch whose times are in the windows."""
        micros = _read_micros(batch.column(batch.schema.get_field_index(self.time)))
        windows = np.searchsorted(self.bounds[:, 0], micros, side="right") - 1
        columns = [pa.array(column).view(TIMESTAMP) for column in self.bounds[windows].T]
        return pa.RecordBatch.from_arrays(
            [*batch.columns, *columns], names=[*batch.schema.names, *WINDOW_COLUMNS]
        )


def _read_micros(times: pa.Array) -> npt.NDArray[np.int64]:
    """Return the times that are not null, in microseconds; dates are midnights."""
    micros: npt.NDArray[np.int64] = pc.cast(
        pc.cast(times.drop_null(), TIMESTAMP), pa.int64()
    ).to_numpy()
    return micros


@dataclass(frozen=True)
class BoundsAccumulator(Accumulator[TimeBounds, TimeBounds]):
    """Accumulates the bounds of a time column."""

    column: str

    def start(self) -> TimeBounds:
        """Return the bounds of zero rows."""
        return TimeBounds()

    def update(self, state: TimeBounds, batch: pa.RecordBatch) -> TimeBounds:
        """Extend the bounds by a batch."""
        values = batch.column(batch.schema.get_field_index(self.column))
        micros = _read_micros(values)
        if len(micros):
            state = state.merge(TimeBounds(int(micros.min()), int(micros.max())))
        return state.merge(TimeBounds(nulls=values.null_count, rows=len(values)))

    def merge(self, first: TimeBounds, second: TimeBounds) -> TimeBounds:
        """Merge two bounds."""
        return first.merge(second)

    def finish(self, state: TimeBounds) -> TimeBounds:
        """Return the bounds."""
        return state
