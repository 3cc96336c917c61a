"""Each argument that is a time takes equal values, and refuses others, by one rule."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore import FeatureStore, TimeSplit
from featurestore.cli.definitions import _parse_time_split
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidSplit,
    LabelTimeRequired,
    VersionNotFound,
)
from featurestore.jobs.windows import parse_window_bounds
from featurestore.model.requests import FractionSplit
from featurestore.model.times import parse_duration, parse_moment
from featurestore.sources.frame import build_query
from featurestore.store.remote_handles import times_to_strings
from tests.values.cases import NAMES, REFUSED, TIMESTAMP, VALUES, fitted, value_of

pytestmark = pytest.mark.filterwarnings("ignore::featurestore.model.times.NaiveTimeWarning")

MORE_VALUES = (
    "'2024-01-31T12:00:00.123456Z'",
    "'2024-01-31T12:00:00.123456000Z'",
    "'2024-01-31T12:00:00.123456789Z'",
    "'2024-01-31 12:00:00,1234567'",
    "'2024-01-31T12:00+02:00'",
    "'10000-01-01'",
    "'tomorrow'",
    "dt.datetime(2024, 1, 31, 12, 0, 0, 7)",
    "dt.datetime(1, 1, 1)",
    "np.datetime64('NaT')",
    "np.datetime64('2024-01')",
    "np.datetime64('2024-01-31T12:00:00.123456', 'ns')",
    "np.bool_(True)",
    "pd.NaT",
    "pd.Timestamp('2024-01-31T12:00:00.123456', tz='Europe/Berlin')",
    "pa.scalar(dt.datetime(2024, 1, 31, 12, tzinfo=BERLIN))",
    "pa.scalar(1, pa.timestamp('ns', 'UTC'))",
    "pa.scalar(1)",
)
# Integers are Delta versions of some arguments; floats are neither.
VALUE_CODES = [code for code in (*VALUES, *MORE_VALUES) if not re.search(r"math|1j", code)]


def code_value(code: str) -> Any:
    return eval(code, {**NAMES, "pa": pa}) if "pa." in code else value_of(code)


def expected_time(value: Any) -> Any:
    """Return the time of a value in UTC, or ``REFUSED``: a column's rule, dates and ISO texts."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if value is pd.NaT or (isinstance(value, np.datetime64) and np.isnat(value)):
        return REFUSED
    if isinstance(value, str):
        digits = re.search(r"[.,](\d+)", value)
        if digits is not None and Fraction(f"0.{digits[1]}") * 10**6 % 1:
            return REFUSED
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            return REFUSED
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] in ("M", "D"):
        value = value.astype("M8[D]").item()
    if type(value) is dt.date:
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return fitted(value, TIMESTAMP)


LATE = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
DOORS: dict[str, Callable[[Any], Any]] = {
    "parse_moment": parse_moment,
    "TimeSplit": lambda value: TimeSplit("t", {"train": (None, value)}).ranges[0][2],
    "TimeSplit of a file": lambda value: _parse_time_split(
        {"column": "t", "train": [value, ""]}, path=Path("d.toml")
    ).ranges[0][1],
    "window of a job": lambda value: parse_window_bounds(value, LATE).start,
    "start of a job": lambda value: featurestore.sql_job(
        "j", sql="select 1 as a", featuregroup="g", primary_key=["a"], event_time="t", schedule="0 * * * *",
        start=value, closed="left",
    ).spec.schedule.start,
    "as_of of a baseline": lambda value: featurestore.baseline(as_of=value).as_of,
    "at of a source": lambda value: build_query(version_or_time=value).at,
    "as_of of a server": lambda value: times_to_strings({"g": value}, "as_of")["g"],
}  # fmt: skip


def outcome(door: Callable[[Any], Any], value: Any) -> Any:
    try:
        return door(value)
    except (InvalidArgument, LabelTimeRequired):
        return REFUSED


def test_arguments_take_equal_times_and_refuse_others() -> None:
    different, count = [], 0
    for name, door in DOORS.items():
        takes_versions = name.startswith(("as_of", "at"))
        for code in VALUE_CODES:
            value = code_value(code)
            is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if takes_versions and (is_integer or code == "pa.scalar(1)"):
                continue
            if (name == "as_of of a server" and isinstance(value, str | dict)) or (
                name == "TimeSplit of a file" and isinstance(value, str) and not value
            ):
                continue  # the server parses texts and mappings, and an empty text is no bound
            expected, result = expected_time(value), outcome(door, value)
            if name == "as_of of a server" and expected is not REFUSED:
                expected = expected.isoformat()
            count += 1
            if result is REFUSED or expected is REFUSED:
                if result is not expected:
                    different.append((name, code, result, expected))
            elif str(result) != str(expected):
                different.append((name, code, result, expected))
    assert count > 500
    assert different == []


def test_calls_take_equal_times_and_refuse_others(flights_copy: FeatureStore) -> None:
    store = flights_copy
    group = store.featuregroup("weather")
    key = group.read().head(1).select(list(group.primary_key)).to_pylist()[0]
    labels = pa.table({name: [value] for name, value in key.items()})
    doors: dict[str, Callable[[Any], Any]] = {
        "label_time": lambda value: (
            store.explain_features(["weather.temp"], labels=labels, label_time=value).fixed_time
        ),
        "explain": lambda value: group.explain(key=key, at=value).at,
        "as_of": lambda value: store.get_features(
            ["weather.temp"], labels=labels, label_time=LATE, as_of=value
        ),
        "as_of of a group": lambda value: group.read(as_of=value),
    }
    different = []
    sample = [code for code in VALUE_CODES if re.search("2024|True|pa\\.|1.5|NaT", code)]
    for name, door in doors.items():
        for code in sample:
            value = code_value(code)
            if name == "as_of of a group" and code == "pa.scalar(1)":
                continue  # a Delta version
            if name == "as_of" and isinstance(value, dict):
                continue  # versions by group
            expected = expected_time(value)
            try:
                result = outcome(door, value)
            except VersionNotFound:
                result = expected  # the times are before the first commit
            is_equal = str(result) == str(expected) or name.startswith("as_of")
            if (result is REFUSED) != (expected is REFUSED) or not is_equal:
                different.append((name, code, result, expected))
    assert different == []


def test_hint_of_nanoseconds_is_the_microsecond() -> None:
    with pytest.raises(InvalidArgument, match="finer than a microsecond") as refused:
        parse_moment("2024-01-31T12:00:00.123456789+02:00", argument="start")
    start = eval(f"dict({refused.value.hint})")["start"]
    assert parse_moment(start) == dt.datetime(2024, 1, 31, 10, 0, 0, 123456, dt.UTC)


@given(st.decimals(0, 10**9, places=4, allow_nan=False), st.sampled_from(["us", "ms", "s", "min"]))
def test_text_durations_are_exact(count: Any, unit: str) -> None:
    micros = Fraction(count) * {"us": 1, "ms": 10**3, "s": 10**6, "min": 6 * 10**7}[unit]
    text = f"{count:f}{unit}"
    if micros.denominator == 1:
        assert parse_duration(text) == dt.timedelta(microseconds=int(micros))
    else:
        with pytest.raises(InvalidArgument, match="whole number of microseconds") as refused:
            parse_duration(text, argument="over")
        parse_duration(eval(f"dict({refused.value.hint})")["over"])


def test_durations_of_nanoseconds_and_fractions_of_other_types_are_refused() -> None:
    assert parse_duration(pd.Timedelta("1.000001s")) == dt.timedelta(seconds=1, microseconds=1)
    for value in (pd.Timedelta("1ns"), pd.NaT, True, 1.5):
        with pytest.raises(InvalidArgument):
            parse_duration(value)  # type: ignore[arg-type]
    for number in (np.float32(0.5), np.float64(0.5), pa.scalar(0.5)):
        fractions = FractionSplit((("train", number), ("test", 0.5))).fractions  # type: ignore[arg-type]
        assert json.dumps(fractions) == '[["train", 0.5], ["test", 0.5]]'
    for fraction in (True, "1.0", float("nan"), None, 0):
        with pytest.raises(InvalidSplit, match="has fraction"):
            FractionSplit((("train", fraction),))  # type: ignore[arg-type]


def test_backfills_take_times_of_numpy(flights_copy: FeatureStore) -> None:
    for start in (True, 20130101, np.datetime64("2013-01-01T00:00:00.000000001")):
        with pytest.raises(FeatureStoreError, match="is not a time"):
            flights_copy.backfill_job("absent", start, "2013-01-02")  # type: ignore[arg-type]
