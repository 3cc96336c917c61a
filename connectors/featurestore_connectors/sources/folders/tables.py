"""Schemas of folder tables, the base class of the format readers, and invalid rows."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json, type_to_json
from featurestore.arrow.text_values import TextRules, arrow_type, is_typed_value, parse_texts
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidSourceFile,
    SourceTableNotFound,
    StorageError,
    did_you_mean,
    listing,
)
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders.compression import ArchiveError
from featurestore_connectors.sources.folders.listing import FolderFile, FolderFiles
from featurestore_connectors.sources.folders.options import FolderOptions, TableName
from featurestore_connectors.sources.folders.scan import TextScan
from featurestore_connectors.sources.typed_columns import SourceColumn

_MAX_STORED = 10_000
_SHOWN = 120


@dataclass(frozen=True)
class Column:
    """A column of a folder table.

    ``meaning`` is the type name in ``text_values`` if the type was inferred from strings.
    ``is_declared`` is true if ``dtypes`` declares the type; such a column may be missing from a
    file and is then null. A column that cannot be read has the type null, and its own type as
    ``meaning``.
    """

    name: str
    dtype: pa.DataType
    meaning: str = ""
    is_declared: bool = False
    is_partition: bool = False

    def to_source_column(self) -> SourceColumn:
        """Return the column without a type if it cannot be read."""
        dtype = None if pat.is_null(self.dtype) else self.dtype
        return SourceColumn(self.name, self.name, dtype, self.meaning)


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table in the order of its first file, followed by the partition columns."""

    columns: tuple[Column, ...]

    @property
    def in_files(self) -> tuple[Column, ...]:
        """The columns that are stored in the files."""
        return tuple(column for column in self.columns if not column.is_partition)

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return next(column for column in self.columns if column.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as a JSON object for ``from_json``."""
        columns = [
            {
                "name": column.name,
                "kind": type_to_json(column.dtype),
                "meaning": column.meaning,
                "is_declared": column.is_declared,
                "is_partition": column.is_partition,
            }
            for column in self.columns
        ]
        return {"columns": columns}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSchema:
        """Build a schema from the JSON object of ``to_json``.

        Raises:
            StorageError: The object is damaged.
        """
        try:
            columns = []
            for column in data["columns"]:
                attributes = {name: value for name, value in column.items() if name != "kind"}
                columns.append(Column(dtype=type_from_json(column["kind"]), **attributes))
        except (LookupError, TypeError, ValueError, AttributeError, FeatureStoreError) as error:
            raise StorageError(
                f"The stored types of the source's table {data.get('path')!r} are damaged: "
                f"{type(error).__name__}: {error}.",
                hint="restore the folder sources of the store from a copy; or remove the file of "
                "these types from it, and they are inferred again",
            ) from error
        return cls(tuple(columns))


@dataclass(frozen=True)
class TableRead:
    """A read of the files of a table: its columns, the window of its rows, and its invalid rows.

    ``columns`` are the columns to read from the files, without partition columns.
    """

    schema: TableSchema
    columns: Sequence[Column]
    window: TimeRange | None
    bad_rows: BadRows


class FolderTable(ABC):
    """A table of files in one format and dialect; subclasses implement the formats."""

    def __init__(self, folder_files: FolderFiles, table: TableName, options: FolderOptions) -> None:
        self.folder_files = folder_files
        self.table = table
        self.options = options

    @abstractmethod
    def columns(self) -> list[Column]:
        """Read all files and return their common columns.

        Raises:
            InvalidSourceFile: Files have different columns. The message includes files, lines and
                columns.
        """

    @abstractmethod
    def rows(self, file: FolderFile, read: TableRead) -> Iterator[pa.RecordBatch]:
        """Yield typed columns of a file; the caller must still filter the rows by the window.

        Raises:
            InvalidSourceFile: The file does not match the schema. The message includes the line and
                column.
        """

    def dialect(self) -> Mapping[str, object]:
        """Return the dialect of the files, for display."""
        return {"format": self.folder_files.format}

    def decide(self) -> TableSchema:
        """Infer the schema of all files, including partition columns."""
        columns = self.columns()
        names = [column.name for column in columns]
        return TableSchema((*columns, *self._partition_columns(names)))

    def batches(
        self,
        schema: TableSchema,
        columns: Sequence[Column],
        *,
        window: TimeRange | None,
        bad_rows: BadRows,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files in a window, with the columns in the requested order."""
        needed = list(columns)
        if window is not None and window.column not in [column.name for column in columns]:
            # The window column is read even if it is not requested, and removed after the filter.
            needed.append(schema.column(window.column))
        in_files = [column for column in needed if not column.is_partition]
        read = TableRead(schema, in_files, window, bad_rows)
        fields = pa.schema([(column.name, column.dtype) for column in columns])
        for file in self.folder_files.files:
            # The folders of a file determine its partition values, which are the same in all rows.
            constants = {
                column.name: self._partition_value(file, column)
                for column in needed
                if column.is_partition
            }
            for batch in self.rows(file, read):
                arrays = [
                    pa.repeat(constants[column.name], batch.num_rows)
                    if column.is_partition
                    else batch.column(column.name)
                    for column in needed
                ]
                rows = pa.RecordBatch.from_arrays(arrays, [column.name for column in needed])
                # Readers skip files and row groups by statistics, so other rows remain.
                if window is not None:
                    rows = rows.filter(window.contains(rows.column(window.column)))
                yield pa.RecordBatch.from_arrays(
                    [rows.column(name) for name in fields.names], schema=fields
                )

    def declared_column(self, name: str) -> Column | None:
        """Return a column with the type that the options declare, or None."""
        dtype = self.options.dtypes.get(name)
        return None if dtype is None else Column(name, dtype, is_declared=True)

    def new_bad_rows(self) -> BadRows:
        """Return the handler of the invalid rows of one pass over the files."""
        return BadRows(self.table, self.options.on_bad_rows == "quarantine")

    def compare_names(
        self, file: FolderFile, names: Sequence[str], expected: Sequence[str], *, first: str
    ) -> None:
        """Refuse a file with missing or additional columns; declared columns may be missing.

        Raises:
            InvalidSourceFile: The columns differ. The message includes the file and the columns.
        """
        declared = self.options.dtypes
        extra = [name for name in names if name not in expected and name not in declared]
        missing = [name for name in expected if name not in names and name not in declared]
        if not extra and not missing:
            return
        differences = []
        if extra:
            differences.append(f"has the additional columns {listing(extra)}")
        if missing:
            differences.append(f"lacks the columns {listing(missing)}")
        strings = dict.fromkeys([*extra, *missing], "string")
        raise self.table.invalid_file_error(
            f"{file.name} {' and '.join(differences)}, unlike {first}.",
            hint=f"{self.table.call(dtypes=strings)} declares them; files that lack them get nulls",
        )

    def check_declared(self, names: Iterable[str]) -> None:
        """Refuse declared columns that are neither in a file nor in the names of folders."""
        column_names = [*names, *self.folder_files.partitions]
        for name in self.options.dtypes:
            if name not in column_names:
                raise InvalidArgument(
                    f"dtypes: no file of source {self.table.source!r} has the column {name!r}. Available: "
                    f"{listing(column_names, limit=50)}.",
                    hint=did_you_mean(name, column_names, write="dtypes={{{!r}: 'string'}}"),
                )

    def _partition_columns(self, in_files: Sequence[str]) -> list[Column]:
        """Return the partition columns, each with one type for all its values.

        Raises:
            InvalidSourceFile: The files contain a column with the name of a partition column.
        """
        columns = []
        for number, key in enumerate(self.folder_files.partitions):
            if key in in_files:
                raise self.table.invalid_file_error(
                    f"{self.folder_files.files[0].name} has the column {key!r}, which is also a partition key "
                    f"of its folder {key}=....",
                    hint="remove the column from the files, or rename the folders",
                )
            if key in self.options.dtypes:
                columns.append(Column(key, self.options.dtypes[key], "", True, True))
                continue
            scan = TextScan(self.options.rules(key))
            # The values of all files determine the type, as for the columns in the files.
            scan.update(
                pa.array(
                    [file.partitions[number][1] for file in self.folder_files.files], pa.string()
                )
            )
            columns.append(Column(key, arrow_type(scan.meaning), scan.meaning, False, True))
        return columns

    def _partition_value(self, file: FolderFile, column: Column) -> pa.Scalar:
        """Parse the value of a partition column for a file.

        Raises:
            InvalidSourceFile: The value does not have the column type. The message includes the folder.
        """
        text = dict(file.partitions).get(column.name)
        values, reasons = parse_texts(
            pa.array([text], pa.string()), column.dtype, text_rules(column, self.options)
        )
        if reasons:
            raise self.table.invalid_file_error(
                f"folder {column.name}= of {file.name}: {reasons[0]}.",
                hint=f"{self.table.call(dtypes={column.name: 'string'})} reads the column as strings",
            )
        return values[0]


@dataclass
class BadRows:
    """Handler of invalid rows: raises an error, or counts them if the options allow quarantine.

    The first 10,000 invalid rows are stored with their text.
    """

    table: TableName
    quarantines: bool
    count: int = 0
    rows: list[BadRow] = field(default_factory=list)

    def add(self, row: BadRow, *, hint: str | None = None) -> None:
        """Count an invalid row.

        Raises:
            InvalidSourceFile: The options do not allow quarantine.
        """
        if not self.quarantines:
            column = "" if row.column is None else f", column {row.column!r}"
            raise self.table.invalid_file_error(
                f"{row.file} line {row.line}{column}: {row.reason}.",
                hint=hint
                or f"{self.table.call(on_bad_rows='quarantine')} skips and counts such rows",
            )
        self.count += 1
        if len(self.rows) < _MAX_STORED:
            self.rows.append(row)


def find_missing_content(file: FolderFile, content: str) -> str | None:
    """Return the reason why a file without rows is a bad row, or None if it has no bytes.

    ``content`` is the noun for the expected content, such as "rows".
    """
    return None if file.is_empty() else f"the file is not empty, but has no {content}"


def to_batch(
    arrays: Sequence[pa.Array], columns: Sequence[Column], row_count: int
) -> pa.RecordBatch:
    """Return arrays as a batch; without columns, a column of nulls has the row count."""
    if not columns:
        return pa.RecordBatch.from_arrays([pa.nulls(row_count)], [""])
    return pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])


def drop_rows(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Return a batch without the rows with these indices."""
    if not rows:
        return batch
    mask = np.ones(batch.num_rows, dtype=bool)
    mask[list(rows)] = False
    return batch.filter(pa.array(mask))


def truncate_text(text: str) -> str:
    """Return the beginning of a line, for error messages."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def unreadable_file_error(
    file: FolderFile, table: TableName, error: Exception
) -> InvalidSourceFile:
    """Return the error for a file that cannot be read or decompressed."""
    if isinstance(error, ArchiveError):
        return table.invalid_file_error(
            f"{file.name}: {error}.", hint="extract the archive, and read the folder of its files"
        )
    return table.invalid_file_error(f"{file.name} cannot be read, or is damaged: {error}.")


def schema_key(path: str | None, options: Mapping[str, str]) -> str:
    """Return the key under which a table schema is stored: its path and its options."""
    # The key is part of a file name, so it is a hash. Options are sorted, since their order has no
    # meaning.
    text = json.dumps([(path or ".").strip("/"), dict(sorted(options.items()))])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def text_rules(column: Column, options: FolderOptions) -> TextRules:
    """Return the rules that parse the strings of a column."""
    rules = options.rules(column.name, declared=column.is_declared)
    # An inferred column has times with or without a zone, but never both.
    zone = {"timestamp": False, "timestamp with zone": True}.get(column.meaning)
    return TextRules(**{**vars(rules), "zone": zone})


def check_names(names: Sequence[str], table: TableName, file: FolderFile, *, line: int = 1) -> None:
    """Refuse duplicate column names."""
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        renamed = [f"column_{number}" for number in range(1, len(names) + 1)]
        hint = f"{table.call(header=False, skip_rows=line, names=renamed)} renames them"
        if any(is_typed_value(name) for name in duplicates):
            call = table.call(header=False, names=renamed)
            hint = f"{call} reads line {line} as data; if it is the header, add skip_rows={line}"
        raise table.invalid_file_error(
            f"{file.name} line {line}: duplicate columns {listing(duplicates)}.", hint=hint
        )


def find_columns(schema: TableSchema, names: Sequence[str], *, table: TableName) -> list[Column]:
    """Return the columns with these names.

    Raises:
        SourceTableNotFound: A column does not exist. The message includes the available columns.
    """
    all_names = [column.name for column in schema.columns]
    absent = [name for name in names if name not in all_names]
    if absent:
        raise SourceTableNotFound(
            f"Unknown columns {listing(absent)} of {table.path or table.source!r}. Available: "
            f"{listing(all_names, limit=50)}.",
            hint=did_you_mean(absent[0], all_names, write="{!r}"),
        )
    return [schema.column(name) for name in names]
