"""Parquet tables: one type per column, read by DuckDB, or by Arrow if DuckDB fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.arrow.casts import cast_batch
from featurestore.arrow.types import feature_type
from featurestore.errors import FeatureStoreError, SourceError, UnsupportedType, listing
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore.storage import storage_for
from featurestore_connectors.sources import duckdb_rows, sqltext
from featurestore_connectors.sources.duckdb_rows import DuckDBRows
from featurestore_connectors.sources.folders.listing import FolderFile, FolderFiles
from featurestore_connectors.sources.folders.options import FolderOptions, TableName
from featurestore_connectors.sources.folders.parquet_sizes import (
    MAX_BATCH_ROWS,
    VECTOR_ROWS,
    find_batch_rows,
)
from featurestore_connectors.sources.folders.tables import (
    Column,
    FolderTable,
    TableRead,
    TableSchema,
)
from featurestore_connectors.sources.folders.variants import find_unreadable_part, is_shredded
from featurestore_connectors.sources.typed_columns import SourceColumn, check_times

_SHOWN = 300
_VARIANT = "VARIANT"
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float32(), pa.float64())


class ParquetTable(FolderTable):
    """A table of Parquet files."""

    def __init__(
        self,
        folder_files: FolderFiles,
        table: TableName,
        options: FolderOptions,
        *,
        config: SourceConfig,
        connection: duckdb.DuckDBPyConnection,
    ) -> None:
        super().__init__(folder_files, table, options)
        self._config = config
        self._connection = connection

    def source_columns(self) -> list[SourceColumn]:
        """Return the common columns of all files, including unreadable ones.

        Raises:
            InvalidSourceFile: Files have different columns or incompatible types.
        """
        merged: dict[str, SourceColumn] = {}
        first: dict[str, str] = {}
        for file in self.folder_files.files:
            columns = self._describe_columns(file)
            if merged:
                first_file = self.folder_files.files[0].name
                names = [column.name for column in columns]
                self.compare_names(file, names, list(merged), first=first_file)
            for column in columns:
                first.setdefault(column.name, file.name)
                earlier = merged.setdefault(column.name, column)
                if earlier.dtype != column.dtype:
                    merged[column.name] = self._widen_column(
                        earlier, column, file, first[column.name]
                    )
        return list(merged.values())

    def columns(self) -> list[Column]:
        columns = []
        for source_column in self.source_columns():
            column = self.declared_column(source_column.name)
            if column is None and source_column.dtype is not None:
                column = Column(source_column.name, source_column.dtype)
            if column is not None:
                columns.append(column)
        self.check_declared([column.name for column in columns])
        return columns

    def rows(self, file: FolderFile, read: TableRead) -> Iterator[pa.RecordBatch]:
        schema, columns = read.schema, read.columns
        described = {column.name: column for column in self._describe_columns(file)}
        # A column of nulls has no type, but it is part of the file.
        names = [name for name, column in described.items() if column.dtype or _is_null(column)]
        expected = [column.name for column in schema.in_files]
        self.compare_names(file, names, expected, first="the earlier files")
        inside = [
            column.name
            for column in columns
            if column.name in described and not _is_null(described[column.name])
        ]
        count = 0
        try:
            for batch in self._batches(file, inside, described, read.window):
                count += batch.num_rows
                yield self._cast_batch(batch, columns, file)
        except UnsupportedType as error:
            raise self.table.invalid_file_error(
                f"{file.name}: {error.message}", hint=self._times_hint(schema, error)
            ) from error
        except SourceError as error:
            # Arrow can read some files that DuckDB cannot. It must not repeat rows that DuckDB has
            # returned, nor read a damaged file, nor a variant in parts.
            shredded = self._variants(file, inside, described, is_shredded)
            if count or shredded or "orrupt" in error.message:
                raise self.table.invalid_file_error(
                    f"{file.name}: {error.message}", hint=self._variants_hint(schema, shredded)
                ) from error
            for batch in self._read_with_arrow(file, inside, self._find_batch_rows(file)):
                yield self._cast_batch(batch, columns, file)

    def _describe_columns(self, file: FolderFile) -> list[SourceColumn]:
        """Return the columns of a file as reported by DuckDB, or by Arrow if DuckDB fails."""
        schema = self._arrow_schema(file)
        try:
            columns = duckdb_rows.describe_columns(
                self._config, self._connection, _scan_expression(file)
            )
        except FeatureStoreError:
            if schema is None:
                raise
            return [
                SourceColumn(field.name, field.name, feature_type(field.type), str(field.type))
                for field in schema
            ]
        described = []
        for column in columns:
            index = -1 if schema is None else schema.get_field_index(column.name)
            dtype = schema.field(index).type if schema is not None and index >= 0 else None
            unreadable_type = _find_unreadable_type(column, dtype)
            if unreadable_type is not None:
                column = SourceColumn(column.name, column.expression, None, unreadable_type)
            described.append(column)
        return described

    def _arrow_schema(self, file: FolderFile) -> pa.Schema | None:
        """Return the Arrow schema of a file, or None if Arrow cannot read it."""
        try:
            return parquet.read_schema(storage_for(file.path).open_ranges(file.path))
        except (pa.ArrowException, OSError):
            return None

    def _widen_column(
        self, earlier: SourceColumn, column: SourceColumn, file: FolderFile, first: str
    ) -> SourceColumn:
        """Return a column of the narrowest type that holds the values of both columns."""
        # Declared types replace those of the files, and a column of nulls fits every type.
        if column.name in self.options.dtypes or _is_null(column):
            return earlier
        if _is_null(earlier):
            return column
        wider = _common_type(earlier.dtype, column.dtype)
        if wider is None:
            raise self.table.invalid_file_error(
                f"column {column.name!r} is {earlier.dtype or earlier.native} in {first} and "
                f"{column.dtype or column.native} in {file.name}.",
                hint=f"{self.table.call(dtypes={column.name: 'string'})} reads it as strings, if "
                "the values can be cast",
            )
        return SourceColumn(column.name, column.expression, wider, earlier.native)

    def _times_hint(self, schema: TableSchema, error: UnsupportedType) -> str | None:
        """Return the hint for times that cannot be read, or None."""
        if "timestamp[ns]" in error.message:
            return f"{self.table.call(timestamp_precision='us')} rounds them"
        readable_names = [
            column.name for column in schema.columns if not pat.is_temporal(column.dtype)
        ]
        if not readable_names:
            return None
        return f"{self.table.call(columns=readable_names)} leaves times out"

    def _batches(
        self,
        file: FolderFile,
        names: Sequence[str],
        described: dict[str, SourceColumn],
        window: TimeRange | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns read by DuckDB, or by Arrow for nanoseconds and for very long values."""
        batch_rows = self._find_batch_rows(file)
        if self.options.timestamp_precision is not None:
            schema = self._arrow_schema(file)
            kinds = [] if schema is None else [field.type for field in schema]
            if any(pat.is_timestamp(dtype) and dtype.unit == "ns" for dtype in kinds):
                yield from self._read_with_arrow(file, names, batch_rows)
                return
        # DuckDB would encode variants again, and has no nanoseconds with a zone in them.
        variants = self._variants(file, names, described)
        if variants and not self._variants(file, names, described, is_shredded):
            yield from self._read_with_arrow(file, names, batch_rows)
            return
        # DuckDB would convert more rows than fit.
        if batch_rows < VECTOR_ROWS:
            yield from self._read_with_arrow(file, names, batch_rows)
            return
        yield from self._read_with_duckdb(file, names, described, window, batch_rows)

    def _variants(
        self,
        file: FolderFile,
        names: Sequence[str],
        described: dict[str, SourceColumn],
        is_selected: Callable[[pa.DataType], bool] = pat.is_struct,
    ) -> list[str]:
        """Return the columns that are variants of selected Arrow types."""
        variants = [name for name in names if described[name].native == _VARIANT]
        schema = self._arrow_schema(file) if variants else None
        if schema is None:
            return []
        return [name for name in variants if is_selected(schema.field(name).type)]

    def _variants_hint(self, schema: TableSchema, variants: Sequence[str]) -> str | None:
        """Return the hint for variants that cannot be read, or None."""
        readable_names = [column.name for column in schema.columns if column.name not in variants]
        if not variants or not readable_names:
            return None
        return (
            f"{self.table.call(columns=readable_names)} leaves the variants {listing(variants)} out"
        )

    def _find_batch_rows(self, file: FolderFile) -> int:
        try:
            return find_batch_rows(file.path)
        except (pa.ArrowException, OSError):
            return MAX_BATCH_ROWS  # DuckDB may read a file that Arrow cannot

    def _read_with_duckdb(
        self,
        file: FolderFile,
        names: Sequence[str],
        described: dict[str, SourceColumn],
        window: TimeRange | None,
        batch_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        # A declared column may be missing from this file; the caller filters its null times.
        if window is not None and window.column not in described:
            window = None
        query = SourceQuery(columns=tuple(names), window=window)
        if not names:
            # A query needs a column to return the number of rows.
            query = SourceQuery(columns=tuple(list(described)[:1]), window=window)
        rows = DuckDBRows(
            self._config, self._connection, _scan_expression(file), batch_rows=batch_rows
        )
        yield from rows.read(query)

    def _read_with_arrow(
        self, file: FolderFile, names: Sequence[str], batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns read by Arrow; refuse times out of range and incomplete files."""
        try:
            parquet_file = parquet.ParquetFile(storage_for(file.path).open_ranges(file.path))
            missing = parquet_file.metadata.num_rows
            for batch in parquet_file.iter_batches(batch_rows, columns=list(names) or None):
                missing -= batch.num_rows
                for array, name in zip(batch.columns, batch.schema.names, strict=True):
                    check_times(array, name, has_sql=False)
                yield batch
            if missing:
                # The footer has the row count. A damaged file may contain fewer rows.
                raise OSError(f"{missing} of its rows are missing")
        except (pa.ArrowException, OSError) as error:
            first_line = str(error).strip().split("\n")[0][:_SHOWN]
            raise self.table.invalid_file_error(
                f"{file.name} is damaged, or not Parquet: {first_line}."
            ) from error

    def _cast_batch(
        self, batch: pa.RecordBatch, columns: Sequence[Column], file: FolderFile
    ) -> pa.RecordBatch:
        """Return the columns in the types of the table; columns missing from the file are null."""
        arrays = []
        for column in columns:
            index = batch.schema.get_field_index(column.name)
            if index < 0:
                arrays.append(pa.nulls(batch.num_rows, column.dtype))
                continue
            array = batch.column(index)
            if pat.is_timestamp(array.type) and self.options.timestamp_precision is not None:
                array = pc.round_temporal(array, 1, "microsecond")
            if pat.is_decimal(array.type):
                self._check_digits(array, column.name, file)
            arrays.append(array)
        names = [column.name for column in columns]
        if not names:
            return batch
        fields = pa.schema([(column.name, column.dtype) for column in columns])
        try:
            return cast_batch(pa.RecordBatch.from_arrays(arrays, names), fields)
        except UnsupportedType as error:
            raise self.table.invalid_file_error(
                f"{file.name}: {error.message}", hint=error.hint
            ) from error

    def _check_digits(self, array: pa.Array, name: str, file: FolderFile) -> None:
        """Refuse decimals that do not fit into their type."""
        try:
            # Arrow does not check the digits of decimals when it reads a file.
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self.table.invalid_file_error(
                f"{file.name}: column {name!r} has decimals with more digits than its type "
                f"{array.type}: {error}."
            ) from error


def _find_unreadable_type(column: SourceColumn, dtype: pa.DataType | None) -> str | None:
    """Return the type of a column that DuckDB would change, or None."""
    if dtype is None:
        return None
    if pat.is_decimal256(dtype):
        # DuckDB would read such decimals as floats.
        return str(dtype)
    if column.native == _VARIANT:
        unreadable_part = find_unreadable_part(dtype)
        return unreadable_part and f"shredded variant with {unreadable_part}"
    return None


def _is_null(column: SourceColumn) -> bool:
    """Return whether a column has no type because all its values are null."""
    return column.dtype is None and column.native.strip('"').upper() == "NULL"


def _scan_expression(file: FolderFile) -> str:
    return f"read_parquet({sqltext.file_list([file.path])}, hive_partitioning = false)"


def _common_type(first: pa.DataType | None, second: pa.DataType | None) -> pa.DataType | None:
    """Return the narrowest type that holds all values of both types, or None."""
    if first is None or second is None:
        return None
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if first in family and second in family:
            return max(first, second, key=family.index)
    for narrow, wide in ((first, second), (second, first)):
        # An unsigned integer fits into the next wider signed type.
        if narrow in _UNSIGNED[:3] and wide in _SIGNED:
            return max(_SIGNED[_UNSIGNED.index(narrow) + 1], wide, key=_SIGNED.index)
        # float64 represents integers of up to 32 bits exactly.
        if wide == pa.float64() and (narrow in _SIGNED[:3] or narrow in _UNSIGNED[:3]):
            return wide
    return None
