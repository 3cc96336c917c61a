"""Baselines: weekday baselines, and baselines computed on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.store import FeatureStore
from tests.monitoring.conftest import DAY, DAYS, NOW, START, Clock, sales

Define = Callable[..., str]
WEEKEND = 1.5  # deviations above what is usual on other days


def with_weekends(first: int, days: int, *, as_on_weekends: bool = False) -> pa.Table:
    """Return days whose weekends differ, or days that all differ."""
    tables = []
    for day in range(first, first + days):
        shift = WEEKEND if as_on_weekends or day % 7 in (5, 6) else 0.0
        tables.append(sales(day, 1, shift=shift))
    return pa.concat_tables(tables)


@pytest.mark.parametrize("weekday", [True, False])
def test_weekday_baseline_detects_monday_like_sunday(
    tmp_path: Path, clock: Clock, define: Define, shop: FeatureStore, weekday: bool
) -> None:
    shop.create_featuregroup(
        with_weekends(0, DAYS), "sales", primary_key="id", event_time="at", version=2
    )
    define(
        f"baseline=featurestore.baseline(last='28d', same_weekday={weekday}), "
        "drift={'ks': 0.1, 'psi': 0.2}"
    )
    shop.backfill_job("watch", NOW - 14 * DAY, NOW)
    actual = shop.get_monitor_history("watch")
    assert [report.state for report in actual if not report.ok] == []
    assert START.weekday() == NOW.weekday() == 0
    shop.insert_into_featuregroup(with_weekends(DAYS, 2, as_on_weekends=True), "sales")
    clock.now = NOW + 2 * DAY
    findings = {alarm.subject for alarm in shop.check_monitor("watch").alarms}
    assert findings == ({"amount"} if weekday else set())


@pytest.mark.parametrize("baseline", ["version", "training dataset"])
def test_baseline_statistics_are_computed_on_demand(
    tmp_path: Path, clock: Clock, define: Define, shop: FeatureStore, baseline: str
) -> None:
    shop.create_featuregroup(
        sales(0, DAYS), "sales", primary_key="id", event_time="at", version=2, statistics=False
    )
    argument = "version=2"
    if baseline == "training dataset":
        frame = shop.get_features(["sales.amount", "sales.late"])
        dataset = shop.create_training_dataset(
            frame, "late_sales", label="late", shards=1, progress=False, statistics=False
        )
        assert not dataset.manifest.statistics
        argument = "training_dataset='late_sales'"
    else:
        folder = Path(shop.location, "featuregroups", "sales", "v2_statistics")
        assert not folder.exists()
    define(f"baseline=featurestore.baseline({argument})")
    shop.insert_into_featuregroup(sales(DAYS, 2, shift=0.5), "sales")
    clock.now = NOW + 2 * DAY
    alarms = shop.check_monitor("watch").alarms
    assert {(alarm.kind, alarm.subject) for alarm in alarms} == {("drift", "amount")}


def test_baseline_without_rows_leaves_monitor_learning(define: Define, shop: FeatureStore) -> None:
    shop.create_featuregroup(
        sales(0, 1).slice(0, 0), "sales", primary_key="id", event_time="at", version=2
    )
    define("baseline=featurestore.baseline(version=2)")
    report = shop.check_monitor("watch")
    assert (report.state, report.rows) == ("learning", 0)
    assert "too few earlier windows" in str(report)
    assert featurestore.baseline(version=2).version == 2
