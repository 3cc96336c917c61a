"""Typed columns of a source, with checks that values fit their types.

Drivers change some values: they return decimals as strings, infinite times as extreme finite times,
and flatten arrays with two axes. Such values are converted back here, or refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.casts import cast_batch
from featurestore.arrow.types import is_nested
from featurestore.errors import (
    InvalidArgument,
    SourceTableNotFound,
    UnsupportedType,
    did_you_mean,
    listing,
)
from featurestore.model.source import SourceTable
from featurestore.model.times import to_micros
from featurestore.plugins.source import SourceQuery
from featurestore_connectors.sources.sqltext import quote

# Times outside these years are not supported. Infinite times are returned far outside this range.
_FIRST, _LAST = "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"
_MICROS_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class SourceColumn:
    """A column of a source table or query.

    ``expression`` is its SQL expression. ``dtype`` is its feature type, or None if the column cannot
    be read; ``readable_expression`` is then SQL that can be read instead. ``native`` is the
    source's name of the type. ``axes`` is a SQL expression that counts the axes of an array.
    """

    name: str
    expression: str
    dtype: pa.DataType | None
    native: str = ""
    readable_expression: str | None = None
    axes: str | None = None


def select_columns(columns: Sequence[SourceColumn], query: SourceQuery) -> list[SourceColumn]:
    """Return the columns that a query needs, in query order.

    Raises:
        SourceTableNotFound: A column does not exist. The message includes the available columns.
        UnsupportedType: Requested columns cannot be read. The message includes all such columns.
    """
    columns_by_name = {column.name: column for column in columns}
    names = list(columns_by_name) if query.columns is None else list(query.columns)
    needed = list(names)
    if query.window is not None:
        # The window column must exist even if it is not requested.
        needed.append(query.window.column)
    missing = [name for name in needed if name not in columns_by_name]
    if missing:
        raise SourceTableNotFound(
            f"Unknown columns {listing(missing)} of {query}. Available: "
            f"{listing(columns_by_name, limit=50)}.",
            hint=did_you_mean(missing[0], columns_by_name, write="{!r}")
            or "the column may have been dropped or renamed at the source",
        )
    selected = [columns_by_name[name] for name in names]
    _refuse_unreadable([column for column in selected if column.dtype is None], query)
    return selected


def _refuse_unreadable(columns: Sequence[SourceColumn], query: SourceQuery) -> None:
    """Raise UnsupportedType for unreadable columns; the hint casts them if possible."""
    if not columns:
        return
    refused = [f"{column.name!r} ({column.native})" for column in columns]
    casts = [
        f"{column.readable_expression} AS {quote(column.name)}"
        for column in columns
        if column.readable_expression is not None
    ]
    hint = "select the other columns with columns=[...]"
    if casts:
        statement = f"select {', '.join(casts)}, ..."
        hint = f"sql={statement!r} casts them to supported types"
    raise UnsupportedType(
        f"{query}: these columns cannot be read without loss: {', '.join(refused)}.", hint=hint
    )


def unknown_table_error(source: str, table: str, names: Sequence[str]) -> SourceTableNotFound:
    """Return the error for a table that a source does not have."""
    return SourceTableNotFound(
        f"Source {source!r}: unknown table {table!r}. Available: {listing(names, limit=50)}.",
        hint=did_you_mean(table, names, write="table={!r}"),
    )


def invalid_query_error(
    source: str, query: SourceQuery, *, hint: str = "pass table='orders', or sql='select ...'"
) -> InvalidArgument:
    """Return the error for a query that a source does not support."""
    return InvalidArgument(f"Invalid query of {source}: {query}.", hint=hint)


class TypedColumns(ABC):
    """A snapshot whose column names and schema derive from its typed columns."""

    @abstractmethod
    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        """Return all columns of the query's table or SQL."""

    def query_of(self, table: SourceTable) -> SourceQuery:
        """Return a query for all columns of a table."""
        return SourceQuery(table=table.name)

    def names(self, query: SourceQuery) -> Sequence[str]:
        """Return the names of all columns, including unreadable ones."""
        columns = self._columns(query)
        return [column.name for column in columns]

    def schema(self, query: SourceQuery) -> pa.Schema:
        """Return the schema of the columns that a query needs."""
        return schema_of(select_columns(self._columns(query), query))


class SingleTable(TypedColumns):
    """A snapshot of a source that is one table."""

    def tables(self) -> Sequence[SourceTable]:
        """Return the table."""
        return [SourceTable(".")]

    def query_of(self, table: SourceTable) -> SourceQuery:
        """Return a query for all columns of the table."""
        del table  # it is the only one
        return SourceQuery()


def schema_of(columns: Sequence[SourceColumn]) -> pa.Schema:
    """Return the schema of columns in feature types."""
    return pa.schema([pa.field(column.name, column.dtype) for column in columns])


def cast_batches(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, *, has_sql: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield batches cast to a schema; raise an error for values that do not fit.

    ``has_sql`` is whether the source runs SQL, for the hints.
    """
    for batch in batches:
        arrays = [
            _storage_array(batch.column(index), field, has_sql=has_sql)
            for index, field in enumerate(schema)
        ]
        yield cast_batch(pa.RecordBatch.from_arrays(arrays, names=schema.names), schema)


def _storage_array(array: pa.Array, field: pa.Field, *, has_sql: bool) -> pa.Array:
    """Return an array in a storage type that can be cast; refuse times out of range."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pat.is_decimal(field.type) and pat.is_string(array.type):
        try:
            return array.cast(field.type)
        except pa.ArrowInvalid as error:
            raise UnsupportedType(
                f"Column {field.name!r} has a number that is not {field.type}: {error}.",
                hint="NaN and infinity are not supported in exact numeric columns",
            ) from error
    check_times(array, field.name, has_sql=has_sql)
    return array


def check_times(array: pa.Array, name: str, *, has_sql: bool) -> None:
    """Refuse infinite times and times outside the years 1 to 9999, including nested values.

    Raises:
        UnsupportedType: A time is out of range. The message includes the column.
    """
    if pat.is_timestamp(array.type) or pat.is_date(array.type):
        _check_bounds(array, name, has_sql=has_sql)
    elif is_nested(array.type) and not pat.is_struct(array.type):
        check_times(array.flatten(), name, has_sql=has_sql)
    elif pat.is_struct(array.type):
        for values in array.flatten():
            check_times(values, name, has_sql=has_sql)


def _check_bounds(array: pa.Array, name: str, *, has_sql: bool) -> None:
    """Refuse times outside of the years 1 to 9999."""
    # The bounds are integers, since Python has no times outside of the years 1 to 9999.
    if pat.is_date(array.type):
        low, high = _min_max(array.view(pa.int32() if pat.is_date32(array.type) else pa.int64()))
        unit = 1 if pat.is_date32(array.type) else 86_400_000
    else:
        low, high = _min_max(array.view(pa.int64()))
        unit = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[array.type.unit]
    if low is None or high is None:
        return
    if low < _FIRST_DAY * unit or high >= (_LAST_DAY + 1) * unit:
        raise out_of_range_times_error(name, has_sql=has_sql)


def out_of_range_times_error(name: str, *, has_sql: bool = True) -> UnsupportedType:
    """Return the error for infinite times and times outside of the years 1 to 9999."""
    if not has_sql:
        return UnsupportedType(
            f"Column {name!r} has times outside of the years 1 to 9999.",
            hint=f"read_source(...).drop({name!r}) reads the other columns; the files need strings, "
            "or null, instead of these times",
        )
    column = quote(name)
    strings = f"select CAST({column} AS VARCHAR) AS {column}, ..."
    condition = f"{column} >= '0001-01-01' AND {column} < '10000-01-01'"
    return UnsupportedType(
        f"Column {name!r} has infinite times, or times outside of the years 1 to 9999.",
        hint=f"sql={strings!r} reads them as strings; CASE WHEN {condition} THEN {column} END makes "
        "them null",
    )


def _min_max(array: pa.Array) -> tuple[int | None, int | None]:
    extremes = pc.min_max(array)
    return extremes["min"].as_py(), extremes["max"].as_py()


def _day(text: str) -> int:
    from datetime import UTC, datetime

    return to_micros(datetime.fromisoformat(text).replace(tzinfo=UTC)) // _MICROS_A_DAY


_FIRST_DAY, _LAST_DAY = _day(_FIRST), _day(_LAST)


def check_axes(
    batches: Iterator[pa.RecordBatch], arrays: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches without their last columns, which count the axes of the ``arrays`` columns.

    Raises:
        UnsupportedType: An array has more than one axis, which the driver would flatten.
    """
    for batch in batches:
        first = batch.num_columns - len(arrays)
        for index, name in enumerate(arrays):
            # Postgres arrays of one column may have different numbers of axes.
            max_axes = pc.max(batch.column(first + index)).as_py()
            if max_axes is not None and max_axes > 1:
                raise UnsupportedType(
                    f"Column {name!r} has arrays with {max_axes} axes, which cannot be read without loss.",
                    hint=f"sql='select {quote(name)}::text ...', or unnest them",
                )
        columns = [batch.column(index) for index in range(first)]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names[:first])
