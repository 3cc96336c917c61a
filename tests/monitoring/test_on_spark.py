"""A monitor on Spark finds what it finds on the embedded engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import featurestore
from featurestore.model.monitor_report import MonitorReport
from tests.monitoring.conftest import A_DAY, DAY, START, Clock, sales

MONITOR = """
import featurestore
featurestore.monitor_job("watch", featuregroup="sales", schedule="0 0 * * *", freshness="1d",
                         baseline=featurestore.baseline(last="10d"),
                         metrics={"late_share": "avg(late)", "dearest": "max(amount)"})
"""


def checked(folder: Path, engine: str) -> MonitorReport:
    store = featurestore.connect(folder / engine, engine=engine)
    store.create_featuregroup(sales(0, 14), "sales", primary_key="id", event_time="at")
    store.insert_into_featuregroup(sales(14, 2, shift=1.0), "sales")
    (folder / f"{engine}.py").write_text(MONITOR)
    store.register_jobs(folder / f"{engine}.py")
    return store.check_monitor("watch")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_check_gives_the_same_report_on_spark(tmp_path: Path, clock: Clock) -> None:
    clock.now = START + 16 * DAY
    embedded, cluster = checked(tmp_path, "duckdb"), checked(tmp_path, "spark")
    assert {(each.kind, each.subject) for each in cluster.alarms} == {("drift", "amount")}
    assert (cluster.rows, cluster.state) == (A_DAY, embedded.state)
    told = {each.key: each for each in embedded.findings}
    assert told.keys() == {each.key for each in cluster.findings}
    for found in cluster.findings:
        if found.kind == "freshness":  # each store has its own last commit
            continue
        other = told[found.key]
        assert (found.out, found.alarm) == (other.out, other.alarm)
        assert [found.value, found.low, found.high] == pytest.approx(
            [other.value, other.low, other.high], nan_ok=True
        )
    assert [each.feature for each in cluster.shares] == [each.feature for each in embedded.shares]
    for left, right in zip(cluster.shares, embedded.shares, strict=True):
        assert left.now == pytest.approx(right.now)
