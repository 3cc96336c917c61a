"""The search of the leak check returns what the row-by-row reference returns, bit for bit."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.aggregates import reference
from featurestore.model.plan import ROW, WindowJoin
from featurestore.model.times import from_micros, to_micros
from featurestore.model.window_features import window, windows
from featurestore.retrieval.window_rows import matching_rows, to_event_rows
from featurestore.retrieval.window_search import window_values
from featurestore.testing.oracle import bits

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TIMES = pa.timestamp("us", "UTC")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    # The sum of these numbers depends on the order of additions, unless it is computed exactly.
    "x": (pa.float64(), [0.1, -0.0, 0.0, 1e16, -1e16, 1e-9, 5e-324, 3.5, None]),
    "wild": (pa.float64(), [1e308, -1e308, 1e-300, float("nan"), float("inf"), -float("inf"), 1.0]),
    "half": (pa.float32(), [0.1, -7.25, 1e38, None]),
    "n": (pa.int64(), [1, -7, 2**55 + 1, None]),
    "d": (
        pa.decimal128(12, 2),
        [Decimal("1.25"), Decimal("-9.50"), Decimal("9999999999.99"), None],
    ),
    "s": (pa.string(), ["", "a", "zz", "é", "\U0001f600", "\uffff", None]),
    "raw": (pa.binary(), [b"", b"\xff", b"a", None]),
    "b": (pa.bool_(), [True, False, None]),
    "u": (TIMES, [START + hour * HOUR for hour in range(9)]),
    "day": (pa.date32(), [date(1969, 7, 20), date(2024, 2, 29), None]),
    "items": (pa.list_(pa.float32()), [[1.0], [], [2.0, 3.0], None]),
}
FUNCTIONS: dict[str, list[Any]] = {
    "x": ["sum", "count", "mean", "min", "max", "std", "var", "first", "last", "count_distinct"],
    "wild": ["sum", "mean", "min", "max", "std", "var", "count_distinct"],
    "half": ["sum", "mean", "min", "max", "std"],
    "n": ["sum", "mean", "max", "std", "var"],
    "d": ["sum", "min", "mean", "std"],
    "s": ["min", "max", "last", "count_distinct", "count"],
    "raw": ["min", "max", "count_distinct"],
    "b": ["any", "all", "count"],
    "u": ["min", "last"],
    "day": ["max", "count_distinct"],
    "items": ["first", "last", "count"],
}


def aggregates() -> list[Any]:
    features = []
    for column, functions in FUNCTIONS.items():
        features += windows(f"g.{column}", functions, over=[None, "3h", "1d"])
    features += [
        window("g.x", "last_n", over="1d", n=3),
        window("g.s", "last_n", over="5h", n=2, fill_value="none"),
        window("g.x", "sum", over="1d", offset="3h", fill_value=-1.0),
        window("g.x", "var", over=None, where="b", name="x_where_b"),
        window("g.s", "max", over="1d", where="n > 0 AND x < 1", name="s_where"),
        window("g.s", "count_distinct", over="1d", where="n > 0", name="distinct"),
    ]
    return features


def random_rows(random: np.random.Generator, count: int) -> pa.Table:
    """Return rows with few keys and times, so that many are versions of one event."""
    events = [START + int(hour) * HOUR for hour in random.integers(0, 40, count)]
    columns: dict[str, Any] = {
        "k": random.integers(0, 4, count),
        "m": random.integers(0, 3, count),
        "t": pa.array(events, TIMES),
        "c": pa.array(
            [
                event + int(delay) * HOUR
                for event, delay in zip(events, random.integers(-3, 10, count), strict=True)
            ],
            TIMES,
        ),
        "id": np.arange(count),
    }
    for name, (kind, values) in VALUES.items():
        chosen = [values[number] for number in random.integers(0, len(values), count)]
        columns[name] = pa.array(chosen, kind)
    return pa.table(columns)


def values_row_by_row(
    store: FeatureStore,
    join: WindowJoin,
    rows: pa.Table,
    keys: list[tuple[Any, ...]],
    times: list[int | None],
) -> dict[str, pa.Array]:
    """Compute the aggregates as the reference defines them: all rows for each label."""
    events = to_event_rows(join, rows)
    values: dict[str, list[Any]] = {output.name: [] for output in join.outputs}
    matches = {output.name: matching_rows(store.session, output, rows) for output in join.outputs}
    for key, time in zip(keys, times, strict=True):
        visible: list[Any] = []
        timestamp = from_micros(time or 0)
        if time is not None:
            visible = reference.visible_events(
                join, events, key, timestamp, filters_created_time=join.created_time is not None
            )
        for output in join.outputs:
            window_rows = reference.rows_in_window(output, visible, timestamp)
            counted = [
                row.values[output.column]
                for row in window_rows
                if row.values[ROW] in matches[output.name]
            ]
            values[output.name].append(reference.apply_function(output, counted))
    return {output.name: pa.array(values[output.name], output.kind) for output in join.outputs}


@pytest.mark.parametrize("created_time", [None, "c"])
@pytest.mark.parametrize("members", [[], ["m"]])
def test_search_equals_row_by_row_reference(
    empty_store: FeatureStore, members: list[str], created_time: str | None
) -> None:
    seed = int(np.random.default_rng().integers(2**32))
    random = np.random.default_rng(seed)
    empty_store.create_featuregroup(
        random_rows(random, 1), "g", primary_key=["k", *members], event_time="t",
        created_time=created_time,
    )  # fmt: skip
    labels = pa.table({"k": [1], "at": pa.array([START], TIMES), "y": [0]})
    frame = empty_store.get_features(aggregates(), labels=labels, label_time="at")
    assert frame.plan is not None
    (join,) = frame.plan.windows
    for count in (0, 1, 150):
        rows = random_rows(random, count)
        keys: list[tuple[Any, ...]] = [(int(key),) for key in random.integers(0, 5, 25)]
        times: list[int | None] = [
            to_micros(START + int(hour) * HOUR) for hour in random.integers(-2, 60, 25)
        ]
        keys[0], times[1] = (None,), None
        actual = window_values(empty_store.session, join, rows, keys, times)
        expected = values_row_by_row(empty_store, join, rows, keys, times)
        for name in expected:
            assert bits(pa.table({name: actual[name]})) == bits(pa.table({name: expected[name]})), (
                seed, name,
            )  # fmt: skip
