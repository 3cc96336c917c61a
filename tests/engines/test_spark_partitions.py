"""The number of shuffle tasks follows the number of rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featurestore.testing.retrieval_conformance import RetrievalCheck, hours_after_t0
from featurestore_connectors.duckdb_delta import DuckDBEngine
from featurestore_connectors.spark_delta import SparkEngine, shards


@pytest.mark.parametrize(
    ("task_bytes", "shuffle"),
    [
        (1 << 30, "REPARTITION_BY_COL"),
        (1_000, r"hashpartitioning\(part#\d+, 20\), REPARTITION_BY_NUM"),
    ],
)
def test_join_task_count_grows_with_rows(
    task_bytes: int, shuffle: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_TASK_BYTES", task_bytes)
    writer = DuckDBEngine()
    retrieval = RetrievalCheck(SparkEngine(spark), tmp_path, writer)
    hours = np.random.default_rng(0).permutation(600)
    rows = {
        "k": (hours % 11).tolist(),
        "t": list(map(hours_after_t0, hours.tolist())),
        "x": hours.tolist(),
    }
    retrieval.group("w", rows, unique=True, primary_key=("k",), event_time="t")
    request = {"k": [1, 2, 3, 99, 10] * 70, "asked_at": list(map(hours_after_t0, range(350)))}
    retrieval.group("asked", request, primary_key=("k",), event_time="asked_at")
    retrieval.check(["w.x"], "asked")
    plan = retrieval.plan(["w.x"], "asked")
    assert re.search(shuffle, retrieval.engine.explain(retrieval.engine.retrieve(plan)))
    writer.close()
