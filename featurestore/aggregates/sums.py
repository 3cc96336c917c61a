"""Sums, means and deviations: exact sums of limbs, rounded once.

NaN and infinities are left out of the sums and counted apart. Sums, means and deviations over NaN,
or over infinities of both signs, are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates import exact
from featurestore.aggregates.arrays import Doubles, Flags, Integers
from featurestore.aggregates.chunk import Aggregate, Chunk
from featurestore.aggregates.column_codes import decimal_words, doubles_of_decimals, nulls_where
from featurestore.aggregates.counts import counted, ones
from featurestore.aggregates.exact import FixedPoint
from featurestore.aggregates.rounding import Sums
from featurestore.aggregates.variance import deviations, variances
from featurestore.aggregates.windows import Summands
from featurestore.errors import InvalidArgument

_LEAST, _MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


def _sum(chunk: Chunk, each: Aggregate) -> pa.Array:
    kind = chunk.columns[each.values].type
    empty = counted(chunk, each) == 0
    if pat.is_decimal(kind):
        units = _whole_sums(chunk, each)
        return _decimals(units, empty, kind.scale)
    if pat.is_integer(kind):
        return nulls_where(_fitting(_whole_sums(chunk, each)), empty, pa.int64())
    return nulls_where(_double_sums(chunk, each), empty, pa.float64())


def _mean(chunk: Chunk, each: Aggregate) -> pa.Array:
    count = counted(chunk, each)
    sums, scale = _as_doubles(chunk, each)
    found = sums / np.maximum(count, 1) / scale
    return nulls_where(found, count == 0, pa.float64())


def _as_doubles(chunk: Chunk, each: Aggregate) -> tuple[Doubles, float]:
    """Return the sums, rounded once, and what units of a decimal they are to be divided by."""
    kind = chunk.columns[each.values].type
    if pat.is_floating(kind):
        return _double_sums(chunk, each), 1.0
    scale = 10.0**kind.scale if pat.is_decimal(kind) else 1.0
    return limb_sums(chunk, each, "whole numbers", whole_numbers).rounded(), scale


def _double_sums(chunk: Chunk, each: Aggregate) -> Doubles:
    def compute() -> Doubles:
        found = limb_sums(chunk, each, "doubles", finite_doubles).rounded()
        return _with_specials(chunk, each, found)

    found: Doubles = chunk.in_window(each, "sum", compute)
    return found


def finite_doubles(chunk: Chunk, each: Aggregate) -> FixedPoint:
    """Return the values that count, those that are finite, in limbs."""
    values = _finite(chunk, each)
    return exact.of_doubles(values, bits=exact.bits_for(len(values)))


def finite_squares(chunk: Chunk, each: Aggregate) -> FixedPoint:
    """Return the squares of the values that count, those that are finite, in limbs."""
    values = _finite(chunk, each)
    return exact.of_squares(values, bits=exact.bits_for(len(values)))


def _finite(chunk: Chunk, each: Aggregate) -> Doubles:
    """Return the values that count; 0 for those that do not, or are not finite."""
    values = _doubles(chunk, each)
    counts = chunk.present(each) & ~odd_values(chunk, each)
    return values if counts.all() else np.where(counts, values, 0.0)


def _doubles(chunk: Chunk, each: Aggregate) -> Doubles:
    def compute() -> Doubles:
        column = chunk.columns[each.values]
        if pat.is_decimal(column.type):
            return doubles_of_decimals(column)
        # Integers beyond 2**53 are rounded to the nearest doubles.
        doubles = column.cast(pa.float64(), safe=False)
        return doubles.fill_null(0.0).to_numpy(zero_copy_only=False)

    found: Doubles = chunk.of_column(each, "values", compute)
    return found


def odd_values(chunk: Chunk, each: Aggregate) -> Flags:
    """Return where values that count are NaN or infinite."""
    found: Flags = chunk.of_column(
        each, "odd", lambda: ~np.isfinite(_doubles(chunk, each)) & chunk.present(each)
    )
    return found


def _with_specials(chunk: Chunk, each: Aggregate, found: Doubles) -> Doubles:
    """Put NaN and infinities into sums of finite numbers."""
    odd, carried = odd_values(chunk, each), chunk.totals(each)
    if not odd.any() and not carried.odd:
        return found
    above, below, nothing = odd_counts(chunk, each)
    is_nothing = (nothing > 0) | ((above > 0) & (below > 0))
    found = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, found))
    return np.where(is_nothing, np.nan, found)


def odd_counts(chunk: Chunk, each: Aggregate) -> tuple[Integers, Integers, Integers]:
    """Return how many infinities above and below and how many NaN each label sees."""
    odd, carried = odd_values(chunk, each), chunk.totals(each)
    values, window = _doubles(chunk, each), chunk.window(each)
    above = window.totals(ones(odd & (values == np.inf))) + carried.above
    below = window.totals(ones(odd & (values == -np.inf))) + carried.below
    return above, below, window.totals(ones(odd & np.isnan(values))) + carried.nothing


def limb_sums(
    chunk: Chunk, each: Aggregate, what: str, make: Callable[[Chunk, Aggregate], FixedPoint]
) -> Sums:
    """Return the exact sums over the windows; the digits are shared by all windows."""

    def numbers() -> tuple[FixedPoint, list[Summands]]:
        fixed = make(chunk, each)
        return fixed, list(map(Summands, fixed.limbs))

    def compute() -> Sums:
        fixed, digits = chunk.of_column(each, what, numbers)
        sums = Sums(list(map(chunk.window(each).totals, digits)), fixed.unit, fixed.bits)
        return sums.plus(chunk.totals(each).sums.get(what, Fraction(0)))

    found: Sums = chunk.in_window(each, f"sums of {what}", compute)
    return found


def whole_numbers(chunk: Chunk, each: Aggregate) -> FixedPoint:
    """Return the integers that count, or the unscaled ones of decimals, in limbs."""
    column, present = chunk.columns[each.values], chunk.present(each)
    bits = exact.bits_for(len(column))
    if pat.is_decimal(column.type):
        words = decimal_words(column)
        return exact.of_words([np.where(present, word, 0) for word in words], bits=bits)
    if pat.is_uint64(column.type):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        low = np.where(present, numbers & np.uint64(0xFFFFFFFF), 0).astype(np.int64)
        high = np.where(present, numbers >> np.uint64(32), 0).astype(np.int64)
        return exact.of_words([low, high], bits=bits)
    values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return exact.of_integers(np.where(present, values, 0), bits=bits)


def _whole_sums(chunk: Chunk, each: Aggregate) -> Integers | list[int]:
    """Return sums of integers; of any size as integers without a bound."""
    sums = limb_sums(chunk, each, "whole numbers", whole_numbers)
    if len(sums.limbs) == 1:
        return sums.limbs[0]
    total = sums.limbs[0].astype(object)
    for number, limb in enumerate(sums.limbs[1:], start=1):
        if limb.any():
            total = total + limb.astype(object) * (1 << (sums.bits * number))
    return list(total)


def _fitting(sums: Integers | list[int]) -> Integers:
    if isinstance(sums, np.ndarray):
        return sums
    if sums and not (min(sums) >= _LEAST and max(sums) <= _MOST):
        raise InvalidArgument(
            "A sum of integers over a window does not fit 64 bits.",
            hint="sum a double or decimal column, or take a shorter window",
        )
    return np.array(sums, np.int64)


def _decimals(units: Integers | list[int], empty: Flags, scale: int) -> pa.Array:
    if isinstance(units, np.ndarray):
        buffer = np.column_stack([units, units >> 63]).tobytes()
    else:
        if units and max(map(abs, units)) >= 10**38:
            raise InvalidArgument(
                "A sum of decimals over a window has more than 38 digits.",
                hint="sum a double column, or take a shorter window",
            )
        mask = (1 << 128) - 1
        buffer = b"".join([(unit & mask).to_bytes(16, "little") for unit in units])
    valid = np.packbits(~empty, bitorder="little").tobytes()
    kind = pa.decimal128(38, scale)
    return pa.Array.from_buffers(kind, len(units), [pa.py_buffer(valid), pa.py_buffer(buffer)])


def _var(chunk: Chunk, each: Aggregate) -> pa.Array:
    count = counted(chunk, each)
    return nulls_where(_variances(chunk, each), count < 2, pa.float64())


def _std(chunk: Chunk, each: Aggregate) -> pa.Array:
    count = counted(chunk, each)
    sums = limb_sums(chunk, each, "doubles", finite_doubles)
    squares = limb_sums(chunk, each, "squares", finite_squares)
    roots = deviations(count, _variances(chunk, each), sums, squares)
    return nulls_where(roots, count < 2, pa.float64())


def _variances(chunk: Chunk, each: Aggregate) -> Doubles:
    """Return sample variances of the values as doubles; NaN where one of them is not finite."""

    def compute() -> Doubles:
        sums = limb_sums(chunk, each, "doubles", finite_doubles)
        squares = limb_sums(chunk, each, "squares", finite_squares)
        found = variances(counted(chunk, each), sums, squares)
        odd, carried = odd_values(chunk, each), chunk.totals(each).odd
        if not odd.any() and not carried:
            return found
        return np.where(chunk.window(each).totals(ones(odd)) + carried > 0, np.nan, found)

    found: Doubles = chunk.in_window(each, "variance", compute)
    return found


FUNCTIONS: dict[str, Callable[[Chunk, Aggregate], pa.Array]] = {
    "mean": _mean,
    "std": _std,
    "sum": _sum,
    "var": _var,
}
