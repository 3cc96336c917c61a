"""Sums without an error: numbers as integers in base 2**bits, one array for each digit.

Every value of a chunk is a whole number of units (a power of two) and is cut into *limbs*, signed
integers of at most ``bits`` bits. Sums of limbs are exact as long as ``bits + log2(rows)`` stays
below 63. The sum of any rows is the difference of two prefix sums, and is rounded once, at the end:
the bits that ``math.fsum`` gives, whatever the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from featurestore.aggregates.arrays import Doubles, Integers
from featurestore.aggregates.pairs import square

_MOST_BITS = 40
_MANTISSA = 53
# A mantissa is cut here, so that products of its halves fit 64 bits.
_HALF = 27
# Doubles between these powers of two are cut by arithmetic on doubles, which neither overflows nor
# loses bits there; squares of doubles between their halves.
_MODERATE = 900


@dataclass(frozen=True)
class FixedPoint:
    """Numbers of rows: their digits in base ``2**bits``, the lowest first, in units of ``2**unit``.

    Digits are signed; every one is below ``2**bits`` times 3.
    """

    limbs: Sequence[Integers]
    unit: int
    bits: int


@dataclass(frozen=True)
class _Term:
    """Signed whole numbers below 2**62, each times ``2**shift`` units."""

    values: Integers
    shifts: Integers


def bits_for(rows: int) -> int:
    """Return how many bits a limb may have so that sums of ``rows`` of them fit 64 bits.

    >>> bits_for(1_000_000), bits_for(50_000_000)
    (40, 34)
    """
    # Three pieces may fall on one digit, of each of three terms.
    return min(_MOST_BITS, 62 - 2 - max(rows, 1).bit_length())


def of_integers(values: Integers, *, bits: int) -> FixedPoint:
    """Return integers as numbers of units of 1; small ones in one limb."""
    if _sums_fit(values):
        return FixedPoint([values], 0, bits)
    high = values >> 31
    low = values - (high << 31)
    zeros = np.zeros(len(values), np.int64)
    return _summed([_Term(low, zeros), _Term(high, zeros + 31)], 0, bits, _digits(64, bits))


def _sums_fit(values: Integers) -> bool:
    """Tell whether the sums of any of the values fit 62 bits."""
    largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    return largest * len(values) < 1 << 62


def of_words(words: Sequence[Integers], *, bits: int) -> FixedPoint:
    """Return integers of 32-bit words, the lowest first and the last one signed."""
    if _fit_one(words):
        return of_integers(words[0] + (words[1] << 32), bits=bits)
    terms = []
    for number, word in enumerate(words):
        terms.append(_Term(word, np.full(len(word), 32 * number, np.int64)))
    return _summed(terms, 0, bits, _digits(32 * len(words) + 1, bits))


def _fit_one(words: Sequence[Integers]) -> bool:
    """Tell whether the words above the second one only repeat its sign."""
    highest = words[1] << 32 >> 32
    for word in words[2:-1]:
        if not (word == (highest >> 32) & 0xFFFFFFFF).all():
            return False
    last = highest if len(words) == 2 else highest >> 32
    return bool((words[-1] == last).all())


def of_doubles(values: Doubles, *, bits: int) -> FixedPoint:
    """Return finite doubles."""
    top = _exponent(values) - bits
    pieces = None
    if abs(top) < _MODERATE:
        pieces = _cut_doubles(values, top, bits)
    if pieces is not None:
        return FixedPoint(pieces[::-1], top - bits * (len(pieces) - 1), bits)
    mantissas, exponents, unit = _decomposed(values)
    shifts = exponents - unit
    count = _digits(int(shifts.max(initial=0)) + _MANTISSA, bits)
    return _summed([_Term(mantissas, shifts)], unit, bits, count)


def of_squares(values: Doubles, *, bits: int) -> FixedPoint:
    """Return the squares of finite doubles, with all their 106 bits."""
    sizes = np.abs(values)
    least = np.min(sizes, where=sizes > 0, initial=1.0)
    if least > 2.0 ** (-_MODERATE // 2) and sizes.max(initial=0.0) < 2.0 ** (_MODERATE // 2):
        squares, errors = square(values)
        top = _exponent(squares) - bits
        pieces = _cut_doubles(squares, top, bits)
        rest = _cut_doubles(errors, top, bits)
        if pieces is not None and rest is not None:
            return _added(pieces, rest, top, bits)
    return _squares_in_terms(values, bits=bits)


def _added(pieces: list[Integers], others: list[Integers], top: int, bits: int) -> FixedPoint:
    """Return the sum of two numbers whose highest digits count units of ``2**top``."""
    count = max(len(pieces), len(others))
    limbs = []
    for number in range(count - 1, -1, -1):
        mine = [each[number] for each in (pieces, others) if number < len(each)]
        limbs.append(mine[0] if len(mine) == 1 else mine[0] + mine[1])
    return FixedPoint(limbs, top - bits * (count - 1), bits)


def _exponent(values: Doubles) -> int:
    """Return the power of two above all absolute values."""
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    return int(np.frexp(largest)[1])


def _cut_doubles(values: Doubles, top: int, bits: int) -> list[Integers] | None:
    """Return the digits of doubles, the highest first, which counts units of ``2**top``.

    Each digit is the nearest whole number of its units, so what is left is below half of one and
    has no more bits than before: both steps are exact. None where numbers are too small for that.
    """
    pieces: list[Integers] = []
    rest, unit = values.copy(), top
    while not pieces or rest.any():
        if unit < -_MODERATE:
            return None
        digit = rest * 2.0**-unit
        np.rint(digit, out=digit)
        pieces.append(digit.astype(np.int64))
        digit *= 2.0**unit
        rest -= digit
        unit -= bits
    return pieces


def _squares_in_terms(values: Doubles, *, bits: int) -> FixedPoint:
    mantissas, exponents, unit = _decomposed(values)
    shifts = 2 * (exponents - unit)
    sizes = np.abs(mantissas)
    high, low = sizes >> _HALF, sizes & ((1 << _HALF) - 1)
    terms = [
        _Term(low * low, shifts),
        _Term(2 * high * low, shifts + _HALF),
        _Term(high * high, shifts + 2 * _HALF),
    ]
    count = _digits(int(shifts.max(initial=0)) + 2 * _MANTISSA, bits)
    return _summed(terms, 2 * unit, bits, count)


def _summed(terms: Sequence[_Term], unit: int, bits: int, count: int) -> FixedPoint:
    """Return the sum of terms in so many digits."""
    cut_terms = [_cut(term, bits) for term in terms]
    limbs = []
    for number in range(count):
        total = np.zeros(len(terms[0].values), np.int64)
        for digit, pieces in cut_terms:
            for offset, piece in enumerate(pieces):
                total += np.where(digit + offset == number, piece, 0)
        limbs.append(total)
    while len(limbs) > 1 and not limbs[-1].any():
        limbs.pop()
    return FixedPoint(limbs, unit, bits)


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


def _cut(term: _Term, bits: int) -> tuple[Integers, list[Integers]]:
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
