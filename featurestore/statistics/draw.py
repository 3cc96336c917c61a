"""The hash by which rows are drawn into the sample: cheap for all rows, whole for those drawn.

The upper half is one multiplication a word, of numbers that were measured anyway and the beginnings
of texts. The lower one looks at whole values and so tells different rows apart; it is computed only
where the upper half lies within the bound of the sample. Rows count as the sample keeps them: long
values by their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.hashing.mixing import GOLDEN, byte_sums, mix, mix_all, tag
from featurestore.hashing.values import FLOAT, ByteValues, WordValues, valid_rows, values_of
from featurestore.statistics.dictionaries import codes_of
from featurestore.statistics.memory import empty
from featurestore.statistics.values import Bools, Values

Hashes = NDArray[np.uint64]
_HALF = np.uint64(32)
_UPPER = np.uint64(0xFFFFFFFF << 32)
# What of a text decides whether its row is drawn, and what tells it from others.
_BEGINNING, _WHOLE = 32, 2**62
_NAN = np.float64(np.nan)
_NULL = np.uint64(tag(255))
_FACTOR = np.uint64(GOLDEN)
# A sum of so few words is multiplied before its upper bits are brought to the lower ones: all that
# tells whole numbers apart as floats are a word's first bits.
_UNFOLDED = 4
_WORD_BYTES = 8
# Stays in the caches with what is made of it.
_BLOCK = 32_768


def upper_halves(rows: pa.RecordBatch, measured: Mapping[str, Values], *, seed: int) -> Hashes:
    """Return the upper half of each row's hash; the lower one is zero.

    Numbers are told by what was measured of them, so decimals by the nearest float, missing ones by
    their mark alone.

    >>> upper_halves(pa.record_batch([pa.array(["b", "b", "c"])], ["a"]), {}, seed=0).tolist()
    []
    """
    words = list(_words(rows, measured))
    state = empty(rows.num_rows, np.uint64)
    state[:] = mix(seed + GOLDEN)
    other = empty(min(len(state), _BLOCK), np.uint64)
    for start in range(0, len(state), _BLOCK):
        block = state[start : start + _BLOCK]
        scratch = other[: len(block)]
        for number, each in enumerate(words):
            if number % _UNFOLDED == 0:
                np.right_shift(block, _HALF, out=scratch)
                block ^= scratch
            block += each.of(slice(start, start + _BLOCK), scratch)
            block *= _FACTOR
    mix_all(state)
    state &= _UPPER
    return state


@dataclass(frozen=True)
class _Words:
    """A word for each row, where ``present`` marks it and else 0."""

    words: Hashes
    present: Bools | None = None
    has_zeros: bool = False

    def of(self, rows: slice, scratch: Hashes) -> Hashes:
        """Return the words of some rows, perhaps in an array of their length."""
        words = self.words[rows]
        if self.has_zeros:  # -0.0 is 0.0
            np.add(words.view(np.float64), 0.0, out=scratch.view(np.float64))
            words = scratch
        if self.present is not None:
            words = np.multiply(words, self.present[rows], out=scratch)
        return words


def _words(rows: pa.RecordBatch, measured: Mapping[str, Values]) -> Iterator[_Words]:
    """Yield what the columns say of each row; numbers of few bytes share words."""
    narrow: list[_Lane] = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if name in measured:
            values = measured[name]
            numbers, present = values.numbers, values.present
            if numbers.dtype.itemsize == _WORD_BYTES:
                yield _Words(numbers.view(np.uint64), present, _may_be_zero(values))
            else:
                narrow.append(_Lane(numbers.dtype, numbers, present))
            # Also of columns without missing rows, which other batches may have.
            missing = None if present is None else ~present
            narrow.append(_Lane(np.dtype(np.bool_), missing))
        elif pat.is_dictionary(column.type):
            words = _zeros(len(column))
            _add_dictionary(words, column, 1, _BEGINNING)
            yield _Words(words)
        else:
            words = _zeros(len(column))
            _add(words, column, 1, _BEGINNING)
            yield _Words(words)
    yield from map(_Words, _packed(narrow, rows.num_rows))


def _may_be_zero(values: Values) -> bool:
    if values.numbers.dtype.kind != "f" or values.extremes is None:
        return False
    low, high = values.extremes
    return bool(low <= 0.0 <= high)


class _Lane(NamedTuple):
    """A number of few bytes for each row: 0 where not present, and without numbers everywhere."""

    type: np.dtype[Any]
    numbers: NDArray[Any] | None
    present: Bools | None = None


def _packed(lanes: Iterable[_Lane], rows: int) -> Iterator[Hashes]:
    """Yield words in which the numbers of several columns lie side by side."""
    words, used = _zeros(rows), 0
    # The widest first, so that each lies at a multiple of its width.
    for lane in sorted(lanes, key=lambda each: -each.type.itemsize):
        width = lane.type.itemsize
        if used + width > _WORD_BYTES:
            yield words
            words, used = _zeros(rows), 0
        if lane.numbers is not None:
            place = words.view(lane.type).reshape(rows, -1)[:, used // width]
            place[:] = lane.numbers
            if lane.present is not None:
                place *= lane.present
        used += width
    if used:
        yield words


def _zeros(rows: int) -> Hashes:
    words = empty(rows, np.uint64)
    words[:] = 0
    return words


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
    valid = values.valid
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
            if valid is not None:  # _NULL elsewhere, without a choice in every row
                product -= _NULL
                product *= valid[rows]
                product += _NULL
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
