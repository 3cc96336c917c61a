"""Sums that do not depend on how the rows were cut, in double-double arithmetic.

A *twofold* is an unevaluated sum ``hi + lo`` of two float64, about 106 bits. Added to a number
``sigma`` far above them, floats are rounded to multiples of its last place, and the bits of what
comes out count these places: as integers they add up without any rounding. What was rounded away
is smaller than that by as many bits as a float64 has (after Rump, Ogita and Oishi, "Accurate
floating-point summation", SIAM J. Sci. Comput. 31, 2008, who add the multiples as floats).
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from featurestore.statistics.memory import empty

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)
Twofold = tuple[float, float]
# Sums of such numbers may leave float64 on the way.
TOO_LARGE = 2.0**900
# Fits the caches, with an array of intermediate results; smaller ones pay for numpy's calls.
_BLOCK = 32_768
# Places of so many numbers up to half of sigma add up within 63 bits.
_SUMMANDS_BITS = 12
_SIGN, _WORD = 1 << 63, 1 << 64


def two_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """Return the rounded sum and its rounding error (Knuth).

    >>> two_sum(1e16, 1.0)
    (1e+16, 1.0)
    """
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def add_twofold(a: tuple[Number, Number], b: tuple[Number, Number]) -> tuple[Number, Number]:
    """Return the sum of two twofolds."""
    high, low = two_sum(a[0], b[0])
    return two_sum(high, low + (a[1] + b[1]))


def sum_twofold(values: Floats, *, largest: float | None = None) -> Twofold:
    """Return the sum of finite numbers as a twofold; ``largest`` is their greatest magnitude.

    >>> sum_twofold(np.array([1e30, 1.0, -1e30]))
    (1.0, 0.0)
    """
    if not len(values):
        return 0.0, 0.0
    if largest is None:
        largest = max(float(values.max()), -float(values.min()))
    if largest > TOO_LARGE:
        return _sum_huge(values)
    total = (0.0, 0.0)
    scratch = empty(min(len(values), _BLOCK))
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        total = add_twofold(total, _sum_block(block, largest, scratch[: len(block)]))
    return total


def _sum_block(values: Floats, largest: float, rounded: Floats) -> Twofold:
    """Return the sum of numbers up to ``largest``, computed in an array of their length."""
    headroom = max(len(values).bit_length() - _SUMMANDS_BITS, 0)
    sigma = math.ldexp(1.5, headroom + math.frexp(largest)[1] + 1)
    np.add(values, sigma, out=rounded)
    places = int(rounded.view(np.int64).sum()) - len(values) * _bits(sigma)
    places = (places + _SIGN) % _WORD - _SIGN  # the sum of integers goes round
    rounded -= sigma
    rest = np.subtract(values, rounded, out=rounded)
    return add_twofold(_scaled(places, math.ulp(sigma)), (float(rest.sum()), 0.0))


def product(count: int, number: float) -> Twofold:
    """Return so many times a number, exactly.

    >>> product(3, 0.5)
    (1.5, 0.0)
    """
    numerator, denominator = number.as_integer_ratio()
    return _scaled(count * numerator, 1 / denominator)


def _scaled(number: int, unit: float) -> Twofold:
    """Return a number of up to 106 bits times a power of two."""
    high = float(number)
    return high * unit, float(number - int(high)) * unit


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def sum_integers(values: NDArray[Any]) -> int:
    """Return the exact sum of integers of up to 64 bits, from the sums of their halves.

    >>> sum_integers(np.array([2**63 - 1, 2**63 - 1]))
    18446744073709551614
    """
    if values.dtype.itemsize < 8:
        return int(values.sum(dtype=np.int64))
    if not len(values):
        return 0
    largest = max(abs(int(values.min())), abs(int(values.max())))
    if largest * len(values) < 2**63:
        return int(values.sum())
    upper = (values >> 32).astype(np.int64)
    lower = (values & 0xFFFFFFFF).astype(np.int64)
    return (int(upper.sum()) << 32) + int(lower.sum())


def _sum_huge(values: Floats) -> Twofold:
    try:
        return math.fsum(values.tolist()), 0.0
    except OverflowError:
        return math.copysign(math.inf, float(np.sum(np.sign(values)))), 0.0
