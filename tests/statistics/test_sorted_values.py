"""Sorting values together with their positions equals numpy's order.

Counting sorted values gives numpy's histogram.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from featurestore.statistics.distribution import bin_counts, sort_ascending

FINITE = {"allow_nan": False, "allow_infinity": False}
VALUES = st.one_of(
    arrays(np.float64, st.integers(0, 60), elements=st.floats(**FINITE)),
    arrays(np.float64, st.integers(0, 60), elements=st.floats(width=32, **FINITE)),
    arrays(np.float64, st.integers(0, 60), elements=st.sampled_from([0.0, -0.0, 1.5, -1.5])),
    *(
        arrays(dtype, st.integers(0, 60))
        for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64)
    ),
    arrays(np.int64, st.integers(0, 60), elements=st.integers(-(2**40), 2**40)),
)


@settings(max_examples=75, deadline=None)
@given(VALUES)
def test_sorted_values_equal_numpy_order(values: Any) -> None:
    order, ordered = sort_ascending(values)
    assert sorted(order.tolist()) == list(range(len(values)))
    assert ordered.dtype == values.dtype
    assert np.array_equal(values[order], ordered)
    assert np.array_equal(ordered, np.sort(values))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint64])
def test_sorted_values_differing_in_last_bits_are_sorted(dtype: Any) -> None:
    random = np.random.default_rng(3)
    near = random.integers(2**62, 2**62 + 300, 5_000).astype(np.uint64)
    values = np.concatenate(
        [near.view(dtype), np.array([-1.0, 1e300]).astype(np.float64).view(dtype)]
    )
    random.shuffle(values)
    order, ordered = sort_ascending(values)
    assert sorted(order.tolist()) == list(range(len(values)))
    assert np.array_equal(ordered, np.sort(values))
    assert np.array_equal(values[order], ordered)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-40, 40), st.integers(1, 5)),
        min_size=1,
        unique_by=lambda pair: pair[0],
    )
)
def test_bin_counts_equal_numpy(pairs: list[tuple[int, int]]) -> None:
    pairs.sort()
    unique, counts = (np.array(numbers) for numbers in zip(*pairs, strict=True))
    edges = tuple(np.linspace(-40.0, 40.0, 31))
    expected, _ = np.histogram(unique.astype(np.float64), bins=np.array(edges), weights=counts)
    assert bin_counts(unique, np.cumsum(counts), edges).tolist() == expected.tolist()
