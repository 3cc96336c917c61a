"""Rounding of exact sums to the nearest double, ties to even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from featurestore.aggregates import exact
from featurestore.aggregates.column_codes import Doubles, Integers

# Doubles represent all integers below this.
_MAX_INTEGER = 1 << 53
# With units above this power of two, sums of few digits are normal doubles.
_MIN_UNIT = -1000


@dataclass(frozen=True)
class Sums:
    """Exact sums as digits, the lowest first, in units of ``2**unit``."""

    limbs: Sequence[Integers]
    unit: int
    bits: int

    def rounded(self) -> Doubles:
        """Return the nearest doubles."""
        return round_sums(self.limbs, unit=self.unit, bits=self.bits)

    def pairs(self) -> tuple[Doubles, Doubles] | None:
        """Return the sums as pairs of doubles with 104 bits; None if they exceed doubles."""
        doubles = to_doubles(self.limbs, unit=self.unit, bits=self.bits)
        if doubles is None:
            return None
        high, low = doubles[-1], np.zeros(len(doubles[-1]))
        for double in doubles[-2::-1]:
            high, error = exact.total(high, double)
            low += error
        return exact.total(high, low)

    def plus(self, number: Fraction) -> Sums:
        """Add a number whose denominator is a power of two to each sum."""
        if not number:
            return self
        numerator, unit = abs(number.numerator), 1 - number.denominator.bit_length()
        zeros = (numerator & -numerator).bit_length() - 1
        numerator, unit = numerator >> zeros, unit + zeros
        limbs, lowest = list(self.limbs), self.unit
        while unit < lowest:
            limbs.insert(0, np.zeros_like(limbs[0]))
            lowest -= self.bits
        remainder, mask, index = numerator << (unit - lowest), (1 << self.bits) - 1, 0
        while remainder:
            if index == len(limbs):
                limbs.append(np.zeros_like(limbs[0]))
            digit = remainder & mask
            limbs[index] = limbs[index] + (digit if number > 0 else -digit)
            remainder, index = remainder >> self.bits, index + 1
        return Sums(limbs, lowest, self.bits)

    def as_fraction(self, row: int) -> Fraction:
        """Return the exact value of one sum."""
        return Fraction(2) ** self.unit * self.in_units(row)

    def in_units(self, row: int) -> int:
        """Return one sum as a multiple of the unit."""
        total = 0
        for index, limb in enumerate(self.limbs):
            total += int(limb[row]) << (self.bits * index)
        return total


def to_doubles(limbs: Sequence[Integers], *, unit: int, bits: int) -> list[Doubles] | None:
    """Return doubles that add up to the digits, the lowest first; None if they do not fit."""
    highest = unit + bits * (len(limbs) - 1)
    if not _MIN_UNIT < unit <= highest < -_MIN_UNIT - 64:
        return None
    mask = np.int64((1 << bits) - 1)
    doubles, digit = [], limbs[0]
    for index, limb in enumerate(limbs[1:]):
        doubles.append((digit & mask).astype(np.float64) * 2.0 ** (unit + bits * index))
        digit = limb + (digit >> bits)
    if digit.max(initial=0) >= _MAX_INTEGER or digit.min(initial=0) <= -_MAX_INTEGER:
        return None
    return [*doubles, digit.astype(np.float64) * 2.0**highest]


def round_sums(limbs: Sequence[Integers], *, unit: int, bits: int) -> Doubles:
    """Return the doubles nearest to sums of limbs, ties to even.

    Args:
        limbs: Digits without carry propagation, the lowest first: each may be far above ``2**bits``
            or negative.
        unit: The unit of the lowest digit is ``2**unit``.
        bits: Bits of a digit.
    """
    if len(limbs) <= 3:
        doubles = to_doubles(limbs, unit=unit, bits=bits)
        if doubles is not None and len(doubles) == 3:
            return exact.sum_of_three(doubles[2], doubles[1], doubles[0])
        if doubles is not None:
            return doubles[0] if len(doubles) == 1 else doubles[0] + doubles[1]
    return _round_digits(limbs, unit=unit, bits=bits)


def _round_digits(limbs: Sequence[Integers], *, unit: int, bits: int) -> Doubles:
    """Return the doubles nearest to numbers of any size."""
    digits, negative = _magnitudes(limbs, bits=bits)
    rows = len(negative)
    top = np.zeros(rows, np.int64)
    for index, digit in enumerate(digits):
        top[digit != 0] = index
    window_digits = 64 // bits + 2
    stacked = np.vstack(digits)
    row_numbers = np.arange(rows)
    has_lower_bits = np.zeros(rows, bool)
    for index, digit in enumerate(digits):
        has_lower_bits |= (index <= top - window_digits) & (digit != 0)
    # The top digit and the ones below it, in one window of 64 bits.
    window = np.zeros(rows, np.uint64)
    first = stacked[top, row_numbers]
    leading = _bit_length(first)
    position = 64 - leading
    for offset in range(window_digits):
        digit = np.where(top >= offset, stacked[np.maximum(top - offset, 0), row_numbers], 0)
        window, is_lost = _insert_digit(window, digit, position - bits * offset)
        has_lower_bits |= is_lost
    window |= has_lower_bits.astype(np.uint64)
    exponent = unit + bits * top - position
    with np.errstate(over="ignore"):
        doubles = np.ldexp(window.astype(np.float64), exponent)
    return np.where(negative, -doubles, doubles)


def _insert_digit(
    window: npt.NDArray[np.uint64], digit: Integers, position: Integers
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return a window with a digit inserted at a bit position, and where bits were lost."""
    bits = digit.astype(np.uint64)
    up = np.clip(position, 0, 63).astype(np.uint64)
    down = np.clip(-position, 0, 63).astype(np.uint64)
    shifted = np.where(position >= 0, bits << up, bits >> down)
    is_lost = (position < 0) & ((shifted << down) != bits)
    return window | shifted, is_lost


def _bit_length(values: Integers) -> Integers:
    """Return the bit length of positive integers below 2**53; 0 for 0."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def _magnitudes(
    limbs: Sequence[Integers], *, bits: int
) -> tuple[list[Integers], npt.NDArray[np.bool_]]:
    """Return the digits of absolute values, each in ``[0, 2**bits)``, and the negative flags."""
    mask = np.int64((1 << bits) - 1)
    digits, carry = [], np.zeros(len(limbs[0]), np.int64)
    padding = [np.zeros(len(limbs[0]), np.int64)] * (64 // bits + 2)
    for limb in [*limbs, *padding]:
        total = limb + carry
        digits.append(total & mask)
        carry = total >> bits
    negative = carry < 0
    # Negative numbers: the complement of every digit, plus one.
    carry = negative.astype(np.int64)
    for index, digit in enumerate(digits):
        total = np.where(negative, mask - digit, digit) + carry
        digits[index] = total & mask
        carry = total >> bits
    return digits, negative
