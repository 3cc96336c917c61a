"""Relations on DuckDB: adopted frames, Arrow streams, files, and the queries over them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.arrow_cast import cast_batch
from featurestore.arrow.duckdb_columns import with_storable_types
from featurestore.arrow.types import feature_schema
from featurestore.errors import InvalidSql, SchemaMismatch, StorageError, listing
from featurestore.model.callers import warn_caller
from featurestore.model.times import NaiveTimeWarning
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.storage import files as storage
from featurestore_connectors.duckdb_delta import sqltext, streams
from featurestore_connectors.duckdb_delta.interrupts import reads_from
from featurestore_connectors.duckdb_delta.session import Database, building, query_of

ENGINE = "duckdb"
# A column of row numbers while rows are compared; feature names cannot begin like this.
_NUMBER = "__fs_row"


@dataclass(frozen=True)
class StagedRelation(streams.MappedRelation):
    """The rows of Parquet files that this engine wrote.

    Storage types, in order, with statistics. ``source`` gives the same rows from memory, where they
    came as a stream and are few.
    """

    files: tuple[Any, ...] = ()


def relation(
    native: duckdb.DuckDBPyRelation, schema: pa.Schema, *, single_use: bool = False
) -> Relation:
    """Return a relation of this engine."""
    return Relation(engine=ENGINE, native=native, schema=schema, single_use=single_use)


def adopt(database: Database, frame: object) -> Relation | None:
    """Return a relation over a DuckDB relation of the user, None for any other frame."""
    if not isinstance(frame, duckdb.DuckDBPyRelation):
        return None
    with building():
        rows: duckdb.DuckDBPyRelation = with_storable_types(frame)
    try:
        native = database.connect_relation(rows)
    except duckdb.InvalidInputException:
        # A relation of another database: read as a stream, anew at every reading.
        native = database.connection.from_arrow(_ForeignRelation(rows))
    with building():
        given = rows.limit(0).to_arrow_table().schema
        return of_feature_types(native, given, [str(kind) for kind in rows.types])


class _ForeignRelation:
    """An Arrow source over a relation of another DuckDB database."""

    def __init__(self, frame: duckdb.DuckDBPyRelation) -> None:
        self._frame = frame
        self.schema = frame.limit(0).to_arrow_table().schema

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # There is no public way from a relation to its connection.
        reads_from(getattr(self._frame, "_con", None))
        reader = self._frame.to_arrow_reader()
        return streams.source(self.schema, iter(reader)).__arrow_c_stream__()


def of_feature_types(
    native: duckdb.DuckDBPyRelation, given: pa.Schema, types: Sequence[str]
) -> Relation:
    """Return a native relation with every column as a feature type; ``types`` are DuckDB's."""
    schema = feature_schema(given, language="duckdb")
    _warn_of_naive_times(given)
    columns = []
    for field, native_type in zip(schema, types, strict=True):
        name, wanted = sqltext.quote(field.name), sqltext.column_type(field.type)
        value = name if native_type == wanted else f"CAST({name} AS {wanted})"
        columns.append(f"{value} AS {name}")
    return relation(native.project(", ".join(columns)), schema)


def _warn_of_naive_times(given: pa.Schema) -> None:
    naive = []
    for field in given:
        if pat.is_timestamp(field.type) and field.type.tz is None:
            naive.append(field.name)
    if naive:
        warn_caller(
            f"the times of {listing(naive)} have no time zone and are taken as UTC",
            NaiveTimeWarning,
        )


def from_arrow(database: Database, reader: pa.RecordBatchReader) -> Relation:
    """Return a relation over a stream, which can be read once."""
    schema = feature_schema(reader.schema)
    batches = iter(reader)
    if reader.schema != schema:
        batches = (cast_batch(batch, schema) for batch in reader)
    once = streams.StreamOnce(database, schema, batches)
    source = streams.source(schema, once.handed_on())
    with building():
        native = database.connection.from_arrow(source)
    return streams.MappedRelation(ENGINE, native, schema, single_use=True, source=once)


def read_files(database: Database, paths: Sequence[str], *, schema: pa.Schema | None) -> Relation:
    """Return the rows of Parquet files and of folders to any depth, columns matched by name."""
    patterns = [sqltext.text(_pattern(path)) for path in paths]
    listed = ", ".join(patterns)
    native = database.bind(f"SELECT * FROM read_parquet([{listed}], union_by_name=true)")
    found = adopt(database, native)
    if found is None or schema is None:
        return found  # type: ignore[return-value]  # a native relation is never foreign
    return cast(found, schema)


def _pattern(path: str) -> str:
    """Return the glob pattern for a Parquet file, or for all of a folder."""
    escaped = sqltext.literal_path(path)
    if storage.is_directory(path):
        return os.path.join(escaped, "**", "*.parquet")
    if storage.exists(path):
        return escaped
    raise StorageError(
        f"{path} does not exist.", hint="give Parquet files or folders that hold some"
    )


def cast(given: Relation, schema: pa.Schema) -> Relation:
    """Return a relation with exactly the columns and types of a schema.

    Columns that it lacks are null.
    """
    if given.schema == schema:
        return given
    with building():
        native = given.native.project(sqltext.casts(schema, sqltext.types_of(given.schema)))
    return relation(native, schema, single_use=given.single_use)


def select(given: Relation, columns: Mapping[str, str]) -> Relation:
    """Return columns under new names."""
    check_columns(given.schema, list(columns.values()))
    fields, parts = [], []
    for name, column in columns.items():
        fields.append(given.schema.field(column).with_name(name))
        parts.append(f"{sqltext.quote(column)} AS {sqltext.quote(name)}")
    with building():
        native = given.native.project(", ".join(parts))
    return relation(native, pa.schema(fields), single_use=given.single_use)


def filter_rows(given: Relation, predicate: str) -> Relation:
    """Return the rows for which the predicate is true."""
    with building():
        return relation(given.native.filter(predicate), given.schema, single_use=given.single_use)


def range_condition(window: TimeRange) -> str:
    """Return the condition that a time lies in a range; null for null times."""
    name = sqltext.quote(window.column)
    start, end = sqltext.moment(window.start), sqltext.moment(window.end)
    if window.closed == "right":
        return f"({name} > {start} AND {name} <= {end})"
    return f"({name} >= {start} AND {name} < {end})"


def sql(
    database: Database, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
) -> Relation:
    """Return the result of a query over named relations, with its ``$name`` parameters bound."""
    natives = {name: each.native for name, each in tables.items()}
    try:
        native = database.bind(query, natives, parameters=parameters)
    except InvalidSql as error:
        hint = f"the tables are {listing(tables)}, the parameters {listing(parameters)}"
        raise InvalidSql(error.message, hint=hint) from error
    found = adopt(database, native)
    if found is None:
        raise InvalidSql("The query returns no rows.")
    single_use = any(each.single_use for each in tables.values())
    return relation(found.native, found.schema, single_use=single_use)


def duplicates(
    database: Database, given: Relation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many keys occur more than once, and the most frequent with their count ``n``."""
    check_columns(given.schema, key)
    columns, number = sqltext.names(key), sqltext.quote(_NUMBER)
    query = f"""
        WITH found AS (
            SELECT {columns}, count(*) AS {number} FROM given WHERE {sqltext.all_present(key)}
            GROUP BY {columns} HAVING count(*) > 1
        )
        SELECT *, count(*) OVER () FROM found ORDER BY {number} DESC, {columns} LIMIT {limit + 1}
    """
    native = database.bind(query, {"given": given.native})
    rows = database.rows(query_of(native))
    if not rows:
        return 0, []
    names = (*key, "n")
    examples = []
    for row in rows[:limit]:
        examples.append(dict(zip(names, row[:-1], strict=True)))
    return rows[0][-1], examples


def last_per_key(database: Database, given: Relation, key: Sequence[str]) -> Relation:
    """Return the last row of each key, in the order of the relation.

    Rows with a null in the key stay.
    """
    check_columns(given.schema, key)
    columns, number = sqltext.names(key), sqltext.quote(_NUMBER)
    is_last = f"row_number() OVER (PARTITION BY {columns} ORDER BY {number} DESC) = 1"
    query = f"""
        SELECT {sqltext.names(given.schema.names)}
        FROM (SELECT *, row_number() OVER () AS {number} FROM given)
        QUALIFY NOT ({sqltext.all_present(key)}) OR {is_last}
        ORDER BY {number}
    """
    native = database.bind(query, {"given": given.native})
    return relation(native, given.schema, single_use=given.single_use)


def check_columns(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise SchemaMismatch when a schema lacks some of the columns."""
    present = set(schema.names)  # ``names`` is a new list each time
    absent = [column for column in columns if column not in present]
    if absent:
        raise SchemaMismatch(
            f"There are no columns {listing(absent)}; there are {listing(schema.names, limit=50)}."
        )
