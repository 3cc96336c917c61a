"""Monitor pages, store metrics and stale datasets."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import featurestore
from featurestore.cli import app
from featurestore.errors import InvalidArgument
from featurestore.jobs import metrics
from featurestore.model.finding import Finding
from featurestore.model.monitor_report import BinShares, MonitorReport, sort_by_severity
from featurestore.model.times import Window
from featurestore.monitoring.page import MonitorPage
from featurestore.registry import alerts
from featurestore.store import FeatureStore
from tests.monitoring.conftest import DAY, DAYS, NOW, START, Clock, sales

Define = Callable[..., str]


class Page(HTMLParser):
    """Count the tags of a page, and fail for unbalanced ones."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_monitor_page_shows_worst_feature_first(
    shop: FeatureStore, define: Define, clock: Clock, tmp_path: Path
) -> None:
    define('metrics={"late_share": "avg(late)"}')
    shop.insert_into_featuregroup(sales(DAYS, 2, shift=1.0), "sales")
    clock.now = NOW + 2 * DAY
    shop.backfill_job("watch", NOW - 10 * DAY, NOW + 2 * DAY)
    page = shop.visualize_monitor("watch")
    text = page.to_html()
    actual = Page(text)
    assert actual.open == []
    assert "script" not in actual.tags
    cards = text.split("<h2>Features</h2>")[1]
    assert cards.index(">amount<") < cards.index(">shop<")
    assert actual.tags.count("svg") >= 6
    assert "prefers-color-scheme:dark" in text
    path = page.save(tmp_path / "watch.html")
    assert Path(path).read_text() == text
    result = CliRunner().invoke(
        app, ["monitor", "report", "watch", str(tmp_path / "b.html"), "--location", shop.location]
    )
    assert result.exit_code == 0
    assert (tmp_path / "b.html").read_text() == text


def test_monitor_page_of_200_features_fits_layout() -> None:
    window = Window(START, START + DAY)
    findings = [Finding("freshness", "event time", "age", 2820.0, None, 86400.0)]
    for number in range(200):
        drifts = number < 60
        value = 1.0 - number / 250
        bound = 0.2 if drifts else 1.0
        name = f"x{number}"
        findings.append(Finding("drift", name, "psi", value, None, bound, drifts, drifts))
    report = MonitorReport(
        "watch", "sales", 1, 1, window, 5, findings=sort_by_severity(findings), notes=("late",)
    )
    text = MonitorPage(report, (report,) * 60).to_html()
    page = Page(text)
    assert (page.open, page.tags.count("svg"), page.tags.count("li")) == ([], 201, 22)
    assert "and 40 more, below" in text
    assert "age 47min of 1d" in text
    names = re.findall(r"title='x(\d+)'", text)
    assert names == [str(number) for number in range(200)]
    for circle in re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', text):
        x, y, radius = map(float, circle)
        assert radius <= x <= 180 - radius
        assert radius <= y <= 36 - radius
    assert len(text) < 2_000_000


def test_monitor_page_escapes_html() -> None:
    evil = "<script>alert(1)</script>"
    window = Window(START, START + DAY)
    report = MonitorReport(
        "watch",
        "sales",
        1,
        1,
        window,
        5,
        findings=(Finding("drift", evil, "psi", 1.0, None, 0.2, True, True, text=evil),),
        notes=(evil,),
        shares=(BinShares(evil, (evil, "b"), (0.5, 0.5), (0.1, 0.9)),),
    )
    assert evil not in MonitorPage(report, (report,)).to_html()


def test_visualize_monitor_without_check_raises(shop: FeatureStore, define: Define) -> None:
    define()
    with pytest.raises(InvalidArgument, match="check_monitor"):
        shop.visualize_monitor("watch")


def test_prometheus_parses_store_metrics(shop: FeatureStore, define: Define, clock: Clock) -> None:
    define()
    clock.now = NOW + DAY
    shop.check_monitor("watch")
    actual = {}
    for family in text_string_to_metric_families(shop.get_metrics()):
        for sample in family.samples:
            actual[sample.name, tuple(sorted(sample.labels.values()))] = sample.value
    assert actual["featurestore_featuregroup_rows", ("sales",)] == DAYS * 144
    assert actual["featurestore_monitor_state", ("alarm", "watch")] == 1.0
    assert actual["featurestore_monitor_state", ("ok", "watch")] == 0.0
    assert actual["featurestore_monitor_alarms", ("volume", "watch")] == 1.0
    assert actual["featurestore_job_last_success_timestamp_seconds", ("watch",)] > 0
    result = CliRunner().invoke(app, ["metrics", "--location", shop.location])
    assert 'featurestore_featuregroup_rows{featuregroup="sales"}' in result.output


def test_metric_label_count_is_bounded(
    shop: FeatureStore, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        shop.create_featuregroup({"id": [1], "x": [2.0]}, f"group{number}", primary_key="id")
        shop.add_alert_channel(f"channel{number}", "log")
        define(
            f"alert='channel{number}', metrics={{'a': 'avg(late)', 'b': 'count(*)'}}",
            name=f"w{number}",
        )
        shop.check_monitor(f"w{number}")
        with shop.session.registry.transaction() as connection:
            alerts.enqueue_alert(
                connection, "begin", f"w{number}", {"drift": ["x"]}, [f"channel{number}"]
            )
    monkeypatch.setattr(metrics, "MOST_LABELS", 3)
    values: dict[tuple[str, str], set[str]] = {}
    of_metrics = 0
    for family in text_string_to_metric_families(shop.get_metrics()):
        for sample in family.samples:
            of_metrics += sample.name == "featurestore_monitor_metric"
            for label, value in sample.labels.items():
                values.setdefault((sample.name, label), set()).add(value)
    limited_labels = ("featuregroup", "job", "monitor", "channel")
    for (name, label), actual in values.items():
        if label in limited_labels and name != "featurestore_monitor_metric":
            assert len(actual) == 3, (name, label)
    assert of_metrics == 3
    assert {label for _, label in values} == {*limited_labels, "state", "kind", "metric"}


def test_dataset_drift_lists_changed_sources(empty_store: FeatureStore) -> None:
    rows = sales(0, 10)
    empty_store.create_featuregroup(rows, "sales", primary_key="id", event_time="at")
    shops = pa.table({"shop": ["north", "south"], "size": [3, 4]})
    empty_store.create_featuregroup(shops, "shops", primary_key="shop")
    frame = empty_store.get_features(["sales.amount", "shops.size", "sales.late"])
    dataset = empty_store.create_training_dataset(
        frame, "late_sales", label="late", shards=1, progress=False
    )
    assert (dataset.stale, dataset.staleness().stale, dataset.drift().ok) == (False, False, True)
    empty_store.compact_featuregroup("sales")
    assert dataset.stale is False
    empty_store.insert_into_featuregroup(sales(10, 10, shift=2.0), "sales")
    staleness, drift = dataset.staleness(), dataset.drift()
    assert (dataset.stale, staleness.stale, drift.ok) == (True, True, False)
    assert {source.featuregroup: source.commits for source in staleness.sources} == {
        "sales": 1, "shops": 0,
    }  # fmt: skip
    assert "sales@v1: 1 commits since Delta version 1" in str(staleness)
    assert drift.drifted == ("sales@v1.amount",)
    assert {source.featuregroup: source.drifted for source in drift.sources} == {
        "sales": ("amount",), "shops": (),
    }  # fmt: skip
    assert "sales@v1: drifted: amount" in str(drift)
    result = CliRunner().invoke(
        app, ["td", "list", "--location", empty_store.location, "--output=json"]
    )
    assert '"stale": true' in result.output
    alone = featurestore.TrainingDataset.open(dataset.path)
    assert alone.stale is None
    with pytest.raises(InvalidArgument, match="requires a store"):
        alone.drift()
    with pytest.raises(InvalidArgument, match="requires a store"):
        alone.staleness()
