"""Histogram bins are even for even data, for any step between values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.model.statistics import Histogram
from tests.statistics.example_tables import statistics_of


def histogram_of(column: pa.Array) -> Histogram:
    labels = statistics_of(pa.table({"x": column})).column("x").histogram
    assert labels is not None
    return labels


def days_of(values: list[int]) -> pa.Array:
    return pa.array([dt.date(2020, 1, 1) + dt.timedelta(days=day) for day in values])


KINDS: dict[str, Callable[[list[int]], pa.Array]] = {
    "whole numbers": lambda values: pa.array(values, pa.int64()),
    "small unsigned": lambda values: pa.array(values, pa.uint16()),
    "whole numbers with nulls, as floats": lambda values: pa.array(np.array(values, dtype=float)),
    "one decimal": lambda values: pa.array(np.array(values) / 10),
    "one decimal in single precision": lambda values: pa.array(
        (np.array(values) / 10).astype(np.float32)
    ),
    "cents": lambda values: pa.array(np.array(values) / 100),
    "days": days_of,
    "tens": lambda values: pa.array(np.array(values) * 10),
    "tens of degrees, as floats": lambda values: pa.array(np.array(values) * 10.0),
    "hours": lambda values: pa.array(np.array(values) * 3_600_000_000, pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize("case", KINDS)
@settings(max_examples=30, deadline=None)
@given(low=st.integers(0, 300), values=st.integers(8, 400))
def test_histogram_uniform_values_have_equal_bins_except_last(
    case: str, low: int, values: int
) -> None:
    actual = histogram_of(KINDS[case](list(range(low, low + values)) * 3))
    assert sum(actual.counts) == 3 * values
    assert len(set(actual.counts[:-1])) == 1
    assert 0 < actual.counts[-1] <= actual.counts[0]
    assert len(actual.counts) <= 60


def test_histogram_of_ages_has_equal_bins() -> None:
    ages = list(range(50, 102)) * 10
    for column in (pa.array(ages), pa.array([*ages, None], pa.float64())):
        assert set(histogram_of(column).counts) == {20}


@pytest.mark.parametrize(
    ("column", "bins"),
    [
        (pa.array([0, 10**9]), 30),
        (pa.array([0.0, 1e9]), 30),
        (pa.array(np.linspace(0, 1, 999)), 30),
        (pa.array([2**62, 2**62 + 2**40]), 30),
        (pa.array([7, 7]), 1),
        (pa.array([False, True]), 2),
    ],
    ids=str,
)
def test_histogram_of_wide_range_or_single_value(column: Any, bins: int) -> None:
    assert len(histogram_of(column).counts) == bins
