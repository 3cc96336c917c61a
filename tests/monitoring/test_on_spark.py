"""Monitors on Spark equal those of the embedded engine."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

import featurestore
from featurestore.featuregroups.table import open_group
from featurestore.model.monitor import MODEL_MEASURES, MonitoredModel
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.times import Window
from featurestore.monitoring.metrics import Metrics, Quality
from tests.monitoring.conftest import A_DAY, DAY, START, Clock, sales
from tests.monitoring.scored_model import Sigmoid, outcomes, trips

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
def test_monitor_report_on_spark_equals_embedded_engine(tmp_path: Path, clock: Clock) -> None:
    clock.now = START + 16 * DAY
    embedded, cluster = checked(tmp_path, "duckdb"), checked(tmp_path, "spark")
    assert {(alarm.kind, alarm.subject) for alarm in cluster.alarms} == {
        ("drift", "amount"),
        ("values", "amount"),
    }
    assert (cluster.rows, cluster.state) == (A_DAY, embedded.state)
    findings = {finding.key: finding for finding in embedded.findings}
    assert findings.keys() == {finding.key for finding in cluster.findings}
    for actual in cluster.findings:
        if actual.kind == "freshness":  # each store has its own last commit
            continue
        expected = findings[actual.key]
        assert (actual.out, actual.alarm) == (expected.out, expected.alarm)
        # Sketches of quantiles depend on the order in which an engine reads the rows.
        error = 0.001 if actual.subject == "amount" else 1e-9
        assert [actual.value, actual.low, actual.high] == pytest.approx(
            [expected.value, expected.low, expected.high], nan_ok=True, abs=error
        )
    assert [share.feature for share in cluster.shares] == [
        share.feature for share in embedded.shares
    ]
    for share, expected_share in zip(cluster.shares, embedded.shares, strict=True):
        assert share.now == pytest.approx(expected_share.now)


def measured(folder: Path, engine: str) -> Metrics:
    """Return every metric of a day's predictions; a fifth of the labels arrived too late."""
    store = featurestore.connect(folder / engine, engine=engine)
    rows = trips(0, 2)
    late = outcomes(rows, after=DAY / 5)
    scores = rows.append_column(
        "prediction", [Sigmoid().predict(rows["speed"].to_numpy()[:, np.newaxis])]
    )
    store.create_featuregroup(
        late, "outcomes", primary_key="id", event_time="at", created_time="known"
    )
    store.create_featuregroup(scores, "scores", primary_key="id", event_time="at")
    watched = MonitoredModel(
        "late", None, "outcomes", None, "prediction", MODEL_MEASURES, {"n": "count(*)"}, within=DAY
    )
    predictions, labels = open_group(store.session, "scores"), open_group(store.session, "outcomes")
    quality = Quality(store.session.engine, watched, predictions, labels, "late", 0 * DAY)
    return quality.measure(Window(START + DAY, START + 2 * DAY))


@pytest.mark.spark
@pytest.mark.usefixtures("spark", "clock")
def test_model_monitor_on_spark_equals_embedded_engine(tmp_path: Path) -> None:
    embedded, cluster = measured(tmp_path, "duckdb"), measured(tmp_path, "spark")
    assert embedded.values.keys() == {*MODEL_MEASURES, "n", "labelled"}
    assert 0.7 < (embedded.values["labelled"] or 0) < 0.9
    assert cluster.values == pytest.approx(embedded.values)
    assert cluster.estimates.keys() == embedded.estimates.keys()
    for name, estimate in embedded.estimates.items():
        numbers = astuple(cluster.estimates[name])[1:]
        assert numbers == pytest.approx(astuple(estimate)[1:]), name
