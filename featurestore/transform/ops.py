"""The operations that rules are built from, and their numpy implementation.

Rules use only operations that have equal results in numpy, TensorFlow and PyTorch: float64
arithmetic, comparisons, selections, floors, exponents and searches. The logarithms and sines of
these libraries differ in their last digits, so ``log1p`` and ``sine_and_cosine`` are computed from
these operations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.arrow.values import BEYOND_FLOAT32
from featurestore.readers.columns import NumpyArray, Tensor
from featurestore.transform.steps import ValueType

# A pattern for word separators that has the same meaning in Python (bytes) and RE2 (UTF-8).
SEPARATORS = r"[\x00-/:-@\[-^`{-\x7f]+"
_SEPARATORS = re.compile(SEPARATORS.encode("ascii"))
Words = npt.NDArray[np.uint64]
# An arbitrary key; changing it would change the bucket of every string.
KEY = (0x6665617475726573, 0x746F7265)
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
# log(m) = 2 s (1 + z/3 + z^2/5 + ...) with s = (m - 1) / (m + 1), z = s^2.
_ATANH = tuple(1.0 / (2 * power + 1) for power in range(12))
_SINE = tuple((-1.0) ** power / math.factorial(2 * power + 1) for power in range(10))
_COSINE = tuple((-1.0) ** power / math.factorial(2 * power) for power in range(10))
_LOG_2 = math.log(2.0)
_HALF_PI = math.pi / 2
# Numbers below this number become 0 and numbers from BEYOND_FLOAT32 infinite, since libraries differ
# there.
LEAST_FLOAT32 = 1.1754943508222875e-38


@dataclass(frozen=True)
class Value:
    """The values of a column between two steps of a chain.

    ``data`` is an array of the library. If the library has no string type, strings are a numpy
    array of bytes objects. ``present`` is the mask of non-missing values; None if no value is
    missing. Numbers have no mask, since missing numbers are NaN.
    """

    value_type: ValueType
    data: Tensor
    present: Tensor | None = None


@dataclass(frozen=True)
class Lists:
    """Variable-length lists: the concatenated items of all rows, and the length of each list."""

    items: NumpyArray
    lengths: npt.NDArray[np.int64]


class Ops(Protocol):
    """The array operations of a library, in addition to arithmetic and comparisons.

    All operations work elementwise on arrays of any shape, and their results are bitwise equal in
    every library.
    """

    def number(self, value: Value) -> Tensor:
        """Convert numeric values or codes to float64; missing values and code 0 become NaN."""
        ...

    def where(self, condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        """Return ``yes`` where the condition is true, else ``no``; either may be a scalar."""
        ...

    def is_floating(self, data: Tensor) -> bool:
        """Return whether an array has a floating-point type."""
        ...

    def isnan(self, data: Tensor) -> Tensor:
        """Return the mask of NaN."""
        ...

    def floor(self, data: Tensor) -> Tensor:
        """Return the floor of each number."""
        ...

    def exponent(self, data: Tensor) -> tuple[Tensor, Tensor]:
        """Return (m, e) such that data = m * 2**e and 1 <= m < 2, for normal positive numbers."""
        ...

    def count_up_to(self, edges: Sequence[float], data: Tensor) -> Tensor:
        """Return how many of the ascending edges are <= each number, as int64; 0 for NaN."""
        ...

    def position(self, vocabulary: Sequence[Any], value: Value) -> Any:
        """Return the index of each value in a vocabulary, as int64; -1 for unknown values."""
        ...

    def bucket(self, value: Value, buckets: int) -> Tensor:
        """Return the hash bucket of each string, or of each integer's digits, as int64."""
        ...

    def words(self, value: Value, *, lower: bool, length: int) -> Value:
        """Split each string into words of shape (..., length); missing after the last word."""
        ...

    def pad_lists(
        self, lists: Tensor, length: int, *, last: bool
    ) -> tuple[ValueType, Tensor, Tensor]:
        """Pad or truncate lists; return the item kind, items of shape (rows, length), and a mask.

        Padding items are zeros or empty strings.
        """
        ...

    def stack(self, arrays: Sequence[Tensor]) -> Tensor:
        """Stack arrays in a new last dimension."""
        ...

    def one_hot(self, codes: Tensor, size: int) -> Tensor:
        """Return float64 one-hot vectors of shape (..., size)."""
        ...

    def cast(self, data: Tensor, dtype: str) -> Tensor:
        """Cast numbers to a type that can represent them."""
        ...

    def constant(self, value: Any, value_type: ValueType) -> Tensor:
        """Convert a string or an integer to a scalar of the library."""
        ...


class NumpyOps:
    """The operations of numpy."""

    def number(self, value: Value) -> npt.NDArray[np.float64]:
        data: npt.NDArray[np.float64] = np.asarray(value.data).astype(np.float64, copy=False)
        if value.value_type == "number" and value.present is None:
            return data
        present = value.present
        if value.value_type == "code":
            present = data != 0
        if present is None:
            return data
        return np.where(self._broadcast_mask(present, data), data, np.nan)

    def where(self, condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return np.where(condition, yes, no)

    def is_floating(self, data: Tensor) -> bool:
        return bool(np.issubdtype(data.dtype, np.floating))

    def isnan(self, data: Tensor) -> Tensor:
        return np.isnan(data)

    def floor(self, data: Tensor) -> Tensor:
        return np.floor(data)

    def exponent(self, data: Tensor) -> tuple[Tensor, Tensor]:
        half, exponent = np.frexp(data)
        return half * 2.0, (exponent - 1).astype(np.float64)

    def count_up_to(self, edges: Sequence[float], data: Tensor) -> Tensor:
        counts = np.searchsorted(np.array(edges, dtype=np.float64), data, side="right")
        return np.where(np.isnan(data), 0, counts).astype(np.int64)

    def position(self, vocabulary: Sequence[Any], value: Value) -> Any:
        data = np.asarray(value.data)
        if value.value_type == "text":
            return _find_strings(vocabulary, data)
        sorted_vocabulary = np.array(vocabulary, dtype=np.int64)
        if not len(sorted_vocabulary):
            return np.full(data.shape, -1, dtype=np.int64)
        order = np.argsort(sorted_vocabulary)
        sorted_vocabulary = sorted_vocabulary[order]
        keys = data.astype(np.int64, copy=False)
        candidates = np.minimum(
            np.searchsorted(sorted_vocabulary, keys), len(sorted_vocabulary) - 1
        )
        return np.where(sorted_vocabulary[candidates] == keys, order[candidates], -1)

    def bucket(self, value: Value, buckets: int) -> Tensor:
        data = np.asarray(value.data)
        if value.value_type == "whole":
            # An int64 has at most 20 characters, including the sign.
            digits = data.astype(np.int64, copy=False).astype("S20")
            data = digits.astype(object)
        return hash_to_buckets(data.reshape(-1), buckets).reshape(data.shape)

    def words(self, value: Value, *, lower: bool, length: int) -> Value:
        strings, present = np.asarray(value.data), value.present
        if present is not None:
            broadcastable_mask = self._broadcast_mask(present, strings)
            present = np.broadcast_to(broadcastable_mask, strings.shape).reshape(-1)
        words, is_word = split_words(strings.reshape(-1), present, lower=lower, length=length)
        shape = *strings.shape, length
        return Value("text", words.reshape(shape), is_word.reshape(shape))

    def pad_lists(
        self, lists: Lists, length: int, *, last: bool
    ) -> tuple[ValueType, Tensor, Tensor]:
        rows, present = pad_rows(lists, length, last=last)
        return item_kind(lists), rows, present

    def stack(self, arrays: Sequence[Tensor]) -> Tensor:
        return np.stack(arrays, axis=-1)

    def one_hot(self, codes: Tensor, size: int) -> Tensor:
        return (np.asarray(codes)[..., None] == np.arange(size)).astype(np.float64)

    def cast(self, data: Tensor, dtype: str) -> Tensor:
        return np.asarray(data).astype(dtype, copy=False)

    def constant(self, value: Any, value_type: ValueType) -> Tensor:
        if value_type == "text":
            return np.array(value.encode(), dtype=object)
        return np.int64(value)

    def _broadcast_mask(self, present: Tensor, data: Tensor) -> Tensor:
        """Append dimensions to a row mask, so that it broadcasts to the shape of the values."""
        return np.reshape(present, present.shape + (1,) * (data.ndim - present.ndim))


def item_kind(lists: Lists) -> ValueType:
    """Return the kind of list items."""
    kinds: dict[str, ValueType] = {"f": "number", "i": "whole"}
    return kinds.get(lists.items.dtype.kind, "text")


def pad_rows(lists: Lists, length: int, *, last: bool) -> tuple[NumpyArray, npt.NDArray[np.bool_]]:
    """Pad or truncate lists to an array of shape (rows, length), and return it with its mask.

    >>> rows, present = pad_rows(Lists(np.array([1, 2, 3]), np.array([2, 0, 1])), 1, last=True)
    >>> rows.tolist(), present.tolist()
    ([[2], [0], [3]], [[True], [False], [True]])
    """
    ends = np.cumsum(lists.lengths)
    starts = ends - lists.lengths
    item_counts = np.minimum(lists.lengths, length)
    if last:
        starts = ends - item_counts
    present = np.arange(length) < item_counts[:, None]
    zero: Any = b"" if lists.items.dtype == object else 0
    rows = np.full((len(item_counts), length), zero, dtype=lists.items.dtype)
    positions = starts[:, None] + np.arange(length)
    rows[present] = lists.items[positions[present]]
    return rows, present


def _find_strings(vocabulary: Sequence[str], data: NumpyArray) -> npt.NDArray[np.int64]:
    """Return the index of each string in a vocabulary, -1 for unknown strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    strings = pa.array(data.reshape(-1).tolist(), pa.large_binary())
    values = pa.array([string.encode() for string in vocabulary], pa.large_binary())
    indices = pc.index_in(strings, value_set=values).fill_null(-1)
    positions: npt.NDArray[np.int64] = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return positions.reshape(data.shape)


def log1p(ops: Ops, x: Tensor) -> Tensor:
    """Return log(1 + x): -inf at -1, NaN below it."""
    # In this range, 1 + x is between sqrt(1/2) and sqrt(2).
    is_near_zero = (x > -0.29) & (x < 0.41)
    # Replace numbers without a logarithm by 1.
    has_logarithm = (x > -1.0) & (x < math.inf)
    m, e = ops.exponent(ops.where(has_logarithm, 1.0 + x, 1.0))
    is_upper = m > math.sqrt(2.0)
    m = ops.where(is_upper, m * 0.5, m)
    e = ops.where(is_upper, e + 1.0, e)
    # Near 0, the sum 1 + x would lose digits. There, e is 0 and m - 1 is x itself.
    f = ops.where(is_near_zero, x, m - 1.0)
    e = ops.where(is_near_zero, 0.0, e)
    s = f / (2.0 + f)
    logarithm = e * _LOG_2 + s * 2.0 * _evaluate_polynomial(_ATANH, s * s)
    logarithm = ops.where(has_logarithm, logarithm, math.nan)
    logarithm = ops.where(x == -1.0, -math.inf, logarithm)
    return ops.where(x == math.inf, math.inf, logarithm)


def sine_and_cosine(ops: Ops, x: Tensor, *, per_period: float) -> tuple[Tensor, Tensor]:
    """Return sine and cosine of 2 pi x * per_period, which are NaN for infinities."""
    turns = x * per_period
    # The angle is reduced to at most pi/4, where the first terms of the series suffice for float64.
    # The quarter selects sine or cosine and the signs.
    turns = (turns - ops.floor(turns)) * 4.0
    quarter = ops.floor(turns + 0.5)
    angle = (turns - quarter) * _HALF_PI
    square = angle * angle
    sine, cosine = (
        angle * _evaluate_polynomial(_SINE, square),
        _evaluate_polynomial(_COSINE, square),
    )
    is_swapped = (quarter == 1.0) | (quarter == 3.0)
    first, second = ops.where(is_swapped, cosine, sine), ops.where(is_swapped, sine, cosine)
    negates_sine = (quarter == 2.0) | (quarter == 3.0)
    negates_cosine = (quarter == 1.0) | (quarter == 2.0)
    return ops.where(negates_sine, -first, first), ops.where(negates_cosine, -second, second)


def flush_to_float32(ops: Ops, x: Tensor) -> Tensor:
    """Replace numbers below the normal float32 range by 0, and numbers above it by infinity.

    Libraries differ in whether they keep subnormal numbers, and in the sign of the resulting zeros.
    """
    x = ops.where((x < LEAST_FLOAT32) & (x > -LEAST_FLOAT32), 0.0, x)
    x = ops.where(x >= BEYOND_FLOAT32, math.inf, x)
    return ops.where(x <= -BEYOND_FLOAT32, -math.inf, x)


def _evaluate_polynomial(coefficients: tuple[float, ...], z: Tensor) -> Tensor:
    """Evaluate a polynomial by Horner's rule."""
    total = z * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * z + coefficient
    return total


def split_words(
    strings: NumpyArray, present: npt.NDArray[np.bool_] | None, *, lower: bool, length: int
) -> tuple[NumpyArray, npt.NDArray[np.bool_]]:
    """Split strings into words; return the first ones as (rows, length), and their mask.

    Only ASCII letters are converted to lower case.

    >>> strings = np.array([b"Gate A3, late!"], object)
    >>> words, present = split_words(strings, None, lower=True, length=4)
    >>> words.tolist(), present.tolist()
    ([[b'gate', b'a3', b'late', b'']], [[True, True, True, False]])
    """
    words = np.full((len(strings), length), b"", dtype=object)
    is_word = np.zeros((len(strings), length), dtype=np.bool_)
    for row, string in enumerate(strings.tolist()):
        if present is not None and not present[row]:
            continue
        if lower:
            string = string.lower()
        first_words = [word for word in _SEPARATORS.split(string) if word][:length]
        words[row, : len(first_words)] = first_words
        is_word[row, : len(first_words)] = True
    return words, is_word


def siphash(strings: list[bytes]) -> Words:
    """Return the 64-bit SipHash of each string.

    >>> hex(int(siphash([b""])[0]))
    '0xb43a1ef6cc251682'
    """
    lengths = np.array([len(string) for string in strings], dtype=np.int64)
    result = np.empty(len(strings), dtype=np.uint64)
    # Hash strings with the same number of 64-bit words together.
    words = lengths // 8
    for count in np.unique(words).tolist():
        rows = np.flatnonzero(words == count)
        width = (count + 1) * 8
        padded = b"".join(strings[row].ljust(width, b"\0") for row in rows.tolist())
        blocks = np.frombuffer(padded, dtype="<u8").reshape(len(rows), count + 1).copy()
        # SipHash ends with the length modulo 256 in the last byte.
        blocks[:, -1] |= (lengths[rows].astype(np.uint64) & np.uint64(0xFF)) << np.uint64(56)
        result[rows] = _compress_blocks(blocks)
    return result


def hash_to_buckets(strings: NumpyArray, buckets: int) -> npt.NDArray[np.int64]:
    """Return the hash bucket of each string; each distinct string is hashed once."""
    import pyarrow as pa

    encoded = pa.array(strings.tolist(), pa.large_binary()).dictionary_encode()
    hashes = siphash(encoded.dictionary.to_pylist()) % np.uint64(buckets)
    return hashes.astype(np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]


def _compress_blocks(blocks: Words) -> Words:
    """Compute the SipHash-2-4 of strings with the same number of blocks."""
    key = [np.uint64(word) for word in KEY]
    state = [
        np.full(len(blocks), np.uint64(start) ^ key[index % 2], dtype=np.uint64)
        for index, start in enumerate(_START)
    ]
    # SipHash-2-4: two rounds for each block, and four rounds at the end.
    for column in range(blocks.shape[1]):
        block = blocks[:, column]
        state[3] ^= block
        _apply_rounds(state, 2)
        state[0] ^= block
    state[2] ^= np.uint64(0xFF)
    _apply_rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _apply_rounds(state: list[Words], count: int) -> None:
    """Apply SipHash rounds to the four state words of each string, in place."""
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 += v1
        v1[:] = _rotate_left(v1, 13) ^ v0
        v0[:] = _rotate_left(v0, 32)
        v2 += v3
        v3[:] = _rotate_left(v3, 16) ^ v2
        v0 += v3
        v3[:] = _rotate_left(v3, 21) ^ v0
        v2 += v1
        v1[:] = _rotate_left(v1, 17) ^ v2
        v2[:] = _rotate_left(v2, 32)


def _rotate_left(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
