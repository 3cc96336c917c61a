"""Parquet rows as Arrow batches, read in parallel parts without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet

from featurestore.arrow.casts import cast_batch
from featurestore.delta.scan import translate_read_errors
from featurestore.storage import storage_for

_BATCH_ROWS, _BATCH_BYTES = 65_536, 64 << 20


@dataclass(frozen=True)
class ParquetRows:
    """The rows of Parquet files in feature types. Can be pickled.

    ``files`` are (path, bytes) pairs. ``columns`` are the column names in the files, in the order
    of ``schema``. Missing columns are null.
    """

    files: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    schema: pa.Schema

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(size for _, size in self.files)

    def part(self, number: int, parts: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of part ``number`` out of ``parts`` parts of similar size.

        Files that are larger than a part are split by row groups.
        """
        # Every part computes the same assignment from the sizes alone, so that tasks need no
        # communication.
        total, index = max(1, self.bytes), 0
        for path, size in self.files:
            fragments = max(1, -(-size * parts // total))
            for fragment in range(fragments):
                if index % parts == number:
                    yield from self._read_rows(path, fragment, fragments)
                index += 1

    def _read_rows(self, path: str, fragment: int, fragments: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups ``fragment``, ``fragment + fragments``, ... of a file."""
        with translate_read_errors(path):
            file_handle = storage_for(path).open_ranges(path)
            # Spark may store times as INT96, which Arrow reads as nanoseconds by default.
            with parquet.ParquetFile(file_handle, coerce_int96_timestamp_unit="us") as file:
                file_names = file.schema_arrow.names
                names_in_file = _names_in_file(self.columns, file_names)
                batches = file.iter_batches(
                    _rows_per_batch(file.metadata),
                    # Row groups are dealt out in turn, so that parts have similar sizes.
                    row_groups=list(range(fragment, file.num_row_groups, fragments)),
                    # Without any column, one is read to count the rows.
                    columns=list(names_in_file.values()) or file_names[:1],
                    # Parts are already read in parallel.
                    use_threads=False,
                )
                for batch in batches:
                    yield self._to_features(batch, names_in_file)

    def _to_features(
        self, batch: pa.RecordBatch, names_in_file: Mapping[str, str]
    ) -> pa.RecordBatch:
        """Return a batch of a file with all columns of ``schema``, in feature types."""
        columns = []
        for name, field in zip(self.columns, self.schema, strict=True):
            if name in names_in_file:
                columns.append(batch.column(names_in_file[name]))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        renamed = pa.RecordBatch.from_arrays(columns, names=self.schema.names)
        return cast_batch(renamed, self.schema)


def _names_in_file(columns: Sequence[str], file_names: Sequence[str]) -> dict[str, str]:
    """Map column names to the names in a file; case-insensitive, as in Spark."""
    by_lower = {name.lower(): name for name in file_names}
    matching_names = {}
    for name in columns:
        if name in file_names:
            matching_names[name] = name
        elif name.lower() in by_lower:
            matching_names[name] = by_lower[name.lower()]
    return matching_names


def footer_of(path: str) -> parquet.FileMetaData:
    """Return the footer of a Parquet file.

    Raises:
        StorageError: The file cannot be read.
    """
    with translate_read_errors(path):
        return parquet.read_metadata(storage_for(path).open_ranges(path))


def _rows_per_batch(metadata: parquet.FileMetaData) -> int:
    """Return the number of rows per batch, from the average row size in the footer."""
    size = 0
    for number in range(metadata.num_row_groups):
        size += metadata.row_group(number).total_byte_size
    # Uncompressed bytes, since the batches are in memory.
    row_bytes = max(1, size // max(1, metadata.num_rows))
    return min(_BATCH_ROWS, max(1, _BATCH_BYTES // row_bytes))
