"""Model monitors: predictions joined to labels as known at the time, and chance levels."""

from __future__ import annotations

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
from featurestore.errors import FeatureStoreError, JobFailed
from featurestore.model.monitor import Baseline, MonitoredModel, MonitorSpec
from featurestore.monitoring.metrics import area_under_curve
from featurestore.monitoring.profile import Estimate, Profile, chance_mean, merge_estimates
from featurestore.monitoring.rules import check_metrics_in_bounds
from featurestore.store import FeatureStore
from tests.monitoring.conftest import A_DAY, DAY, START, Clock
from tests.monitoring.receivers import web_server
from tests.monitoring.scored_model import (
    TIME,
    count_pairs,
    drawn,
    measured,
    outcomes,
    profile,
    registered,
    trips,
)
from tests.store_copies import copy_of, open_at_time

DAYS = 7
LAST = START + DAYS * DAY
MONITOR = """
import featurestore
featurestore.model_monitor_job("late_watch", model="late", predictions="scores", labels="outcomes",
    schedule="0 0 * * *", {arguments})
"""
Watch = Callable[..., None]


@pytest.fixture(scope="session")
def a_week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with trips, their outcomes, and the scores of a registered model."""
    pytest.importorskip("cloudpickle")
    location = tmp_path_factory.mktemp("a_week") / "store"
    with open_at_time(location, LAST) as store:
        rows = trips(0, DAYS)
        store.create_featuregroup(rows, "trips", primary_key="id", event_time="at")
        store.create_featuregroup(
            outcomes(rows), "outcomes", primary_key="id", event_time="at", created_time="known"
        )
        registered(store)
        score(store, rows)
    return location


@pytest.fixture
def town(tmp_path: Path, clock: Clock, a_week: Path) -> FeatureStore:
    """A copy of the store with a week of trips, at its end."""
    clock.now = LAST
    return copy_of(a_week, tmp_path / "store")


def score(store: FeatureStore, rows: pa.Table) -> None:
    labels = rows.select(["id", "at"])
    store.score("late", labels=labels, label_time="at", featuregroup="scores", trust=True)


@pytest.fixture
def watch(town: FeatureStore, tmp_path: Path) -> Watch:
    def write(arguments: str = 'metric="auc"') -> None:
        file = tmp_path / "late_watch.py"
        file.write_text(MONITOR.format(arguments=arguments))
        town.register_jobs(file)

    return write


def days_later(store: FeatureStore, clock: Clock, days: int, **options: Any) -> None:
    """Move the clock by days with trips, scores and outcomes."""
    first = (clock.now - START) // DAY
    rows = trips(first, days)
    store.insert_into_featuregroup(rows, "trips")
    store.insert_into_featuregroup(outcomes(rows, **options), "outcomes")
    clock.now += days * DAY
    score(store, rows)


def test_model_metrics_equal_predictions_and_labels_of_windows(
    town: FeatureStore, watch: Watch
) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    watch(
        'metric=["auc", "accuracy", "precision", "recall", "log_loss", "brier", "mae", "bias"], '
        'metrics={"middle": "median(prediction - label)"}, window="7d"'
    )
    report = town.check_monitor("late_watch")
    days = trips(DAYS - 7, 7)
    label = outcomes(trips(0, DAYS))["late"].to_numpy()[-7 * A_DAY :]
    actual = town.get_featuregroup("scores", dataframe_type="pandas").sort_values("at")
    prediction = actual["prediction"].to_numpy()[-7 * A_DAY :]
    yes = prediction >= 0.5
    expected = {
        "auc": sklearn.roc_auc_score(label, prediction),
        "accuracy": sklearn.accuracy_score(label, yes),
        "precision": sklearn.precision_score(label, yes),
        "recall": sklearn.recall_score(label, yes),
        "log_loss": sklearn.log_loss(label, prediction),
        "brier": sklearn.brier_score_loss(label, prediction),
        "mae": np.mean(np.abs(prediction - label)),
        "bias": np.mean(prediction - label),
        "middle": np.median(prediction - label),
        "labelled": 1.0,
    }
    findings = {
        finding.subject: finding.value for finding in report.findings if finding.kind == "metric"
    }
    assert report.rows == days.num_rows
    assert findings == {name: pytest.approx(value, abs=1e-8) for name, value in expected.items()}


def test_degraded_model_alarms_once_at_second_window(
    town: FeatureStore, watch: Watch, clock: Clock
) -> None:
    with web_server() as received:
        town.add_alert_channel("ops", received.uri)
        watch('metric="auc", baseline=featurestore.baseline(last="7d"), alert="ops"')
        town.backfill_job("late_watch", START, LAST)
        assert all(report.ok for report in town.get_monitor_history("late_watch"))
        assert town.backfill_job("late_watch", START, LAST) == []
        days_later(town, clock, 2, decayed=True)
        report = town.check_monitor("late_watch")
        assert {(alarm.kind, alarm.subject) for alarm in report.alarms} == {("metric", "auc")}
    assert [message["event"] for message in received.messages] == ["begin"]
    assert received.messages[0]["families"] == ["metric"]

    def call(*words: str) -> Any:
        return CliRunner().invoke(app, ["monitor", *words, "--location", town.location])

    assert call("check", "late_watch").exit_code == 1
    assert "auc: too low" in call("history", "late_watch").output
    assert ">auc<" in town.visualize_monitor("late_watch").to_html()


def test_labels_count_as_known_at_check_time(
    town: FeatureStore, watch: Watch, clock: Clock
) -> None:
    watch('metric="accuracy"')
    days_later(town, clock, 1, after=timedelta(hours=12))
    report = town.check_monitor("late_watch")
    labelled = report.finding("metric", "labelled")
    assert labelled is not None
    assert labelled.value == pytest.approx(73 / 144)  # requested by noon, known by midnight
    clock.now += 10 * DAY  # a window does not depend on when it is computed
    again = town.check_monitor("late_watch", window=report.window)
    assert again.finding("metric", "labelled") == labelled
    watch('metric="accuracy", allowed_lateness="12h"')
    waited = town.check_monitor("late_watch", window=report.window)
    actual = waited.finding("metric", "labelled")
    assert actual is not None
    assert actual.value == 1.0


def test_predictions_after_known_label_are_excluded(
    town: FeatureStore, watch: Watch, tmp_path: Path
) -> None:
    times = [LAST - DAY + number * timedelta(minutes=1) for number in range(4)]
    minute = timedelta(minutes=1)
    rows = {"id": [1, 2, 3, 4], "at": pa.array(times, TIME), "prediction": [0.9, 0.9, 0.1, 0.1]}
    prediction_times = [times[0], times[1] + 3 * minute, times[2], LAST + minute]
    rows["made"] = pa.array(prediction_times, TIME)
    town.create_featuregroup(
        pa.table(rows), "guesses", primary_key="id", event_time="at", created_time="made"
    )
    late = {"id": [1, 2, 3, 3], "late": [0.0, 1.0, 1.0, 0.0]}
    late["at"] = pa.array([times[0], times[1], times[2], times[2]], TIME)
    late["known"] = pa.array(
        [times[0] + minute, times[1] + 2 * minute, times[2], times[2] + minute], TIME
    )
    town.create_featuregroup(
        pa.table(late), "truths", primary_key="id", event_time="at", created_time="known"
    )
    watch()
    text = Path(tmp_path, "late_watch.py").read_text()
    text = text.replace('"scores"', '"guesses"').replace('"outcomes"', '"truths"')
    text = text.replace('metric="auc"', 'metric="accuracy", label="late"')
    Path(tmp_path, "late_watch.py").write_text(text)
    town.register_jobs(tmp_path / "late_watch.py")
    report = town.check_monitor("late_watch")
    findings = {
        finding.subject: finding.value for finding in report.findings if finding.kind == "metric"
    }
    # 1 is wrong; 2 was predicted after its label; the last known label of 3 counts; 4 came later.
    assert findings == {"accuracy": 0.5, "labelled": 1.0}


def test_late_labels_are_rechecked_within_label_limit(
    town: FeatureStore, watch: Watch, clock: Clock
) -> None:
    rows = trips(DAYS, 1)
    town.insert_into_featuregroup(rows, "trips")
    clock.now += DAY
    score(town, rows)
    watch('metric="accuracy", within="30min", allowed_lateness="1h"')
    clock.now += timedelta(hours=2)
    report = town.check_monitor("late_watch")
    assert "no label of these predictions was known" in str(report)
    landed = outcomes(rows)
    half = A_DAY // 2
    for number, minutes in ((0, 20), (1, 40)):
        batch = landed.slice(number * half, half)
        times = [time + timedelta(minutes=minutes) for time in batch["at"].to_pylist()]
        batch = batch.set_column(1, "at", pa.array(times, TIME)).set_column(
            2, "known", pa.array(times, TIME)
        )
        town.insert_into_featuregroup(batch, "outcomes")
    (run,) = town.run_job("late_watch", stale=True)
    assert run.windows == 1
    actual = town.get_monitor_history("late_watch")[0].finding("metric", "labelled")
    assert actual is not None
    assert actual.value == 0.5


def test_predictions_are_filtered_by_model_version(
    town: FeatureStore, watch: Watch, tmp_path: Path
) -> None:
    watch('metric="accuracy"')
    file = tmp_path / "late_watch.py"
    file.write_text(file.read_text().replace('model="late"', 'model="late@v2"'))
    town.register_jobs(file)
    with pytest.raises(JobFailed, match="has no version 2"):
        town.check_monitor("late_watch")
    file.write_text(file.read_text().replace('model="late@v2"', 'model="late@v1"'))
    town.register_jobs(file)
    actual = town.check_monitor("late_watch").finding("metric", "labelled")
    assert actual is not None
    assert actual.value == 1.0


# -- chance ---------------------------------------------------------------------------------------


def test_auc_variance_equals_spread_of_window_aucs() -> None:
    rng = np.random.default_rng(0)
    estimates = [area_under_curve(count_pairs(*drawn(rng, 200))) for _ in range(400)]
    spread = np.std([estimate.value for estimate in estimates])
    rows = [np.sqrt(estimate.variance / estimate.rows) for estimate in estimates]
    assert np.mean(rows) == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("name", ["auc", "accuracy", "mae"])
def test_model_alarms_ignore_noise_but_detect_change(name: str) -> None:
    rng = np.random.default_rng(7)
    model = MonitoredModel("m", None, "labels", None, "prediction", (name,))
    watched = MonitorSpec("scores", baseline=Baseline(last=8 * DAY), model=model)
    sizes = (3, 10, 40, 150)
    out = 0
    for number in range(300):
        rows = sizes[number % 4]
        before = [profile(day, measured(rng, name, rows)) for day in range(8)]
        finding = check_metrics_in_bounds(
            watched, profile(8, measured(rng, name, rows)), lambda _, reference=before: reference
        )[0]
        out += finding.out
    assert out <= 6  # and an alarm needs two in a row
    before = [profile(day, measured(rng, name, 400)) for day in range(8)]
    changed = [profile(8, measured(rng, name, 400, worse=True)) for _ in range(20)]
    assert all(
        check_metrics_in_bounds(watched, day_profile, lambda _: before)[0].out
        for day_profile in changed
    )


@pytest.mark.parametrize("days_before", [0, 8])
def test_metric_limits_allow_for_sampling_error(days_before: int) -> None:
    rng = np.random.default_rng(3)
    model = MonitoredModel("m", None, "labels", None, "prediction", ("auc",))
    limits = {"auc": (0.65, None)}
    watched = MonitorSpec("scores", baseline=Baseline(last=8 * DAY), model=model, limits=limits)
    before = [profile(day, measured(rng, "auc", 400)) for day in range(days_before)]
    few, many = [], []
    for _ in range(20):
        few.append(
            check_metrics_in_bounds(
                watched, profile(9, measured(rng, "auc", 20, worse=True)), lambda _: before
            )[0]
        )
        many.append(
            check_metrics_in_bounds(
                watched, profile(9, measured(rng, "auc", 2000, worse=True)), lambda _: before
            )[0]
        )
    assert sum(finding.out for finding in few) <= 1
    assert all(finding.out for finding in many)
    assert all(
        finding.low is not None and finding.low < 0.65 and finding.high is None for finding in many
    )


def test_change_is_confirmed_only_by_earlier_windows() -> None:
    rng = np.random.default_rng(4)
    model = MonitoredModel("m", None, "labels", None, "prediction", ("auc",))
    watched = MonitorSpec("scores", baseline=Baseline(last=8 * DAY), model=model)
    before = [profile(day, measured(rng, "auc", 400)) for day in range(7)]
    first = profile(7, measured(rng, "auc", 400, worse=True))
    second = profile(8, measured(rng, "auc", 400, worse=True))
    assert check_metrics_in_bounds(watched, first, lambda _: before)[0].out
    assert check_metrics_in_bounds(watched, second, lambda _: [*before[1:], first])[0].out


def test_merged_estimates_equal_estimate_of_all_rows() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(5.0, 2.0, 1000)
    chunks = np.split(values, [10, 300, 301])
    actual = merge_estimates([Estimate("mean", len(x), x.sum(), (x**2).sum()) for x in chunks])
    assert actual is not None
    assert (actual.rows, actual.value) == (1000, pytest.approx(values.mean()))
    assert actual.variance == pytest.approx(values.var())
    low, high = chance_mean(actual, 50, 0.01)
    means = np.array([rng.normal(5.0, 2.0, 50).mean() for _ in range(2000)])
    assert ((means > low) & (means < high)).mean() > 0.98
    assert merge_estimates([Estimate("max", total=2.0), Estimate("max", total=7.0)]) == Estimate(
        "max", total=7.0
    )
    assert merge_estimates([Estimate("max", total=2.0), Estimate("sum", total=7.0)]) is None
    profile = Profile(None, 1000, 1, 0, {}, {}, estimates={"error": actual})
    assert Profile.from_json(profile.to_json()) == profile


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"metric": "acu"}, "auc"),
        ({"metric": []}, "has no metrics for the predictions"),
        ({"metrics": {"auc": "avg(label)"}}, "same name"),
        ({"metrics": {"x": "select 1"}}, "not an expression"),
        ({"limits": {"accuracy": (0, 1)}}, "auc, labelled"),
        ({"within": "-1d"}, "within"),
        ({"threshold": "half"}, "threshold"),
        ({"model": "Late!"}, "Late!"),
        ({"labels": "a b"}, "a b"),
        ({"baseline": featurestore.baseline(version=1)}, "must be rolling"),
    ],
)
def test_model_monitor_job_invalid_definition_raises(arguments: dict[str, Any], words: str) -> None:
    inputs = {"model": "late", "predictions": "scores", "labels": "outcomes", "metric": "auc"}
    with pytest.raises(FeatureStoreError, match="(?s)" + words):
        featurestore.model_monitor_job("w", **{"schedule": "0 0 * * *", **inputs, **arguments})


def test_check_model_monitor_missing_inputs_raise_with_alternatives(
    town: FeatureStore, watch: Watch
) -> None:
    for arguments, words in (
        ('metric="auc", label="lat"', "no column 'lat'.*late"),
        ('metric="auc", prediction="score"', "score.*prediction"),
        ('metric="auc", label="at"', "not both numbers"),
        ('metric="auc", label="id"', "neither 0 nor 1"),
        ('metric="auc", metrics={"x": "avg(fare)"}', "fare"),
    ):
        watch(arguments)
        with pytest.raises(JobFailed, match="(?s)" + words):
            town.check_monitor("late_watch")
