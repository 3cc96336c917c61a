"""Integer and float arrays of the kernel, and conversions of Arrow columns to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


_MAX_INT64 = int(np.iinfo(np.int64).max)


def combined_codes(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> Integers:
    """Return an integer for each row; rows that are equal in all columns have the same one.

    >>> combined_codes([pa.array([5, 5, 7, None]), pa.array(["a", "b", "a", None])], 4).tolist()
    [0, 1, 2, 3]
    """
    codes = np.zeros(rows, np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = codes * (int(indices.max(initial=0)) + 1) + indices
        codes = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return codes


def to_flags(column: pa.Array | pa.ChunkedArray) -> Flags:
    """Return booleans without nulls as numpy."""
    return np.asarray(column.to_numpy(zero_copy_only=False), bool)


def to_integers(column: pa.ChunkedArray) -> Integers:
    """Return integers as numpy, 0 for null."""
    if column.null_count:
        column = pc.fill_null(column, 0)
    return np.asarray(column.to_numpy(), np.int64)


def masked_array(values: npt.NDArray[Any], empty: Flags, kind: pa.DataType) -> pa.Array:
    """Return values as an Arrow array, null where ``empty``."""
    return pa.array(values, mask=empty, type=kind)


def normalize_floats(column: pa.Array) -> pa.Array:
    """Return a column in which equal floats have equal bits: a single zero, a single NaN."""
    if not pat.is_floating(column.type):
        return column
    doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
    doubles[np.isnan(doubles)] = np.nan
    nulls = to_flags(column.is_null())
    return pa.array(doubles, mask=nulls).cast(column.type)


def decimals_to_doubles(column: pa.Array) -> Doubles:
    """Return the doubles nearest to decimals, 0 for null."""
    low, *high = decimal_words(column)
    units = low + (high[0] << 32)
    sign = units >> 63
    is_small = (np.abs(units) <= 1 << 53) & (high[1] == sign & 0xFFFFFFFF) & (high[2] == sign)
    # The quotient of two exact doubles is rounded only once.
    if is_small.all() and column.type.scale <= 22:
        return units / 10.0**column.type.scale
    return np.array(list(map(float, column.fill_null(0).to_pylist())), np.float64)


def decimal_words(column: pa.Array) -> list[Integers]:
    """Return the unscaled integers of decimals as four words, the lowest first."""
    wide = column.cast(pa.decimal128(38, column.type.scale)).fill_null(0)
    words = np.frombuffer(wide.buffers()[1], np.uint32).reshape(-1, 4)
    words = words[wide.offset : wide.offset + len(wide)]
    lower = [words[:, number].astype(np.int64) for number in range(3)]
    return [*lower, words[:, 3].view(np.int32).astype(np.int64)]


def ordered_codes(column: pa.Array) -> Integers | None:
    """Return integers in the order of the values, for ``decode_ordered``; None for other types.

    Floats are represented by their bits; NaN of either sign is the maximum, -0.0 equals 0.0.
    """
    kind = column.type
    if pat.is_floating(kind):
        doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        doubles[np.isnan(doubles)] = np.nan
        return _flip_negatives(doubles.view(np.int64))
    if pat.is_temporal(kind):
        column = column.cast(pa.int32()) if kind.bit_width == 32 else column
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pat.is_integer(kind) and not pat.is_uint64(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return None


def _flip_negatives(bits: Integers) -> Integers:
    """Convert the bits of doubles to integers in the order of the doubles, or back."""
    return np.where(bits < 0, bits ^ np.int64(_MAX_INT64), bits)


def decode_ordered(codes: Integers, empty: Flags, kind: pa.DataType) -> pa.Array:
    """Return the values of codes from ``ordered_codes``, null where ``empty``."""
    codes = np.where(empty, 0, codes)
    if pat.is_floating(kind):
        return pa.array(_flip_negatives(codes).view(np.float64), mask=empty).cast(kind)
    integers = pa.array(codes, mask=empty)
    if pat.is_temporal(kind) and kind.bit_width == 32:
        integers = integers.cast(pa.int32())
    return integers.cast(kind)


def dense_ranks(column: pa.Array) -> Integers:
    """Return the dense rank of each value; the rank of nulls is arbitrary."""
    return pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
