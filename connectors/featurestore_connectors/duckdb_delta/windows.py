"""Aggregates over windows on DuckDB: rows and labels in one stream, sorted by a hash of their keys.

The rule and the arithmetic are in ``featurestore.aggregates``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.aggregates.sides import WindowSide
from featurestore.aggregates.stream import GROUP, IS_LABEL, KNOWN, MOMENT, TIE
from featurestore.model.plan import ROW, FeaturePlan
from featurestore.plugins.engine import Relation
from featurestore.retrieval.point_in_time import AddTieHash, label_columns
from featurestore_connectors.duckdb_delta import streams
from featurestore_connectors.duckdb_delta.point_in_time import (
    label_time,
    left_side,
    plain_field,
    read_source,
    timestamp,
)
from featurestore_connectors.duckdb_delta.sqltext import column_type, quote

if TYPE_CHECKING:
    from featurestore_connectors.duckdb_delta.engine import DuckDBEngine

_LABELS, _ROWS = "fs_labels", "fs_rows"


def retrieve(engine: DuckDBEngine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the labels of a plan with its aggregates, as a lazy relation."""
    needed = label_columns(plan)
    if plan.keep_order:
        needed = list(dict.fromkeys([*needed, ROW]))
    left = left_side(engine, plan, labels)
    single_use = left.single_use
    left = engine.select(left, dict(zip(needed, needed, strict=True)))
    left = replace(left, schema=pa.schema(map(plain_field, left.schema)))
    for join in plan.windows:
        left = _with_aggregates(engine, WindowSide.of(join, plan), left)
    columns = []
    for name in plan.columns:
        columns.append(f"{quote(plan.left_column(name))} AS {quote(name)}")
    query = f"SELECT {', '.join(columns)} FROM {_LABELS}"
    if plan.keep_order:
        query += f" ORDER BY {quote(ROW)}"
    found = engine.sql(query, tables={_LABELS: left}, parameters={})
    return replace(found, schema=plan.schema, single_use=single_use)


def _with_aggregates(engine: DuckDBEngine, side: WindowSide, left: Relation) -> Relation:
    """Return a left side with the aggregates of one group."""
    spec = side.join.source.spec
    rows = read_source(engine, side.join.source, spec.schema.names)
    if side.needs_tie_hash:
        columns = tuple(spec.schema.names)
        hashed = pa.schema([*rows.schema, pa.field(TIE, pa.int64())])
        rows = engine.map_batches(rows, AddTieHash(columns), schema=hashed)
    query = (
        f"SELECT * FROM ({_label_rows(side, left)} UNION ALL {_group_rows(side, left)}) "
        f"ORDER BY {GROUP}, {MOMENT}"
    )
    stream = engine.sql(query, tables={_LABELS: left, _ROWS: rows}, parameters={})
    features = side.features(left.schema)
    source = streams.SortedStream(engine.database, stream, features, features.schema)
    return streams.mapped(engine.database, source, single_use=left.single_use)


def _label_rows(side: WindowSide, left: Relation) -> str:
    """Return the query of the labels; what only rows have is null."""
    schema = side.join.source.spec.schema
    keys = []
    for label, key in side.join.on:
        # A value beyond the key's type has no row.
        keys.append(f"TRY_CAST(l.{quote(label)} AS {column_type(schema.field(key).type)})")
    columns = [
        f"hash({', '.join(keys)}) AS {GROUP}",
        f"epoch_us({label_time(side.plan)}) * 2 + 1 AS {MOMENT}",
        f"true AS {IS_LABEL}",
        f"NULL::BIGINT AS {KNOWN}",
        f"NULL::BIGINT AS {TIE}",
    ]
    for number, key_value in enumerate(keys):
        columns.append(f"{key_value} AS k{number}")
    for letter, given in (("m", side.join.members), ("v", side.values)):
        for number, name in enumerate(given):
            kind = column_type(plain_field(schema.field(name)).type)
            columns.append(f"NULL::{kind} AS {letter}{number}")
    for number in range(len(side.conditions)):
        columns.append(f"NULL::BOOLEAN AS w{number}")
    for number, name in enumerate(left.schema.names):
        columns.append(f"l.{quote(name)} AS c{number}")
    return f"SELECT {', '.join(columns)} FROM {_LABELS} AS l"


def _group_rows(side: WindowSide, left: Relation) -> str:
    """Return the query of the group's rows; what only labels have is null."""
    spec = side.join.source.spec
    keys = [quote(key) for _, key in side.join.on]
    event = timestamp(quote(side.join.event_time), spec.schema.field(side.join.event_time).type)
    known, tie = "NULL::BIGINT", "0::BIGINT"
    created = side.join.created_time
    if created is not None:
        known = f"epoch_us({timestamp(quote(created), spec.schema.field(created).type)})"
    if side.needs_tie_hash:
        tie = quote(TIE)
    columns = [
        f"hash({', '.join(keys)}) AS {GROUP}",
        f"epoch_us({event}) * 2 AS {MOMENT}",
        f"false AS {IS_LABEL}",
        f"{known} AS {KNOWN}",
        f"{tie} AS {TIE}",
    ]
    for number, key in enumerate(keys):
        columns.append(f"{key} AS k{number}")
    for letter, given in (("m", side.join.members), ("v", side.values)):
        for number, name in enumerate(given):
            columns.append(f"{quote(name)} AS {letter}{number}")
    for number, condition in enumerate(side.conditions):
        columns.append(f"({condition}) AS w{number}")
    for number, field in enumerate(left.schema):
        columns.append(f"NULL::{column_type(field.type)} AS c{number}")
    present = [f"{each} IS NOT NULL" for each in (*keys, quote(side.join.event_time))]
    return f"SELECT {', '.join(columns)} FROM {_ROWS} WHERE {' AND '.join(present)}"
