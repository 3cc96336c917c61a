"""Compute the rows of windows.

A function window by window, a query for many at once where that is the same.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidJob, RowsOutsideWindow, SchemaMismatch
from featurestore.ingest import handed_over, refuse_encoded_bytes
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.digests import BoundsAccumulator, DigestAccumulator, PartsAccumulator
from featurestore.jobs.inputs import PinnedInput, TimeBounds, cut, parquet_files, read, time_bounds
from featurestore.jobs.query import Query, keeps_to_windows, may_take_many
from featurestore.jobs.source_inputs import SourceInputs
from featurestore.jobs.window_jobs.rows import WindowRows
from featurestore.model.job import JobSpec
from featurestore.model.times import from_micros, to_micros
from featurestore.model.types import TIMESTAMP, widens
from featurestore.model.untyped import typed_like
from featurestore.model.window import Window
from featurestore.plugins.engine import Engine, Relation, TimeRange
from featurestore.retrieval.untyped_rows import typed_relation
from featurestore.session import Session

_log = logging.getLogger("featurestore.jobs")


@dataclass(frozen=True)
class Computation:
    """The definition of a run, its inputs pinned, where to stage, and the schema known so far.

    ``has_rows`` tells whether the group has rows already.
    """

    session: Session
    definition: JobDefinition
    inputs: tuple[PinnedInput, ...]
    staging: str
    sources: SourceInputs
    like: pa.Schema | None = None
    has_rows: bool = False

    @property
    def spec(self) -> JobSpec:
        """The job's definition."""
        return self.definition.spec


def compute(run: Computation, windows: Sequence[Window]) -> Relation | None:
    """Return the staged rows of neighbouring windows; None when a function gave none.

    Raises:
        RowsOutsideWindow: A row's event time lies outside the window that computed it.
    """
    if run.spec.kind == "window":
        return _of_window_job(run, windows)
    if run.spec.kind == "sql" and len(windows) > 1 and _meet(windows):
        times = [each.time for each in run.inputs if each.time is not None]
        if may_take_many(run.spec, times=times):
            proven = keeps_to_windows(run.spec, windows, time=times[0])
            together = _together(run, windows, proven=proven)
            if together is not None:
                return together
    return _each(run, windows)


def _of_window_job(run: Computation, windows: Sequence[Window]) -> Relation:
    rows = WindowRows(run.session, run.spec, run.inputs, run.staging).of(windows)
    whole = Window(windows[0].start, windows[-1].end)
    staged, _ = _staged(run, whole, rows, place="rows")
    return staged


def _meet(windows: Sequence[Window]) -> bool:
    """Return whether windows leave no time between them."""
    return all(before.end == after.start for before, after in pairwise(windows))


def _together(run: Computation, windows: Sequence[Window], *, proven: bool) -> Relation | None:
    """Return the rows of one query over all windows.

    None when a window alone gives other rows than it.

    Where the text of the query does not prove that this cannot be, windows are computed alone to
    see.
    """
    engine, spec = run.session.engine, run.spec
    query = Query(spec, engine)
    whole = Window(windows[0].start, windows[-1].end)
    sources = _inputs(run, whole)
    found = query.run(sources, whole)
    staged, bounds = _staged(run, whole, found, place="rows")
    if proven:
        return staged
    samples = _samples(windows, bounds, spec.closed)
    ranges = []
    for window in samples:
        ranges.append(TimeRange(str(spec.event_time), window.start, window.end, spec.closed))
    parts = engine.aggregate(staged, PartsAccumulator(tuple(ranges)))
    for window, part in zip(samples, parts, strict=True):
        seen = _seen(run, sources, window)
        alone = engine.aggregate(query.run(seen, window), DigestAccumulator())
        if not alone.agrees(part):
            _log.info(
                "windows are computed one by one: %s alone gives other rows than among others",
                window,
            )
            return None
    return staged


def _samples(windows: Sequence[Window], bounds: TimeBounds, closed: str) -> list[Window]:
    """Return the windows of the first and the last row; without rows the outermost ones."""
    if bounds.times is None:
        return [windows[0], windows[-1]]
    starts = [to_micros(each.start) for each in windows]
    find = bisect_left if closed == "right" else bisect_right
    first = windows[max(find(starts, bounds.low) - 1, 0)]
    last = windows[max(find(starts, bounds.high) - 1, 0)]
    if first == last:
        return [first]
    return [first, last]


def _each(run: Computation, windows: Sequence[Window]) -> Relation | None:
    """Compute window by window from inputs that were read once for all of them."""
    engine, whole = run.session.engine, Window(windows[0].start, windows[-1].end)
    sources = _inputs(run, whole)
    if len(windows) > 1:
        sources = _staged_inputs(run, sources)
    places: dict[str, pa.Schema] = {}
    schema, first = run.like, None
    for number, window in enumerate(windows):
        rows = _result(run, _seen(run, sources, window), window)
        if rows is None:
            continue
        place = f"w{number:06d}"
        with handed_over(rows, engine=engine, like=schema) as given:
            if number == 0:
                within = Window(window.start - run.spec.reach, window.end)
            else:
                within, given = window, _not_again(run.spec, engine, window, given)
            part, bounds = _staged(run, within, given, place=place)
        first = first or part
        schema = _wide(part.schema, schema if places else None, run.spec)
        if bounds.rows:
            places[os.path.join(run.staging, place)] = part.schema
    if first is None or schema is None or not places:
        return first
    if len(windows) == 1:
        return first
    files = [_typed_files(engine, path, part, schema) for path, part in places.items()]
    return engine.read_files(files, schema=schema)


def _typed_files(engine: Engine, path: str, part: pa.Schema, schema: pa.Schema) -> str:
    """Return staged files in which columns without values have the types of other windows."""
    if typed_like(part, schema) == part:
        return path
    rows = engine.read_files([path], schema=part)
    engine.stage(_typed(engine, rows, schema), f"{path}-typed")
    return f"{path}-typed"


def _typed(engine: Engine, rows: Relation, like: pa.Schema | Mapping[str, pa.DataType]) -> Relation:
    """Return rows whose columns without a type have those of the columns of these names."""
    return typed_relation(engine, rows, typed_like(rows.schema, like))


def _not_again(spec: JobSpec, engine: Engine, window: Window, rows: Relation) -> Relation:
    """Return the rows of a window without late ones, which the window before has given."""
    column = str(spec.event_time)
    if not spec.reach or column not in rows.schema.names:
        return rows
    return engine.within(rows, TimeRange(column, window.start, window.end, spec.closed))


def _wide(part: pa.Schema, known: pa.Schema | None, spec: JobSpec) -> pa.Schema:
    """Return a schema for the rows of all windows so far.

    SchemaMismatch when they do not go together.
    """
    if known is None or part == known:
        return part
    if sorted(part.names) != sorted(known.names):
        raise SchemaMismatch(
            f"Job {spec.name!r} gave the columns {known.names}, and later {part.names}."
        )
    fields = []
    known, part = typed_like(known, part), typed_like(part, known)
    for field in known:
        given = part.field(field.name)
        if not widens(given.type, field.type) and not widens(field.type, given.type):
            raise SchemaMismatch(
                f"Job {spec.name!r} gave {field.name!r} as {field.type} in one window and as "
                f"{given.type} in another.",
                hint="cast it in the job",
            )
        if widens(given.type, field.type):
            given = field
        fields.append(given)
    return pa.schema(fields)


def _result(run: Computation, seen: Mapping[str, Relation], window: Window) -> Any:
    if run.spec.kind == "sql":
        return Query(run.spec, run.session.engine).run(seen, window).native
    inputs = {name: relation.native for name, relation in seen.items()}
    result = run.definition(window=window, **inputs)
    if isinstance(result, list) and not result:
        return None
    return result


def _inputs(run: Computation, window: Window) -> dict[str, Relation]:
    """Return the inputs, cut to what the windows of a chunk see together."""
    inputs = dict(run.sources.within(window))
    for each in run.inputs:
        if each.kind == "source":
            continue
        inputs[each.name] = read(run.session, each, window, lookback=run.spec.lookback)
    return inputs


def _staged_inputs(run: Computation, sources: Mapping[str, Relation]) -> dict[str, Relation]:
    """Return the inputs of a chunk, staged: each window reads its part and not the table again."""
    staged = {}
    of_sources = [each.name for each in run.inputs if each.kind == "source"]
    for name, relation in sources.items():
        if name in of_sources:
            staged[name] = relation  # staged when it was read
            continue
        place = os.path.join(run.staging, f"input-{name}")
        staged[name] = run.session.engine.stage(relation, place)
    return staged


def _seen(run: Computation, sources: Mapping[str, Relation], window: Window) -> dict[str, Relation]:
    """Return what one window sees of the inputs."""
    seen = {}
    for each in run.inputs:
        seen[each.name] = cut(
            run.session, sources[each.name], each.time, window, lookback=run.spec.lookback
        )
    return seen


def _staged(
    run: Computation, window: Window, rows: Relation, *, place: str
) -> tuple[Relation, TimeBounds]:
    """Stage rows with their event time and return them with its bounds.

    Refuse rows outside the window.
    """
    engine, spec = run.session.engine, run.spec
    column = str(spec.event_time)
    if column not in rows.schema.names:
        rows = _stamped(run, window, rows)
    rows = _typed(engine, rows, {column: TIMESTAMP})
    _check_time(spec, rows.schema.field(column).type)
    folder = os.path.join(run.staging, place)
    staged = engine.stage(rows, folder)
    if any(each.kind == "source" for each in run.inputs):
        # A group without rows may be what an empty window has left.
        like = run.like if run.has_rows else None
        refuse_encoded_bytes(staged, engine=engine, like=like, language="pyarrow")
    bounds = _bounds(run, staged, folder)
    if bounds.nulls:
        raise RowsOutsideWindow(f"Job {spec.name!r}: {bounds.nulls:,} rows have no {column!r}.")
    _check_inside(spec, window, bounds)
    return staged, bounds


def _check_inside(spec: JobSpec, window: Window, bounds: TimeBounds) -> None:
    """Refuse rows outside the window that computed them."""
    if bounds.times is None:
        return
    low, high = bounds.times
    start, end = to_micros(window.start), to_micros(window.end)
    if spec.closed == "right":
        rule, inside = "(start, end]", start < low and high <= end
    else:
        rule, inside = "[start, end)", start <= low and high < end
    if not inside:
        first, last = from_micros(low).isoformat(), from_micros(high).isoformat()
        raise RowsOutsideWindow(
            f"Job {spec.name!r}: rows have {spec.event_time!r} from {first} to {last}, outside the "
            f"window {rule} from {window.start.isoformat()} to {window.end.isoformat()}.",
            hint="stamp rows with the time when they became known (closed='right'), "
            "or use closed='left'",
        )


def _bounds(run: Computation, staged: Relation, folder: str) -> TimeBounds:
    """Return the bounds of the event time, by the footers of the staged files where they tell."""
    column = str(run.spec.event_time)
    bounds = TimeBounds()
    for file in parquet_files(folder):
        of_file = time_bounds(file, column)
        if of_file is None:  # Spark's footers say nothing about its older kind of times
            times = run.session.engine.select(staged, {column: column})
            return run.session.engine.aggregate(times, BoundsAccumulator(column))
        bounds = bounds.merge(of_file)
    return bounds


def _check_time(spec: JobSpec, kind: pa.DataType) -> None:
    if not (pat.is_timestamp(kind) or pat.is_date(kind)):
        raise InvalidJob(
            f"Job {spec.name!r}: its event time {spec.event_time!r} has type {kind}, which is no "
            "time."
        )


def _stamped(run: Computation, window: Window, rows: Relation) -> Relation:
    if run.spec.closed == "left":
        raise InvalidJob(
            f"Job {run.spec.name!r}: its rows have no column {run.spec.event_time!r}.",
            hint="with closed='left' the rows must say when they were true",
        )
    stamp = Stamp(str(run.spec.event_time), to_micros(window.end))
    schema = rows.schema.append(pa.field(stamp.column, TIMESTAMP))
    return run.session.engine.map_batches(rows, stamp, schema=schema)


@dataclass(frozen=True)
class Stamp:
    """Writes one time into a new column."""

    column: str
    micros: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the column at its end."""
        values = pa.array(np.full(batch.num_rows, self.micros, dtype=np.int64)).view(TIMESTAMP)
        return pa.RecordBatch.from_arrays(
            [*batch.columns, values], names=[*batch.schema.names, self.column]
        )
