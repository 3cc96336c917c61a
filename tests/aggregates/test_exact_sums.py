"""Exact sums, squares and variances, compared with fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.aggregates import exact
from featurestore.aggregates.exact import FixedPoint, Sums
from featurestore.aggregates.sums import variances

doubles = st.lists(
    st.one_of(
        st.floats(-1e140, 1e140, allow_nan=False),
        # Such that the bits that decide lie 53 to 160 below the highest.
        st.builds(
            lambda sign, power, more: sign * 2.0**power * more,
            st.sampled_from([-1, 1]),
            st.integers(-120, 60),
            st.sampled_from([1.0, 1.0 + 2.0**-52, 1.5, 2.0 - 2.0**-52]),
        ),
        st.sampled_from([0.1, -0.0, 1e16, -1e16, 5e-324, 2.0**53, 1.0]),
        st.integers(-10_000, 10_000).map(lambda cents: cents / 100),
    ),
    min_size=1,
    max_size=30,
)
limb_bits = st.sampled_from([40, 34, 27, 12])


def total(numbers: FixedPoint) -> Sums:
    """Return the sum of all rows."""
    limbs = [np.array([limb.sum()]) for limb in numbers.limbs]
    return Sums(limbs, numbers.unit, numbers.bits)


def check_sums(values: list[float], bits: int) -> None:
    """Compare the sums of values and of their squares, and the variance, with fractions."""
    array = np.array(values)
    exactly = list(map(Fraction, values))
    sums = total(exact.from_doubles(array, bits=bits))
    assert sums.rounded()[0] == math.fsum(values)
    squares = total(exact.from_squares(array, bits=bits))
    sum_of_squares = sum(value * value for value in exactly)
    assert squares.rounded()[0] == float(sum_of_squares)
    count = len(values)
    variance = 0.0
    if count > 1:
        numerator = count * sum_of_squares - sum(exactly) ** 2
        variance = float(numerator / (count * (count - 1)))
    assert variances(np.array([count]), sums, squares)[0] == variance


@settings(max_examples=75, deadline=None)
@given(values=doubles, bits=limb_bits)
def test_sums_and_variances_are_rounded_once(values: list[float], bits: int) -> None:
    check_sums(values, bits)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=100_000, deadline=None)
@given(values=doubles, bits=limb_bits)
def test_many_random_sums_and_variances_are_rounded_once(values: list[float], bits: int) -> None:
    check_sums(values, bits)


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30), bits=limb_bits)
def test_from_integers_sum_is_exact(values: list[int], bits: int) -> None:
    sums = total(exact.from_integers(np.array(values, np.int64), bits=bits))
    assert sums.in_units(0) == sum(values)


@settings(max_examples=40, deadline=None)
@given(
    values=st.one_of(
        st.lists(st.integers(-(2**127), 2**127 - 1), min_size=1, max_size=30),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
        st.lists(st.integers(-1000, 1000), min_size=1, max_size=30),
    ),
    bits=limb_bits,
)
def test_from_words_four_words_sum_is_exact(values: list[int], bits: int) -> None:
    words = []
    for number in range(4):
        word = [value >> (32 * number) for value in values]
        words.append(np.array([value if number == 3 else value & 0xFFFFFFFF for value in word]))
    assert total(exact.from_words(words, bits=bits)).in_units(0) == sum(values)


def test_from_words_unsigned_above_63_bits_is_exact() -> None:
    words = [np.array([0, 5]), np.array([2**32 - 1, 1])]
    assert total(exact.from_words(words, bits=40)).in_units(0) == (2**32 - 1 + 1) * 2**32 + 5


def test_bits_for_any_row_count_avoids_overflow() -> None:
    for rows in (1, 2**22, 2**30):
        assert exact.bits_for(rows) + rows.bit_length() <= 62
