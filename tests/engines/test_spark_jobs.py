"""Calls start at most the documented number of Spark jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark.md"
ROW = re.compile(r"^\| `([^`]+)` \| (\d+) \|", re.MULTILINE)


def rows(first: int, last: int) -> pa.Table:
    numbers = np.arange(first, last)
    return pa.table({"id": numbers, "x": numbers / 7, "word": (numbers % 7).astype(str)})


@pytest.fixture
def on_spark(spark: Any, tmp_path: Path) -> Iterator[FeatureStore]:
    # With adaptive plans, the default for users, each shuffle is a job.
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    with featurestore.connect(tmp_path, engine="spark") as store:
        yield store
    spark.conf.set("spark.sql.adaptive.enabled", before)


def calls(store: FeatureStore, spark: Any) -> dict[str, Callable[[], object]]:
    """Return the documented calls in the order of execution."""
    labels = pa.table({"id": np.arange(20)})
    columns = ("id", "id / 7 AS x", "cast(id % 7 AS string) AS word")
    frame, more = spark.range(100).selectExpr(*columns), spark.range(100, 120).selectExpr(*columns)

    def export(name: str, data_format: str, *, statistics: bool) -> object:
        group = store.get_featuregroup("seen")
        return store.create_training_dataset(
            group, name, data_format=data_format, statistics=statistics
        )

    return {
        "create_featuregroup(..., statistics=False)": lambda: store.create_featuregroup(
            rows(0, 100), "plain", primary_key="id", statistics=False
        ),
        "create_featuregroup(...)": lambda: store.create_featuregroup(
            rows(0, 100), "seen", primary_key="id"
        ),
        "insert_into_featuregroup(...)": lambda: store.insert_into_featuregroup(
            rows(100, 110), "seen"
        ),
        'insert_into_featuregroup(..., mode="upsert")': lambda: store.insert_into_featuregroup(
            rows(105, 120), "seen", mode="upsert"
        ),
        "create_featuregroup(spark_dataframe, ...)": lambda: store.create_featuregroup(
            frame, "framed", primary_key="id"
        ),
        "insert_into_featuregroup(spark_dataframe, ...)": lambda: store.insert_into_featuregroup(
            more, "framed"
        ),
        "get_featuregroup(...).to_arrow()": lambda: store.get_featuregroup("seen").to_arrow(),
        "get_features(..., labels=frame).to_arrow()": lambda: store.get_features(
            ["seen.x", "plain.word"], labels=labels
        ).to_arrow(),
        "create_training_dataset(..., statistics=False)": lambda: export(
            "a", "tfrecord", statistics=False
        ),
        "create_training_dataset(...)": lambda: export("b", "tfrecord", statistics=True),
    }


def test_calls_start_at_most_documented_spark_jobs(
    on_spark: FeatureStore, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    documented = {call: int(jobs) for call, jobs in ROW.findall(PAGE.read_text())}
    functions = calls(on_spark, spark)
    assert list(documented) == list(functions)
    more = {}
    for call, run in functions.items():
        before = scheduler.numTotalJobs()
        run()
        jobs = scheduler.numTotalJobs() - before
        assert jobs > 0, call
        if jobs > documented[call]:
            more[call] = jobs
    capsys.readouterr()  # the roles, which an export prints
    assert more == {}
