"""From exact sums to doubles: rounded once, to the nearest, ties to even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from featurestore.aggregates import pairs
from featurestore.aggregates.arrays import Doubles, Integers

# Doubles hold whole numbers below this.
_WHOLE = 1 << 53
# Of units above this power of two no sum of few digits leaves the normal doubles.
_LEAST_UNIT = -1000


@dataclass(frozen=True)
class Sums:
    """Exact sums: digits, the lowest first, in units of ``2**unit``."""

    limbs: Sequence[Integers]
    unit: int
    bits: int

    def rounded(self) -> Doubles:
        """Return the nearest doubles."""
        return rounded(self.limbs, unit=self.unit, bits=self.bits)

    def pairs(self) -> tuple[Doubles, Doubles] | None:
        """Return the sums as pairs of doubles, to 104 bits; None where doubles cannot hold them."""
        parts = parts_of(self.limbs, unit=self.unit, bits=self.bits)
        if parts is None:
            return None
        high, low = parts[-1], np.zeros(len(parts[-1]))
        for part in parts[-2::-1]:
            high, lost = pairs.total(high, part)
            low += lost
        return pairs.total(high, low)

    def plus(self, number: Fraction) -> Sums:
        """Return the sums with one number added to each; it has a power of two below its line."""
        if not number:
            return self
        whole, unit = abs(number.numerator), 1 - number.denominator.bit_length()
        zeros = (whole & -whole).bit_length() - 1
        whole, unit = whole >> zeros, unit + zeros
        limbs, lowest = list(self.limbs), self.unit
        while unit < lowest:
            limbs.insert(0, np.zeros_like(limbs[0]))
            lowest -= self.bits
        rest, mask, place = whole << (unit - lowest), (1 << self.bits) - 1, 0
        while rest:
            if place == len(limbs):
                limbs.append(np.zeros_like(limbs[0]))
            digit = rest & mask
            limbs[place] = limbs[place] + (digit if number > 0 else -digit)
            rest, place = rest >> self.bits, place + 1
        return Sums(limbs, lowest, self.bits)

    def exactly(self, row: int) -> Fraction:
        """Return one sum as it is."""
        return Fraction(2) ** self.unit * self.whole(row)

    def whole(self, row: int) -> int:
        """Return one sum as a number of units."""
        total = 0
        for number, limb in enumerate(self.limbs):
            total += int(limb[row]) << (self.bits * number)
        return total


def parts_of(limbs: Sequence[Integers], *, unit: int, bits: int) -> list[Doubles] | None:
    """Return doubles whose sums the digits are, the lowest first; None where they do not fit."""
    highest = unit + bits * (len(limbs) - 1)
    if not _LEAST_UNIT < unit <= highest < -_LEAST_UNIT - 64:
        return None
    mask = np.int64((1 << bits) - 1)
    parts, digit = [], limbs[0]
    for number, limb in enumerate(limbs[1:]):
        parts.append((digit & mask).astype(np.float64) * 2.0 ** (unit + bits * number))
        digit = limb + (digit >> bits)
    if digit.max(initial=0) >= _WHOLE or digit.min(initial=0) <= -_WHOLE:
        return None
    return [*parts, digit.astype(np.float64) * 2.0**highest]


def rounded(limbs: Sequence[Integers], *, unit: int, bits: int) -> Doubles:
    """Return the doubles nearest to numbers given by limbs, ties to even.

    Args:
        limbs: Digits as sums left them, the lowest first: each may be far above ``2**bits`` or
            negative.
        unit: The numbers count units of ``2**unit``.
        bits: Bits of a digit.
    """
    if len(limbs) <= 3:
        parts = parts_of(limbs, unit=unit, bits=bits)
        if parts is not None and len(parts) == 3:
            return pairs.sum_of_three(parts[2], parts[1], parts[0])
        if parts is not None:
            return parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return _rounded_digits(limbs, unit=unit, bits=bits)


def _rounded_digits(limbs: Sequence[Integers], *, unit: int, bits: int) -> Doubles:
    """Return the nearest doubles to numbers of any size."""
    digits, negative = _magnitudes(limbs, bits=bits)
    rows = len(negative)
    top = np.zeros(rows, np.int64)
    for number, digit in enumerate(digits):
        top[digit != 0] = number
    reach = 64 // bits + 2
    stacked = np.vstack(digits)
    every = np.arange(rows)
    below = np.zeros(rows, bool)
    for number, digit in enumerate(digits):
        below |= (number <= top - reach) & (digit != 0)
    # The top digit and those below it, in one window of 64 bits.
    window = np.zeros(rows, np.uint64)
    first = stacked[top, every]
    leading = _bit_length(first)
    position = 64 - leading
    for offset in range(reach):
        digit = np.where(top >= offset, stacked[np.maximum(top - offset, 0), every], 0)
        window, lost = _placed(window, digit, position - bits * offset)
        below |= lost
    window |= below.astype(np.uint64)
    exponent = unit + bits * top - position
    with np.errstate(over="ignore"):
        found = np.ldexp(window.astype(np.float64), exponent)
    return np.where(negative, -found, found)


def _placed(
    window: npt.NDArray[np.uint64], digit: Integers, position: Integers
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return a window with a digit added at a bit position, and where bits of it were lost."""
    bits = digit.astype(np.uint64)
    up = np.clip(position, 0, 63).astype(np.uint64)
    down = np.clip(-position, 0, 63).astype(np.uint64)
    shifted = np.where(position >= 0, bits << up, bits >> down)
    lost = (position < 0) & ((shifted << down) != bits)
    return window | shifted, lost


def _bit_length(values: Integers) -> Integers:
    """Return how many bits positive numbers below 2**53 have; 0 for 0."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def _magnitudes(
    limbs: Sequence[Integers], *, bits: int
) -> tuple[list[Integers], npt.NDArray[np.bool_]]:
    """Return the digits of absolute values, each in ``[0, 2**bits)``, and what is negative."""
    mask = np.int64((1 << bits) - 1)
    digits, carry = [], np.zeros(len(limbs[0]), np.int64)
    padding = [np.zeros(len(limbs[0]), np.int64)] * (64 // bits + 2)
    for limb in [*limbs, *padding]:
        total = limb + carry
        digits.append(total & mask)
        carry = total >> bits
    negative = carry < 0
    # Of a negative number the complement of every digit, plus one.
    carry = negative.astype(np.int64)
    for number, digit in enumerate(digits):
        total = np.where(negative, mask - digit, digit) + carry
        digits[number] = total & mask
        carry = total >> bits
    return digits, negative
