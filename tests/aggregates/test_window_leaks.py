"""check_leakage detects aggregates over later rows, with code independent of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.aggregates.arrays import LabelWindows
from featurestore.aggregates.chunk import Timeline

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MICROS = 3_600_000_000
AGGREGATES: list[Any] = [
    *featurestore.windows("landings.delay", ["sum", "max", "last"], over="6h"),
    featurestore.window("landings.gate", "count_distinct", over="6h"),
    featurestore.window("landings.delay", "count", over="6h", where="delay > 0", name="late"),
]


def landings(*, until: datetime | None = None) -> pd.DataFrame:
    """Return a flight every half hour, known two hours later."""
    rows = []
    for number in range(60):
        departure = START + number * HOUR / 2
        row = {
            "carrier": "AB"[number % 2],
            "flight": number,
            "left_at": departure,
            "landed_at": departure + 2 * HOUR,
            "delay": (number * 7) % 23 - 5.0,
            "gate": f"gate {number}",
        }
        if until is None or row["landed_at"] <= until:
            rows.append(row)
    return pd.DataFrame(rows)


@pytest.fixture
def landings_store(empty_store: FeatureStore) -> FeatureStore:
    empty_store.create_featuregroup(
        landings(),
        "landings",
        primary_key=["carrier", "flight"],
        event_time="left_at",
        created_time="landed_at",
    )
    return empty_store


def questions() -> pd.DataFrame:
    rows = []
    for number in range(16):
        asked_at = START + number * 2 * HOUR + HOUR / 3
        rows.append({"carrier": "AB"[number % 2], "asked_at": asked_at})
    return pd.DataFrame(rows)


def test_check_leakage_reports_rows_unknown_at_label_time(landings_store: FeatureStore) -> None:
    honest = landings_store.get_features(AGGREGATES, labels=questions(), label_time="asked_at")
    report = landings_store.check_leakage(honest)
    assert report.ok, str(report)
    assert report.features == len(AGGREGATES)
    leaking = landings_store.get_features(
        AGGREGATES, labels=questions(), label_time="asked_at", created_time_filter=False
    )
    report = landings_store.check_leakage(leaking)
    assert {leak.feature for leak in report.leaks} == {
        "delay_sum_6h", "delay_max_6h", "delay_last_6h", "gate_count_distinct_6h", "late",
    }  # fmt: skip
    assert "became known after the label's time" in str(report)


Faulty = Callable[..., LabelWindows]
WINDOW = Timeline.window


def looks_an_hour_ahead(self: Timeline, *, over: int | None, offset: int = 0) -> LabelWindows:
    return WINDOW(self, over=over, offset=offset - MICROS)


def knows_everything_at_once(self: Timeline, *, over: int | None, offset: int = 0) -> LabelWindows:
    rows = self._rows
    unaware = Timeline.__new__(Timeline)
    unaware.__dict__.update(self.__dict__)
    unaware._starts = {}
    unaware._rows = type(rows)(rows.key, rows.event, rows.event, rows.replaced)
    return WINDOW(unaware, over=over, offset=offset)


def begins_at_a_hop(self: Timeline, *, over: int | None, offset: int = 0) -> LabelWindows:
    assert over is not None
    return WINDOW(self, over=over + MICROS, offset=offset)


@pytest.mark.parametrize("fault", [looks_an_hour_ahead, knows_everything_at_once, begins_at_a_hop])
def test_check_leakage_detects_faulty_kernel(
    landings_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, fault: Faulty
) -> None:
    frame = landings_store.get_features(AGGREGATES, labels=questions(), label_time="asked_at")
    assert landings_store.check_leakage(frame).ok
    monkeypatch.setattr(Timeline, "window", fault)
    report = landings_store.check_leakage(frame)
    changed = {leak.feature for leak in report.leaks}
    assert {"delay_sum_6h", "gate_count_distinct_6h", "late"} <= changed


def departures(*, stamp: timedelta, until: datetime | None = None) -> pd.DataFrame:
    """Return departures per carrier and hour, with times some minutes after the hour began."""
    flights = landings()
    if until is not None:
        flights = flights[flights["left_at"] <= until]
    flights = flights.assign(hour=flights["left_at"].dt.floor("1h"))
    counts = flights.groupby(["carrier", "hour"], as_index=False).agg(events=("flight", "size"))
    return counts.assign(hour=counts["hour"] + stamp, events=counts["events"] * 1.0)


def test_check_leakage_reports_rows_from_later_data(landings_store: FeatureStore) -> None:
    labels = questions().assign(asked_at=lambda frame: frame["asked_at"] - HOUR / 6)
    reports = {}
    for name, stamp in (("honest", HOUR), ("leaking", timedelta(0))):
        landings_store.create_featuregroup(
            departures(stamp=stamp), name, primary_key="carrier", event_time="hour"
        )
        frame = landings_store.get_features(
            f"{name}.events|sum|6h", labels=labels, label_time="asked_at"
        )
        assert landings_store.check_leakage(frame).ok  # not detectable from stored rows

        def recompute(until: datetime, stamp: timedelta = stamp) -> pd.DataFrame:
            rows = departures(stamp=stamp, until=until)
            return rows[rows["hour"] <= until]

        reports[name] = landings_store.check_leakage(frame, recompute={name: recompute})
    assert reports["honest"].ok, str(reports["honest"])
    assert {leak.feature for leak in reports["leaking"].leaks} == {"events_sum_6h"}
    assert "computed from later data" in str(reports["leaking"])


def test_check_leakage_midnight_totals_are_unchecked(landings_store: FeatureStore) -> None:
    days = pd.DataFrame(
        {"carrier": ["A"] * 5, "day": START + pd.to_timedelta(range(5), unit="D"), "total": 1.0}
    )
    landings_store.create_featuregroup(days, "days", primary_key="carrier", event_time="day")
    frame = landings_store.get_features(
        "days.total|sum|2d", labels=questions(), label_time="asked_at"
    )
    report = landings_store.check_leakage(frame)
    assert report.ok
    assert "all of them are at 00:00" in report.unchecked[0]
