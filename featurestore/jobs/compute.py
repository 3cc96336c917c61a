"""Compute the rows of windows: a function window by window, a query for many at once where that is the same."""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import InvalidJob, RowsOutsideWindow, SchemaMismatch
from featurestore.ingest import handed_over
from featurestore.jobs.definitions import JobDefinition
from featurestore.jobs.footers import TimeBounds, parquet_files, time_bounds
from featurestore.jobs.inputs import PinnedInput, cut, read
from featurestore.jobs.proof import keeps_to_windows
from featurestore.jobs.query import DigestAccumulator, PartsAccumulator, Query, may_take_many
from featurestore.model.job import JobSpec
from featurestore.model.times import from_micros, to_micros
from featurestore.model.types import TIMESTAMP, widens
from featurestore.model.window import Window
from featurestore.plugins.engine import Accumulator, Relation, TimeRange
from featurestore.session import Session

_log = logging.getLogger("featurestore.jobs")


@dataclass(frozen=True)
class Computation:
    """What a run computes: the definition, its inputs pinned, where to stage, and the schema known so far."""

    session: Session
    definition: JobDefinition
    inputs: tuple[PinnedInput, ...]
    staging: str
    like: pa.Schema | None = None

    @property
    def spec(self) -> JobSpec:
        """The job's definition."""
        return self.definition.spec


def compute(run: Computation, windows: Sequence[Window]) -> Relation | None:
    """Return the staged rows of neighbouring windows, checked to lie inside them; None when a function gave none.

    Raises:
        RowsOutsideWindow: A row's event time lies outside the window that computed it.
    """
    if run.spec.kind == "sql" and len(windows) > 1 and _meet(windows):
        times = [each.time for each in run.inputs if each.time is not None]
        if may_take_many(run.spec, times=times):
            proven = keeps_to_windows(run.spec, windows, time=times[0])
            together = _together(run, windows, proven=proven)
            if together is not None:
                return together
    return _each(run, windows)


def _meet(windows: Sequence[Window]) -> bool:
    """Tell whether windows leave no time between them."""
    return all(before.end == after.start for before, after in pairwise(windows))


def _together(run: Computation, windows: Sequence[Window], *, proven: bool) -> Relation | None:
    """Return the rows of one query over all windows; None when a window alone gives other rows than it.

    Where the text of the query does not prove that this cannot be, windows are computed alone to see.
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
    ranges = [
        TimeRange(str(spec.event_time), each.start, each.end, spec.closed) for each in samples
    ]
    parts = engine.aggregate(staged, PartsAccumulator(tuple(ranges)))
    for window, part in zip(samples, parts, strict=True):
        seen = {
            each.name: cut(run.session, sources[each.name], each.time, window)
            for each in run.inputs
        }
        alone = engine.aggregate(query.run(seen, window), DigestAccumulator())
        if not alone.agrees(part):
            _log.info(
                "windows are computed one by one: %s alone gives other rows than among others",
                window,
            )
            return None
    return staged


def _samples(windows: Sequence[Window], bounds: TimeBounds, closed: str) -> list[Window]:
    """Return the windows in which the first and the last row lie, the outermost ones when there are no rows."""
    if bounds.low > bounds.high:
        return [windows[0], windows[-1]]
    starts = [to_micros(each.start) for each in windows]
    find = bisect_left if closed == "right" else bisect_right
    return list(
        dict.fromkeys(
            windows[max(find(starts, bound) - 1, 0)] for bound in (bounds.low, bounds.high)
        )
    )


def _each(run: Computation, windows: Sequence[Window]) -> Relation | None:
    """Compute window by window from inputs that were read once for all of them."""
    engine, whole = run.session.engine, Window(windows[0].start, windows[-1].end)
    sources = _kept(run, whole) if len(windows) > 1 else _inputs(run, whole)
    places: list[str] = []
    schema, first = run.like, None
    for number, window in enumerate(windows):
        seen = {
            each.name: cut(
                run.session, sources[each.name], each.time, window, lookback=run.spec.lookback
            )
            for each in run.inputs
        }
        rows = _result(run, seen, window)
        if rows is None:
            continue
        place = f"w{number:06d}"
        with handed_over(rows, engine=engine, like=schema) as given:
            part, bounds = _staged(run, window, given, place=place)
        first = first or part
        schema = _wide(part.schema, schema if places else None, run.spec)
        if bounds.rows:
            places.append(os.path.join(run.staging, place))
    if first is None or schema is None or not places:
        return first
    return first if len(windows) == 1 else engine.read_files(places, schema=schema)


def _wide(part: pa.Schema, known: pa.Schema | None, spec: JobSpec) -> pa.Schema:
    """Return a schema for the rows of all windows so far; SchemaMismatch when they do not go together."""
    if known is None or part == known:
        return part
    if sorted(part.names) != sorted(known.names):
        raise SchemaMismatch(
            f"Job {spec.name!r} gave the columns {known.names}, and later {part.names}."
        )
    fields = []
    for field in known:
        given = part.field(field.name)
        if not widens(given.type, field.type) and not widens(field.type, given.type):
            raise SchemaMismatch(
                f"Job {spec.name!r} gave {field.name!r} as {field.type} in one window and as {given.type} in another.",
                hint="cast it in the job",
            )
        fields.append(field if widens(given.type, field.type) else given)
    return pa.schema(fields)


def _result(run: Computation, seen: Mapping[str, Relation], window: Window) -> Any:
    if run.spec.kind == "sql":
        return Query(run.spec, run.session.engine).run(seen, window).native
    result = run.definition(
        window=window, **{name: relation.native for name, relation in seen.items()}
    )
    return None if isinstance(result, list) and not result else result


def _inputs(run: Computation, window: Window) -> dict[str, Relation]:
    return {
        each.name: read(run.session, each, window, lookback=run.spec.lookback)
        for each in run.inputs
    }


def _kept(run: Computation, window: Window) -> dict[str, Relation]:
    """Return the inputs of a whole chunk, staged: each window then reads its part and not the table again."""
    engine = run.session.engine
    return {
        name: engine.stage(relation, os.path.join(run.staging, f"input-{name}"))
        for name, relation in _inputs(run, window).items()
    }


def _staged(
    run: Computation, window: Window, rows: Relation, *, place: str
) -> tuple[Relation, TimeBounds]:
    """Stage rows with their event time and return them with its bounds; refuse rows outside the window."""
    engine, spec = run.session.engine, run.spec
    column = str(spec.event_time)
    if column not in rows.schema.names:
        rows = _stamped(run, window, rows)
    _check_time(spec, rows.schema.field(column).type)
    folder = os.path.join(run.staging, place)
    staged = engine.stage(rows, folder)
    found = _bounds(run, staged, folder)
    low, high = found.low, found.high
    if found.nulls:
        raise RowsOutsideWindow(f"Job {spec.name!r}: {found.nulls:,} rows have no {column!r}.")
    start, end = to_micros(window.start), to_micros(window.end)
    inside = (
        (start < low and high <= end) if spec.closed == "right" else (start <= low and high < end)
    )
    if low <= high and not inside:
        rule = "(start, end]" if spec.closed == "right" else "[start, end)"
        raise RowsOutsideWindow(
            f"Job {spec.name!r}: rows have {column!r} from {from_micros(low).isoformat()} to "
            f"{from_micros(high).isoformat()}, outside the window {rule} from {window.start.isoformat()} to "
            f"{window.end.isoformat()}.",
            hint="stamp rows with the time when they became known (closed='right'), or use closed='left'",
        )
    return staged, found


def _bounds(run: Computation, staged: Relation, folder: str) -> TimeBounds:
    column = str(run.spec.event_time)
    found = TimeBounds()
    for file in parquet_files(folder):
        told = time_bounds(file, column)
        if told is None:  # Spark's footers say nothing about its older kind of times
            return run.session.engine.aggregate(
                run.session.engine.select(staged, {column: column}), BoundsAccumulator(column)
            )
        found = found.merge(told)
    return found


def _check_time(spec: JobSpec, kind: pa.DataType) -> None:
    if not (pat.is_timestamp(kind) or pat.is_date(kind)):
        raise InvalidJob(
            f"Job {spec.name!r}: its event time {spec.event_time!r} has type {kind}, which is no time."
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
    """Writes one moment into a new column."""

    column: str
    micros: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the column at its end."""
        values = pa.array(np.full(batch.num_rows, self.micros, dtype=np.int64)).view(TIMESTAMP)
        return pa.RecordBatch.from_arrays(
            [*batch.columns, values], names=[*batch.schema.names, self.column]
        )


@dataclass(frozen=True)
class BoundsAccumulator(Accumulator[TimeBounds, TimeBounds]):
    """The bounds of a column of times."""

    column: str

    def start(self) -> TimeBounds:
        """Return the bounds of no rows."""
        return TimeBounds()

    def update(self, state: TimeBounds, batch: pa.RecordBatch) -> TimeBounds:
        """Widen the bounds by a batch."""
        values = batch.column(batch.schema.get_field_index(self.column))
        found: npt.NDArray[np.int64] = pc.cast(
            pc.cast(values.drop_null(), TIMESTAMP), pa.int64()
        ).to_numpy()
        if len(found):
            state = state.merge(TimeBounds(int(found.min()), int(found.max())))
        return state.merge(TimeBounds(nulls=values.null_count, rows=len(values)))

    def merge(self, left: TimeBounds, right: TimeBounds) -> TimeBounds:
        """Return the bounds of both."""
        return left.merge(right)

    def finish(self, state: TimeBounds) -> TimeBounds:
        """Return the bounds."""
        return state
