"""Window aggregates on DuckDB, over a stream of rows and labels sorted by a key hash.

The semantics and the arithmetic are in ``featurestore.aggregates``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates.stream import AVAILABLE, GROUP, STREAM_TIME, TIE
from featurestore.aggregates.window_side import WindowSide
from featurestore.arrow.casts import cast_batch
from featurestore.model.plan import ROW, FeaturePlan
from featurestore.model.threads import independent_tasks
from featurestore.plugins.engine import Relation
from featurestore.retrieval.point_in_time import AddTieHash, label_columns
from featurestore_connectors.duckdb_delta import point_in_time, streams
from featurestore_connectors.duckdb_delta.relations import relation
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.sqltext import column_type, label_key, quote

if TYPE_CHECKING:
    from featurestore_connectors.duckdb_delta.engine import DuckDBEngine

_MICROSECOND = timedelta(microseconds=1)
# In microseconds. The negated value is before any row and valid in DuckDB.
_EARLIEST = 1 << 62
_NARROW = 1 << 32
_LABELS, _ROWS, _BOTH = "fs_labels", "fs_rows", "fs_both"
# Sorts of this many rows may spill.
_SPILLED_ROWS = 10_000_000
# Maximum number of values (1 GiB of numbers) that are reordered in memory.
_MAX_BUFFERED_VALUES = 1 << 27
# Maximum number of label values to buffer, so that their bounds can be computed first.
_LABEL_VALUES = 1 << 24
# Each thread has one chunk of rows in memory.
_MAX_THREADS = 8


def retrieve(engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the labels of a plan with their aggregates, as a lazy relation."""
    needed = label_columns(plan)
    if plan.keep_order:
        needed = list(dict.fromkeys([*needed, ROW]))
    left = point_in_time.left_side(engine, plan, labels)
    if _fits_in_memory(plan):
        source = _BufferedResult(engine, plan, left)
        return streams.mapped_relation(engine.database, source, single_use=left.single_use)
    single_use = left.single_use
    left = engine.select(left, dict(zip(needed, needed, strict=True)))
    left = replace(left, schema=pa.schema(map(point_in_time.plain_field, left.schema)))
    buffered_labels = None
    if plan.left_rows is not None and plan.left_rows * len(needed) <= _LABEL_VALUES:
        buffer = _BufferedLabels(engine.database, left)
        left = buffered_labels = streams.mapped_relation(
            engine.database, buffer, single_use=single_use
        )
    for join in plan.windows:
        joined = _AggregatedLabels(engine, WindowSide.from_join(join, plan), left, buffered_labels)
        left = streams.mapped_relation(engine.database, joined, single_use=single_use)
    columns = [f"{quote(plan.left_column(name))} AS {quote(name)}" for name in plan.columns]
    query = f"SELECT {', '.join(columns)} FROM {_LABELS}"
    if plan.keep_order:
        query += f" ORDER BY {quote(ROW)}"
    joined_rows = engine.sql(query, tables={_LABELS: left}, parameters={})
    return relation(joined_rows.native, plan.schema, single_use=single_use)


def _fits_in_memory(plan: FeaturePlan) -> bool:
    """Return whether the result must be ordered and is small enough to be buffered."""
    if not plan.keep_order or plan.left_rows is None:
        return False
    fixed = all(
        pat.is_primitive(output.kind) or pat.is_decimal(output.kind)
        for join in plan.windows
        for output in join.outputs
    )
    return fixed and plan.left_rows * len(plan.columns) <= _MAX_BUFFERED_VALUES


class _AggregatedLabels(streams.ArrowSource):
    """Labels with the aggregates of one group, ordered by key.

    ``buffered_labels`` is None if the labels cannot be read twice.
    """

    def __init__(
        self,
        engine: DuckDBEngine,
        side: WindowSide,
        left: Relation,
        buffered_labels: Relation | None,
    ) -> None:
        self._features = side.features(left.schema)
        self.schema = self._features.schema
        self._engine = engine
        self._side = side
        self._left = left
        self._buffered_labels = buffered_labels

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the labels with their aggregates."""
        bounds = None
        if self._buffered_labels is not None:
            bounds = _label_bounds(self._engine, self._side, self._buffered_labels)
        stream = _sorted_union(self._engine, self._side, self._left, self._left.schema, bounds)
        sorted_rows = streams.batches_of(self._engine.database, stream)
        for batch in self._features.compute_in_threads(sorted_rows, threads=_threads(self._engine)):
            yield cast_batch(batch, self.schema)


class _BufferedResult(streams.ArrowSource):
    """Buffered labels with their aggregates; only the label positions are sorted."""

    def __init__(self, engine: DuckDBEngine, plan: FeaturePlan, left: Relation) -> None:
        self.schema = plan.schema
        self._engine = engine
        self._plan = plan
        self._left = left

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the labels with their aggregates, in label order."""
        plan = self._plan
        batches = streams.batches_of(self._engine.database, self._left)
        left = pa.Table.from_batches(batches, self._left.schema)
        rows = left.column(ROW).to_numpy()
        # Labels usually arrive in order, and sorting copies all columns.
        if np.any(rows[1:] < rows[:-1]):
            left = left.take(pa.array(np.argsort(rows, kind="stable")))
        label_columns = {name: left.column(name) for name in left.column_names}
        for join in plan.windows:
            label_columns |= self._aggregates(WindowSide.from_join(join, plan), left)
        columns = [label_columns[plan.left_column(name)] for name in plan.columns]
        table = pa.table(columns, names=list(plan.columns))
        for batch in table.to_batches(streams.BATCH_ROWS):
            yield cast_batch(batch, self.schema)

    def _aggregates(self, side: WindowSide, left: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Return the aggregates of one group, in label order."""
        needed = [label for label, _ in side.join.on]
        if side.plan.left_time is not None:
            needed.append(side.plan.left_time)
        label_schema = pa.schema([pa.field(ROW, pa.int64())])
        numbers = pa.array(np.arange(left.num_rows))
        label_rows = left.select(list(dict.fromkeys(needed))).append_column(
            label_schema.field(0), numbers
        )
        bounds = _label_bounds(self._engine, side, self._engine.from_arrow(label_rows.to_reader()))
        labels = self._engine.from_arrow(label_rows.to_reader())
        stream = _sorted_union(self._engine, side, labels, label_schema, bounds)
        features = side.features(label_schema)
        threads = _threads(self._engine)
        aggregated = features.compute_in_threads(
            streams.batches_of(self._engine.database, stream), threads=threads
        )
        table = pa.Table.from_batches(aggregated, features.schema)
        positions = np.empty(left.num_rows, np.int64)
        positions[table.column(ROW).to_numpy()] = np.arange(left.num_rows)
        label_order = pa.array(positions)
        columns = {output.name: table.column(output.name) for output in side.join.outputs}
        # Release each column as soon as it is in label order.
        del table
        names = list(columns)
        with independent_tasks(threads, "featurestore-windows") as pool:
            # ``pop`` limits the number of columns that are in memory in both orders.
            ordered_columns = pool.map(lambda name: columns.pop(name).take(label_order), names)
            return dict(zip(names, ordered_columns, strict=True))


class _BufferedLabels(streams.ArrowSource):
    """A small relation that is buffered on first read."""

    def __init__(self, database: Database, labels: Relation) -> None:
        self.schema = labels.schema
        self._database, self._labels = database, labels
        self._rows: list[pa.RecordBatch] | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the buffered batches."""
        # A lazy relation may never be read, so the rows are buffered at the first read.
        if self._rows is None:
            batches = streams.batches_of(self._database, self._labels)
            self._rows = [cast_batch(batch, self.schema) for batch in batches]
        return iter(self._rows)


def _label_bounds(engine: DuckDBEngine, side: WindowSide, labels: Relation) -> WindowBounds:
    return bounds_of_labels(engine, side, labels, _label_keys(side)[0])


def _threads(engine: DuckDBEngine) -> int:
    threads = int(engine.database.rows("SELECT current_setting('threads')")[0][0])
    return min(threads, _MAX_THREADS)


def _sorted_union(
    engine: DuckDBEngine,
    side: WindowSide,
    left: Relation,
    label_schema: pa.Schema,
    bounds: WindowBounds | None,
) -> Relation:
    """Return the sorted union of the labels and the group rows within the bounds."""
    spec = side.join.source.spec
    needed = list(spec.schema.names)
    if not side.needs_tie_hash and not side.conditions:
        needed = _needed_columns(side)
    rows = point_in_time.read_source(engine, side.join.source, needed)
    if bounds is not None:
        condition = " AND ".join(bounds.conditions(side))
        query = f"SELECT * FROM {_ROWS} WHERE {condition}"
        rows = replace(engine.sql(query, tables={_ROWS: rows}, parameters={}), schema=rows.schema)
    if side.needs_tie_hash:
        columns = tuple(spec.schema.names)
        hashed = pa.schema([*rows.schema, pa.field(TIE, pa.int64())])
        rows = engine.map_batches(rows, AddTieHash(columns), schema=hashed)
    group = _SortKey(side.group_is_key, bounds.narrow_keys if bounds is not None else None)
    label_rows = _label_rows(side, label_schema, group)
    both = f"({label_rows} UNION ALL {_group_rows(side, label_schema, group)})"
    tables = {_LABELS: left, _ROWS: rows}
    count = side.join.source.rows
    if count is not None and count >= _SPILLED_ROWS:
        # DuckDB 2.0 can spill a sort of a single source, but not of a union.
        union = engine.sql(f"SELECT * FROM {both}", tables=tables, parameters={})
        both, tables = (
            _BOTH,
            {_BOTH: engine.map_batches(union, _identity, schema=union.schema)},
        )
    query = f"SELECT * FROM {both} ORDER BY {GROUP}, {STREAM_TIME}"
    return engine.sql(query, tables=tables, parameters={})


def _identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _needed_columns(side: WindowSide) -> list[str]:
    """Return the group columns that the aggregates need, except those of their conditions."""
    join = side.join
    needed = [key for _, key in join.on] + [*join.members, *side.values, join.event_time]
    if join.created_time is not None:
        needed.append(join.created_time)
    return list(dict.fromkeys(needed))


def _label_keys(side: WindowSide) -> list[str]:
    """Return label keys in the types of the group's keys; out-of-range keys are null."""
    schema, left = side.join.source.spec.schema, side.plan.left_schema
    keys = []
    for label, key in side.join.on:
        label_type, key_type = left.field(label).type, schema.field(key).type
        keys.append(label_key(f"l.{quote(label)}", label_type, key_type))
    return keys


def _label_rows(side: WindowSide, label_schema: pa.Schema, group: _SortKey) -> str:
    """Return the query of the labels; columns that only rows have are null."""
    schema = side.join.source.spec.schema
    keys = _label_keys(side)
    columns = [
        f"{group.expression(keys)} AS {GROUP}",
        # Odd numbers for labels and even numbers for rows: a row at the label time sorts before the
        # label and counts.
        f"epoch_us({point_in_time.label_time(side.plan)}) * 2 + 1 AS {STREAM_TIME}",
    ]
    if side.needs_created_time:
        columns.append(f"NULL::BIGINT AS {AVAILABLE}")
    if side.needs_tie_hash:
        columns.append(f"NULL::BIGINT AS {TIE}")
    if not side.group_is_key:
        columns += [f"{key} AS k{number}" for number, key in enumerate(keys)]
    for letter, columns_of_kind in (("m", side.join.members), ("v", side.values)):
        for number, name in enumerate(columns_of_kind):
            duckdb_type = column_type(point_in_time.plain_field(schema.field(name)).type)
            columns.append(f"NULL::{duckdb_type} AS {letter}{number}")
    for number in range(len(side.conditions)):
        columns.append(f"NULL::BOOLEAN AS w{number}")
    for number, name in enumerate(label_schema.names):
        columns.append(f"l.{quote(name)} AS c{number}")
    return f"SELECT {', '.join(columns)} FROM {_LABELS} AS l"


@dataclass(frozen=True)
class _SortKey:
    """The sort key of the stream: the offset of the key from ``base``, or a hash of the keys.

    It has 32 bits if possible, so that key and time fit into 16 bytes, which DuckDB sorts in half
    the time. If hashes collide, the kernel sorts again.
    """

    is_key: bool
    base: int | None

    def expression(self, keys: list[str]) -> str:
        """Return the SQL expression of the sort key."""
        if not self.is_key:
            return f"(hash({', '.join(keys)}) >> 32)::UINTEGER"
        if self.base is None:
            return f"{keys[0]}::BIGINT"
        return f"({keys[0]}::BIGINT - ({self.base})::BIGINT)::UINTEGER"


def _group_rows(side: WindowSide, label_schema: pa.Schema, group: _SortKey) -> str:
    """Return the query of the group's rows; columns that only labels have are null."""
    spec = side.join.source.spec
    keys = [quote(key) for _, key in side.join.on]
    event = point_in_time.timestamp(
        quote(side.join.event_time), spec.schema.field(side.join.event_time).type
    )
    columns = [f"{group.expression(keys)} AS {GROUP}", f"epoch_us({event}) * 2 AS {STREAM_TIME}"]
    created = side.join.created_time
    if created is not None:
        created_time = point_in_time.timestamp(quote(created), spec.schema.field(created).type)
        columns.append(f"epoch_us({created_time}) AS {AVAILABLE}")
    if side.needs_tie_hash:
        columns.append(quote(TIE))
    if not side.group_is_key:
        columns += [f"{key} AS k{number}" for number, key in enumerate(keys)]
    for letter, columns_of_kind in (("m", side.join.members), ("v", side.values)):
        for number, name in enumerate(columns_of_kind):
            columns.append(f"{quote(name)} AS {letter}{number}")
    for number, condition in enumerate(side.conditions):
        columns.append(f"({condition}) AS w{number}")
    for number, field in enumerate(label_schema):
        columns.append(f"NULL::{column_type(field.type)} AS c{number}")
    present = [f"{expression} IS NOT NULL" for expression in (*keys, quote(side.join.event_time))]
    return f"SELECT {', '.join(columns)} FROM {_ROWS} WHERE {' AND '.join(present)}"


@dataclass(frozen=True)
class WindowBounds:
    """The ranges of the labels' keys and times (microseconds).

    ``keys`` is None for non-integer keys; ``times`` is None if no label has a time.
    """

    keys: tuple[int, int] | None
    times: tuple[int, int] | None

    @property
    def narrow_keys(self) -> int | None:
        """The minimum key, if all keys differ from it by at most 32 bits; otherwise None."""
        if self.keys is None or self.keys[1] - self.keys[0] >= _NARROW:
            return None
        return self.keys[0]

    def conditions(self, side: WindowSide) -> list[str]:
        """Return the filter conditions for group rows."""
        if self.times is None or (side.group_is_key and self.keys is None):
            return ["FALSE"]
        spec, name = side.join.source.spec, side.join.event_time
        event = point_in_time.timestamp(quote(name), spec.schema.field(name).type)
        ends, begins = [], []
        for output in side.join.outputs:
            # A window ends ``offset`` before the label time, so later rows count for no label.
            ends.append(self.times[1] - output.offset // _MICROSECOND)
            begin = -_EARLIEST
            if output.over is not None:
                begin = self.times[0] - (output.over + output.offset) // _MICROSECOND
            begins.append(begin)
        texts = [f"{event} <= {_timestamp_literal(max(*ends, -_EARLIEST))}"]
        if min(begins) > -_EARLIEST:
            texts.append(f"{event} > {_timestamp_literal(min(begins))}")
        if self.keys is not None:
            key = quote(side.join.on[0][1])
            texts.append(f"{key} BETWEEN {self.keys[0]} AND {self.keys[1]}")
        return texts


def bounds_of_labels(
    engine: DuckDBEngine, side: WindowSide, labels: Relation, key: str
) -> WindowBounds:
    """Compute the bounds of labels for a group.

    Args:
        engine: The engine.
        side: The window aggregates of the group.
        labels: The labels; they are read once.
        key: The SQL expression of a label's first key in the table ``l``, in the group's type.
    """
    if not side.group_is_key:
        key = "NULL"
    query = (
        f"SELECT min(k), max(k), min(t), max(t) FROM (SELECT {key}::BIGINT AS k, "
        f"epoch_us({point_in_time.label_time(side.plan)}) AS t FROM {_LABELS} AS l)"
    )
    extremes = engine.sql(query, tables={_LABELS: labels}, parameters={})
    min_key, max_key, first, last = engine.stream(extremes).read_all().to_pydict().values()
    keys = times = None
    if min_key[0] is not None:
        keys = (min_key[0], max_key[0])
    if first[0] is not None:
        times = (first[0], last[0])
    return WindowBounds(keys, times)


def _timestamp_literal(micros: int) -> str:
    return f"make_timestamptz({micros}::BIGINT)"
