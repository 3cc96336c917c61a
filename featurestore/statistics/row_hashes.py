"""Hashes of sampled rows.

The upper half of a row hash covers measured numbers and string prefixes, with one multiplication
per 64-bit word. The lower half covers complete values, to distinguish different rows; it is
computed only if the upper half is within the bound of the sample. Rows are hashed in their sampled
form, which has only the lengths of binaries and lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from featurestore.hashing import mixing
from featurestore.hashing.mixing import GOLDEN
from featurestore.hashing.values import FLOAT, ByteValues, WordValues, canonical_values, valid_mask
from featurestore.statistics.counts import dictionary_codes
from featurestore.statistics.values import Bools, Values, empty, is_float

Hashes = NDArray[np.uint64]
_HALF = np.uint64(32)
_UPPER = np.uint64(0xFFFFFFFF << 32)
# The number of string bytes that are included in the upper half of the hash.
_PREFIX_BYTES = 32
_NAN = np.float64(np.nan)
_NULL = np.uint64(mixing.tag(255))
_FACTOR = np.uint64(GOLDEN)
# The upper bits are folded into the lower bits after this many words, because integers stored as
# floats differ only in the upper bits.
_WORDS_PER_FOLD = 4
_WORD_BYTES = 8
# Rows per block; a block and its intermediate results fit into the CPU caches.
_BLOCK = 32_768


def upper_halves(rows: pa.RecordBatch, measured: Mapping[str, Values], *, seed: int) -> Hashes:
    """Compute the upper half of each row hash; the lower half is zero.

    Numbers are hashed in their measured form: decimals as the nearest float, missing values only by
    their mask.

    >>> upper_halves(pa.record_batch([pa.array(["b", "b", "c"])], ["a"]), {}, seed=0).tolist()
    [13897430751470682112, 13897430751470682112, 9398897622141370368]
    """
    words = list(_row_words(rows, measured))
    state = empty(rows.num_rows, np.uint64)
    state[:] = mixing.mix(seed + GOLDEN)
    all_scratch = empty(min(len(state), _BLOCK), np.uint64)
    for start in range(0, len(state), _BLOCK):
        block = state[start : start + _BLOCK]
        scratch = all_scratch[: len(block)]
        for number, row_words in enumerate(words):
            if number % _WORDS_PER_FOLD == 0:
                np.right_shift(block, _HALF, out=scratch)
                block ^= scratch
            block += row_words.for_rows(slice(start, start + _BLOCK), scratch)
            block *= _FACTOR
    mixing.mix_all(state)
    state &= _UPPER
    return state


@dataclass(frozen=True)
class _Words:
    """One 64-bit word per row, 0 for rows that are not ``present``."""

    words: Hashes
    present: Bools | None = None
    has_zeros: bool = False

    def for_rows(self, rows: slice, scratch: Hashes) -> Hashes:
        """Return the words of a row range, in ``scratch`` if they must be computed."""
        words = self.words[rows]
        if self.has_zeros:  # -0.0 is 0.0
            np.add(words.view(np.float64), 0.0, out=scratch.view(np.float64))
            words = scratch
        if self.present is not None:
            words = np.multiply(words, self.present[rows], out=scratch)
        return words


def _row_words(rows: pa.RecordBatch, measured: Mapping[str, Values]) -> Iterator[_Words]:
    """Yield the words of all columns; narrow numbers are packed into shared words."""
    narrow: list[_Lane] = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if name in measured:
            values = measured[name]
            numbers, present = values.numbers, values.present
            if numbers.dtype.itemsize == _WORD_BYTES:
                low, high = values.extremes or (1, 1)
                has_zeros = is_float(numbers) and bool(low <= 0.0 <= high)
                yield _Words(numbers.view(np.uint64), present, has_zeros)
            else:
                narrow.append(_Lane(numbers.dtype, numbers, present))
            # Columns without missing values also have a lane, since other batches may have some.
            missing = None if present is None else ~present
            narrow.append(_Lane(np.dtype(np.bool_), missing))
        elif pat.is_dictionary(column.type):
            yield _Words(_string_words(column.dictionary)[_codes_with_null(column)])
        elif pat.is_string(column.type) or pat.is_large_string(column.type):
            yield _Words(_string_words(column)[:-1])
        else:
            words = _zero_words(len(column))
            _add_column(words, column, 1)
            yield _Words(words)
    yield from map(_Words, _pack_lanes(narrow, rows.num_rows))


def _string_words(column: pa.Array) -> Hashes:
    """Return a word for each string, based on length and prefix, followed by a word for nulls."""
    values = canonical_values(column)
    assert isinstance(values, ByteValues)
    lengths = values.lengths
    words = empty(len(lengths) + 1, np.uint64)
    text_words = words[:-1]
    np.multiply(lengths.view(np.uint64), _FACTOR, out=text_words)
    hashed_bytes = min(int(lengths.max(initial=0)), _PREFIX_BYTES)
    for offset in range(0, hashed_bytes, _WORD_BYTES):
        skipped = np.minimum(lengths, offset)
        position_words = mixing.words_at(values.data, values.starts + skipped, lengths - skipped)
        # A different odd factor for each position distinguishes swapped words; odd factors lose no
        # bits modulo 2**64.
        position_words *= np.uint64(mixing.mix(offset) | 1)
        text_words += position_words
    # Dictionary codes of nulls refer to this additional word.
    words[-1] = _NULL
    if values.valid is not None:
        text_words[~values.valid] = _NULL
    return words


def _codes_with_null(column: pa.DictionaryArray) -> NDArray[np.int32]:
    """Return dictionary indices, where nulls have the index after the last value."""
    codes = dictionary_codes(column.indices)
    valid = valid_mask(column.indices)
    if valid is not None:
        codes = np.where(valid, codes, len(column.dictionary))
    return codes


class _Lane(NamedTuple):
    """A narrow number for each row: 0 if not present, or 0 in all rows without ``numbers``."""

    type: np.dtype[Any]
    numbers: NDArray[Any] | None
    present: Bools | None = None


def _pack_lanes(lanes: Iterable[_Lane], rows: int) -> Iterator[Hashes]:
    """Pack the numbers of several columns into words."""
    words, used_bytes = _zero_words(rows), 0
    # Sort by width, widest first, so that each lane is aligned to a multiple of its width.
    for lane in sorted(lanes, key=lambda lane: -lane.type.itemsize):
        width = lane.type.itemsize
        if used_bytes + width > _WORD_BYTES:
            yield words
            words, used_bytes = _zero_words(rows), 0
        if lane.numbers is not None:
            packed_column = words.view(lane.type).reshape(rows, -1)[:, used_bytes // width]
            packed_column[:] = lane.numbers
            if lane.present is not None:
                packed_column *= lane.present
        used_bytes += width
    if used_bytes:
        yield words


def _zero_words(rows: int) -> Hashes:
    words = empty(rows, np.uint64)
    words[:] = 0
    return words


def add_lower_halves(upper: Hashes, rows: pa.RecordBatch, *, seed: int) -> Hashes:
    """Add the lower halves to row hashes; all bytes of strings are included."""
    state = np.full(rows.num_rows, mixing.mix(seed + GOLDEN), dtype=np.uint64)
    for number, column in enumerate(rows.columns):
        # A factor for each column distinguishes rows with swapped values.
        _add_column(state, column, mixing.mix((number + 1) * GOLDEN) | 1)
    mixing.mix_all(state)
    state >>= _HALF
    state |= upper
    return state


def is_within_bound(upper: Hashes, bound: np.uint64) -> NDArray[np.bool_]:
    """Return a mask of the upper halves whose complete hash may be within the bound."""
    # The lower halves are not known yet, so hashes that differ from the bound only there are
    # candidates. TableSample.add compares the complete hashes.
    return upper <= (np.uint64(bound) & _UPPER)


def _add_column(state: Hashes, column: Any, factor: int) -> None:
    """Add the values of a column, multiplied by an odd factor, to the hash state."""
    values = canonical_values(column)
    if isinstance(values, ByteValues):
        byte_hashes = mixing.byte_sums(values.data, values.starts, values.lengths)
        words, is_float = [byte_hashes, values.lengths.view(np.uint64)], False
    elif isinstance(values, WordValues):
        words = list(values.words)
        is_float = isinstance(values.kinds, int) and values.kinds == FLOAT
    else:
        return
    valid = values.valid
    scratch = np.empty((2, min(len(state), _BLOCK)), dtype=np.uint64)
    for number, column_words in enumerate(words):
        multiplier = np.uint64(mixing.mix(factor + number) | 1)
        for start in range(0, len(state), _BLOCK):
            rows = slice(start, start + _BLOCK)
            block = column_words[rows]
            product, shifted = scratch[:, : len(block)]
            if is_float:
                block = _normalize_float_bits(block, product, shifted)
            np.multiply(block, multiplier, out=product)
            if valid is not None:  # _NULL for nulls, without a branch per row
                product -= _NULL
                product *= valid[rows]
                product += _NULL
            state[rows] += product


def _normalize_float_bits(words: Hashes, bits: Hashes, shifted: Hashes) -> Hashes:
    """Normalize the bits of floats, so that 0.0 equals -0.0 and all NaN are equal, and fold them."""
    floats = bits.view(np.float64)
    with np.errstate(invalid="ignore"):  # the bits under a null may be those of a signaling NaN
        np.add(words.view(np.float64), 0.0, out=floats)
        if np.isnan(floats.max(initial=0.0)):
            floats[np.isnan(floats)] = _NAN
    np.right_shift(bits, _HALF, out=shifted)
    bits ^= shifted
    return bits
