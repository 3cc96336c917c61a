"""Sums, means and deviations: exact sums of limbs, rounded once.

NaN and infinities are excluded from the sums and counted separately. Sums, means and deviations
over NaN, or over infinities of both signs, are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.aggregates import exact
from featurestore.aggregates.arrays import (
    Doubles,
    Flags,
    Integers,
    Summands,
    decimal_words,
    decimals_to_doubles,
    to_masked_array,
)
from featurestore.aggregates.chunk import Aggregate, Chunk
from featurestore.aggregates.counts import count_values, to_summands
from featurestore.aggregates.exact import FixedPoint, Sums
from featurestore.errors import InvalidArgument

# Differences below this fraction of the minuend are computed with integers.
_CANCELLATION = 2.0**-40


def variances(counts: Integers, sums: Sums, squares: Sums) -> Doubles:
    """Return ``(n * squares - sums**2) / (n * (n - 1))``; 0 where ``n`` is less than 2.

    Both sums are represented by pairs of doubles, with 104 bits. Integers are used instead if more
    than 40 bits of the difference cancel, if a product would overflow, or if the quotient is closer
    to the midpoint of two doubles than its error bound. The result is therefore the double nearest
    to the exact variance.
    """
    sum_pairs, square_pairs = sums.pairs(), squares.pairs()
    if sum_pairs is None or square_pairs is None:
        rounded = np.zeros(len(counts))
        is_uncertain = np.ones(len(counts), bool)
    else:
        rounded, is_uncertain = _variances_in_doubles(counts, sum_pairs, square_pairs)
    # Slow, but only for few rows: Python integers of any size.
    for row in np.flatnonzero((counts > 1) & is_uncertain):
        try:
            rounded[row] = float(_exact_variance(int(counts[row]), sums, squares, row=int(row)))
        except OverflowError:
            rounded[row] = np.inf
    rounded[counts < 2] = 0.0
    return rounded


def deviations(counts: Integers, sample_variances: Doubles, sums: Sums, squares: Sums) -> Doubles:
    """Return the roots of the variances; the root of the exact value if a variance overflows."""
    roots: Doubles = np.sqrt(sample_variances)
    # The exact variance may overflow while its root is a normal double.
    for row in np.flatnonzero(np.isposinf(sample_variances)):
        roots[row] = _integer_square_root(
            _exact_variance(int(counts[row]), sums, squares, row=int(row))
        )
    return roots


def _integer_square_root(number: Fraction) -> float:
    """Return the double nearest to the root of a number far above 1."""
    floor = number.numerator // number.denominator
    root = math.isqrt(floor)
    # Sticky bit: an inexact root at the midpoint is rounded up.
    has_rest = root * root != number
    try:
        return float(Fraction(2 * root + has_rest, 2))
    except OverflowError:
        return float("inf")


def _variances_in_doubles(
    counts: Integers, sums: tuple[Doubles, Doubles], squares: tuple[Doubles, Doubles]
) -> tuple[Doubles, Doubles]:
    """Return the variances, and whether each of them may be incorrectly rounded."""
    n = counts.astype(np.float64)
    high, low = sums
    # Overflow and division by zero mark a row as uncertain; the integer path computes it.
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        minuend, minuend_error = exact.product(n, squares[0])
        minuend_error = minuend_error + n * squares[1]
        subtrahend, subtrahend_error = exact.square(high)
        subtrahend_error = subtrahend_error + 2 * high * low
        high_difference, low_difference = exact.total(minuend, -subtrahend)
        difference, difference_error = exact.total(
            high_difference, low_difference + (minuend_error - subtrahend_error)
        )
        divisor = np.maximum(n * (n - 1), 1)
        quotient = difference / divisor
        product, product_error = exact.product(quotient, divisor)
        correction = ((difference - product) - product_error + difference_error) / divisor
        rounded = quotient + correction
        # Distance from the quotient to the midpoint of two doubles, in units of the last place.
        middle_distance = np.abs(
            np.abs((quotient - rounded) + correction) / np.spacing(rounded) - 0.5
        )
        # The errors of the pairs, 2**-100, grow by the ratio of the minuend to the difference.
        error = 2.0**-20 + minuend / difference * 2.0**-47
        is_uncertain = ~((middle_distance > error) & (difference > minuend * _CANCELLATION))
        # Dekker's product is inexact near the limits of the exponent.
        is_uncertain |= ~((minuend < 1e280) & (minuend > 1e-240))
    is_zero = squares[0] == 0
    rounded[is_zero] = 0.0
    return rounded, is_uncertain & ~is_zero


def _exact_variance(count: int, sums: Sums, squares: Sums, *, row: int) -> Fraction:
    total, total_of_squares = sums.as_fraction(row), squares.as_fraction(row)
    return (count * total_of_squares - total * total) / (count * (count - 1))


_MIN_INT64, _MAX_INT64 = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


def _sum(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    dtype = chunk.columns[aggregate.values].type
    empty = count_values(chunk, aggregate) == 0
    if pat.is_decimal(dtype):
        units = _integer_sums(chunk, aggregate)
        return _to_decimals(units, empty, dtype.scale)
    if pat.is_integer(dtype):
        return to_masked_array(_check_int64(_integer_sums(chunk, aggregate)), empty, pa.int64())
    return to_masked_array(_double_sums(chunk, aggregate), empty, pa.float64())


def _mean(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    count = count_values(chunk, aggregate)
    dtype = chunk.columns[aggregate.values].type
    if pat.is_floating(dtype):
        sums = _double_sums(chunk, aggregate)
    else:
        sums = sum_limbs(chunk, aggregate, "integers", integers_to_limbs).rounded()
    scale = 10.0**dtype.scale if pat.is_decimal(dtype) else 1.0
    return to_masked_array(sums / np.maximum(count, 1) / scale, count == 0, pa.float64())


def _double_sums(chunk: Chunk, aggregate: Aggregate) -> Doubles:
    def compute() -> Doubles:
        sums = sum_limbs(chunk, aggregate, "doubles", doubles_to_limbs).rounded()
        return _insert_non_finite(chunk, aggregate, sums)

    sums: Doubles = chunk.cache_per_window(aggregate, "sum", compute)
    return sums


def doubles_to_limbs(chunk: Chunk, aggregate: Aggregate) -> FixedPoint:
    """Return the finite values to include, as limbs."""
    values = _finite_or_zero(chunk, aggregate)
    return exact.from_doubles(values, bits=exact.bits_for(len(values)))


def squares_to_limbs(chunk: Chunk, aggregate: Aggregate) -> FixedPoint:
    """Return the squares of the finite values to include, as limbs."""
    values = _finite_or_zero(chunk, aggregate)
    return exact.from_squares(values, bits=exact.bits_for(len(values)))


def _finite_or_zero(chunk: Chunk, aggregate: Aggregate) -> Doubles:
    """Return the values to include, with 0 for other values and for non-finite values."""
    values = _column_doubles(chunk, aggregate)
    counts = chunk.present(aggregate) & ~non_finite_values(chunk, aggregate)
    # Excluded values become 0, which changes no sum.
    return values if counts.all() else np.where(counts, values, 0.0)


def _column_doubles(chunk: Chunk, aggregate: Aggregate) -> Doubles:
    def compute() -> Doubles:
        column = chunk.columns[aggregate.values]
        if pat.is_decimal(column.type):
            return decimals_to_doubles(column)
        # Integers beyond 2**53 are rounded to the nearest doubles.
        doubles = column.cast(pa.float64(), safe=False)
        return doubles.fill_null(0.0).to_numpy(zero_copy_only=False)

    column_doubles: Doubles = chunk.cache_per_column(aggregate, "values", compute)
    return column_doubles


def non_finite_values(chunk: Chunk, aggregate: Aggregate) -> Flags:
    """Return which of the values to include are NaN or infinite."""
    flags: Flags = chunk.cache_per_column(
        aggregate,
        "non_finite",
        lambda: ~np.isfinite(_column_doubles(chunk, aggregate)) & chunk.present(aggregate),
    )
    return flags


def _insert_non_finite(chunk: Chunk, aggregate: Aggregate, sums: Doubles) -> Doubles:
    """Replace sums over NaN and infinities with NaN or infinity."""
    is_non_finite, base_totals = non_finite_values(chunk, aggregate), chunk.totals(aggregate)
    # The usual case needs no further counting.
    if not is_non_finite.any() and not base_totals.non_finite_count:
        return sums
    positive, negative, nans = non_finite_counts(chunk, aggregate)
    is_nan = (nans > 0) | ((positive > 0) & (negative > 0))
    sums = np.where(positive > 0, np.inf, np.where(negative > 0, -np.inf, sums))
    return np.where(is_nan, np.nan, sums)


def non_finite_counts(chunk: Chunk, aggregate: Aggregate) -> tuple[Integers, Integers, Integers]:
    """Count the positive infinities, negative infinities and NaN in each label's window."""
    is_non_finite, base_totals = non_finite_values(chunk, aggregate), chunk.totals(aggregate)
    values, window = _column_doubles(chunk, aggregate), chunk.window(aggregate)
    positive = (
        window.totals(to_summands(is_non_finite & (values == np.inf)))
        + base_totals.positive_infinities
    )
    negative = (
        window.totals(to_summands(is_non_finite & (values == -np.inf)))
        + base_totals.negative_infinities
    )
    return (
        positive,
        negative,
        window.totals(to_summands(is_non_finite & np.isnan(values))) + base_totals.nans,
    )


def sum_limbs(
    chunk: Chunk,
    aggregate: Aggregate,
    name: str,
    to_fixed_point: Callable[[Chunk, Aggregate], FixedPoint],
) -> Sums:
    """Return the exact sums over a window; all windows share the limbs."""

    def numbers() -> tuple[FixedPoint, list[Summands]]:
        fixed = to_fixed_point(chunk, aggregate)
        return fixed, list(map(Summands, fixed.limbs))

    def compute() -> Sums:
        fixed, digits = chunk.cache_per_column(aggregate, name, numbers)
        sums = Sums(list(map(chunk.window(aggregate).totals, digits)), fixed.unit, fixed.bits)
        return sums.plus(chunk.totals(aggregate).sums.get(name, Fraction(0)))

    window_sums: Sums = chunk.cache_per_window(aggregate, f"sums of {name}", compute)
    return window_sums


def integers_to_limbs(chunk: Chunk, aggregate: Aggregate) -> FixedPoint:
    """Return the integers, or unscaled decimals, to include, as limbs."""
    column, present = chunk.columns[aggregate.values], chunk.present(aggregate)
    bits = exact.bits_for(len(column))
    if pat.is_decimal(column.type):
        words = decimal_words(column)
        return exact.from_words([np.where(present, word, 0) for word in words], bits=bits)
    # uint64 does not fit the signed integers of the kernel.
    if pat.is_uint64(column.type):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        low = np.where(present, numbers & np.uint64(0xFFFFFFFF), 0).astype(np.int64)
        high = np.where(present, numbers >> np.uint64(32), 0).astype(np.int64)
        return exact.from_words([low, high], bits=bits)
    values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return exact.from_integers(np.where(present, values, 0), bits=bits)


def _integer_sums(chunk: Chunk, aggregate: Aggregate) -> Integers | list[int]:
    """Return sums of integers, as Python integers if they may exceed 64 bits."""
    sums = sum_limbs(chunk, aggregate, "integers", integers_to_limbs)
    if len(sums.limbs) == 1:
        return sums.limbs[0]
    # Limbs can overflow 64 bits when they are combined, so they become Python integers.
    total = sums.limbs[0].astype(object)
    for number, limb in enumerate(sums.limbs[1:], start=1):
        if limb.any():
            total = total + limb.astype(object) * (1 << (sums.bits * number))
    return list(total)


def _check_int64(sums: Integers | list[int]) -> Integers:
    if isinstance(sums, np.ndarray):
        return sums
    if sums and not (min(sums) >= _MIN_INT64 and max(sums) <= _MAX_INT64):
        raise InvalidArgument(
            "A sum of integers over a window exceeds 64 bits.",
            hint="sum a double or decimal column, or use a shorter window",
        )
    return np.array(sums, np.int64)


def _to_decimals(units: Integers | list[int], empty: Flags, scale: int) -> pa.Array:
    """Convert unscaled integers to decimals with 38 digits, with null where ``empty``."""
    if isinstance(units, np.ndarray):
        # Arrow stores a decimal as 128 bits in two's complement; the high word of a 64-bit integer
        # is its sign.
        buffer = np.column_stack([units, units >> 63]).tobytes()
    else:
        if units and max(map(abs, units)) >= 10**38:
            raise InvalidArgument(
                "A sum of decimals over a window has more than 38 digits.",
                hint="sum a double column, or use a shorter window",
            )
        mask = (1 << 128) - 1
        buffer = b"".join([(unit & mask).to_bytes(16, "little") for unit in units])
    valid = np.packbits(~empty, bitorder="little").tobytes()
    dtype = pa.decimal128(38, scale)
    return pa.Array.from_buffers(dtype, len(units), [pa.py_buffer(valid), pa.py_buffer(buffer)])


def _var(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    count = count_values(chunk, aggregate)
    return to_masked_array(_variances(chunk, aggregate), count < 2, pa.float64())


def _std(chunk: Chunk, aggregate: Aggregate) -> pa.Array:
    count = count_values(chunk, aggregate)
    sums = sum_limbs(chunk, aggregate, "doubles", doubles_to_limbs)
    squares = sum_limbs(chunk, aggregate, "squares", squares_to_limbs)
    roots = deviations(count, _variances(chunk, aggregate), sums, squares)
    return to_masked_array(roots, count < 2, pa.float64())


def _variances(chunk: Chunk, aggregate: Aggregate) -> Doubles:
    """Return the sample variances as doubles; NaN if a value is not finite."""

    def compute() -> Doubles:
        sums = sum_limbs(chunk, aggregate, "doubles", doubles_to_limbs)
        squares = sum_limbs(chunk, aggregate, "squares", squares_to_limbs)
        sample_variances = variances(count_values(chunk, aggregate), sums, squares)
        is_non_finite = non_finite_values(chunk, aggregate)
        base_count = chunk.totals(aggregate).non_finite_count
        if not is_non_finite.any() and not base_count:
            return sample_variances
        return np.where(
            chunk.window(aggregate).totals(to_summands(is_non_finite)) + base_count > 0,
            np.nan,
            sample_variances,
        )

    sample_variances: Doubles = chunk.cache_per_window(aggregate, "variance", compute)
    return sample_variances


FUNCTIONS: dict[str, Callable[[Chunk, Aggregate], pa.Array]] = {
    "mean": _mean,
    "std": _std,
    "sum": _sum,
    "var": _var,
}
