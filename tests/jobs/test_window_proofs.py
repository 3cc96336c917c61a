"""Queries that are proven to stay within their windows, checked against DuckDB."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore.jobs.query import event_time_transform, is_proven_per_window
from featurestore.model.job import JobSpec
from featurestore.model.times import Window, from_micros, to_micros
from tests.jobs.conftest import SQL, START

HOUR = timedelta(hours=1)
HOURLY = [Window(START + n * HOUR, START + (n + 1) * HOUR) for n in range(30)]
UNITS = ["second", "minute", "hour", "day", "week", "month", "year"]
TIMESTAMPS = st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


def spec(time: str = "date_trunc('hour', left_at) + interval 1 hour", **rules: Any) -> JobSpec:
    query = rules.pop(
        "sql", f"select zone, {time} as hour, count(*) as trips from trips group by all"
    )
    input_values: dict[str, Any] = {
        "primary_key": ["zone"],
        "event_time": "hour",
        "schedule": "0 * * * *",
    }
    return featurestore.sql_job(
        "demand", sql=query, inputs={"trips": "trips"}, **{**input_values, **rules}
    ).spec


@st.composite
def times(draw: st.DrawFn) -> str:
    """A time expression of any depth that the proof supports."""
    text = "left_at"
    for _ in range(draw(st.integers(0, 3))):
        unit = draw(st.sampled_from(UNITS))
        if draw(st.booleans()):
            text = f"date_trunc('{unit}', {text})"
        elif unit not in ("month", "year"):
            sign, amount = draw(st.sampled_from("+-")), draw(st.integers(0, 90))
            text = f"({text} {sign} interval {amount} {unit}s)"
    return text


@given(times(), st.lists(TIMESTAMPS, min_size=1, max_size=5))
def test_proven_steps_equal_duckdb(text: str, timestamps: list[datetime]) -> None:
    steps = event_time_transform(spec(text), time="left_at")
    assert steps is not None
    actual = steps(np.array([to_micros(timestamp) for timestamp in timestamps], np.int64)).tolist()
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        query = (
            f"select epoch_us({text}) from (select unnest($timestamps::timestamptz[]) as left_at)"
        )
        assert actual == [
            row[0] for row in connection.execute(query, {"timestamps": timestamps}).fetchall()
        ]


@given(times(), st.sampled_from(["right", "left"]), st.integers(0, 30 * 3_600_000_000 - 1))
def test_proven_windows_hold_for_random_moments(text: str, closed: str, offset: int) -> None:
    job = spec(text, closed=closed)
    if not is_proven_per_window(job, HOURLY, time="left_at"):
        return
    steps = event_time_transform(job, time="left_at")
    assert steps is not None
    timestamp = START + timedelta(microseconds=offset)
    window = next(window for window in HOURLY if window.start <= timestamp < window.end)
    stamped = from_micros(int(steps(np.array([to_micros(timestamp)], np.int64))[0]))
    inside = (
        window.start < stamped <= window.end
        if closed == "right"
        else window.start <= stamped < window.end
    )
    assert inside


# A time expression, rules of the job, and whether its rows are proven to stay within the window.
PROOFS: list[tuple[str, dict[str, str], bool]] = [
    ("date_trunc('hour', left_at) + interval 1 hour", {}, True),
    (
        "date_trunc('hour', t.left_at) + interval '1 hour'",
        {"sql": "select {} as hour from trips t"},
        True,
    ),
    ("date_trunc('minute', left_at) + interval 1 minute", {}, True),
    ("date_trunc('hour', left_at)", {"closed": "left"}, True),
    ("left_at", {"closed": "left"}, True),
    ("left_at", {}, False),  # a row at the start of its window belongs to the window before
    ("date_trunc('hour', left_at)", {}, False),
    ("date_trunc('day', left_at) + interval 1 day", {}, False),
    ("date_trunc('hour', left_at) + interval 61 minutes", {}, False),
    ("date_trunc('hour', left_at) + interval 1 month", {}, False),
    ("date_trunc('hour', arrived_at) + interval 1 hour", {}, False),
    ("date_trunc('hour', left_at + fare * interval 1 minute) + interval 1 hour", {}, False),
    ("max(date_trunc('hour', left_at)) + interval 1 hour", {}, False),
]


def test_is_proven_per_window_only_for_provable_queries(subtests: pytest.Subtests) -> None:
    for time, rules, is_proven in PROOFS:
        with subtests.test(time=time, **rules):
            values = {name: value.format(time) for name, value in rules.items()}
            assert is_proven_per_window(spec(time, **values), HOURLY, time="left_at") is is_proven


def test_is_proven_per_window_self_join_is_false() -> None:
    joined = SQL.replace("from trips where", "from trips join trips as more using (zone) where")
    assert not is_proven_per_window(spec(sql=joined), HOURLY, time="left_at")
    assert is_proven_per_window(spec(sql=SQL), HOURLY, time="left_at")
