"""SQLite files, read through ADBC.

A SQLite column may contain values of any type, and the driver infers the column type from the first
values. Therefore the storage classes of the values are queried first, and a sample row with these
types is prepended to the result, which determines the inferred types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as percent

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import UnsupportedType, listing, missing_extra
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore_connectors.sources import locations, sqltext, typed_columns
from featurestore_connectors.sources.drivers import convert_batch_errors, translate_errors
from featurestore_connectors.sources.sql_source import DatabaseFile, Selection, SQLSnapshot
from featurestore_connectors.sources.typed_columns import SourceColumn

_TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
# SQLite storage classes, each with a sample value.
_SAMPLES = {"integer": "0", "real": "0.0", "text": "''", "blob": "x''"}
_KINDS = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}
_FLOAT = ("real", pa.float64())
_BOOLEAN = ("integer", pa.bool_())
# Declared types of numbers without a fraction: decimal(20,0), number(10).
_NO_FRACTION = re.compile(r"(?:DEC|NUM)[A-Z]* *\( *\d+ *(?:, *0 *)?\)")
_WITH_ZONE = r":\d{2}(\.\d+)?\s*(Z|[+-]\d{2}:?\d{2})$"
_SQLITE_TIME = "strftime('%Y-%m-%d %H:%M:%f', {})"
_TIME_STEP = timedelta(milliseconds=1)


@dataclass(frozen=True)
class _ColumnStorage:
    """The declared type of a column, and the storage classes of its values.

    ``misfits`` is whether it has integers that do not fit its type: those that a float cannot
    represent, or other than 0 and 1 in a boolean column.
    """

    declared: tuple[str, pa.DataType] | None
    classes: frozenset[str]
    misfits: bool = False

    def misfit_condition(self, column: str) -> str | None:
        """Return SQL for values of a column that do not fit its type, or None if all values fit."""
        if "integer" not in self.classes:
            return None
        if self.classes == {"integer", "real"} or self.declared == _FLOAT:
            # SQLite compares integers with floats exactly.
            return f"typeof({column}) = 'integer' AND {column} <> CAST({column} AS real)"
        return f"{column} NOT IN (0, 1)" if self.declared == _BOOLEAN else None


class SQLiteSource(DatabaseFile["SQLiteSnapshot"]):
    """A SQLite file, opened read-only."""

    _scheme = "sqlite"
    _options_owner = "A SQLite source"
    _no_versions = "a SQLite file keeps no earlier versions"

    def _open(self, path: str) -> SQLiteSnapshot:
        return SQLiteSnapshot(self._config, path)


class SQLiteSnapshot(SQLSnapshot):
    """A transaction of one connection."""

    _noun = "a SQLite source"

    def __init__(self, config: SourceConfig, path: str) -> None:
        try:
            from adbc_driver_sqlite import dbapi
        except ImportError as error:
            raise missing_extra("adbc-driver-sqlite", "sources") from error
        super().__init__(config)
        self._closed = False
        self._views = 0
        with translate_errors(config):
            # The path may contain characters such as ? that have a meaning in a URI.
            self._connection = dbapi.connect(f"file:{percent(path)}?mode=ro", autocommit=True)
        self._execute("BEGIN")
        self._execute("SELECT count(*) FROM sqlite_master")  # the first read begins it
        self.server = f"SQLite {self._execute('SELECT sqlite_version()')[0][0]}"
        # Committed rows may still be in the write-ahead log, which is a separate file.
        self.identity = locations.fingerprint(locations.statuses([path, f"{path}-wal"]))

    def _table_names(self) -> Sequence[str]:
        return [name for (name,) in self._execute(_TABLES)]

    def _rows(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        columns = list(selection.columns)
        if selection.time_column is not None:
            # The condition of the query is only exact to the millisecond, so the time is read, too.
            columns.append(selection.time_column)
        samples = [
            f"{_SAMPLES[column.native]} AS {sqltext.quote(f'c{number}')}"
            for number, column in enumerate(columns)
        ]
        rows = sqltext.select(
            [column.expression for column in columns],
            source=self._from_item(selection.query),
            condition=self._window_condition(selection),
        )
        text = f"SELECT {', '.join(samples)} UNION ALL {rows}"
        batches = _parse_batches(self._batches(text), columns)
        window = selection.query.window
        if window is None:
            return batches
        return (
            batch.filter(window.contains(batch.columns[-1])).select(range(len(columns) - 1))
            for batch in batches
        )

    def _window_condition(self, selection: Selection) -> str | None:
        """Return a condition that holds for all rows of a window, and for some rows near its bounds.

        SQLite compares times in milliseconds, so the batches are filtered by the exact bounds.
        """
        window = selection.query.window
        if window is None:
            return None
        time = _SQLITE_TIME.format(sqltext.quote(window.column))
        start = self._time_literal(window.start - _TIME_STEP)
        end = self._time_literal(window.end + _TIME_STEP)
        return f"{time} BETWEEN {start} AND {end}"

    def _time_literal(self, value: datetime, column: SourceColumn | None = None) -> str:
        del column  # times are stored as text
        return _SQLITE_TIME.format(sqltext.text(sqltext.utc_text(value).removesuffix("+00:00")))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._connection.close()

    def _execute(self, text: str) -> list[Any]:
        with translate_errors(self._config), self._connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())

    def _batches(self, text: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query after the prepended sample row."""
        with translate_errors(self._config):
            cursor = self._connection.cursor()
            cursor.execute(text)
            reader = cursor.fetch_record_batch()
        first = True
        for batch in convert_batch_errors(
            self._config, iter(reader), secret=None, close=cursor.close
        ):
            # The sample row is the first row of the result.
            yield batch.slice(1) if first else batch
            first = False

    def _table_item(self, table: str) -> str:
        return sqltext.table_name(table, self._table_names())

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        if query.table is not None:
            self._check_table(query.table)
        source = self._from_item(query)
        names = self._column_names(f"SELECT * FROM {source} LIMIT 0")
        declared = self._declared_types(query.table or self._create_view(source))
        expressions = []
        for name in names:
            storage_class = f"nullif(typeof({sqltext.quote(name)}), 'null')"
            # Classes are compared as strings. If minimum and maximum are equal, all values have
            # this class.
            expressions += [f"min({storage_class})", f"max({storage_class})"]
        extremes = self._execute(f"SELECT {', '.join(expressions)} FROM {source}")[0]
        columns = {}
        for number, name in enumerate(names):
            classes = frozenset(extremes[2 * number : 2 * number + 2]) - {None}
            columns[name] = _ColumnStorage(_parse_declared_type(declared.get(name, "")), classes)
        columns |= self._find_misfits(columns, source)
        return [_to_source_column(name, storage) for name, storage in columns.items()]

    def _find_misfits(
        self, columns: Mapping[str, _ColumnStorage], source: str
    ) -> dict[str, _ColumnStorage]:
        """Return the columns with values that do not fit the type of their other values."""
        conditions = {
            name: condition
            for name, storage in columns.items()
            if (condition := storage.misfit_condition(sqltext.quote(name))) is not None
        }
        if not conditions:
            return {}
        counts = [f"max({condition})" for condition in conditions.values()]
        has_misfits = self._execute(f"SELECT {', '.join(counts)} FROM {source}")[0]
        return {
            name: replace(columns[name], misfits=True)
            for name, misfits in zip(conditions, has_misfits, strict=True)
            if misfits
        }

    def _column_names(self, text: str) -> list[str]:
        with translate_errors(self._config), self._connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetch_arrow_table().schema.names)

    def _check_table(self, table: str) -> None:
        """Raise SourceTableNotFound if the table does not exist."""
        table_names = self._table_names()
        if table not in table_names:
            raise typed_columns.unknown_table_error(self._config.name, table, table_names)

    def _create_view(self, source: str) -> str:
        """Create a temporary view, which exposes the declared column types, and return its name."""
        self._views += 1
        name = f"__fs_view_{self._views}"
        # Temporary views are in a separate database, so they are allowed in a read-only file.
        self._execute(f"CREATE TEMP VIEW {sqltext.quote(name)} AS SELECT * FROM {source}")
        return name

    def _declared_types(self, table: str) -> dict[str, str]:
        """Return the declared type of each column."""
        table_info = self._execute(f"PRAGMA table_info({sqltext.quote(table)})")
        return {str(row[1]): str(row[2] or "").upper() for row in table_info}


def _to_source_column(name: str, storage: _ColumnStorage) -> SourceColumn:
    """Return a column with the type of its values; the declared type decides if several fit."""
    quoted = sqltext.quote(name)
    if not storage.classes:
        if storage.declared is None:
            return SourceColumn(
                name,
                quoted,
                None,
                "all values are null",
                readable_expression=f"cast({quoted} as real)",
            )
        storage_class, dtype = storage.declared
        return SourceColumn(name, quoted, dtype, storage_class)
    # No other class is between these names in the alphabet, so the column has only these two.
    if storage.classes == {"integer", "real"} and not storage.misfits:
        return SourceColumn(name, quoted, pa.float64(), "real")
    if len(storage.classes) > 1:
        native = f"values of types {listing(sorted(storage.classes))}"
        if storage.misfits:
            native = "floats, and integers that a float cannot represent"
        return SourceColumn(name, quoted, None, native, readable_expression=_to_text(quoted))
    (storage_class,) = storage.classes
    dtype = _KINDS[storage_class]
    if storage_class != "integer":
        if storage.declared is not None and storage.declared[0] == storage_class:
            dtype = storage.declared[1]
        return SourceColumn(name, quoted, dtype, storage_class)
    if storage.declared == _BOOLEAN and storage.misfits:
        native = "boolean with integers other than 0 and 1"
        integers = f"cast({quoted} as integer)"
        return SourceColumn(name, quoted, None, native, readable_expression=integers)
    if storage.declared in (_FLOAT, _BOOLEAN) and not storage.misfits:
        storage_class, dtype = storage.declared
    return SourceColumn(name, quoted, dtype, storage_class)


def _to_text(column: str) -> str:
    """Return SQL for the text of a column's values, from which each value can be restored.

    A cast to text cuts floats to 15 digits. Blobs become literals: ``X'00FF'``.
    """
    return (
        f"CASE typeof({column}) WHEN 'real' THEN printf('%!.17g', {column}) "
        f"WHEN 'blob' THEN quote({column}) ELSE CAST({column} AS text) END"
    )


def _parse_declared_type(declared: str) -> tuple[str, pa.DataType] | None:
    """Return the storage class and feature type of a declared type.

    SQLite stores dates and times as text, and booleans as integers
    (https://sqlite.org/datatype3.html, 3.1).
    """
    if "DATETIME" in declared or "TIMESTAMP" in declared:
        return "text", TIMESTAMP
    if declared == "DATE":
        return "text", pa.date32()
    if "BOOL" in declared:
        return _BOOLEAN
    if "INT" in declared:
        return "integer", pa.int64()
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return "text", pa.string()
    if "BLOB" in declared:
        return "blob", pa.binary()
    if _NO_FRACTION.search(declared):
        return "integer", pa.int64()
    # In columns of other types, SQLite converts texts to numbers.
    return _FLOAT if declared not in ("", "ANY") else None


def _parse_batches(
    batches: Iterator[pa.RecordBatch], columns: Sequence[SourceColumn]
) -> Iterator[pa.RecordBatch]:
    """Yield batches with strings parsed to dates and times."""
    for batch in batches:
        arrays = [
            _parse_array(column, array)
            for column, array in zip(columns, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _parse_array(column: SourceColumn, array: pa.Array) -> pa.Array:
    """Convert an array from its storage class to the feature type of its column."""
    dtype = column.dtype
    if dtype == pa.bool_():
        return array.cast(pa.bool_())
    if column.native != "text":
        return array
    quoted = sqltext.quote(column.name)
    try:
        # SQLite stores texts of any bytes, and the driver does not check them.
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        statement = f"select cast({quoted} as blob) AS {quoted}, ..."
        raise UnsupportedType(
            f"Column {column.name!r} has texts that are not UTF-8.",
            hint=f"sql={statement!r} reads their bytes",
        ) from error
    if pat.is_string(dtype):
        return array
    try:
        if pat.is_date(dtype):
            return array.cast(pa.date32())
        return _parse_times(array)
    except pa.ArrowInvalid as error:
        statement = f"select cast({quoted} as text) AS {quoted}, ..."
        raise UnsupportedType(
            f"Column {column.name!r} has strings that are not times: {error}.",
            hint=f"sql={statement!r} reads the strings",
        ) from error


def _parse_times(array: pa.Array) -> pa.Array:
    """Parse strings to times; times without a zone are in UTC, as in SQLite."""
    has_zone = pc.match_substring_regex(array, _WITH_ZONE)
    nothing = pa.scalar(None, pa.string())
    zoned = pc.if_else(has_zone, array, nothing).cast(TIMESTAMP)
    plain = pc.if_else(has_zone, nothing, array).cast(pa.timestamp("us"))
    return pc.coalesce(zoned, pc.assume_timezone(plain, "UTC"))


if TYPE_CHECKING:
    _contract: type[Source] = SQLiteSource
    _snapshot: type[SourceSnapshot] = SQLiteSnapshot
