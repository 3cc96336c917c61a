"""Sums and products of doubles with their errors: two doubles that together are exact."""

from __future__ import annotations

import numpy as np

from featurestore.aggregates.arrays import Doubles


def total(left: Doubles, right: Doubles) -> tuple[Doubles, Doubles]:
    """Return sums and their errors (Knuth)."""
    found = left + right
    mine = found - right
    theirs = found - mine
    return found, (left - mine) + (right - theirs)


def product(left: Doubles, right: Doubles) -> tuple[Doubles, Doubles]:
    """Return products and their errors (Dekker 1971)."""
    found = left * right
    left_high, left_low = _split(left)
    right_high, right_low = _split(right)
    error = left_high * right_high - found
    error = error + left_high * right_low + left_low * right_high
    return found, error + left_low * right_low


def square(values: Doubles) -> tuple[Doubles, Doubles]:
    """Return squares and their errors: what ``product`` returns, for less."""
    found = values * values
    high, low = _split(values)
    error = high * high
    error -= found
    high *= low
    high *= 2
    error += high
    low *= low
    error += low
    return found, error


def sum_of_three(first: Doubles, second: Doubles, third: Doubles) -> Doubles:
    """Return sums of three doubles, rounded once.

    The two errors are added so that the last bit says whether any bit was lost (rounding to odd,
    Boldo and Melquiond 2008); then the last addition rounds as if it saw them all.
    """
    high, low = total(second, third)
    found, error = total(first, high)
    rest, lost = total(error, low)
    bits = rest.view(np.int64)
    is_even = (lost != 0) & ((bits & 1) == 0)
    away = np.where((lost > 0) == (rest > 0), 1, -1)
    odd = np.where(is_even, bits + away, bits).view(np.float64)
    return found + odd


def _split(values: Doubles) -> tuple[Doubles, Doubles]:
    """Return halves of 26 bits each, whose products are exact."""
    scaled = values * 134217729.0
    high = scaled - (scaled - values)
    return high, values - high
