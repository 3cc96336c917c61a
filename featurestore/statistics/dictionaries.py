"""Dictionary encoding of repetitive texts, so that each distinct value is measured once."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.statistics.value_counts import MAX_VALUES, PROBED_ROWS

# Encoding a longer text takes as long as measuring it.
_MAX_MEAN_BYTES = 64


def with_dictionaries(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Dictionary-encode those of the named columns that have few distinct values."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in names and _has_few_values(column):
            column = column.dictionary_encode()
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def count_occurrences(data: pa.DictionaryArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the values that occur in a dictionary array, and their counts."""
    counts = np.bincount(dictionary_codes(data.indices.drop_null()), minlength=len(data.dictionary))
    values = data.dictionary
    if not counts.all():
        values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
    return values, counts


def dictionary_codes(indices: pa.Array) -> NDArray[np.int32]:
    """Return dictionary indices as numpy, without a copy where possible; 0 for nulls."""
    if indices.null_count:
        indices = indices.fill_null(0)
    return np.asarray(indices.to_numpy(zero_copy_only=False))


def _has_few_values(column: pa.Array) -> bool:
    if not pat.is_string(column.type) or column.nbytes > _MAX_MEAN_BYTES * len(column):
        return False
    probe = column.slice(0, PROBED_ROWS)
    max_distinct = min(MAX_VALUES, len(probe) // 4)
    return int(pc.count_distinct(probe).as_py()) <= max_distinct
