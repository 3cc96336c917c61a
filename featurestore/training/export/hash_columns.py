"""The columns of hashed rows: row hash and group, as Arrow batches hold them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

HASH = "__fs_hash"
GROUP = "__fs_group"
HASH_COLUMNS = pa.schema([(HASH, pa.int64()), (GROUP, pa.int64())])
_SIGN = np.uint64(1 << 63)


def to_sortable(hashes: UInt64s) -> Int64s:
    """Return hashes as signed integers in the same order, which every engine can sort."""
    flipped: Int64s = (hashes ^ _SIGN).view(np.int64)
    return flipped


def from_sortable(values: Int64s) -> UInt64s:
    """Invert ``to_sortable``."""
    return values.view(np.uint64) ^ _SIGN


def row_hashes(batch: pa.RecordBatch) -> UInt64s:
    """Return the row hashes of a hashed batch."""
    column = batch.column(batch.schema.get_field_index(HASH))
    return from_sortable(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)))


def groups_and_hashes(batch: pa.RecordBatch) -> tuple[Int64s, UInt64s]:
    """Return groups and row hashes of a hashed batch."""
    column = batch.column(batch.schema.get_field_index(GROUP))
    return column.to_numpy(zero_copy_only=False), row_hashes(batch)
