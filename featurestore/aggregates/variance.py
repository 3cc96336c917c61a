"""Correctly rounded variances from exact sums."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from featurestore.aggregates import double_double
from featurestore.aggregates.arrays import Doubles, Integers
from featurestore.aggregates.rounding import Sums

# Differences below this share of the minuend are computed with integers.
_CANCELLATION = 2.0**-40


def variances(counts: Integers, sums: Sums, squares: Sums) -> Doubles:
    """Return ``(n * squares - sums**2) / (n * (n - 1))``; 0 where ``n`` is less than 2.

    Both sums are represented by pairs of doubles, with 104 bits. Integers are used instead if more
    than 40 bits of the difference cancel, if a product would overflow, or if the quotient is nearer
    to the middle between two doubles than its error. So the result is the double nearest to the
    exact variance.
    """
    sum_pairs, square_pairs = sums.pairs(), squares.pairs()
    if sum_pairs is None or square_pairs is None:
        rounded = np.zeros(len(counts))
        is_uncertain = np.ones(len(counts), bool)
    else:
        rounded, is_uncertain = _in_doubles(counts, sum_pairs, square_pairs)
    for row in np.flatnonzero((counts > 1) & is_uncertain):
        rounded[row] = _in_integers(int(counts[row]), sums, squares, row=int(row))
    rounded[counts < 2] = 0.0
    return rounded


def deviations(counts: Integers, sample_variances: Doubles, sums: Sums, squares: Sums) -> Doubles:
    """Return the roots of variances; the root of the exact number if a variance overflows."""
    roots: Doubles = np.sqrt(sample_variances)
    for row in np.flatnonzero(np.isposinf(sample_variances)):
        roots[row] = _root(_exact_variance(int(counts[row]), sums, squares, row=int(row)))
    return roots


def _root(number: Fraction) -> float:
    """Return the double nearest to the root of a number far above 1."""
    floor = number.numerator // number.denominator
    root = math.isqrt(floor)
    # A sticky bit: an inexact root is rounded up from the middle.
    has_rest = root * root != number
    try:
        return float(Fraction(2 * root + has_rest, 2))
    except OverflowError:
        return float("inf")


def _in_doubles(
    counts: Integers, sums: tuple[Doubles, Doubles], squares: tuple[Doubles, Doubles]
) -> tuple[Doubles, Doubles]:
    """Return variances, and which of them may not be correctly rounded."""
    n = counts.astype(np.float64)
    high, low = sums
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        minuend, minuend_error = double_double.product(n, squares[0])
        minuend_error = minuend_error + n * squares[1]
        subtrahend, subtrahend_error = double_double.square(high)
        subtrahend_error = subtrahend_error + 2 * high * low
        high_difference, low_difference = double_double.total(minuend, -subtrahend)
        difference, difference_error = double_double.total(
            high_difference, low_difference + (minuend_error - subtrahend_error)
        )
        divisor = np.maximum(n * (n - 1), 1)
        quotient = difference / divisor
        product, product_error = double_double.product(quotient, divisor)
        correction = ((difference - product) - product_error + difference_error) / divisor
        rounded = quotient + correction
        # Distance of the quotient from the middle between two doubles, in units of the last place.
        middle_distance = np.abs(
            np.abs((quotient - rounded) + correction) / np.spacing(rounded) - 0.5
        )
        # The errors of the pairs, 2**-100, grow by the ratio of minuend to difference.
        error = 2.0**-20 + minuend / difference * 2.0**-47
        is_uncertain = ~((middle_distance > error) & (difference > minuend * _CANCELLATION))
        is_uncertain |= ~((minuend < 1e280) & (minuend > 1e-240))
    is_zero = squares[0] == 0
    rounded[is_zero] = 0.0
    return rounded, is_uncertain & ~is_zero


def _in_integers(count: int, sums: Sums, squares: Sums, *, row: int) -> float:
    try:
        return float(_exact_variance(count, sums, squares, row=row))
    except OverflowError:
        return float("inf")


def _exact_variance(count: int, sums: Sums, squares: Sums, *, row: int) -> Fraction:
    total, total_of_squares = sums.as_fraction(row), squares.as_fraction(row)
    return (count * total_of_squares - total * total) / (count * (count - 1))
