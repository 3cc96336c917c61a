"""Sizes of Parquet files in memory: how many rows a batch may have.

A dictionary stores a value once, and a row refers to it with a few bits. A file of 58 KB may
therefore unpack to 20 GB, and its footer does not show it. The number of rows in a
batch is computed from the longest values of the dictionaries and the mean sizes of other columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.storage import storage_for

MAX_BATCH_ROWS = 65_536
# DuckDB converts at least one of its vectors.
VECTOR_ROWS = 2048
_BATCH_BYTES = 256 << 20
# A dictionary of fewer bytes cannot exceed the bytes of a batch.
_SMALL_BYTES = _BATCH_BYTES // MAX_BATCH_ROWS
_DICTIONARY = ("PLAIN_DICTIONARY", "RLE_DICTIONARY")


def find_batch_rows(path: str) -> int:
    """Return the number of rows of a Parquet file that unpack to at most about 256 MiB.

    Raises:
        OSError: The file cannot be read.
        pyarrow.ArrowException: The file is not Parquet.
    """
    metadata = parquet.read_metadata(storage_for(path).open_ranges(path))
    row_bytes = 0
    for index in range(metadata.num_row_groups):
        row_bytes = max(row_bytes, _row_bytes(path, metadata, index))
    return max(1, min(MAX_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))


def _row_bytes(path: str, metadata: parquet.FileMetaData, index: int) -> int:
    """Return the largest size of a row in a row group, without reading its values."""
    group = metadata.row_group(index)
    size, dictionaries = 0, []
    for number in range(group.num_columns):
        column = group.column(number)
        has_dictionary = any(encoding in _DICTIONARY for encoding in column.encodings)
        is_text = column.physical_type == "BYTE_ARRAY" and "." not in column.path_in_schema
        if has_dictionary and is_text and column.total_uncompressed_size > _SMALL_BYTES:
            dictionaries.append(column.path_in_schema)
        elif group.num_rows:
            size += column.total_uncompressed_size // group.num_rows
    return size + sum(_longest_values(path, index, dictionaries))


def _longest_values(path: str, index: int, columns: list[str]) -> Iterator[int]:
    """Yield the length of the longest value in the dictionary of each column of a row group."""
    if not columns:
        return
    # A buffer, because without it the complete column is read for its first page.
    file = parquet.ParquetFile(
        storage_for(path).open_ranges(path), read_dictionary=columns, buffer_size=1 << 16
    )
    for batch in file.iter_batches(1, row_groups=[index], columns=columns, use_threads=False):
        for array in batch.columns:
            values = array.dictionary if pat.is_dictionary(array.type) else array
            yield pc.max(pc.binary_length(values)).as_py() or 0
        return
