"""Staged rows: Parquet files of a write that are looked at before they are committed.

What is asked of few of their bytes the driver reads from the files itself, without a Spark job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from featurestore.plugins.engine import Accumulator, Relation, Result, State
from featurestore.storage import files
from featurestore_connectors.spark_delta import relations, repeated_keys, streams
from featurestore_connectors.spark_delta.types import named, to_features

# What an accumulator reads on the driver, a batch at a time: a job takes as long to begin.
_MOST_BYTES = 128 << 20
# Numbers of one column are sorted, in twice their bytes; a group of Arrow takes 100 bytes.
_MOST_SORTED_BYTES, _MOST_GROUPED_BYTES = 64 << 20, 32 << 20
_BYTES_A_VALUE = 8
_BATCH_ROWS = 65_536
_OLD_TIMES = "INT96"
# Spark's notes that dates and times are in the calendar of before 1582.
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True)
class StagedFiles:
    """The Parquet files of a folder that Spark wrote, with the columns that they have."""

    folder: str
    names: tuple[str, ...]

    @cached_property
    def footers(self) -> Mapping[str, parquet.FileMetaData] | None:
        """The footers of the files that have rows.

        None where times are of Spark's older kinds, or this machine sees none of the files.
        """
        found = {}
        for name in files.list_directory(self.folder):
            if name.startswith(("_", ".")) or not name.endswith(".parquet"):
                continue
            file = os.path.join(self.folder, name)
            found[file] = parquet.read_metadata(files.opened_by_ranges(file))
            if _has_old_times(found[file]):
                return None
        if not found:  # Spark writes one where there are no rows, too
            return None
        return {file: footer for file, footer in found.items() if footer.num_rows}

    def weight(self, columns: Sequence[str]) -> int | None:
        """Return about how many bytes columns take when they are read; None where Spark reads them."""
        if self.footers is None:
            return None
        wanted = set(columns)
        rows = size = 0
        for footer in self.footers.values():
            rows += footer.num_rows
            for group in range(footer.num_row_groups):
                for number in range(footer.num_columns):
                    chunk = footer.row_group(group).column(number)
                    if chunk.path_in_schema.partition(".")[0] in wanted:
                        size += chunk.total_uncompressed_size
        # Values that occur often take less in a file.
        return max(size, rows * len(columns) * _BYTES_A_VALUE)


@dataclass(frozen=True)
class StagedRelation(Relation):
    """Rows that were written to the Parquet files of a folder, and are read from there.

    ``columns`` are their names in the files by those of the relation.
    """

    files: StagedFiles = field(kw_only=True)
    columns: Mapping[str, str] = field(kw_only=True)

    @property
    def is_whole(self) -> bool:
        """Whether these are the columns of the files under their names."""
        names = self.files.names
        return list(self.columns.items()) == list(zip(names, names, strict=True))

    def is_within(self, size: int) -> bool:
        """Tell whether the driver can read the rows, and they take no more bytes."""
        weight = self.files.weight(list(self.columns.values()))
        return weight is not None and weight <= size

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches of feature types, read from the files here."""
        wanted = list(self.columns.values())
        once = list(dict.fromkeys(wanted))
        for file in self.files.footers or ():
            with parquet.ParquetFile(files.opened_by_ranges(file)) as opened:
                for batch in opened.iter_batches(_BATCH_ROWS, columns=once):
                    yield to_features(named(batch.select(wanted), self.schema), self.schema)


def staged(given: Relation, folder: str) -> StagedRelation:
    """Return a relation over rows that were written to a folder, whose columns it has."""
    names = given.schema.names
    return StagedRelation(
        given.engine,
        given.native,
        given.schema,
        files=StagedFiles(folder, tuple(names)),
        columns=dict(zip(names, names, strict=True)),
    )


def selected(given: StagedRelation, columns: Mapping[str, str]) -> StagedRelation:
    """Return columns under new names."""
    chosen = relations.select(given, columns)
    in_files = {}
    for name, old in columns.items():
        in_files[name] = given.columns[old]
    return StagedRelation(
        chosen.engine, chosen.native, chosen.schema, files=given.files, columns=in_files
    )


def count(given: StagedRelation) -> int | None:
    """Return how many rows there are; None where Spark has to count."""
    if given.files.footers is None:
        return None
    return sum(footer.num_rows for footer in given.files.footers.values())


def aggregate(given: StagedRelation, accumulator: Accumulator[State, Result]) -> Result:
    """Return what an accumulator makes of all rows."""
    if not given.is_within(_MOST_BYTES):
        return streams.aggregate(given, accumulator)
    state = accumulator.start()
    for batch in given.batches():
        state = accumulator.update(state, batch)
    return accumulator.finish(state)


def duplicates(
    given: StagedRelation, key: Sequence[str], *, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many keys occur more than once, and the first few of them with their count."""
    keys = None
    if repeated_keys.can_compare(given.schema, key):
        is_sorted = repeated_keys.can_sort(given.schema, key)
        keys = _read(
            selected(given, {name: name for name in key}),
            most=_MOST_SORTED_BYTES if is_sorted else _MOST_GROUPED_BYTES,
        )
    if keys is None:
        return streams.duplicates(given, key, limit=limit)
    return repeated_keys.duplicates(keys, key, limit=limit)


def _read(given: StagedRelation, *, most: int) -> pa.Table | None:
    """Return the rows, None where they take more bytes."""
    if not given.is_within(most):
        return None
    found, size = [], 0
    for batch in given.batches():
        found.append(batch)
        size += batch.nbytes
        if size > most:  # few values in the files, and long ones
            return None
    return pa.Table.from_batches(found, given.schema)


def _has_old_times(footer: parquet.FileMetaData) -> bool:
    if not set(_OLD_CALENDAR).isdisjoint(footer.metadata or ()):
        return True
    columns = range(footer.num_columns)
    return any(footer.schema.column(number).physical_type == _OLD_TIMES for number in columns)
