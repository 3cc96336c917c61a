"""The hash by which rows are drawn into the sample: cheap for all rows, whole for those drawn.

The upper half is one multiplication a value. The lower half is the row hash, which tells different
rows apart; it is computed only where the upper half lies within the bound of the sample. Rows count
as the sample keeps them: long values by their length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featurestore.hashing import row_hash
from featurestore.hashing.mixing import GOLDEN, byte_sums, mix, mix_all, tag
from featurestore.hashing.values import FLOAT, ByteValues, WordValues, values_of

Hashes = NDArray[np.uint64]
_HALF = np.uint64(32)
_UPPER = np.uint64(0xFFFFFFFF << 32)
# What of a text decides whether its row is drawn.
_BEGINNING = 32
_NAN = np.float64(np.nan)


def upper_halves(rows: pa.RecordBatch, *, seed: int) -> Hashes:
    """Return the upper half of each row's hash; the lower one is zero.

    >>> upper_halves(pa.record_batch([pa.array([1, 1, 2])], ["a"]), seed=0).tolist()
    [3531997232385490944, 3531997232385490944, 9702589223428685824]
    """
    state = np.full(rows.num_rows, mix(seed + GOLDEN), dtype=np.uint64)
    for number, column in enumerate(rows.columns):
        _add(state, column, mix((number + 1) * GOLDEN) | 1)
    mix_all(state)
    state &= _UPPER
    return state


def with_lower_halves(upper: Hashes, rows: pa.RecordBatch, *, seed: int) -> Hashes:
    """Return the whole hashes of rows whose upper halves are known."""
    whole = np.asarray(row_hash(rows, seed=seed), dtype=np.uint64)
    return upper | (whole >> _HALF)


def within(upper: Hashes, bound: np.uint64) -> NDArray[np.bool_]:
    """Tell for each upper half whether the whole hash may lie within a bound."""
    return upper <= (np.uint64(bound) & _UPPER)


def _add(state: Hashes, column: Any, factor: int) -> None:
    """Add what a column says of each row, times an odd factor."""
    values = values_of(column)
    words: list[Hashes] = []
    if isinstance(values, ByteValues):
        lengths = values.lengths
        words.append(byte_sums(values.data, values.starts, np.minimum(lengths, _BEGINNING)))
        words.append(lengths.view(np.uint64))
    elif isinstance(values, WordValues):
        words += values.words
        if isinstance(values.kinds, int) and values.kinds == FLOAT:
            words = [_of_floats(words[0])]
    for number, each in enumerate(words):
        product = each * np.uint64(mix(factor + number) | 1)
        if values.valid is not None:
            product = np.where(values.valid, product, np.uint64(tag(255)))
        state += product


def _of_floats(words: Hashes) -> Hashes:
    """Return the bits of floats: 0.0 and -0.0 alike, all NaN alike, with some in the lower half."""
    with np.errstate(invalid="ignore"):  # under a null any bits may stand, also a signalling NaN's
        floats = words.view(np.float64) + 0.0
    missing = np.isnan(floats)
    if missing.any():
        floats[missing] = _NAN
    bits = floats.view(np.uint64)
    bits ^= bits >> _HALF
    return bits
