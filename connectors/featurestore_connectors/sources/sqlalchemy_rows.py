"""SQLAlchemy queries: feature types of their columns, and rows as Arrow batches.

The column types of a table are reflected. For a query, MySQL and MariaDB send column metadata
before the rows: type codes, lengths, and the character set, which distinguishes text from bytes.

A connection runs one query at a time, and the snapshot belongs to the connection. Therefore a
second query first spools the remaining rows of the first query to a file. This bounds memory, and
both queries read the same snapshot.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import FeatureStoreError, UnsupportedType
from featurestore_connectors.sources.typed_columns import SourceColumn

if TYPE_CHECKING:
    import sqlalchemy as sa

_MAX_DIGITS = 38
_PLAIN: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    str: pa.string(),
    bytes: pa.binary(),
    UUID: pa.string(),
    datetime: TIMESTAMP,
    date: pa.date32(),
}
# MySQL and MariaDB types without a Python type in SQLAlchemy.
_MYSQL_TYPES = {"YEAR": pa.int64(), "INET4": pa.string(), "INET6": pa.string(), "JSON": pa.string()}
# MySQL type codes (https://dev.mysql.com/doc/dev/mysql-server/latest/field__types_8h.html).
_CODES: dict[int, tuple[str, pa.DataType]] = {
    1: ("TINYINT", pa.int64()),
    2: ("SMALLINT", pa.int64()),
    3: ("INT", pa.int64()),
    4: ("FLOAT", pa.float32()),
    5: ("DOUBLE", pa.float64()),
    7: ("TIMESTAMP", TIMESTAMP),
    8: ("BIGINT", pa.int64()),
    9: ("MEDIUMINT", pa.int64()),
    10: ("DATE", pa.date32()),
    12: ("DATETIME", TIMESTAMP),
    13: ("YEAR", pa.int64()),
    245: ("JSON", pa.string()),
}
_REFUSED_CODES = {6: "NULL", 11: "TIME", 16: "BIT", 255: "GEOMETRY"}
_DECIMAL_CODES = (0, 246)
_TEXT_CODES = (15, 247, 248, 249, 250, 251, 252, 253, 254)
_CASTS = {"BIT": "CAST({} AS UNSIGNED)", "GEOMETRY": "ST_AsText({})", "NULL": "CAST({} AS SIGNED)"}
BATCH_ROWS = 8192
_SHOWN = 100
_WRONG = (pa.ArrowException, OverflowError, TypeError, ValueError)


@dataclass(frozen=True)
class QueryColumn:
    """Metadata of a query column, which MySQL sends before the rows.

    ``length`` is the display width of a number, including sign and point; None if the driver does
    not expose it.
    """

    name: str
    code: int
    length: int | None
    scale: int | None
    is_binary: bool


def reflected_column(
    name: str, sql_type: sa.types.TypeEngine[object], *, dialect: sa.Dialect, quoted: str
) -> SourceColumn:
    """Return the source column of a table column with a reflected type."""
    is_mysql = dialect.name in ("mysql", "mariadb")
    native = _native_type_name(sql_type, dialect)
    kind_or_none = _reflected_type(sql_type, native, is_mysql=is_mysql)
    if not is_mysql:
        return SourceColumn(name, quoted, kind_or_none, native)
    word = native.split("(")[0].split(" ")[0]
    return _mysql_column(name, kind_or_none, word, native=native, quoted=quoted)


def described_column(query_column: QueryColumn, *, quoted: str) -> SourceColumn:
    """Return the source column of a MySQL query column."""
    if query_column.code in _CODES:
        native, kind_or_none = _CODES[query_column.code]
        return _mysql_column(query_column.name, kind_or_none, native, native=native, quoted=quoted)
    if query_column.code in _TEXT_CODES:
        dtype = pa.binary() if query_column.is_binary else pa.string()
        return SourceColumn(query_column.name, quoted, dtype, "bytes or text")
    if query_column.code in _DECIMAL_CODES:
        kind_or_none = None
        if query_column.length is not None and query_column.scale is not None:
            # The length includes a sign for signed numbers, but the metadata has no signedness.
            digits = query_column.length - (query_column.scale > 0)
            # A signed number of 38 digits has the length of an unsigned number of 39 digits.
            if digits == _MAX_DIGITS + 1:
                digits = _MAX_DIGITS
            kind_or_none = decimal_type(digits, query_column.scale)
        return _mysql_column(
            query_column.name, kind_or_none, "DECIMAL", native="DECIMAL", quoted=quoted
        )
    native = _REFUSED_CODES.get(query_column.code, f"type {query_column.code}")
    return _mysql_column(query_column.name, None, native, native=native, quoted=quoted)


def _mysql_column(
    name: str, dtype: pa.DataType | None, word: str, *, native: str, quoted: str
) -> SourceColumn:
    """Return a MySQL source column with the SQL expression that reads it."""
    expression = quoted
    if word == "FLOAT":
        expression = f"({quoted} + 0e0)"  # a float alone is sent as six digits
    readable_expression = _CASTS.get(word, "CAST({} AS CHAR)").format(quoted)
    return SourceColumn(name, expression, dtype, native, readable_expression=readable_expression)


def _native_type_name(sql_type: sa.types.TypeEngine[object], dialect: sa.Dialect) -> str:
    """Return the database's name of a type."""
    from sqlalchemy.exc import CompileError
    from sqlalchemy.types import NullType

    if isinstance(sql_type, NullType):
        return "a type unknown to SQLAlchemy"
    try:
        return str(sql_type.compile(dialect=dialect)).upper()
    except CompileError:
        return type(sql_type).__name__


def _reflected_type(
    sql_type: sa.types.TypeEngine[object], native: str, *, is_mysql: bool
) -> pa.DataType | None:
    """Return the feature type of a reflected type, or None if it is not supported."""
    from sqlalchemy import types

    if isinstance(sql_type, types.Float):
        is_small = native.startswith("FLOAT") if is_mysql else native.startswith("REAL")
        return pa.float32() if is_small else pa.float64()
    if isinstance(sql_type, types.Numeric):
        return decimal_type(sql_type.precision, sql_type.scale)
    if native.startswith("BIGINT") and "UNSIGNED" in native:
        return pa.uint64()
    if is_mysql and native.split("(")[0] in _MYSQL_TYPES:
        return _MYSQL_TYPES[native.split("(")[0]]
    try:
        return _PLAIN.get(sql_type.python_type)
    except NotImplementedError:
        return None


def decimal_type(precision: int | None, scale: int | None) -> pa.DataType | None:
    """Return a decimal type, or None if the precision is missing or unsupported."""
    if precision is None or not 0 < precision <= _MAX_DIGITS:
        return None
    scale = scale or 0
    if not 0 <= scale <= precision:
        return None
    return pa.decimal128(precision, scale)


def is_zoned(column: SourceColumn) -> bool:
    """Return whether a column contains times with a zone, so that literals also need one."""
    return "WITH TIME ZONE" in column.native or "DATETIMEOFFSET" in column.native


def value_converter(column: SourceColumn) -> Callable[[object], object] | None:
    """Return a function that converts column values for Arrow, or None if none is needed."""
    if column.dtype is not None and pa.types.is_string(column.dtype):
        return lambda value: value if isinstance(value, str | None) else str(value)
    if column.dtype is not None and pa.types.is_decimal(column.dtype):
        return lambda value: Decimal(value) if isinstance(value, int) else value
    return None


class RunningQuery:
    """The rows of a running query, guarded by the lock of its connection."""

    def __init__(self, result: Any, columns: Sequence[SourceColumn], lock: threading.RLock) -> None:
        self._columns = columns
        self._lock = lock
        self._result: Any = result
        self._batches: Iterator[pa.RecordBatch] = self._fetch_batches(result)
        self._failure: FeatureStoreError | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, from the connection or from the spool file."""
        while True:
            # The lock covers a single batch, so that another query can spool between two batches.
            with self._lock:
                batch = next(self._batches, None)
                if batch is None and self._failure is not None:
                    raise self._failure
            if batch is None:
                return
            yield batch

    def spool(self) -> None:
        """Spool the remaining rows to a file, to free the connection for another query.

        Errors while fetching are raised by ``batches``, not here.
        """
        if self._result is None:
            return
        file = tempfile.TemporaryFile()  # noqa: SIM115  # closed after the last row
        writer = None
        try:
            for batch in self._batches:
                if writer is None:
                    writer = pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
        except FeatureStoreError as error:
            self._failure = error
        if writer is not None:
            writer.close()
        file.seek(0)
        self._result = None
        self._batches = _read_spool(file, empty=writer is None)

    def end(self) -> None:
        """Discard the remaining rows."""
        if self._result is not None:
            self._result.close()
            self._result = None

    def _fetch_batches(self, result: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a result as record batches."""
        names = [column.name for column in self._columns]
        for rows in result.partitions(BATCH_ROWS):
            values_by_column = zip(self._columns, zip(*rows, strict=True), strict=True)
            arrays = [_array(values, column) for column, values in values_by_column]
            yield pa.RecordBatch.from_arrays(arrays, names=names)
        # A finished query must not be spooled or closed again.
        self._result = None


def _read_spool(file: Any, *, empty: bool) -> Iterator[pa.RecordBatch]:
    with file:
        if not empty:
            yield from pa.ipc.open_stream(file)


def _array(values: Sequence[Any], column: SourceColumn) -> pa.Array:
    """Convert the values of a column to an Arrow array."""
    convert = value_converter(column)
    converted = values if convert is None else list(map(convert, values))
    try:
        return pa.array(converted, column.dtype)
    except _WRONG as error:
        raise UnsupportedType(
            f"Column {column.name!r} ({column.native}) has a value that is not {column.dtype}: "
            f"{str(_first_invalid(converted, column))[:_SHOWN]!r}.",
            hint="omit the column with columns=[...], or cast it in sql= or a view",
        ) from error


def _first_invalid(values: Sequence[Any], column: SourceColumn) -> Any:
    for value in values:
        try:
            pa.array([value], column.dtype)
        except _WRONG:
            return value
    return None
