"""Sums that do not depend on how rows were partitioned, in double-double arithmetic.

A *twofold* is an unevaluated sum ``hi + lo`` of two float64, about 106 bits. Adding a much larger
number ``sigma`` rounds floats to multiples of its last place; the bits of the sum count these
multiples, and as integers they add up without rounding. The remainders are smaller by the 53 bits
of a float64 (after Rump, Ogita and Oishi, "Accurate
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
# Partial sums of such numbers may overflow float64.
TOO_LARGE = 2.0**900
# Fits the processor's caches with the intermediate results; with smaller blocks the calls dominate.
_BLOCK = 32_768
# The multiples of 2**12 numbers up to half of sigma add up within 63 bits.
_SUMMANDS_BITS = 12
_SIGN, _WORD = 1 << 63, 1 << 64


def two_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """Return the rounded sum and its rounding error (Knuth).

    >>> two_sum(1e16, 1.0)
    (1e+16, 1.0)
    """
    total = a + b
    virtual_b = total - a
    return total, (a - (total - virtual_b)) + (b - virtual_b)


def add_twofold(a: tuple[Number, Number], b: tuple[Number, Number]) -> tuple[Number, Number]:
    """Return the sum of two twofolds."""
    high, low = two_sum(a[0], b[0])
    return two_sum(high, low + (a[1] + b[1]))


def sum_twofold(values: Floats, *, largest: float | None = None) -> Twofold:
    """Return the sum of finite numbers as a twofold; ``largest`` is their maximum magnitude.

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
    """Return the sum of numbers up to ``largest``; ``rounded`` is scratch memory."""
    headroom = max(len(values).bit_length() - _SUMMANDS_BITS, 0)
    sigma = math.ldexp(1.5, headroom + math.frexp(largest)[1] + 1)
    np.add(values, sigma, out=rounded)
    multiples = int(rounded.view(np.int64).sum()) - len(values) * _float_bits(sigma)
    multiples = (multiples + _SIGN) % _WORD - _SIGN  # the int64 sum may wrap around
    rounded -= sigma
    remainders = np.subtract(values, rounded, out=rounded)
    return add_twofold(_scaled_rows(multiples, math.ulp(sigma)), (float(remainders.sum()), 0.0))


def product(count: int, number: float) -> Twofold:
    """Return ``count`` times a number, exactly.

    >>> product(3, 0.5)
    (1.5, 0.0)
    """
    numerator, denominator = number.as_integer_ratio()
    return _scaled_rows(count * numerator, 1 / denominator)


def _scaled_rows(number: int, unit: float) -> Twofold:
    """Return a number of up to 106 bits times a power of two."""
    high = float(number)
    return high * unit, float(number - int(high)) * unit


def _float_bits(number: float) -> int:
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
