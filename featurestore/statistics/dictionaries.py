"""Texts of few values as dictionaries, so that each value is measured once and not in every row."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.statistics.value_counts import LOOKED_AT, MOST_VALUES

# To look up a longer text takes as long as to measure it.
_LONGEST_MEAN = 64


def with_dictionaries(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Return a batch whose columns of these names are dictionaries where their values repeat."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in names and _is_worth_it(column):
            column = column.dictionary_encode()
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def occurrences_of(data: pa.DictionaryArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the values that occur in a dictionary array, and how often each does."""
    counts = np.bincount(codes_of(data.indices.drop_null()), minlength=len(data.dictionary))
    values = data.dictionary
    if not counts.all():
        values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
    return values, counts


def codes_of(indices: pa.Array) -> NDArray[np.int32]:
    """Return the positions in a dictionary, as they lie in memory; 0 for nulls."""
    if indices.null_count:
        indices = indices.fill_null(0)
    return np.asarray(indices.to_numpy(zero_copy_only=False))


def _is_worth_it(column: pa.Array) -> bool:
    if not pat.is_string(column.type) or column.nbytes > _LONGEST_MEAN * len(column):
        return False
    looked_at = column.slice(0, LOOKED_AT)
    most = min(MOST_VALUES, len(looked_at) // 4)
    return int(pc.count_distinct(looked_at).as_py()) <= most
