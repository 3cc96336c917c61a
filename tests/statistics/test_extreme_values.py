"""Statistics, drift and plots of values at the limits of every type.

Of the calendar, of integers, of float64.
"""

from __future__ import annotations

import json
from typing import Any

import matplotlib
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.hashing import row_hash
from featurestore.model.statistics import Statistics
from featurestore.statistics import compare_statistics, plots, state_from_bytes, state_to_bytes
from featurestore.statistics.summary import descriptive_stats, finish
from tests.statistics.example_tables import TIMESTAMP, accumulator_of, count

pytestmark = pytest.mark.slow

FIRST_MICROS, LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
INT64 = np.iinfo(np.int64)
INT32 = np.iinfo(np.int32)


def times(values: list[int | None]) -> pa.Array:
    return pa.array(values, pa.int64()).view(TIMESTAMP)


def days(values: list[int | None]) -> pa.Array:
    return pa.array(values, pa.int32()).view(pa.date32())


def typed(dtype: pa.DataType) -> Any:
    return lambda values: pa.array(values, dtype)


def near(*ends: int) -> st.SearchStrategy[int]:
    """Return numbers at or next to the limits of a type."""
    candidates = [end + step for end in ends for step in (-1, 0, 1)]
    return st.sampled_from([value for value in candidates if min(ends) <= value <= max(ends)])


CALENDAR = near(FIRST_MICROS, 0, LAST_MICROS) | st.integers(FIRST_MICROS, LAST_MICROS)
BEYOND = near(INT64.min + 1, FIRST_MICROS, 0, LAST_MICROS, INT64.max)
ALL_DAYS = near(INT32.min, FIRST_DAY, 0, LAST_DAY, INT32.max) | st.integers(INT32.min, INT32.max)
COLUMNS = [
    (times, CALENDAR),
    (times, BEYOND),
    (days, near(FIRST_DAY, 0, LAST_DAY)),
    (days, ALL_DAYS),
    (typed(pa.int64()), near(INT64.min, 0, INT64.max) | st.integers(INT64.min, INT64.max)),
    (typed(pa.uint64()), near(0, 2**63, 2**64 - 1)),
    (typed(pa.float64()), st.floats() | st.sampled_from([1.7e308, -1.7e308, 5e-324])),
    (typed(pa.float32()), st.floats(width=32)),
    (typed(pa.decimal128(38, 0)), st.decimals(-(10**37), 10**37, places=0)),
    (typed(pa.string()), st.text(max_size=5) | st.sampled_from(["", "\x00", "\u2028"])),
]


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, pa.Array]:
    """Return two columns of one type with each value once or often; the first has values."""
    make, values = draw(st.sampled_from(COLUMNS))
    result = []
    for least in (1, 0):
        drawn = draw(st.lists(values | st.none(), min_size=least, max_size=5))
        result.append(make(drawn * draw(st.sampled_from([1, 30]))))
    return result[0], result[1]


def statistics_of_column(column: pa.Array) -> Statistics:
    table = pa.table({"x": column, "other": np.arange(len(column), dtype=np.float64)})
    state = count(accumulator_of(table), table.to_batches(max_chunksize=7))
    return finish(state_from_bytes(state_to_bytes(state)))


def as_written(statistics: Statistics) -> Statistics:
    return Statistics.from_json(json.loads(json.dumps(statistics.to_json(), allow_nan=False)))


@settings(max_examples=40, deadline=None)
@given(columns())
def test_extreme_values_have_statistics_and_drift(pair: tuple[pa.Array, pa.Array]) -> None:
    before, after = (statistics_of_column(column) for column in pair)
    for statistics, column in ((before, pair[0]), (after, pair[1])):
        assert as_written(statistics) == statistics
        assert descriptive_stats(statistics).loc["x", "nulls"] == column.null_count
        actual = statistics.column("x")
        if actual.histogram is not None:
            assert sum(actual.histogram.counts) == actual.count - actual.infinite
    for report in (compare_statistics(before, after), compare_statistics(after, before)):
        json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "column",
    [
        times([FIRST_MICROS]),
        times([LAST_MICROS]),
        times([FIRST_MICROS, LAST_MICROS]),
        times([INT64.min + 1, INT64.max]),
        days([INT32.min, INT32.max]),
        pa.array([INT64.max]),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([1.7e308, -1.7e308]),
        pa.array([float("inf"), float("nan"), 5e-324]),
    ],
    ids=str,
)
def test_extreme_values_can_be_plotted(column: pa.Array) -> None:
    matplotlib.use("Agg")
    statistics = statistics_of_column(column)
    usual = statistics_of_column(column.take([0]))
    plots.distributions(statistics, other=usual, columns=["x"]).canvas.draw()  # type: ignore[attr-defined]
    plots.distributions(usual, other=statistics, columns=["x"]).canvas.draw()  # type: ignore[attr-defined]


def test_times_within_calendar_have_texts_within_calendar() -> None:
    statistics = statistics_of_column(
        times([LAST_MICROS - 9_000, LAST_MICROS, LAST_MICROS])
    ).column("x")
    assert statistics.maximum == "9999-12-31T23:59:59.999999+00:00"
    assert statistics.histogram is not None
    for text in (statistics.mean, *statistics.quantiles, *statistics.histogram.edges):
        assert isinstance(text, str)
        assert text.startswith("9999-12-31T23:59:59")


def test_times_outside_calendar_have_texts_with_longer_years() -> None:
    statistics = statistics_of_column(times([LAST_MICROS + 1])).column("x")
    assert statistics.minimum == statistics.mean == "10000-01-01T00:00:00.000000+00:00"
    assert statistics_of_column(days([LAST_DAY + 1])).column("x").maximum == "10000-01-01"
    assert statistics_of_column(days([FIRST_DAY - 1])).column("x").minimum == "0000-12-31"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_under_null_affect_nothing_without_warning(dtype: type[np.floating]) -> None:
    """Arrow does not define the bytes under a null, which may be a signalling NaN."""
    width = np.dtype(dtype).itemsize
    words = np.dtype(f"u{width}")
    signalling = np.array([dtype(np.inf)]).view(words) | words.type(1)
    values = np.arange(1_000).astype(dtype)
    null = np.arange(1_000) % 3 == 0
    under = values.copy()
    under.view(words)[null] = signalling
    valid = pa.array(~null).buffers()[1]
    clean, dirty = (
        pa.Array.from_buffers(pa.from_numpy_dtype(dtype), 1_000, [valid, pa.py_buffer(data)])
        for data in (values, under)
    )
    assert statistics_of_column(dirty) == statistics_of_column(clean)
    hashes = [list(row_hash(pa.record_batch([array], ["x"]), seed=1)) for array in (clean, dirty)]
    assert hashes[0] == hashes[1]


def test_signalling_nan_counts_as_nan() -> None:
    usual = np.array([1.5, np.nan, 2.5])
    signalling = usual.copy()
    signalling.view(np.uint64)[1] = 0x7FF0_0000_0000_0001
    assert statistics_of_column(pa.array(signalling)) == statistics_of_column(pa.array(usual))
