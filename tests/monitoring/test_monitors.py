"""Monitors over a real store: findings, non-findings and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import featurestore
from featurestore.cli import app
from featurestore.errors import (
    FeatureStoreError,
    InvalidJob,
    InvalidSql,
    JobFailed,
    JobNotFound,
)
from featurestore.store import FeatureStore
from tests.monitoring.conftest import A_DAY, DAY, DAYS, NOW, START, Clock, profiles, sales

Define = Callable[..., str]


def go_on(shop: FeatureStore, clock: Clock, days: int, **faults: Any) -> None:
    """Move the clock by days with rows that may have a fault."""
    shop.insert_into_featuregroup(sales(DAYS, days, **faults), "sales")
    clock.now = NOW + days * DAY


def test_monitor_backfill_ten_unchanged_weeks_without_alarms(
    shop: FeatureStore, define: Define
) -> None:
    shutil.rmtree(profiles(shop.location))  # all is counted here
    define('metrics={"late_share": "avg(late)"}')
    (run,) = shop.backfill_job("watch", START, NOW)
    assert run.windows == DAYS
    history = shop.get_monitor_history("watch", limit=None)
    assert [report.rows for report in history] == [A_DAY] * DAYS
    assert {report.state for report in history[:35]} <= {"ok", "suspect"}
    assert history[-1].state == "learning"
    assert all(report.ok for report in history)
    late = [report.finding("metric", "late_share") for report in history]
    expected = np.mean(sales(DAYS - 1, 1)["late"].to_numpy())
    assert late[0] is not None
    assert late[0].value == pytest.approx(expected)
    assert shop.backfill_job("watch", START, NOW) == []


def test_second_monitor_of_same_windows_reuses_profiles(shop: FeatureStore, define: Define) -> None:
    folder = profiles(shop.location)
    shutil.rmtree(folder)
    define()
    shop.backfill_job("watch", START, NOW)
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    define("drift={'psi': 0.1}, volume=(0.9, 1.1)", name="strict")
    shop.backfill_job("strict", START, NOW)
    assert before
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("fault", "alarm_kind", "subject"),
    [({"shift": 0.5}, "drift", "amount"), ({"null_share": 0.3}, "nulls", "amount")],
)
def test_change_alarms_at_second_window_until_it_ends(
    shop: FeatureStore,
    define: Define,
    clock: Clock,
    fault: dict[str, float],
    alarm_kind: str,
    subject: str,
) -> None:
    define()
    go_on(shop, clock, 2, **fault)
    report = shop.check_monitor("watch")
    assert {(alarm.kind, alarm.subject) for alarm in report.alarms} == {(alarm_kind, subject)}
    first = shop.get_monitor_history("watch")[-1]
    assert first.state == "suspect"
    assert not report.ok
    shop.insert_into_featuregroup(sales(DAYS + 2, 1), "sales")
    clock.now += DAY
    assert shop.check_monitor("watch").ok


def test_window_without_rows_alarms_immediately(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    define('freshness={"event_time": "12h", "commit": "36h"}')
    clock.now = NOW + DAY
    report = shop.check_monitor("watch")
    volume = report.finding("volume")
    assert volume is not None
    assert (report.rows, volume.value, volume.alarm) == (0, 0.0, True)
    aged = report.finding("freshness", "event time")
    assert aged is not None
    assert (aged.alarm, aged.value) == (True, pytest.approx(86_400 + 600))


def test_halved_volume_alarms_at_second_window(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    define()
    rows = sales(DAYS, 2)
    shop.insert_into_featuregroup(rows.take(list(range(0, rows.num_rows, 2))), "sales")
    clock.now = NOW + 2 * DAY
    assert [alarm.kind for alarm in shop.check_monitor("watch").alarms] == ["volume"]


def test_windows_are_compared_with_training_split(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    frame = shop.get_features(["sales.amount", "sales.late"])
    shop.create_training_dataset(frame, "late_sales", label="late", shards=1, progress=False)
    define("baseline=featurestore.baseline(training_dataset='late_sales')")
    assert shop.check_monitor("watch").ok
    go_on(shop, clock, 2, shift=0.5)
    alarms = shop.check_monitor("watch").alarms
    assert {(alarm.kind, alarm.subject) for alarm in alarms} == {("drift", "amount")}


@pytest.mark.parametrize("arguments", ["version=1", "as_of=1"])
def test_windows_are_compared_with_group_version(
    shop: FeatureStore, define: Define, clock: Clock, arguments: str
) -> None:
    define(f"baseline=featurestore.baseline({arguments})")
    go_on(shop, clock, 2, shift=0.5)
    assert {alarm.subject for alarm in shop.check_monitor("watch").alarms} == {"amount"}


def test_late_rows_update_window_profile(shop: FeatureStore, define: Define, clock: Clock) -> None:
    define()
    clock.now = NOW + DAY
    assert shop.check_monitor("watch").rows == 0
    go_on(shop, clock, 1)
    (run,) = shop.run_job("watch", stale=True)
    assert run.windows == 1
    assert shop.check_monitor("watch").rows == A_DAY


def test_new_group_version_note_lists_column_changes(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    define()
    assert shop.check_monitor("watch").ok
    shop.rename_feature("sales", "amount", "price")
    clock.now = NOW + DAY
    report = shop.check_monitor("watch")
    findings = [str(alarm) for alarm in report.alarms if alarm.kind == "schema"]
    assert report.version == 2
    assert "version 2 follows version 1; columns: price (double) was added" in findings[0]
    assert "amount (double) was removed" in findings[0]


def test_clock_set_back_makes_no_window_due(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    define('freshness="1d"')
    assert shop.check_monitor("watch").ok
    clock.now = NOW - 3 * DAY
    assert shop.run_job("watch", due=True) == []
    report = shop.check_monitor("watch")
    assert report.window.end == NOW - 3 * DAY
    assert "event times in the future" in str(report)
    aged = report.finding("freshness", "event time")
    assert aged is not None
    assert (aged.value, aged.out) == (0.0, False)


def test_group_without_event_time_is_monitored_by_commits(
    tmp_path: Path, shop: FeatureStore, clock: Clock
) -> None:
    rows = {"plane": list(range(50)), "seats": [100 + number % 7 for number in range(50)]}
    shop.create_featuregroup(rows, "planes", primary_key="plane")
    file = tmp_path / "planes.py"
    file.write_text(
        "import featurestore\n"
        "featurestore.monitor_job('planes_watch', featuregroup='planes', schedule='0 0 * * *', "
        "baseline=featurestore.baseline(as_of=1))\n"
    )
    shop.register_jobs(file)
    committed = shop.get_featuregroup_history("planes")[0].timestamp
    clock.now = committed.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=2)
    window = clock.now - timedelta(days=2)
    assert shop.check_monitor("planes_watch", window=window).rows == 50


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"drift": {"pis": 0.2}}, "psi"),
        ({"volume": (2.0, 0.5)}, "range that contains 1"),
        ({"metrics": {"x": "select 1"}}, "not an expression"),
        ({"metrics": {"x": "read_text('/etc/passwd')"}}, "read_text"),
        ({"limits": {"x": (0, 1)}}, "not in metrics="),
        ({"freshness": {"rows": "1h"}}, "unknown time"),
        ({"confirm": 0}, "confirm"),
        ({"schedule": "hourly"}, "fields instead of 5"),
        ({"features": ["amount"], "alert": "Ops!"}, "alert channel"),
    ],
)
def test_monitor_job_invalid_definition_raises(arguments: dict[str, Any], words: str) -> None:
    options = {"featuregroup": "sales", "schedule": "0 0 * * *", **arguments}
    with pytest.raises(FeatureStoreError, match="(?s)" + words):
        featurestore.monitor_job("watch", **options)


def test_baseline_with_several_sources_raises() -> None:
    with pytest.raises(InvalidJob, match="one source"):
        featurestore.baseline(training_dataset="late_sales", last="28d")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("features=['amuont']", "Available: .*amount"),
        ("baseline=featurestore.baseline(training_dataset='nothing')", "nothing"),
        ("metrics={'x': 'avg(amuont)'}", "amuont"),
    ],
)
def test_check_monitor_missing_inputs_raise_with_alternatives(
    define: Define, shop: FeatureStore, arguments: str, words: str
) -> None:
    define(arguments)
    with pytest.raises(JobFailed, match="(?s)" + words):
        shop.check_monitor("watch")


def test_baseline_without_features_of_group_raises(define: Define, shop: FeatureStore) -> None:
    table = pa.table({"n": [1.0, 2.0], "y": [0, 1]})
    shop.create_training_dataset(table, "other", label="y", shards=1, progress=False)
    define("baseline=featurestore.baseline(training_dataset='other')")
    with pytest.raises(JobFailed, match="no rows with features of 'sales'"):
        shop.check_monitor("watch")


def test_non_numeric_metric_raises(define: Define, shop: FeatureStore) -> None:
    define("metrics={'x': 'max(shop)'}")
    with pytest.raises(JobFailed, match="x"):
        shop.check_monitor("watch")
    with pytest.raises(InvalidSql):
        featurestore.monitor_job(
            "w", featuregroup="sales", schedule="0 0 * * *", metrics={"x": "avg(a) from b --"}
        )


def test_check_monitor_other_job_raises_jobnotfound(define: Define, shop: FeatureStore) -> None:
    define()
    with pytest.raises(JobNotFound, match="watch"):
        shop.check_monitor("wacth")


def test_monitor_check_command_exits_1_on_alarm(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    define()

    def call(*words: str) -> Any:
        return CliRunner().invoke(app, ["monitor", *words, "--location", shop.location])

    assert call("check", "watch").exit_code == 0
    clock.now = NOW + DAY
    result = call("check", "watch")
    assert (result.exit_code, "no rows" in result.output or "0 rows" in result.output) == (1, True)
    assert '"ok": false' in call("check", "watch", "--output", "json").output
    assert "alarm" in call("list").output
    assert "rows: fewer than usual; 0 rows, usually 144" in call("history", "watch").output
