"""HTML of handles and results in notebooks: tables with escaped text."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.model.display import Listing
from featurestore.store import FeatureStore
from tests.html_page import Page

TAGS = {
    "table", "caption", "thead", "tbody", "tr", "th", "td", "br", "small", "p", "pre",
}  # fmt: skip
HOSTILE = "<script>alert('1')</script>\x1b[31m&lt;b&gt;"
DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
JOBS = """
import featurestore

@featurestore.job(featuregroup="warm", primary_key=["origin"], event_time="t", schedule="@daily",
                  window="1d", start="2024-01-01T00:00Z", inputs={"weather": "weather"}, closed="left")
def warm(window, weather):
    return weather
"""


@pytest.fixture
def hostile_store(tmp_path: Path, empty_store: FeatureStore) -> FeatureStore:
    rows = pa.table(
        {"origin": [HOSTILE, "LGA"], "t": [DAY] * 2, "temp": [0.5, 1.5], "word": [HOSTILE] * 2}
    )
    empty_store.create_featuregroup(
        rows,
        "weather",
        primary_key="origin",
        event_time="t",
        description=HOSTILE,
        tags={"team": HOSTILE},
    )
    empty_store.create_training_dataset(
        empty_store.get_featuregroup("weather"),
        "days",
        data_format="parquet",
        description=HOSTILE,
        label="temp",
    )
    (tmp_path / "hot_jobs.py").write_text(JOBS)
    empty_store.register_jobs(tmp_path / "hot_jobs.py")
    empty_store.run_job("warm", window=DAY)
    return empty_store


def shown(store: FeatureStore) -> dict[str, Any]:
    """Return every object that a user may leave on the last line of a cell."""
    group, dataset = store.featuregroup("weather"), store.get_training_dataset("days")
    return {
        "frame": store.get_featuregroup("weather"),
        "group": group,
        "groups": store.get_featuregroups(),
        "commit": store.get_featuregroup_history("weather")[0],
        "history": group.history(),
        "statistics": group.statistics(),
        "drift": featurestore.compare_statistics(group.statistics(), dataset.statistics("train")),
        "dataset": dataset,
        "datasets": store.get_training_datasets(),
        "report": store.validate_featuregroup("weather"),
        "reports": store.get_validation_history("weather"),
        "plan": store.explain_features(["weather.temp"]),
        "job plan": store.plan_job("warm"),
        "jobs": store.get_jobs(),
        "job": store.get_jobs()[0],
        "run": store.get_runs("warm")[0],
        "runs": store.get_runs("warm"),
    }


def test_repr_html_of_handles_escapes_texts(hostile_store: FeatureStore) -> None:
    for name, handle in shown(hostile_store).items():
        page = Page(handle._repr_html_())
        assert page.tags <= TAGS, name
        assert page.tags & {"table", "pre"}, name
        assert page.attributes <= {"style"}, name
        assert "\x1b" not in page.text, name


def test_repr_html_contains_expected_texts(hostile_store: FeatureStore) -> None:
    actual = {
        name: Page(handle._repr_html_()).text for name, handle in shown(hostile_store).items()
    }
    texts = {
        "group": ("weather v1", "origin", "team=<script>", "event time", "word"),
        "groups": ("warm", "weather"),
        "statistics": ("2 rows", "all 2 values", "<script>alert"),
        "dataset": ("days v1", "parquet", "label", "weather@v1"),
        "report": ("no_duplicate_keys", "ok"),
        "history": ("create", "delta version"),
        "plan": ("weather", "temp"),
        "jobs": ("warm", "active", "weather=weather"),
        "runs": ("done", "2024-01-02 00:00:00"),
    }

    for name, expected in texts.items():
        for text in expected:
            assert text in actual[name], (name, text)


def test_listing_behaves_like_list(hostile_store: FeatureStore) -> None:
    history = hostile_store.get_featuregroup_history("weather")
    assert isinstance(history, Listing)
    assert history == list(history)
    assert pickle.loads(pickle.dumps(history)) == history
    assert "the first 50 of 60" in Listing(history * 60)._repr_html_()
    assert Listing()._repr_html_() == "<p>no entries</p>"
