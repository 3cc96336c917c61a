"""Types for the untyped columns of labels and data: those of the columns they are joined with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrow_cast import cast_batch
from featurestore.arrow.fitting import can_fit
from featurestore.arrow.untyped import typed_like, untyped_columns
from featurestore.plugins.engine import Engine, Relation

# Returns the types of the columns that columns of a schema are joined with.
TypesFor = Callable[[pa.Schema], Mapping[str, pa.DataType]]


def typed_schema(schema: pa.Schema, types: TypesFor) -> pa.Schema:
    """Return a schema whose untyped columns have the types of their join partners."""
    if not untyped_columns(schema):
        return schema
    return typed_like(schema, types(schema))


def typed_relation(engine: Engine, relation: Relation, schema: pa.Schema) -> Relation:
    """Return a relation cast to a schema that ``typed_schema`` made of its own."""
    if relation.schema == schema:
        return relation
    cast = partial(cast_batch, schema=schema)
    return engine.map_batches(relation, cast, schema=schema)


def typed_table(table: pa.Table, types: TypesFor, library: str) -> pa.Table:
    """Return rows whose columns without values have the types of their join partners."""
    blank = _blank_columns(table) if library == "pandas" else []
    if not blank and not untyped_columns(table.schema):
        return table
    types_by_column = types(table.schema)
    for name in blank:
        if name in types_by_column and not can_fit(pa.float64(), types_by_column[name]):
            index = table.schema.get_field_index(name)
            table = table.set_column(index, name, pa.nulls(table.num_rows))
    schema = typed_like(table.schema, types_by_column)
    batches = [cast_batch(batch, schema) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, schema)


def _blank_columns(table: pa.Table) -> list[str]:
    """Return the columns of floats without a value: pandas gives any such column this type."""
    names = []
    for field in table.schema:
        nulls = table.column(field.name).null_count
        if pat.is_float64(field.type) and nulls == table.num_rows:
            names.append(field.name)
    return names
