"""Aggregates over windows on DuckDB: rows and labels in one stream, sorted by a hash of their keys.

The rule and the arithmetic are in ``featurestore.aggregates``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates.blocks import AVAILABLE, GROUP, STREAM_TIME, TIE
from featurestore.aggregates.window_side import WindowSide
from featurestore.arrow.arrow_cast import cast_batch
from featurestore.model.plan import ROW, FeaturePlan
from featurestore.plugins.engine import Relation
from featurestore.retrieval.point_in_time import AddTieHash, label_columns
from featurestore_connectors.duckdb_delta import streams
from featurestore_connectors.duckdb_delta.label_keys import label_key
from featurestore_connectors.duckdb_delta.point_in_time import (
    label_time,
    left_side,
    plain_field,
    read_source,
    timestamp,
)
from featurestore_connectors.duckdb_delta.sqltext import column_type, quote
from featurestore_connectors.duckdb_delta.window_reach import Reach, reach_of

if TYPE_CHECKING:
    from featurestore_connectors.duckdb_delta.engine import DuckDBEngine

_LABELS, _ROWS, _BOTH = "fs_labels", "fs_rows", "fs_both"
# So many rows may have to spill while they are sorted.
_SPILLED_ROWS = 10_000_000
# Up to so many values, 1 GiB of numbers, are put into the labels' order in memory.
_HELD_VALUES = 1 << 27
# Labels of up to so many values are held, since it is looked first what they can see at all.
_LABEL_VALUES = 1 << 24
# A chunk of rows is held for each thread.
_MOST_THREADS = 8


def retrieve(engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the labels of a plan with its aggregates, as a lazy relation."""
    needed = label_columns(plan)
    if plan.keep_order:
        needed = list(dict.fromkeys([*needed, ROW]))
    left = left_side(engine, plan, labels)
    if _is_held(plan):
        source = _InLabelOrder(engine, plan, left)
        return streams.mapped(engine.database, source, single_use=left.single_use)
    single_use = left.single_use
    left = engine.select(left, dict(zip(needed, needed, strict=True)))
    left = replace(left, schema=pa.schema(map(plain_field, left.schema)))
    asked = None
    if plan.left_rows is not None and plan.left_rows * len(needed) <= _LABEL_VALUES:
        held = _Held(engine.database, left, _same, left.schema)
        left = asked = streams.mapped(engine.database, held, single_use=single_use)
    for join in plan.windows:
        joined = _Aggregated(engine, WindowSide.from_join(join, plan), left, asked)
        left = streams.mapped(engine.database, joined, single_use=single_use)
    columns = []
    for name in plan.columns:
        columns.append(f"{quote(plan.left_column(name))} AS {quote(name)}")
    query = f"SELECT {', '.join(columns)} FROM {_LABELS}"
    if plan.keep_order:
        query += f" ORDER BY {quote(ROW)}"
    found = engine.sql(query, tables={_LABELS: left}, parameters={})
    return replace(found, schema=plan.schema, single_use=single_use)


def _is_held(plan: FeaturePlan) -> bool:
    """Tell whether the whole result may be held: it is asked for in order, and small enough."""
    if not plan.keep_order or plan.left_rows is None:
        return False
    fixed = all(_is_fixed(output.kind) for join in plan.windows for output in join.outputs)
    return fixed and plan.left_rows * len(plan.columns) <= _HELD_VALUES


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pat.is_primitive(kind) or pat.is_decimal(kind))


class _InLabelOrder(streams.MappedStream):
    """Labels in memory with their aggregates: only the labels' positions go through the sort."""

    def __init__(self, engine: DuckDBEngine, plan: FeaturePlan, left: Relation) -> None:
        super().__init__(engine.database, left, lambda batch: batch, plan.schema)
        self._engine = engine
        self._plan = plan
        self._left = left

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the labels with their aggregates, in the order of the labels."""
        plan = self._plan
        batches = streams.batches_of(self._database, self._left)
        left = pa.Table.from_batches(batches, self._left.schema)
        rows = left.column(ROW).to_numpy()
        if np.any(rows[1:] < rows[:-1]):
            left = left.take(pa.array(np.argsort(rows, kind="stable")))
        found = {name: left.column(name) for name in left.column_names}
        for join in plan.windows:
            found |= self._aggregates(WindowSide.from_join(join, plan), left)
        columns = [found[plan.left_column(name)] for name in plan.columns]
        table = pa.table(columns, names=list(plan.columns))
        for batch in table.to_batches(streams.BATCH_ROWS):
            yield cast_batch(batch, self.schema)

    def _aggregates(self, side: WindowSide, left: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Return the aggregates of one group, in the order of the labels."""
        needed = [label for label, _ in side.join.on]
        if side.plan.left_time is not None:
            needed.append(side.plan.left_time)
        carried = pa.schema([pa.field(ROW, pa.int64())])
        numbers = pa.array(np.arange(left.num_rows))
        given = left.select(list(dict.fromkeys(needed))).append_column(carried.field(0), numbers)
        reach = _max_window_extent(self._engine, side, self._engine.from_arrow(given.to_reader()))
        labels = self._engine.from_arrow(given.to_reader())
        stream = _stream(self._engine, side, labels, carried, reach)
        features = side.features(carried)
        threads = _threads(self._engine)
        answers = features.in_threads(streams.batches_of(self._database, stream), threads=threads)
        table = pa.Table.from_batches(answers, features.schema)
        positions = np.empty(left.num_rows, np.int64)
        positions[table.column(ROW).to_numpy()] = np.arange(left.num_rows)
        places = pa.array(positions)
        columns = {output.name: table.column(output.name) for output in side.join.outputs}
        del table
        names = list(columns)
        with ThreadPoolExecutor(threads) as pool:
            # Few are held in both orders at a time.
            found = pool.map(lambda name: columns.pop(name).take(places), names)
            return dict(zip(names, found, strict=True))


class _Held(streams.MappedStream):
    """A relation of few rows that is read once, when it is wanted, and held."""

    _rows: list[pa.RecordBatch] | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its batches."""
        if self._rows is None:
            self._rows = list(super().batches())
        return iter(self._rows)


class _Aggregated(streams.MappedStream):
    """Labels with the aggregates of one group, key by key.

    ``asked`` are the labels where they may be read twice.
    """

    def __init__(
        self, engine: DuckDBEngine, side: WindowSide, left: Relation, asked: Relation | None
    ) -> None:
        self._features = side.features(left.schema)
        super().__init__(engine.database, left, lambda batch: batch, self._features.schema)
        self._engine = engine
        self._side = side
        self._left = left
        self._asked = asked

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the labels with their aggregates."""
        reach = None
        if self._asked is not None:
            reach = _max_window_extent(self._engine, self._side, self._asked)
        stream = _stream(self._engine, self._side, self._left, self._left.schema, reach)
        given = streams.batches_of(self._database, stream)
        for batch in self._features.in_threads(given, threads=_threads(self._engine)):
            yield cast_batch(batch, self.schema)


def _max_window_extent(engine: DuckDBEngine, side: WindowSide, labels: Relation) -> Reach:
    return reach_of(engine, side, labels, _label_keys(side)[0])


def _threads(engine: DuckDBEngine) -> int:
    threads = int(engine.database.rows("SELECT current_setting('threads')")[0][0])
    return min(threads, _MOST_THREADS)


def _stream(
    engine: DuckDBEngine,
    side: WindowSide,
    left: Relation,
    carried: pa.Schema,
    reach: Reach | None,
) -> Relation:
    """Return the rows of one group that labels reach, and the labels with some columns, sorted."""
    spec = side.join.source.spec
    needed = list(spec.schema.names)
    if not side.needs_tie_hash and not side.conditions:
        needed = _columns(side)
    rows = read_source(engine, side.join.source, needed)
    if reach is not None:
        within = " AND ".join(reach.conditions(side))
        query = f"SELECT * FROM {_ROWS} WHERE {within}"
        rows = replace(engine.sql(query, tables={_ROWS: rows}, parameters={}), schema=rows.schema)
    if side.needs_tie_hash:
        columns = tuple(spec.schema.names)
        hashed = pa.schema([*rows.schema, pa.field(TIE, pa.int64())])
        rows = engine.map_batches(rows, AddTieHash(columns), schema=hashed)
    group = _Group(side.group_is_key, reach.narrow_keys if reach is not None else None)
    both = f"({_label_rows(side, carried, group)} UNION ALL {_group_rows(side, carried, group)})"
    tables = {_LABELS: left, _ROWS: rows}
    count = side.join.source.rows
    if count is not None and count >= _SPILLED_ROWS:
        # DuckDB 2.0 spills what it sorts from one source, but not from a union.
        union = engine.sql(f"SELECT * FROM {both}", tables=tables, parameters={})
        both, tables = _BOTH, {_BOTH: engine.map_batches(union, _same, schema=union.schema)}
    query = f"SELECT * FROM {both} ORDER BY {GROUP}, {STREAM_TIME}"
    return engine.sql(query, tables=tables, parameters={})


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _columns(side: WindowSide) -> list[str]:
    """Return the columns of a group that its aggregates need, conditions aside."""
    join = side.join
    needed = [key for _, key in join.on] + [*join.members, *side.values, join.event_time]
    if join.created_time is not None:
        needed.append(join.created_time)
    return list(dict.fromkeys(needed))


def _label_keys(side: WindowSide) -> list[str]:
    """Return the keys of a label as the group's types; a value beyond them has no row."""
    schema, left = side.join.source.spec.schema, side.plan.left_schema
    keys = []
    for label, key in side.join.on:
        given, wanted = left.field(label).type, schema.field(key).type
        keys.append(label_key(f"l.{quote(label)}", given, wanted))
    return keys


def _label_rows(side: WindowSide, carried: pa.Schema, group: _Group) -> str:
    """Return the query of the labels; what only rows have is null."""
    schema = side.join.source.spec.schema
    keys = _label_keys(side)
    columns = [
        f"{group.of(keys)} AS {GROUP}",
        f"epoch_us({label_time(side.plan)}) * 2 + 1 AS {STREAM_TIME}",
    ]
    if side.needs_created_time:
        columns.append(f"NULL::BIGINT AS {AVAILABLE}")
    if side.needs_tie_hash:
        columns.append(f"NULL::BIGINT AS {TIE}")
    if not side.group_is_key:
        columns += [f"{key} AS k{number}" for number, key in enumerate(keys)]
    for letter, given in (("m", side.join.members), ("v", side.values)):
        for number, name in enumerate(given):
            kind = column_type(plain_field(schema.field(name)).type)
            columns.append(f"NULL::{kind} AS {letter}{number}")
    for number in range(len(side.conditions)):
        columns.append(f"NULL::BOOLEAN AS w{number}")
    for number, name in enumerate(carried.names):
        columns.append(f"l.{quote(name)} AS c{number}")
    return f"SELECT {', '.join(columns)} FROM {_LABELS} AS l"


@dataclass(frozen=True)
class _Group:
    """What the stream is sorted by: the key, counted from the least one, or a hash of the keys.

    32 bits where these are enough: DuckDB sorts them in half the time, since key and time then fit
    16 bytes. Keys that share a hash cost the kernel a sort.
    """

    is_key: bool
    least: int | None

    def of(self, keys: list[str]) -> str:
        """Return the expression of it."""
        if not self.is_key:
            return f"(hash({', '.join(keys)}) >> 32)::UINTEGER"
        if self.least is None:
            return f"{keys[0]}::BIGINT"
        return f"({keys[0]}::BIGINT - ({self.least})::BIGINT)::UINTEGER"


def _group_rows(side: WindowSide, carried: pa.Schema, group: _Group) -> str:
    """Return the query of the group's rows; what only labels have is null."""
    spec = side.join.source.spec
    keys = [quote(key) for _, key in side.join.on]
    event = timestamp(quote(side.join.event_time), spec.schema.field(side.join.event_time).type)
    columns = [f"{group.of(keys)} AS {GROUP}", f"epoch_us({event}) * 2 AS {STREAM_TIME}"]
    created = side.join.created_time
    if created is not None:
        known = timestamp(quote(created), spec.schema.field(created).type)
        columns.append(f"epoch_us({known}) AS {AVAILABLE}")
    if side.needs_tie_hash:
        columns.append(quote(TIE))
    if not side.group_is_key:
        columns += [f"{key} AS k{number}" for number, key in enumerate(keys)]
    for letter, given in (("m", side.join.members), ("v", side.values)):
        for number, name in enumerate(given):
            columns.append(f"{quote(name)} AS {letter}{number}")
    for number, condition in enumerate(side.conditions):
        columns.append(f"({condition}) AS w{number}")
    for number, field in enumerate(carried):
        columns.append(f"NULL::{column_type(field.type)} AS c{number}")
    present = [f"{each} IS NOT NULL" for each in (*keys, quote(side.join.event_time))]
    return f"SELECT {', '.join(columns)} FROM {_ROWS} WHERE {' AND '.join(present)}"
