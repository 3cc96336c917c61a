"""Staged rows: Parquet files that are validated before they are committed.

The driver reads small columns and footers directly, without a Spark job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from featurestore.plugins.engine import Relation
from featurestore.storage import files
from featurestore_connectors.spark_delta import relations, repeated_keys
from featurestore_connectors.spark_delta.failures import translated
from featurestore_connectors.spark_delta.parquet_rows import ParquetRows, footer_of

# Memory: sorting numbers takes twice their bytes; an Arrow group takes 100 bytes.
_MAX_SORTED_BYTES, _MAX_GROUPED_BYTES = 64 << 20, 32 << 20
_BYTES_PER_VALUE = 8
_OLD_TIMES = "INT96"
# Spark's file metadata for dates and times in the Julian calendar.
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True)
class StagedFiles:
    """The Parquet files of a folder that Spark wrote, with their columns."""

    folder: str
    names: tuple[str, ...]

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The files; none where this machine does not see them, or times are of Spark's older kinds."""
        file_paths = [
            os.path.join(self.folder, name)
            for name in files.list_directory(self.folder)
            if name.endswith(".parquet") and not name.startswith(("_", "."))
        ]
        # All files were written with the same settings.
        if file_paths and _has_old_times(footer_of(file_paths[0])):
            return ()
        return tuple(file_paths)

    @cached_property
    def footers(self) -> Mapping[str, parquet.FileMetaData] | None:
        """The footers of the files that have rows; None where Spark alone reads them."""
        if not self.paths:  # Spark writes a file even without rows
            return None
        footers = {path: footer_of(path) for path in self.paths}
        return {path: footer for path, footer in footers.items() if footer.num_rows}

    def weight(self, columns: Sequence[str]) -> int | None:
        """Return about how many bytes columns take when they are read; None where Spark reads them."""
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
        # Dictionary-encoded values are smaller in the file.
        return max(size, rows * len(columns) * _BYTES_PER_VALUE)


@dataclass(frozen=True)
class StagedRelation(Relation):
    """A relation over staged Parquet files.

    ``columns`` maps the relation's column names to those of the files.
    """

    files: StagedFiles = field(kw_only=True)
    columns: Mapping[str, str] = field(kw_only=True)

    @property
    def is_unprojected(self) -> bool:
        """Whether the relation has all columns of the files under their own names."""
        names = self.files.names
        return list(self.columns.items()) == list(zip(names, names, strict=True))

    def is_within(self, size: int) -> bool:
        """Return True if the driver can read the rows and they take at most ``size`` bytes."""
        weight = self.files.weight(list(self.columns.values()))
        return weight is not None and weight <= size

    @property
    def rows(self) -> ParquetRows | None:
        """The rows as their files have them; None where Spark alone reads them."""
        if not self.files.paths:
            return None
        sizes = files.listed_sizes(self.files.folder)
        sized_files = tuple(
            (path, sizes.get(path) or files.size(path)) for path in self.files.paths
        )
        return ParquetRows(sized_files, tuple(self.columns.values()), self.schema)


def staged(source: Relation, folder: str) -> StagedRelation:
    """Return a relation over the files of a staging folder."""
    names = source.schema.names
    return StagedRelation(
        source.engine,
        source.native,
        source.schema,
        files=StagedFiles(folder, tuple(names)),
        columns=dict(zip(names, names, strict=True)),
    )


def selected(source: StagedRelation, columns: Mapping[str, str]) -> StagedRelation:
    """Return columns under new names."""
    selected_rows = relations.select(source, columns)
    file_columns = {}
    for name, old in columns.items():
        file_columns[name] = source.columns[old]
    return StagedRelation(
        selected_rows.engine,
        selected_rows.native,
        selected_rows.schema,
        files=source.files,
        columns=file_columns,
    )


def count(source: StagedRelation) -> int:
    """Count the rows, by a Spark job if the driver cannot read the files."""
    if source.files.footers is None:
        with translated():
            return int(source.native.count())
    return sum(footer.num_rows for footer in source.files.footers.values())


def duplicates(
    source: StagedRelation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]] | None:
    """Return how many keys occur more than once, and the first few of them with their count.

    None where Spark has to look for them.
    """
    if not repeated_keys.can_compare(source.schema, key):
        return None
    max_bytes = _MAX_GROUPED_BYTES
    if repeated_keys.can_sort(source.schema, key):
        max_bytes = _MAX_SORTED_BYTES
    keys = _read(selected(source, {name: name for name in key}), max_bytes=max_bytes)
    if keys is None:
        return None
    return repeated_keys.duplicates(keys, key, limit=limit)


def _read(source: StagedRelation, *, max_bytes: int) -> pa.Table | None:
    """Return the rows, None where they take more bytes."""
    rows = source.rows
    if rows is None or not source.is_within(max_bytes):
        return None
    batches, size = [], 0
    for batch in rows.part(0, 1):
        batches.append(batch)
        size += batch.nbytes
        if size > max_bytes:  # the estimate was too low: few but long distinct values
            return None
    return pa.Table.from_batches(batches, source.schema)


def _has_old_times(footer: parquet.FileMetaData) -> bool:
    if not set(_OLD_CALENDAR).isdisjoint(footer.metadata or ()):
        return True
    columns = range(footer.num_columns)
    return any(footer.schema.column(number).physical_type == _OLD_TIMES for number in columns)
