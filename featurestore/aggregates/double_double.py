"""Double-double arithmetic: sums and products of doubles with their rounding errors."""

from __future__ import annotations

import numpy as np

from featurestore.aggregates.arrays import Doubles


def total(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return sums and their rounding errors (Knuth)."""
    sums = a + b
    a_virtual = sums - b
    b_virtual = sums - a_virtual
    return sums, (a - a_virtual) + (b - b_virtual)


def product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return products and their rounding errors (Dekker 1971)."""
    products = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = a_high * b_high - products
    error = error + a_high * b_low + a_low * b_high
    return products, error + a_low * b_low


def square(values: Doubles) -> tuple[Doubles, Doubles]:
    """Return squares and their rounding errors, faster than ``product``."""
    squares = values * values
    high, low = _split(values)
    error = high * high
    error -= squares
    high *= low
    high *= 2
    error += high
    low *= low
    error += low
    return squares, error


def sum_of_three(first: Doubles, second: Doubles, third: Doubles) -> Doubles:
    """Return sums of three doubles, rounded once.

    The two errors are added with rounding to odd (Boldo and Melquiond 2008): the last bit is set if
    any bit was lost, so that the final addition rounds correctly.
    """
    high, low = total(second, third)
    sums, error = total(first, high)
    remainder, second_error = total(error, low)
    bits = remainder.view(np.int64)
    is_even = (second_error != 0) & ((bits & 1) == 0)
    step = np.where((second_error > 0) == (remainder > 0), 1, -1)
    odd = np.where(is_even, bits + step, bits).view(np.float64)
    return sums + odd


def _split(values: Doubles) -> tuple[Doubles, Doubles]:
    """Split doubles into halves of 26 bits, whose products are exact (Veltkamp)."""
    scaled = values * 134217729.0
    high = scaled - (scaled - values)
    return high, values - high
