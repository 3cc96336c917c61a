"""Aggregates over windows on Spark equal the embedded engine bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.testing.retrieval_conformance import RetrievalCheck
from featurestore.testing.window_conformance import WindowConformance
from tests.on_spark import OnSpark, counted_fetches

pytestmark = [pytest.mark.spark]
ROWS = 2_000


class TestSpark(OnSpark, WindowConformance):
    """The conformance suite of aggregates on Spark."""

    @pytest.mark.parametrize(
        ("keys", "created"),
        [
            # Windows beside features have groups without a created time, too.
            pytest.param(("k", "m"), False, marks=pytest.mark.soak, id="known at once"),
            pytest.param(("k", "g", "m"), True, id="known later"),
        ],
    )
    def test_aggregates_equal_the_row_by_row_result(
        self, retrieval: RetrievalCheck, keys: tuple[str, ...], created: bool
    ) -> None:
        super().test_aggregates_equal_the_row_by_row_result(retrieval, keys, created)


def test_spark_windows_do_not_collect_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = featurestore.connect(tmp_path / "store", engine="spark")
    time_sql = "timestamp_micros(1700000000000000 + id * 1000000) AS t"
    rows = spark.range(ROWS).selectExpr("id % 5 AS key", "id AS number", time_sql, "id * 0.1D AS x")
    labels = spark.range(ROWS).selectExpr("id % 6 AS key", time_sql)
    store.create_featuregroup(rows, "w", primary_key=["key", "number"], event_time="t")
    with counted_fetches(monkeypatch) as fetched:
        aggregates = featurestore.windows(
            "w.x", ["sum", "max", "count_distinct"], over=["50s", None]
        )
        frame = store.get_features(aggregates, labels=labels, label_time="t").native()
        frame.write.parquet(str(tmp_path / "found"))
    assert sum(fetched) < 100
    result = spark.read.parquet(str(tmp_path / "found"))
    assert result.count() == ROWS
    assert result.where("x_count_distinct_50s IS NOT NULL AND x_sum_50s IS NULL").count() > 0
