"""Query plans of retrievals.

Which columns are read, how often rows are sorted, and what happens when memory is short.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore.arrow.types import TIMESTAMP
from featurestore.model.plan import ROW
from featurestore.plugins.engine import Engine
from featurestore.testing.oracle import bits
from featurestore.testing.retrieval_conformance import RetrievalCheck, hours_after_t0, make_labels
from featurestore_connectors.duckdb_delta import DuckDBEngine

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

pytestmark = pytest.mark.slow

RANGE_JOINS = (
    "NestedLoopJoin",
    "CartesianProduct",
    "SortMergeJoin",
    "BroadcastHashJoin",
    "ShuffledHashJoin",
)


@pytest.fixture
def spark_retrieval(spark_engine: Engine, engine: Engine, tmp_path: Path) -> RetrievalCheck:
    return RetrievalCheck(spark_engine, tmp_path, engine)


def physical_plan(retrieval: RetrievalCheck, features: list[str], labels: pa.Table) -> str:
    plan = retrieval.plan(features, labels)
    numbered = labels.append_column(ROW, pa.array(np.arange(labels.num_rows), pa.int64()))
    relation = retrieval.engine.from_arrow(numbered.to_reader())
    return retrieval.engine.explain(retrieval.engine.retrieve(plan, labels=relation))


def count(plan: str, operator: str) -> int:
    """Count an operator in Spark's formatted plan."""
    return len(re.findall(rf"\b{operator} \(\d+\)", plan.split("\n\n\n")[0]))


def test_duckdb_aggregates_only_for_created_time_or_ties(engine: Engine, tmp_path: Path) -> None:
    retrieval = RetrievalCheck(engine, tmp_path, engine)
    rows = {
        "k": [1, 2],
        "t": [hours_after_t0(0), hours_after_t0(1)],
        "c": [hours_after_t0(0), hours_after_t0(2)],
        "x": [1.0, 2.0],
    }
    roles: dict[str, Any] = {"primary_key": ("k",), "event_time": "t"}
    retrieval.group("plain", rows, unique=True, **roles)
    retrieval.group("tied", rows, **roles)
    retrieval.group("late", rows, unique=True, created_time="c", **roles)
    labels = make_labels(k=[1], at=[hours_after_t0(3)])
    plans = {
        name: physical_plan(retrieval, [f"{name}.x"], labels).lower()
        for name, _ in retrieval.sources
    }
    assert {name: "asof join" in plan for name, plan in plans.items()} == {
        "plain": True,
        "tied": True,
        "late": False,
    }
    assert {name: "window" in plan for name, plan in plans.items()} == {
        "plain": False,
        "tied": True,
        "late": True,
    }


def test_spark_shuffles_once_per_key(
    spark_retrieval: RetrievalCheck,
) -> None:
    for name in ("a", "b"):
        rows = {
            "k": [1, 2],
            "t": [hours_after_t0(0), hours_after_t0(1)],
            "c": [hours_after_t0(0), hours_after_t0(2)],
            f"{name}x": [1.0, 2.0],
        }
        spark_retrieval.group(
            name, rows, primary_key=("k",), event_time="t", created_time="c", unique=True
        )
    spark_retrieval.group(
        "d",
        {"place": ["p"], "t": [hours_after_t0(0)], "y": [1.0]},
        primary_key=("place",),
        event_time="t",
        unique=True,
    )
    labels = make_labels(k=[1, 2], place=["p", "q"], at=[hours_after_t0(1), hours_after_t0(3)])
    both = physical_plan(spark_retrieval, ["a.ax", "b.bx"], labels)
    assert (count(both, "Window"), count(both, "Union"), plan_shuffles(both)) == (1, 1, 1)
    three_groups = physical_plan(spark_retrieval, ["a.ax", "b.bx", "d.y"], labels)
    assert (
        count(three_groups, "Window"),
        count(three_groups, "Union"),
        plan_shuffles(three_groups),
    ) == (2, 2, 2)
    for plan in (both, three_groups):
        assert not any(join in plan for join in RANGE_JOINS)


def plan_shuffles(plan: str) -> int:
    """Count the shuffles by key; labels in memory need one more for their order."""
    return len(re.findall(r"Arguments: hashpartitioning\(", plan))


def test_spark_sorts_by_one_integer_first(
    spark_retrieval: RetrievalCheck,
) -> None:
    rows = {"k": ["a", "b"], "t": [hours_after_t0(0), hours_after_t0(1)], "x": [1.0, 2.0]}
    spark_retrieval.group("w", rows, primary_key=("k",), event_time="t", unique=True)
    plan = physical_plan(spark_retrieval, ["w.x"], make_labels(k=["a"], at=[hours_after_t0(3)]))
    below = re.search(r"\) Sort\nInput [^\n]*\nArguments: \[([^\]]*)\]", plan)
    assert below is not None
    assert below[1].count("ASC") == 1
    assert "unix_seconds" in below[1]


def test_spark_joins_times_of_any_century(spark_retrieval: RetrievalCheck) -> None:
    """Seconds that exceed the integer sort prefix do not change the result."""
    years = [1800, 1901, 1969, 1970, 2024, 2106, 2107, 2300]
    times = [datetime(year, 6, 1, tzinfo=UTC) for year in years]
    rows = {"k": [1] * len(years), "t": times, "year": years}
    spark_retrieval.group("w", rows, primary_key=("k",), event_time="t", unique=True)
    request = [time + timedelta(days=delta) for time in times for delta in (-1, 0, 1)]
    actual = spark_retrieval.check(["w.year"], make_labels(k=[1] * len(request), at=request))
    assert [row["year"] for row in actual][:4] == [None, 1800, 1800, 1800]


@pytest.mark.parametrize(
    "engine_kind",
    ["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])],
)
def test_hot_keys_give_equal_results(
    engine_kind: str, engine: Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One key has nine tenths of the rows and labels; some rows tie, some are corrected."""
    retrieval = (
        request.getfixturevalue("spark_retrieval")
        if engine_kind == "spark"
        else RetrievalCheck(engine, tmp_path, engine)
    )
    random = np.random.default_rng(11)
    row_count, label_count = 3_000, 200

    def keys(size: int) -> list[int]:
        return np.where(random.random(size) < 0.9, 0, random.zipf(1.3, size) % 50).tolist()

    hours = random.integers(0, 2_000, row_count)
    columns = {
        "k": keys(row_count),
        "t": [hours_after_t0(int(hour)) for hour in hours],
        "c": [
            hours_after_t0(int(hour + late))
            for hour, late in zip(hours, random.integers(0, 30, row_count), strict=True)
        ],
        "x": random.random(row_count).tolist(),
    }
    retrieval.group(
        "w", columns, primary_key=("k",), event_time="t", created_time="c", ttl=timedelta(hours=20)
    )
    labels = make_labels(
        k=keys(label_count),
        at=[hours_after_t0(int(hour)) for hour in random.integers(0, 2_100, label_count)],
    )
    result = retrieval.check(["w.x"], labels)
    assert sum(row["x"] is not None for row in result) > label_count // 2


def test_only_requested_columns_are_read_on_each_engine(store: FeatureStore) -> None:
    times = pa.array([hours_after_t0(0), hours_after_t0(1)], TIMESTAMP)
    rows = pa.table({"k": [1, 2], "seen": times, "wanted": [1.0, 2.0], "unwanted": [3.0, 4.0]})
    store.create_featuregroup(rows, "w", primary_key=["k"], event_time="seen")
    labels = pa.table({"k": [1], "at": pa.array([hours_after_t0(2)], TIMESTAMP)})
    engine = store.session.engine
    both = engine.explain(store.get_features(["w.wanted", "w.unwanted"], labels=labels).relation)
    assert "unwanted" in both
    single_plan = engine.explain(store.get_features(["w.wanted"], labels=labels).relation)
    assert "wanted" in single_plan
    assert "unwanted" not in single_plan


def test_retrieval_spills_under_memory_limit(tmp_path: Path, engine: Engine) -> None:
    """DuckDB's memory limit is a quarter of the input.

    The same rows come back as with all of it.
    """
    random = np.random.default_rng(2)
    size, wide = 1_500_000, 10
    base = 1_700_000_000_000_000
    columns: dict[str, Any] = {
        "k": random.integers(0, 50_000, size),
        "t": pa.array(base + random.permutation(size) * 1_000_000, TIMESTAMP),
    }
    columns |= {f"f{index}": random.random(size) for index in range(wide)}
    table = pa.table(columns)
    retrieval = RetrievalCheck(engine, tmp_path, engine)
    retrieval.group("w", table, primary_key=("k",), event_time="t", unique=True)
    label_times = pa.array(base + random.integers(0, size, 200_000) * 1_000_000, TIMESTAMP)
    labels = pa.table({"k": random.integers(0, 50_000, 200_000), "at": label_times})
    plan = retrieval.plan(["w.*"], labels)
    expected = retrieval.run(plan, labels)
    spilled = tmp_path / "spilled"
    limit = f"{(table.nbytes + labels.nbytes) // 4 // 2**20}MiB"
    short = DuckDBEngine(memory_limit=limit, threads=1, temp_directory=str(spilled))
    actual = RetrievalCheck(short, tmp_path, engine, retrieval.sources, retrieval.tables).run(
        plan, labels
    )
    short.close()
    assert actual.equals(expected)
    assert bits(actual.slice(0, 5)) == bits(expected.slice(0, 5))
