"""On Spark the rows of a write stay with the executors.

This process sees states and counts alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import featurestore

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 50_000


def test_no_rows_of_a_spark_dataframe_come_into_this_process(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.classic.dataframe import DataFrame

    seen: list[int] = []
    collect = DataFrame.collect

    def counted(frame: Any) -> Any:
        rows = collect(frame)
        seen.append(len(rows))
        return rows

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows were fetched")

    store = featurestore.connect(tmp_path / "store", engine="spark")
    frame = spark.range(ROWS).selectExpr(
        "id", "timestamp_micros(1700000000000000 + id) AS t", "rand(1) AS x"
    )
    with monkeypatch.context() as patched:
        patched.setattr(DataFrame, "collect", counted)
        for name in ("toPandas", "toArrow", "toLocalIterator", "take", "head"):
            patched.setattr(DataFrame, name, refused)
        group = store.create_featuregroup(frame, "g", primary_key="id", event_time="t")
        group.insert(frame.where("id < 1000"), mode="upsert")
        group.insert(store.get_featuregroup("g").filter("x < 0.5"), mode="overwrite")
    assert 0 < sum(seen) < 100
    assert 0 < store.get_featuregroup("g").count() < ROWS
