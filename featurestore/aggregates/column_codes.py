"""Columns of rows as arrays of numbers, and answers back as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.aggregates.arrays import Doubles, Flags, Integers

_MOST = int(np.iinfo(np.int64).max)


def codes_of(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> Integers:
    """Return a number for each row; rows whose columns are all equal have the same.

    >>> codes_of([pa.array([5, 5, 7, None]), pa.array(["a", "b", "a", None])], 4).tolist()
    [0, 1, 2, 3]
    """
    numbers = np.zeros(rows, np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = numbers * (int(indices.max(initial=0)) + 1) + indices
        numbers = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return numbers


def flags_of(column: pa.Array | pa.ChunkedArray) -> Flags:
    """Return booleans, none of which is null."""
    return np.asarray(column.to_numpy(zero_copy_only=False), bool)


def integers_of(column: pa.ChunkedArray) -> Integers:
    """Return integers; 0 for null."""
    if column.null_count:
        column = pc.fill_null(column, 0)
    return np.asarray(column.to_numpy(), np.int64)


def nulls_where(found: npt.NDArray[Any], empty: Flags, kind: pa.DataType) -> pa.Array:
    """Return answers as a column, null where there is none."""
    return pa.array(found, mask=empty, type=kind)


def one_zero(column: pa.Array) -> pa.Array:
    """Return a column in which equal floats have equal bits: one zero, one NaN."""
    if not pat.is_floating(column.type):
        return column
    doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
    doubles[np.isnan(doubles)] = np.nan
    nulls = flags_of(column.is_null())
    return pa.array(doubles, mask=nulls).cast(column.type)


def doubles_of_decimals(column: pa.Array) -> Doubles:
    """Return the nearest doubles to decimals; 0 for null."""
    low, *high = decimal_words(column)
    units = low + (high[0] << 32)
    sign = units >> 63
    is_small = (np.abs(units) <= 1 << 53) & (high[1] == sign & 0xFFFFFFFF) & (high[2] == sign)
    # A quotient of two doubles that are exact is rounded once.
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


def codes_in_order(column: pa.Array) -> Integers | None:
    """Return integers in the order of the values, which can be turned back; None for others.

    Of floats the bits; NaN is the greatest, whatever its sign, and there is one zero.
    """
    kind = column.type
    if pat.is_floating(kind):
        doubles = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        doubles[np.isnan(doubles)] = np.nan
        return _ordered(doubles.view(np.int64))
    if pat.is_temporal(kind):
        column = column.cast(pa.int32()) if kind.bit_width == 32 else column
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if pat.is_integer(kind) and not pat.is_uint64(kind):
        return column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return None


def _ordered(bits: Integers) -> Integers:
    """Return the bits of doubles as integers in the order of the doubles, and back."""
    return np.where(bits < 0, bits ^ np.int64(_MOST), bits)


def values_of_codes(codes: Integers, empty: Flags, kind: pa.DataType) -> pa.Array:
    """Return the values whose codes are given, null where there is none."""
    codes = np.where(empty, 0, codes)
    if pat.is_floating(kind):
        return pa.array(_ordered(codes).view(np.float64), mask=empty).cast(kind)
    whole = pa.array(codes, mask=empty)
    if pat.is_temporal(kind) and kind.bit_width == 32:
        whole = whole.cast(pa.int32())
    return whole.cast(kind)


def ranks_of(column: pa.Array) -> Integers:
    """Return the rank of each value among all; equal values have equal ranks, nulls any."""
    return pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
