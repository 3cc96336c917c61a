"""Exact fixed-point sums, and double-double arithmetic.

Every value in a chunk is a multiple of a unit (a power of two) and is split into *limbs*, signed
integers of at most ``bits`` bits. Sums of limbs are exact while ``bits + log2(rows)`` is below 63.
The sum over a range of rows is the difference of two prefix sums, rounded once at the end to the
nearest double, ties to even. The result equals ``math.fsum``, independent of the row order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from featurestore.aggregates.arrays import Doubles, Integers

# Doubles represent all integers below this limit exactly.
_MAX_INTEGER = 1 << 53
# With units above this power of two, sums of few digits are normal doubles.
_MIN_UNIT = -1000
_MAX_BITS = 40
_MANTISSA = 53
# A mantissa is split at this bit, so that products of its halves fit into 64 bits.
_HALF = 27
# Doubles between these powers of two can be split with floating-point arithmetic, which is exact
# and does not overflow in this range; squares of doubles can be split within half the exponents.
_MODERATE = 900


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as digits in base ``2**bits``, lowest first, in units of ``2**unit``.

    Digits are signed, with absolute values below ``3 * 2**bits``.
    """

    limbs: Sequence[Integers]
    unit: int
    bits: int


@dataclass(frozen=True)
class Sums:
    """Exact sums as digits, lowest first, in units of ``2**unit``."""

    limbs: Sequence[Integers]
    unit: int
    bits: int

    def rounded(self) -> Doubles:
        """Round the sums to the nearest doubles."""
        return round_sums(self.limbs, unit=self.unit, bits=self.bits)

    def pairs(self) -> tuple[Doubles, Doubles] | None:
        """Return the sums as pairs of doubles with 104 bits; None if they exceed the range."""
        doubles = to_doubles(self.limbs, unit=self.unit, bits=self.bits)
        if doubles is None:
            return None
        # From the largest double on, so that ``low`` collects the small rounding errors.
        high, low = doubles[-1], np.zeros(len(doubles[-1]))
        for double in doubles[-2::-1]:
            high, error = total(high, double)
            low += error
        return total(high, low)

    def plus(self, number: Fraction) -> Sums:
        """Add a number whose denominator is a power of two to each sum."""
        if not number:
            return self
        numerator, unit = abs(number.numerator), 1 - number.denominator.bit_length()
        # Trailing zero bits are removed, so that a coarse number needs no digits below the lowest
        # unit.
        zeros = (numerator & -numerator).bit_length() - 1
        numerator, unit = numerator >> zeros, unit + zeros
        limbs, lowest = list(self.limbs), self.unit
        # The number has a smaller unit than the sums, so digits are inserted below and nothing is
        # rounded.
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


def bits_for(rows: int) -> int:
    """Return the maximum limb size in bits such that sums of ``rows`` limbs fit into 64 bits.

    >>> bits_for(1_000_000), bits_for(50_000_000)
    (40, 34)
    """
    # Up to three digits of each of three terms are added to one limb.
    return min(_MAX_BITS, 62 - 2 - max(rows, 1).bit_length())


def from_integers(values: Integers, *, bits: int) -> FixedPoint:
    """Convert integers with a unit of 1; small integers need a single limb."""
    largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    # The sum of any subset of the values fits into 62 bits.
    if largest * len(values) < 1 << 62:
        return FixedPoint([values], 0, bits)
    # Terms must be below 2**62, so integers are split into two halves.
    high = values >> 31
    low = values - (high << 31)
    zeros = np.zeros(len(values), np.int64)
    return _sum_terms([_Term(low, zeros), _Term(high, zeros + 31)], 0, bits, _digit_count(64, bits))


def from_words(words: Sequence[Integers], *, bits: int) -> FixedPoint:
    """Convert integers represented as 32-bit words, lowest first; the last word is signed."""
    if _fits_two_words(words):
        return from_integers(words[0] + (words[1] << 32), bits=bits)
    terms = [
        _Term(word, np.full(len(word), 32 * number, np.int64)) for number, word in enumerate(words)
    ]
    return _sum_terms(terms, 0, bits, _digit_count(32 * len(words) + 1, bits))


def _fits_two_words(words: Sequence[Integers]) -> bool:
    """Return True if the words above the second word only extend its sign."""
    highest = words[1] << 32 >> 32
    for word in words[2:-1]:
        if not (word == (highest >> 32) & 0xFFFFFFFF).all():
            return False
    sign_extension = highest if len(words) == 2 else highest >> 32
    return bool((words[-1] == sign_extension).all())


def from_doubles(values: Doubles, *, bits: int) -> FixedPoint:
    """Convert finite doubles."""
    top = _max_exponent(values) - bits
    digits = None
    if abs(top) < _MODERATE:
        digits = _split_doubles(values, top, bits)
    if digits is not None:
        return FixedPoint(digits[::-1], top - bits * (len(digits) - 1), bits)
    mantissas, exponents, unit = _decompose(values)
    shifts = exponents - unit
    count = _digit_count(int(shifts.max(initial=0)) + _MANTISSA, bits)
    return _sum_terms([_Term(mantissas, shifts)], unit, bits, count)


def from_squares(values: Doubles, *, bits: int) -> FixedPoint:
    """Convert the squares of finite doubles, exactly, with all 106 bits."""
    sizes = np.abs(values)
    minimum = np.min(sizes, where=sizes > 0, initial=1.0)
    # Dekker's error of a square is exact only if neither over- nor underflows.
    if minimum > 2.0 ** (-_MODERATE // 2) and sizes.max(initial=0.0) < 2.0 ** (_MODERATE // 2):
        squares, errors = square(values)
        top = _max_exponent(squares) - bits
        digits = _split_doubles(squares, top, bits)
        error_digits = _split_doubles(errors, top, bits)
        if digits is not None and error_digits is not None:
            return _add_digits(digits, error_digits, top, bits)
    return _from_scaled_squares(values, bits=bits)


def _add_digits(first: list[Integers], second: list[Integers], top: int, bits: int) -> FixedPoint:
    """Add two numbers whose highest digits have the unit ``2**top``."""
    count = max(len(first), len(second))
    limbs = []
    for index in range(count - 1, -1, -1):
        digits = [digits_of[index] for digits_of in (first, second) if index < len(digits_of)]
        limbs.append(digits[0] if len(digits) == 1 else digits[0] + digits[1])
    return FixedPoint(limbs, top - bits * (count - 1), bits)


def _max_exponent(values: Doubles) -> int:
    """Return the exponent of the smallest power of two above all absolute values."""
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    return int(np.frexp(largest)[1])


def _split_doubles(values: Doubles, top: int, bits: int) -> list[Integers] | None:
    """Return the digits of doubles, highest first, with the unit ``2**top``.

    Each digit is rounded to the nearest integer, so the remainder is below half a unit and has no
    more bits than before; both steps are exact. Return None if some numbers are too small.
    """
    digits: list[Integers] = []
    remainder, unit = values.copy(), top
    while not digits or remainder.any():
        if unit < -_MODERATE:
            return None
        # Multiplication by a power of two is exact.
        digit = remainder * 2.0**-unit
        np.rint(digit, out=digit)
        digits.append(digit.astype(np.int64))
        digit *= 2.0**unit
        remainder -= digit
        unit -= bits
    return digits


def _from_scaled_squares(values: Doubles, *, bits: int) -> FixedPoint:
    """Convert squares of doubles outside the moderate range, by integer arithmetic."""
    mantissas, exponents, unit = _decompose(values)
    shifts = 2 * (exponents - unit)
    sizes = np.abs(mantissas)
    # A square of 106 bits exceeds a 64-bit integer, so the halves of a mantissa are multiplied
    # separately.
    high, low = sizes >> _HALF, sizes & ((1 << _HALF) - 1)
    terms = [
        _Term(low * low, shifts),
        _Term(2 * high * low, shifts + _HALF),
        _Term(high * high, shifts + 2 * _HALF),
    ]
    count = _digit_count(int(shifts.max(initial=0)) + 2 * _MANTISSA, bits)
    return _sum_terms(terms, 2 * unit, bits, count)


@dataclass(frozen=True)
class _Term:
    """Signed integers below 2**62, each times ``2**shift`` units."""

    values: Integers
    shifts: Integers


def _sum_terms(terms: Sequence[_Term], unit: int, bits: int, count: int) -> FixedPoint:
    """Add terms and return the sum as ``count`` digits."""
    split_terms = [_split_term(term, bits) for term in terms]
    limbs = []
    for index in range(count):
        digit_sum = np.zeros(len(terms[0].values), np.int64)
        for position, digits in split_terms:
            for offset, limb_digit in enumerate(digits):
                digit_sum += np.where(position + offset == index, limb_digit, 0)
        limbs.append(digit_sum)
    while len(limbs) > 1 and not limbs[-1].any():
        limbs.pop()
    return FixedPoint(limbs, unit, bits)


def _decompose(values: Doubles) -> tuple[Integers, Integers, int]:
    """Decompose doubles into ``mantissa * 2**exponent``; also return the minimum exponent."""
    fractions, exponents = np.frexp(values)
    mantissas = np.ldexp(fractions, _MANTISSA).astype(np.int64)
    powers = exponents.astype(np.int64) - _MANTISSA
    # Zero has no exponent of its own and must not determine the unit.
    nonzero_powers = powers[mantissas != 0]
    unit = int(nonzero_powers.min()) if len(nonzero_powers) else 0
    powers[mantissas == 0] = unit
    return mantissas, powers, unit


def _digit_count(width: int, bits: int) -> int:
    """Return the number of digits for numbers of ``width`` bits, including shifts and carries."""
    return width // bits + 3


def _split_term(term: _Term, bits: int) -> tuple[Integers, list[Integers]]:
    """Return the position of each number's lowest digit, and its digits in ascending order."""
    position, shift = np.divmod(term.shifts, bits)
    sign = np.sign(term.values)
    remainder = np.abs(term.values)
    free_bits = bits - shift
    lowest = (remainder & ((np.int64(1) << free_bits) - 1)) << shift
    remainder = remainder >> free_bits
    digits = [sign * lowest]
    mask = np.int64((1 << bits) - 1)
    while remainder.any():
        digits.append(sign * (remainder & mask))
        remainder = remainder >> bits
    return position, digits


def round_sums(limbs: Sequence[Integers], *, unit: int, bits: int) -> Doubles:
    """Round sums of limbs to the nearest doubles, ties to even.

    Args:
        limbs: Digits before carry propagation, lowest first; each may be negative or far above
            ``2**bits``.
        unit: The unit of the lowest digit is ``2**unit``.
        bits: Number of bits per digit.
    """
    if len(limbs) <= 3:
        doubles = to_doubles(limbs, unit=unit, bits=bits)
        if doubles is not None and len(doubles) == 3:
            return sum_of_three(doubles[2], doubles[1], doubles[0])
        if doubles is not None:
            # Both doubles are exact, so adding them rounds once.
            return doubles[0] if len(doubles) == 1 else doubles[0] + doubles[1]
    return _round_digits(limbs, unit=unit, bits=bits)


def _round_digits(limbs: Sequence[Integers], *, unit: int, bits: int) -> Doubles:
    """Round numbers of any size to the nearest doubles."""
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
    # The top digit and the digits below it, in one window of 64 bits.
    window = np.zeros(rows, np.uint64)
    first = stacked[top, row_numbers]
    # The bit length of integers below 2**53; 0 for 0.
    position = 64 - np.frexp(first.astype(np.float64))[1].astype(np.int64)
    for offset in range(window_digits):
        digit = np.where(top >= offset, stacked[np.maximum(top - offset, 0), row_numbers], 0)
        window, is_lost = _insert_digit(window, digit, position - bits * offset)
        has_lower_bits |= is_lost
    # A sticky bit: all bits below the window only decide ties.
    window |= has_lower_bits.astype(np.uint64)
    exponent = unit + bits * top - position
    # Sums beyond the largest double become infinite, like a sum of doubles.
    with np.errstate(over="ignore"):
        doubles = np.ldexp(window.astype(np.float64), exponent)
    return np.where(negative, -doubles, doubles)


def _insert_digit(
    window: npt.NDArray[np.uint64], digit: Integers, position: Integers
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Insert a digit into a window at a bit position; also return where bits were lost."""
    bits = digit.astype(np.uint64)
    # Shifts by 64 are undefined for numpy integers, so they are limited.
    up = np.clip(position, 0, 63).astype(np.uint64)
    down = np.clip(-position, 0, 63).astype(np.uint64)
    shifted = np.where(position >= 0, bits << up, bits >> down)
    is_lost = (position < 0) & ((shifted << down) != bits)
    return window | shifted, is_lost


def to_doubles(limbs: Sequence[Integers], *, unit: int, bits: int) -> list[Doubles] | None:
    """Convert the digits to doubles with the same sum, lowest first; None if they do not fit."""
    highest = unit + bits * (len(limbs) - 1)
    if not _MIN_UNIT < unit <= highest < -_MIN_UNIT - 64:
        return None
    mask = np.int64((1 << bits) - 1)
    doubles, digit = [], limbs[0]
    for index, limb in enumerate(limbs[1:]):
        doubles.append((digit & mask).astype(np.float64) * 2.0 ** (unit + bits * index))
        digit = limb + (digit >> bits)
    # Beyond 2**53, the conversion of the highest digit would round a second time.
    if digit.max(initial=0) >= _MAX_INTEGER or digit.min(initial=0) <= -_MAX_INTEGER:
        return None
    return [*doubles, digit.astype(np.float64) * 2.0**highest]


def _magnitudes(
    limbs: Sequence[Integers], *, bits: int
) -> tuple[list[Integers], npt.NDArray[np.bool_]]:
    """Return the digits of absolute values, each in ``[0, 2**bits)``, and the negative flags."""
    mask = np.int64((1 << bits) - 1)
    digits, carry = [], np.zeros(len(limbs[0]), np.int64)
    # Padding digits receive the carry of the highest digit, which is the sign at the end.
    padding = [np.zeros(len(limbs[0]), np.int64)] * (64 // bits + 2)
    for limb in [*limbs, *padding]:
        total = limb + carry
        digits.append(total & mask)
        carry = total >> bits
    negative = carry < 0
    # Two's complement of negative numbers: the complement of every digit, plus one.
    carry = negative.astype(np.int64)
    for index, digit in enumerate(digits):
        total = np.where(negative, mask - digit, digit) + carry
        digits[index] = total & mask
        carry = total >> bits
    return digits, negative


def total(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return sums and their rounding errors (Knuth)."""
    sums = a + b
    a_virtual = sums - b
    b_virtual = sums - a_virtual
    return sums, (a - a_virtual) + (b - b_virtual)


def product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return products and their rounding errors (Dekker, 1971)."""
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

    The two error terms are added with rounding to odd (Boldo and Melquiond, 2008): the last bit is
    set if any bit was lost, so that the final addition is rounded correctly.
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
    # 2**27 + 1, Veltkamp's constant for doubles.
    scaled = values * 134217729.0
    high = scaled - (scaled - values)
    return high, values - high
