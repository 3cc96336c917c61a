"""Relations over Parquet files: staged rows, which are validated before a commit, and table files.

The driver reads small columns and footers directly, without a Spark job, and compares keys there.
Spark converts data for Python to rows and back to Arrow and sends it through a socket, which takes
more CPU time than decoding the files and aggregating their rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.arrow.types import is_nested
from featurestore.delta.snapshot import Snapshot
from featurestore.plugins.engine import Relation
from featurestore.storage import storage_for
from featurestore_connectors.spark_delta import relations
from featurestore_connectors.spark_delta.parquet_rows import ParquetRows, footer_of

_COUNT = "n"
# In higher reader versions, the rows of a table depend on more than its data files.
_PLAIN_READER = 1
# Memory estimates: sorting numbers takes twice their size, and an Arrow group takes 100 bytes.
_MAX_SORTED_BYTES, _MAX_GROUPED_BYTES = 64 << 20, 32 << 20
_BYTES_PER_VALUE = 8
_OLD_TIMES = "INT96"
# Spark's file metadata for dates and times in the Julian calendar.
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True)
class StagedFiles:
    """The Parquet files that Spark wrote to a folder, and their columns."""

    folder: str
    names: tuple[str, ...]

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The file paths; empty if the driver cannot access or decode the files."""
        file_paths = [
            os.path.join(self.folder, name)
            for name in storage_for(self.folder).list_directory(self.folder)
            # Spark also writes a success marker and checksum files.
            if name.endswith(".parquet") and not name.startswith(("_", "."))
        ]
        # All files were written with the same settings.
        if file_paths and _has_old_times(footer_of(file_paths[0])):
            return ()
        return tuple(file_paths)

    @cached_property
    def footers(self) -> Mapping[str, parquet.FileMetaData] | None:
        """The footers of files that have rows, or None if only Spark can read the files."""
        if not self.paths:  # Spark writes a file even without rows
            return None
        footers = {path: footer_of(path) for path in self.paths}
        return {path: footer for path, footer in footers.items() if footer.num_rows}

    def estimate_bytes(self, columns: Sequence[str]) -> int | None:
        """Estimate the bytes of columns in memory; return None if only Spark can read the files."""
        if self.footers is None:
            return None
        wanted_columns = set(columns)
        rows = size = 0
        for footer in self.footers.values():
            rows += footer.num_rows
            for group in range(footer.num_row_groups):
                for number in range(footer.num_columns):
                    chunk = footer.row_group(group).column(number)
                    if chunk.path_in_schema.partition(".")[0] in wanted_columns:
                        size += chunk.total_uncompressed_size
        # Dictionary-encoded values are smaller in the file than in memory.
        return max(size, rows * len(columns) * _BYTES_PER_VALUE)


def _has_old_times(footer: parquet.FileMetaData) -> bool:
    if not set(_OLD_CALENDAR).isdisjoint(footer.metadata or ()):
        return True
    columns = range(footer.num_columns)
    return any(footer.schema.column(number).physical_type == _OLD_TIMES for number in columns)


@dataclass(frozen=True)
class StagedRelation(Relation):
    """A relation over staged Parquet files.

    ``columns`` maps column names of the relation to column names in the files.
    """

    files: StagedFiles = field(kw_only=True)
    columns: Mapping[str, str] = field(kw_only=True)

    @property
    def is_unprojected(self) -> bool:
        """Whether the relation has all columns of the files, without renaming."""
        names = self.files.names
        return list(self.columns.items()) == list(zip(names, names, strict=True))

    def fits_in(self, size: int) -> bool:
        """Return whether the driver can read the rows and they take at most ``size`` bytes."""
        weight = self.files.estimate_bytes(list(self.columns.values()))
        return weight is not None and weight <= size

    @property
    def rows(self) -> ParquetRows | None:
        """The rows as stored in the files, or None if only Spark can read the files."""
        if not self.files.paths:
            return None
        sizes = storage_for(self.files.folder).list_sizes(self.files.folder)
        sized_files = tuple(
            (path, sizes.get(path) or storage_for(path).size(path)) for path in self.files.paths
        )
        return ParquetRows(sized_files, tuple(self.columns.values()), self.schema)


def staged_relation(source: Relation, folder: str) -> StagedRelation:
    """Return a relation over the files of a staging folder."""
    names = source.schema.names
    return StagedRelation(
        source.engine,
        source.native,
        source.schema,
        files=StagedFiles(folder, tuple(names)),
        columns=dict(zip(names, names, strict=True)),
    )


def select_and_rename(source: StagedRelation, columns: Mapping[str, str]) -> StagedRelation:
    """Select and rename columns."""
    selected_rows = relations.select(source, columns)
    return StagedRelation(
        selected_rows.engine,
        selected_rows.native,
        selected_rows.schema,
        files=source.files,
        columns={name: source.columns[old] for name, old in columns.items()},
    )


def count(source: StagedRelation) -> int:
    """Count the rows, with a Spark job if the driver cannot read the files."""
    if source.files.footers is None:
        return int(source.native.count())
    return sum(footer.num_rows for footer in source.files.footers.values())


def duplicates(
    source: StagedRelation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]] | None:
    """Return the number of duplicate keys, and the first duplicate keys with their counts.

    Return None if only Spark can search for duplicates.
    """
    if not can_compare(source.schema, key):
        return None
    max_bytes = _MAX_GROUPED_BYTES
    if can_sort(source.schema, key):
        max_bytes = _MAX_SORTED_BYTES
    keys = _read_rows(select_and_rename(source, {name: name for name in key}), max_bytes=max_bytes)
    if keys is None:
        return None
    return find_repeated_keys(keys, key, limit=limit)


def _read_rows(source: StagedRelation, *, max_bytes: int) -> pa.Table | None:
    """Return the rows as a table, or None if they take more than ``max_bytes`` or need Spark."""
    rows = source.rows
    if rows is None or not source.fits_in(max_bytes):
        return None
    batches, size = [], 0
    for batch in rows.part(0, 1):
        batches.append(batch)
        size += batch.nbytes
        if size > max_bytes:  # the estimate was too low: few but long distinct values
            return None
    return pa.Table.from_batches(batches, source.schema)


def can_compare(schema: pa.Schema, key: Sequence[str]) -> bool:
    """Return whether Arrow compares the values of the key as Spark does."""
    kinds = [schema.field(name).type for name in key]
    # Spark considers all NaN equal, and 0.0 equal to -0.0; Arrow cannot group by nested values.
    return not any(is_nested(dtype) or pat.is_floating(dtype) for dtype in kinds)


def can_sort(schema: pa.Schema, key: Sequence[str]) -> bool:
    """Return whether a sort can detect duplicates, which takes a tenth of a group-by's memory."""
    return len(key) == 1 and bool(pat.is_integer(schema.field(key[0]).type))


def find_repeated_keys(
    keys: pa.Table, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of duplicate keys, and the first duplicate keys with their counts.

    ``keys`` has only the columns of ``key``, for which ``can_compare`` must be true. Rows with
    nulls are ignored.
    """
    # Columns are renamed to numbers, since a key column may have the name of the count column.
    numbers = list(map(str, range(len(key))))
    present = keys.select(list(key)).rename_columns(numbers).drop_null()
    counts = _repeated_candidates(present).group_by(numbers).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1))
    order = [("count_all", "descending"), *((number, "ascending") for number in numbers)]
    first = repeated.sort_by(order).slice(0, limit)
    examples = first.select([*numbers, "count_all"]).rename_columns([*key, _COUNT])
    return len(repeated), examples.to_pylist()


def _repeated_candidates(keys: pa.Table) -> pa.Table:
    """Return a superset of the rows with duplicate keys."""
    if not can_sort(keys.schema, keys.schema.names):
        return keys
    column = keys.column(0)
    numbers = np.empty(len(column), column.type.to_pandas_dtype())
    start = 0
    for chunk in column.chunks:
        values = chunk.to_numpy(zero_copy_only=False)
        numbers[start : start + len(values)] = values
        start += len(values)
    # Equal numbers are adjacent after the sort, which needs a tenth of the memory of a group-by.
    numbers.sort()
    repeated_numbers = numbers[1:][numbers[1:] == numbers[:-1]]
    if not len(repeated_numbers):
        return keys.slice(0, 0)
    return keys.filter(pc.is_in(column, pa.array(np.unique(repeated_numbers), column.type)))


@dataclass(frozen=True)
class ParquetRelation(Relation):
    """A relation whose rows Python can read from Parquet files."""

    rows: ParquetRows = field(kw_only=True, repr=False, compare=False)


def with_table_files(source: Relation, snapshot: Snapshot) -> Relation:
    """Attach the files of a table version to its relation, if they alone determine the rows."""
    # Partition columns are not in the files.
    if snapshot.protocol.reader > _PLAIN_READER or snapshot.partition_by:
        return source
    sized_files = tuple((file.path, file.bytes) for file in snapshot.files)
    return _with_rows(source, ParquetRows(sized_files, tuple(source.schema.names), source.schema))


def rows_of(source: Relation) -> ParquetRows | None:
    """Return the file rows of a relation, or None if Spark computes them."""
    if isinstance(source, ParquetRelation):
        return replace(source.rows, schema=source.schema)
    return source.rows if isinstance(source, StagedRelation) else None


def select_file_columns(
    selected_rows: Relation, source: Relation, columns: Mapping[str, str]
) -> Relation:
    """Attach the files of ``source`` to columns that Spark selected from it."""
    if not isinstance(source, ParquetRelation):
        return selected_rows
    names = dict(zip(source.schema.names, source.rows.columns, strict=True))
    file_columns = tuple(names[old] for old in columns.values())
    return _with_rows(
        selected_rows, replace(source.rows, columns=file_columns, schema=selected_rows.schema)
    )


def _with_rows(source: Relation, rows: ParquetRows) -> Relation:
    # Struct fields that were added later are missing in older files.
    if any(map(_has_fields, source.schema.types)):
        return source
    return ParquetRelation(source.engine, source.native, source.schema, rows=rows)


def _has_fields(dtype: pa.DataType) -> bool:
    if pat.is_list(dtype) or pat.is_fixed_size_list(dtype):
        return _has_fields(dtype.value_type)
    return bool(pat.is_struct(dtype))
