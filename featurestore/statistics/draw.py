"""The hash by which rows are drawn into the sample: cheap for all rows, whole for those drawn.

Either half is one multiplication a value. The lower one looks at whole texts and so tells different
rows apart; it is computed only where the upper half lies within the bound of the sample. Rows count
as the sample keeps them: long values by their length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.hashing.mixing import GOLDEN, byte_sums, mix, mix_all, tag
from featurestore.hashing.values import FLOAT, ByteValues, WordValues, valid_rows, values_of
from featurestore.statistics.dictionaries import codes_of

Hashes = NDArray[np.uint64]
_HALF = np.uint64(32)
_UPPER = np.uint64(0xFFFFFFFF << 32)
# What of a text decides whether its row is drawn, and what tells it from others.
_BEGINNING, _WHOLE = 32, 2**62
_NAN = np.float64(np.nan)
_NULL = np.uint64(tag(255))
# Stays in the caches with what is made of it.
_BLOCK = 32_768


def upper_halves(rows: pa.RecordBatch, *, seed: int) -> Hashes:
    """Return the upper half of each row's hash; the lower one is zero.

    >>> upper_halves(pa.record_batch([pa.array([1, 1, 2])], ["a"]), seed=0).tolist()
    [3531997232385490944, 3531997232385490944, 9702589223428685824]
    """
    state = _sums(rows, seed, half=0, longest=_BEGINNING)
    state &= _UPPER
    return state


def with_lower_halves(upper: Hashes, rows: pa.RecordBatch, *, seed: int) -> Hashes:
    """Return the whole hashes of rows whose upper halves are known."""
    state = _sums(rows, seed, half=1, longest=_WHOLE)
    state >>= _HALF
    state |= upper
    return state


def within(upper: Hashes, bound: np.uint64) -> NDArray[np.bool_]:
    """Tell for each upper half whether the whole hash may lie within a bound."""
    return upper <= (np.uint64(bound) & _UPPER)


def _sums(rows: pa.RecordBatch, seed: int, *, half: int, longest: int) -> Hashes:
    """Return the mixed sums of what the columns say of each row, each half by factors of its own.

    Of texts at most their first ``longest`` bytes and their length.
    """
    state = np.full(rows.num_rows, mix(seed + GOLDEN), dtype=np.uint64)
    for number, column in enumerate(rows.columns):
        factor = mix((number + 1) * GOLDEN + half) | 1
        if pat.is_dictionary(column.type):
            _add_dictionary(state, column, factor, longest)
        else:
            _add(state, column, factor, longest)
    return mix_all(state)


def _add(state: Hashes, column: Any, factor: int, longest: int) -> None:
    """Add what a column says of each row, times an odd factor."""
    values = values_of(column)
    if isinstance(values, ByteValues):
        lengths = values.lengths
        sums = byte_sums(values.data, values.starts, np.minimum(lengths, longest))
        words, is_float = [sums, lengths.view(np.uint64)], False
    elif isinstance(values, WordValues):
        words = list(values.words)
        is_float = isinstance(values.kinds, int) and values.kinds == FLOAT
    else:
        return
    missing = None
    if values.valid is not None:
        missing = ~values.valid
    scratch = np.empty((2, min(len(state), _BLOCK)), dtype=np.uint64)
    for number, each in enumerate(words):
        multiplier = np.uint64(mix(factor + number) | 1)
        for start in range(0, len(state), _BLOCK):
            rows = slice(start, start + _BLOCK)
            block = each[rows]
            product, other = scratch[:, : len(block)]
            if is_float:
                block = _of_floats(block, product, other)
            np.multiply(block, multiplier, out=product)
            if missing is not None:
                np.copyto(product, _NULL, where=missing[rows])
            state[rows] += product


def _add_dictionary(state: Hashes, column: pa.DictionaryArray, factor: int, longest: int) -> None:
    """Add what a column of texts says: each text is looked at once."""
    of_values = np.zeros(len(column.dictionary) + 1, dtype=np.uint64)
    _add(of_values[:-1], column.dictionary, factor, longest)
    of_values[-1] = _NULL + _NULL  # of a text count its bytes and its length
    codes = codes_of(column.indices)
    valid = valid_rows(column.indices)
    if valid is not None:
        codes = np.where(valid, codes, len(column.dictionary))
    state += of_values[codes]


def _of_floats(words: Hashes, bits: Hashes, other: Hashes) -> Hashes:
    """Return the bits of floats: 0.0 and -0.0 alike, all NaN alike, with some in the lower half."""
    floats = bits.view(np.float64)
    with np.errstate(invalid="ignore"):  # under a null any bits may stand, also a signalling NaN's
        np.add(words.view(np.float64), 0.0, out=floats)
        if np.isnan(floats.max(initial=0.0)):
            floats[np.isnan(floats)] = _NAN
    np.right_shift(bits, _HALF, out=other)
    bits ^= other
    return bits
