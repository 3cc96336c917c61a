"""Variances from exact sums: the double nearest to the true one."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from featurestore.aggregates import pairs
from featurestore.aggregates.arrays import Doubles, Integers
from featurestore.aggregates.rounding import Sums

# Where this share of the minuend is left, or less, integers decide.
_CANCELLED = 2.0**-40


def variances(counts: Integers, sums: Sums, squares: Sums) -> Doubles:
    """Return ``(n * squares - sums**2) / (n * (n - 1))``; 0 where ``n`` is less than 2.

    Both sums are taken as pairs of doubles, which hold 104 bits of them. Where more than 40 bits of
    the difference cancel, a product would leave the range of doubles, or the quotient lies nearer
    to the middle between two doubles than its error, it is computed in integers instead. So the
    answer is the nearest double to the true one.
    """
    sum_pairs, square_pairs = sums.pairs(), squares.pairs()
    if sum_pairs is None or square_pairs is None:
        found = np.zeros(len(counts))
        unsure = np.ones(len(counts), bool)
    else:
        found, unsure = _in_doubles(counts, sum_pairs, square_pairs)
    for row in np.flatnonzero((counts > 1) & unsure):
        found[row] = _in_integers(int(counts[row]), sums, squares, row=int(row))
    found[counts < 2] = 0.0
    return found


def deviations(counts: Integers, found: Doubles, sums: Sums, squares: Sums) -> Doubles:
    """Return the roots of variances; of one above the doubles the root of the exact number."""
    roots: Doubles = np.sqrt(found)
    for row in np.flatnonzero(np.isposinf(found)):
        roots[row] = _root(_exactly(int(counts[row]), sums, squares, row=int(row)))
    return roots


def _root(number: Fraction) -> float:
    """Return the nearest double to the root of a number far above 1."""
    floor = number.numerator // number.denominator
    root = math.isqrt(floor)
    # A last bit that says that the root has a rest: what is half-way is rounded up for it.
    has_rest = root * root != number
    try:
        return float(Fraction(2 * root + has_rest, 2))
    except OverflowError:
        return float("inf")


def _in_doubles(
    counts: Integers, sums: tuple[Doubles, Doubles], squares: tuple[Doubles, Doubles]
) -> tuple[Doubles, Doubles]:
    """Return variances, and where they may not be the nearest doubles."""
    n = counts.astype(np.float64)
    high, low = sums
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        left, left_rest = pairs.product(n, squares[0])
        left_rest = left_rest + n * squares[1]
        right, right_rest = pairs.square(high)
        right_rest = right_rest + 2 * high * low
        whole, lost = pairs.total(left, -right)
        difference, rest = pairs.total(whole, lost + (left_rest - right_rest))
        divisor = np.maximum(n * (n - 1), 1)
        quotient = difference / divisor
        back, back_rest = pairs.product(quotient, divisor)
        correction = ((difference - back) - back_rest + rest) / divisor
        found = quotient + correction
        # How far the quotient is from the middle between two doubles, in units of its last place.
        away = np.abs(np.abs((quotient - found) + correction) / np.spacing(found) - 0.5)
        # The pairs' errors of 2**-100, as much larger as the difference is smaller than the left.
        error = 2.0**-20 + left / difference * 2.0**-47
        unsure = ~((away > error) & (difference > left * _CANCELLED))
        unsure |= ~((left < 1e280) & (left > 1e-240))
    is_zero = squares[0] == 0
    found[is_zero] = 0.0
    return found, unsure & ~is_zero


def _in_integers(count: int, sums: Sums, squares: Sums, *, row: int) -> float:
    try:
        return float(_exactly(count, sums, squares, row=row))
    except OverflowError:
        return float("inf")


def _exactly(count: int, sums: Sums, squares: Sums, *, row: int) -> Fraction:
    total, total_of_squares = sums.exactly(row), squares.exactly(row)
    return (count * total_of_squares - total * total) / (count * (count - 1))
