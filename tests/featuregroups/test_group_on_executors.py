"""Rows written from Spark stay on the executors.

This process sees states and counts alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import featurestore
from featurestore_connectors.spark_delta import staged, streams
from tests.on_spark import counted_fetches

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 5_000


def test_spark_dataframe_insert_stays_on_executors(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("_MAX_SORTED_BYTES", "_MAX_GROUPED_BYTES"):
        monkeypatch.setattr(staged, bound, 0)
    store = featurestore.connect(tmp_path / "store", engine="spark")
    monkeypatch.setattr(streams, "is_local", lambda session: False)  # else it reads small files
    frame = spark.range(ROWS).selectExpr(
        "id", "timestamp_micros(1700000000000000 + id) AS t", "rand(1) AS x"
    )
    with counted_fetches(monkeypatch) as fetched:
        group = store.create_featuregroup(frame, "g", primary_key="id", event_time="t")
        group.insert(frame.where("id < 1000"), mode="upsert")
        group.insert(store.get_featuregroup("g").filter("x < 0.5"), mode="overwrite")
    assert 0 < sum(fetched) < 100
    assert 0 < store.get_featuregroup("g").count() < ROWS
