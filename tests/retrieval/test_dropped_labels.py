"""Labels dropped by inner joins are counted and reported.

In frames, plans, exports and on the command line.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from tests.on_spark import spark_in_soak

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

T0 = datetime(2024, 1, 1, tzinfo=UTC)
MESSAGE = "2 label rows without a row in every group dropped (join='inner')"


def hours(*counts: float) -> pa.Array:
    return pa.array([T0 + timedelta(hours=count) for count in counts], pa.timestamp("us", tz="UTC"))


def labels() -> pa.Table:
    return pa.table({"k": [1, 2, 3, 1, 1], "at": hours(1, 1, 1, -1, 2), "y": [0, 1, 2, 3, 4]})


def fill(store: FeatureStore) -> FeatureStore:
    rows = pa.table({"k": [1, 2], "seen": hours(0, 0), "x": [1.0, 2.0]})
    lean: dict[str, Any] = {"primary_key": ["k"], "validation": "off", "statistics": False}
    store.create_featuregroup(rows, "w", event_time="seen", **lean)
    store.create_featuregroup(pa.table({"k": [1, 3], "z": [7, 8]}), "facts", **lean)
    return store


@spark_in_soak
def test_inner_join_reports_dropped_labels(
    store: FeatureStore, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    fill(store)
    frame = store.get_features("w.x", labels=labels(), join="inner")
    assert caplog.messages == []  # nothing has been read yet
    with caplog.at_level(logging.WARNING, logger="featurestore.retrieval"):
        assert frame.to_arrow()["y"].to_pylist() == [0, 1, 4]
    assert caplog.messages == [MESSAGE]
    assert (frame.drops, frame.dropped(), frame.dropped(3)) == (True, 2, 2)
    assert frame.filter("y > 0").dropped() == 2  # filtered labels are not counted
    phases: list[str] = []
    dataset = store.create_training_dataset(
        frame,
        "kept",
        data_format="parquet",
        statistics=False,
        progress=lambda phase, rows, total: phases.append(phase),
    )
    assert dataset.manifest.dropped_rows == 2
    assert "compute rows, 2 label rows dropped by join='inner'" in phases


def test_filtered_rows_are_not_reported_as_dropped(
    empty_store: FeatureStore,
) -> None:
    frame = fill(empty_store).get_features("w.x", labels=labels(), join="inner")
    filtered = empty_store.create_training_dataset(
        frame.filter("y > 0"), "filtered", data_format="parquet"
    )
    assert (filtered.num_rows("train"), filtered.manifest.dropped_rows) == (2, 2)


def test_left_join_reports_no_dropped_labels(
    empty_store: FeatureStore, caplog: pytest.LogCaptureFixture
) -> None:
    frame = fill(empty_store).get_features(["w.x", "facts.z"], labels=labels())
    assert frame.to_arrow().num_rows == 5
    assert (frame.drops, frame.dropped(), caplog.messages) == (False, None, [])
    dataset = empty_store.create_training_dataset(frame, "all", data_format="parquet")
    assert dataset.manifest.dropped_rows is None


def test_inner_joins_of_chained_retrievals_are_counted_together(
    empty_store: FeatureStore, caplog: pytest.LogCaptureFixture
) -> None:
    first = fill(empty_store).get_features("w.x", labels=labels(), join="inner")
    both = empty_store.get_features("facts.z", labels=first, join="inner")
    assert both.to_arrow()["y"].to_pylist() == [0, 4]
    assert caplog.messages == [MESSAGE.replace("2", "3")]
    assert both.dropped() == 3
    assert empty_store.get_features("facts.z", labels=first).dropped() == 2
    assert (
        empty_store.get_features("facts.z", labels=first.filter("y < 4"), join="inner").dropped()
        == 2 + 1
    )


def test_groups_and_relations_as_labels_are_counted_too(empty_store: FeatureStore) -> None:
    import duckdb

    fill(empty_store).create_featuregroup(labels(), "questions", primary_key=["y"], event_time="at")
    assert empty_store.get_features("w.x", labels="questions", join="inner").dropped() == 2
    table = labels()
    frame = empty_store.get_features("w.x", labels=duckdb.from_arrow(table), join="inner")
    assert (frame.dropped(), len(frame.to_arrow())) == (2, 3)
    assert (
        empty_store.get_features(["w.x", "facts.z"], join="inner", include_keys=True).dropped() == 1
    )


def test_streams_report_dropped_labels_at_end(
    empty_store: FeatureStore, caplog: pytest.LogCaptureFixture
) -> None:
    frame = fill(empty_store).get_features("w.x", labels=labels(), join="inner")
    batches = frame.to_batches(rows=1)
    next(batches)
    assert caplog.messages == []
    assert len(list(batches)) == 2
    assert pa.table(frame).num_rows == 3
    assert caplog.messages == [MESSAGE, MESSAGE]
    caplog.clear()
    frame.filter("y > 0").to_arrow()
    assert caplog.messages == [
        "join='inner' and filters dropped label rows; frame.dropped() counts the rows that the join dropped"
    ]


def test_plan_text_mentions_dropped_labels(empty_store: FeatureStore) -> None:
    text = str(fill(empty_store).explain_features("w.x", labels=labels(), join="inner"))
    assert "rows       at most 5 expected (join=inner)" in text
    assert "label rows without a row in every group are dropped (join='inner')" in text
    assert "frame.dropped()" in text


def test_cli_features_get_reports_dropped_labels(empty_store: FeatureStore, tmp_path: Path) -> None:
    from featurestore.cli import app

    fill(empty_store)
    parquet.write_table(labels(), tmp_path / "labels.parquet")
    words = [
        "--location",
        empty_store.location,
        "features",
        "get",
        "w.x",
        "--labels",
        str(tmp_path / "labels.parquet"),
    ]
    words += ["--inner", "--out", str(tmp_path / "rows.parquet"), "--output", "json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["rows"], document["dropped"]) == (3, 2)
