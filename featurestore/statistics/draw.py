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

from featurestore.hashing.mixing import GOLDEN, byte_sums, mix, mix_all, tag, words_at
from featurestore.hashing.values import FLOAT, ByteValues, WordValues, valid_rows, values_of
from featurestore.statistics.dictionaries import codes_of
from featurestore.statistics.memory import empty
from featurestore.statistics.values import Bools, Values

Hashes = NDArray[np.uint64]
_HALF = np.uint64(32)
_UPPER = np.uint64(0xFFFFFFFF << 32)
# So many bytes of a text decide whether its row is drawn.
_BEGINNING = 32
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
    [13897430751470682112, 13897430751470682112, 9398897622141370368]
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
            yield _Words(_text_words(column.dictionary)[_codes(column)])
        elif pat.is_string(column.type) or pat.is_large_string(column.type):
            yield _Words(_text_words(column)[:-1])
        else:
            words = _zeros(len(column))
            _add(words, column, 1)
            yield _Words(words)
    yield from map(_Words, _packed(narrow, rows.num_rows))


def _text_words(column: pa.Array) -> Hashes:
    """Return a word of the length and the beginning of each text, and one of nulls behind them."""
    values = values_of(column)
    assert isinstance(values, ByteValues)
    lengths = values.lengths
    words = empty(len(lengths) + 1, np.uint64)
    of_texts = words[:-1]
    np.multiply(lengths.view(np.uint64), _FACTOR, out=of_texts)
    longest = min(int(lengths.max(initial=0)), _BEGINNING)
    for offset in range(0, longest, _WORD_BYTES):
        before = np.minimum(lengths, offset)
        each = words_at(values.data, values.starts + before, lengths - before)
        each *= np.uint64(mix(offset) | 1)
        of_texts += each
    words[-1] = _NULL
    if values.valid is not None:
        of_texts[~values.valid] = _NULL
    return words


def _codes(column: pa.DictionaryArray) -> NDArray[np.int32]:
    """Return the positions in a dictionary, of nulls the one behind its end."""
    codes = codes_of(column.indices)
    valid = valid_rows(column.indices)
    if valid is not None:
        codes = np.where(valid, codes, len(column.dictionary))
    return codes


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
    """Return the whole hashes of rows whose upper halves are known; of texts all bytes count."""
    state = np.full(rows.num_rows, mix(seed + GOLDEN), dtype=np.uint64)
    for number, column in enumerate(rows.columns):
        _add(state, column, mix((number + 1) * GOLDEN) | 1)
    mix_all(state)
    state >>= _HALF
    state |= upper
    return state


def within(upper: Hashes, bound: np.uint64) -> NDArray[np.bool_]:
    """Tell for each upper half whether the whole hash may lie within a bound."""
    return upper <= (np.uint64(bound) & _UPPER)


def _add(state: Hashes, column: Any, factor: int) -> None:
    """Add what a column says of each row, times an odd factor; a text by all of its bytes."""
    values = values_of(column)
    if isinstance(values, ByteValues):
        sums = byte_sums(values.data, values.starts, values.lengths)
        words, is_float = [sums, values.lengths.view(np.uint64)], False
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
