"""Sums that do not depend on how the rows were cut.

Error-free splitting and double-double arithmetic.

A *twofold* is an unevaluated sum ``hi + lo`` of two float64, about 106 bits. The splitting is that
of Rump, Ogita and Oishi, "Accurate floating-point summation" (SIAM J. Sci. Comput. 31, 2008): with
a power of two ``sigma`` above n * max|x|, the leading parts ``(x + sigma) - sigma`` add up without
any rounding.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)
Twofold = tuple[float, float]
_TOO_LARGE = 2.0**900
# Fits the caches, with two arrays of intermediate results; smaller ones pay for numpy's calls.
_BLOCK = 32_768
# What rounding to a multiple of the last bit of sigma leaves is at most sigma times 2 to minus this.
_PRECISION = 53


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

    >>> sum_twofold(np.array([1e100, 1.0, -1e100]))
    (1.0, 0.0)
    """
    if not len(values):
        return 0.0, 0.0
    if largest is None:
        largest = max(float(values.max()), -float(values.min()))
    if largest > _TOO_LARGE:
        return _sum_huge(values)
    total = (0.0, 0.0)
    scratch = np.empty((2, min(len(values), _BLOCK)))
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        total = add_twofold(total, _sum_block(block, largest, scratch[:, : len(block)]))
    return total


def _sum_block(values: Floats, largest: float, scratch: Floats) -> Twofold:
    """Return the sum of numbers up to ``largest``, computed in two arrays of their length."""
    leading, rest = scratch
    growth = math.ceil(math.log2(len(values) + 2))
    total = (0.0, 0.0)
    while largest > 0.0:  # no longer once it is below the least float64
        sigma = math.ldexp(1.0, growth + math.frexp(largest)[1])
        np.add(values, sigma, out=leading)
        leading -= sigma
        total = add_twofold(total, (float(leading.sum()), 0.0))
        values = np.subtract(values, leading, out=rest)
        if not rest.any():
            break
        largest = math.ldexp(sigma, -_PRECISION)
    return total


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
