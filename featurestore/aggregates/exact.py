"""Sums without an error: numbers as integers in base 2**bits, one array for each digit.

A double is an integer times a power of two. Over all rows of a chunk the smallest power is the
unit; every value is then a whole number of units and is cut into *limbs*, signed integers of at
most ``bits`` bits. Prefix sums of limbs are exact as long as ``bits + log2(rows)`` stays below 63.
The sum of any rows is the difference of two prefix sums, and is rounded once, at the end: the bits
that ``math.fsum`` gives, whatever the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_MOST_BITS = 40
_MANTISSA = 53
# A mantissa is cut here, so that products of its halves fit 64 bits.
_HALF = 27


@dataclass(frozen=True)
class Term:
    """Signed whole numbers below 2**62, each times ``2**shift`` units."""

    values: Integers
    shifts: Integers


@dataclass(frozen=True)
class FixedPoint:
    """Numbers of rows as the sum of terms, in units of ``2**unit``.

    ``limbs`` gives their digits one after another, the lowest first, so that only one is held.
    """

    terms: Sequence[Term]
    unit: int
    bits: int
    count: int

    def limbs(self) -> Iterator[Integers]:
        """Yield ``count`` arrays, one a digit; every element is below ``2**bits`` times 3."""
        cut_terms = [_cut(term, self.bits) for term in self.terms]
        for number in range(self.count):
            total = None
            for digit, pieces in cut_terms:
                for offset, piece in enumerate(pieces):
                    mine = np.where(digit + offset == number, piece, 0)
                    total = mine if total is None else total + mine
            assert total is not None
            yield total


def bits_for(rows: int) -> int:
    """Return how many bits a limb may have so that sums of ``rows`` of them fit 64 bits.

    >>> bits_for(1_000_000), bits_for(50_000_000)
    (40, 34)
    """
    # Three pieces may fall on one digit, of each of three terms.
    return min(_MOST_BITS, 62 - 2 - max(rows, 1).bit_length())


def of_integers(values: Integers, *, bits: int) -> FixedPoint:
    """Return integers as numbers of units of 1."""
    high = values >> 31
    low = values - (high << 31)
    zeros = np.zeros(len(values), np.int64)
    terms = [Term(low, zeros), Term(high, zeros + 31)]
    return FixedPoint(terms, 0, bits, _digits(64, bits))


def of_words(words: Sequence[Integers], *, bits: int) -> FixedPoint:
    """Return integers of 32-bit words, the lowest first and the last one signed."""
    terms = []
    for number, word in enumerate(words):
        terms.append(Term(word, np.full(len(word), 32 * number, np.int64)))
    return FixedPoint(terms, 0, bits, _digits(32 * len(words) + 1, bits))


def of_doubles(values: Doubles, *, bits: int) -> FixedPoint:
    """Return finite doubles."""
    mantissas, exponents, unit = _decomposed(values)
    shifts = exponents - unit
    count = _digits(int(shifts.max(initial=0)) + _MANTISSA, bits)
    return FixedPoint([Term(mantissas, shifts)], unit, bits, count)


def of_squares(values: Doubles, *, bits: int) -> FixedPoint:
    """Return the squares of finite doubles, with all their 106 bits."""
    mantissas, exponents, unit = _decomposed(values)
    shifts = 2 * (exponents - unit)
    sizes = np.abs(mantissas)
    high, low = sizes >> _HALF, sizes & ((1 << _HALF) - 1)
    terms = [
        Term(low * low, shifts),
        Term(2 * high * low, shifts + _HALF),
        Term(high * high, shifts + 2 * _HALF),
    ]
    count = _digits(int(shifts.max(initial=0)) + 2 * _MANTISSA, bits)
    return FixedPoint(terms, 2 * unit, bits, count)


def _decomposed(values: Doubles) -> tuple[Integers, Integers, int]:
    """Return mantissas and exponents with ``value = mantissa * 2**exponent``, and the least."""
    fractions, exponents = np.frexp(values)
    mantissas = np.ldexp(fractions, _MANTISSA).astype(np.int64)
    powers = exponents.astype(np.int64) - _MANTISSA
    used = powers[mantissas != 0]
    unit = int(used.min()) if len(used) else 0
    powers[mantissas == 0] = unit
    return mantissas, powers, unit


def _digits(width: int, bits: int) -> int:
    """Return how many digits numbers of ``width`` bits need, and what a shift may add."""
    return width // bits + 3


def _cut(term: Term, bits: int) -> tuple[Integers, list[Integers]]:
    """Return the digit at which each number begins, and its pieces from there on."""
    digit, shift = np.divmod(term.shifts, bits)
    sign = np.sign(term.values)
    rest = np.abs(term.values)
    room = bits - shift
    first = (rest & ((np.int64(1) << room) - 1)) << shift
    rest = rest >> room
    pieces = [sign * first]
    mask = np.int64((1 << bits) - 1)
    while rest.any():
        pieces.append(sign * (rest & mask))
        rest = rest >> bits
    return digit, pieces


def rounded(limbs: Sequence[Integers], *, unit: int, bits: int) -> Doubles:
    """Return the doubles nearest to numbers given by limbs, ties to even.

    Args:
        limbs: Digits as sums left them, the lowest first: each may be far above ``2**bits`` or
            negative.
        unit: The numbers count units of ``2**unit``.
        bits: Bits of a digit.
    """
    digits, negative = magnitudes(limbs, bits=bits)
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


def magnitudes(
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


@dataclass(frozen=True)
class Sums:
    """Exact sums: digits, the lowest first, in units of ``2**unit``."""

    limbs: Sequence[Integers]
    unit: int
    bits: int

    def rounded(self) -> Doubles:
        """Return the nearest doubles."""
        return rounded(self.limbs, unit=self.unit, bits=self.bits)

    def without(self, values: Doubles) -> Sums:
        """Return the sums less doubles that are whole numbers of units; infinities count as 0."""
        fractions, exponents = np.frexp(np.where(np.isfinite(values), values, 0.0))
        mantissas = np.ldexp(fractions, _MANTISSA).astype(np.int64)
        shifts = exponents.astype(np.int64) - _MANTISSA - self.unit
        down = np.clip(-shifts, 0, 62)
        digit, pieces = _cut(Term(mantissas >> down, np.maximum(shifts, 0)), self.bits)
        limbs = []
        for number, limb in enumerate(self.limbs):
            rest = limb.copy()
            for offset, piece in enumerate(pieces):
                rest -= np.where(digit + offset == number, piece, 0)
            limbs.append(rest)
        return Sums(limbs, self.unit, self.bits)

    def whole(self, row: int) -> int:
        """Return one sum as a number of units."""
        total = 0
        for number, limb in enumerate(self.limbs):
            total += int(limb[row]) << (self.bits * number)
        return total


def variances(counts: Integers, sums: Sums, squares: Sums) -> Doubles:
    """Return ``(n * squares - sums**2) / (n * (n - 1))``; 0 where ``n`` is less than 2.

    Both sums are taken as pairs of doubles, which hold 106 bits of them. Where more than 40 bits of
    the difference cancel, a product would leave the range of doubles, or the quotient lies next to
    the middle between two doubles, it is computed in integers instead. So the answer is the nearest
    double to the true one.
    """
    n = counts.astype(np.float64)
    high, square_high = sums.rounded(), squares.rounded()
    low, square_low = sums.without(high).rounded(), squares.without(square_high).rounded()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        left, left_rest = _product(n, square_high)
        left_rest = left_rest + n * square_low
        right, right_rest = _product(high, high)
        right_rest = right_rest + 2 * high * low
        whole, lost = _sum(left, -right)
        difference, rest = _sum(whole, lost + (left_rest - right_rest))
        divisor = np.maximum(n * (n - 1), 1)
        found = difference / divisor
        back, back_rest = _product(found, divisor)
        correction = ((difference - back) - back_rest + rest) / divisor
        rounded_up = found + correction
        # How far the quotient is from the middle between two doubles, in units of its last place.
        off_middle = np.abs(
            np.abs((found - rounded_up) + correction) / np.spacing(rounded_up) - 0.5
        )
        found = rounded_up
        unsure = ~(off_middle > 2.0**-20)
        cancelled = ~(difference > left * 2.0**-40)
        extreme = ~((left < 1e280) & (left > 1e-240))
    in_integers = (counts > 1) & (square_high != 0) & (cancelled | extreme | unsure)
    for row in np.flatnonzero(in_integers):
        found[row] = _variance(int(counts[row]), sums, squares, row=int(row))
    return np.where((counts < 2) | (square_high == 0), 0.0, found)


def _variance(count: int, sums: Sums, squares: Sums, *, row: int) -> float:
    numerator = count * squares.whole(row) - sums.whole(row) ** 2
    unit = Fraction(2) ** squares.unit
    try:
        return float(unit * numerator / (count * (count - 1)))
    except OverflowError:
        return float("inf")


def _sum(left: Doubles, right: Doubles) -> tuple[Doubles, Doubles]:
    """Return a sum and its error: together they are exact (Knuth)."""
    total = left + right
    mine = total - right
    theirs = total - mine
    return total, (left - mine) + (right - theirs)


def _product(left: Doubles, right: Doubles) -> tuple[Doubles, Doubles]:
    """Return a product and its error: together they are exact (Dekker 1971)."""
    product = left * right
    left_high, left_low = _split(left)
    right_high, right_low = _split(right)
    error = left_high * right_high - product
    error = error + left_high * right_low + left_low * right_high
    return product, error + left_low * right_low


def _split(values: Doubles) -> tuple[Doubles, Doubles]:
    """Return halves of 26 bits each, whose products are exact."""
    scaled = values * 134217729.0
    high = scaled - (scaled - values)
    return high, values - high
