"""Statistics computed during staging equal those of a later pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import ValidationFailed
from featurestore.plugins.engine import Accumulator
from featurestore.statistics import StatisticsState
from featurestore.statistics.accumulator import StatisticsAccumulator
from featurestore.store import FeatureStore
from featurestore_connectors.duckdb_delta import engine as duckdb_engine
from featurestore_connectors.duckdb_delta import streams
from tests.statistics.test_statistics_merge import assert_same


def rows(first: int, count: int) -> pa.Table:
    random = np.random.default_rng(first)
    words = pa.array([f"w{number}" for number in random.integers(0, 50, count)])
    numbers = pa.array(random.normal(size=count), mask=random.random(count) < 0.1)
    exact = random.integers(0, 9, count)
    return pa.table(
        {"id": np.arange(first, first + count), "x": numbers, "y": exact, "word": words}
    )


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_engine, "usable_cores", lambda: 2)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row counts of each statistics pass over staged rows."""
    row_counts = []
    aggregate = streams.aggregate

    def count_rows(
        database: Any, relation: Any, accumulator: Accumulator[Any, Any], **more: Any
    ) -> Any:
        result = aggregate(database, relation, accumulator, **more)
        if isinstance(result, StatisticsState):
            row_counts.append(result.rows)
        return result

    monkeypatch.setattr(streams, "aggregate", count_rows)
    return row_counts


def test_statistics_of_write_need_no_extra_pass(
    empty_store: FeatureStore, passes: list[int]
) -> None:
    empty_store.create_featuregroup(rows(0, 150_000), "g", primary_key="id")
    empty_store.insert_into_featuregroup(rows(150_000, 90_000), "g")
    assert passes == []
    group = empty_store.featuregroup("g")
    statistics = group.statistics()
    again = empty_store.update_featuregroup_statistics("g")
    assert passes == [240_000]
    assert_same(statistics, again)
    empty_store.insert_into_featuregroup(rows(0, 10), "g", mode="upsert")
    empty_store.insert_into_featuregroup(rows(300_000, 10), "g")  # nothing to merge it with
    assert passes == [240_000]


def test_statistics_of_write_exclude_quarantined_rows(
    empty_store: FeatureStore, passes: list[int]
) -> None:
    bad = pa.concat_tables([rows(0, 100), rows(0, 100).slice(0, 5)])
    with pytest.raises(ValidationFailed):
        empty_store.create_featuregroup(bad, "refused", primary_key="id")
    group = empty_store.create_featuregroup(bad, "aside", primary_key="id", validation="quarantine")
    count = empty_store.get_featuregroup("aside").count()
    assert group.statistics().rows == count < 105
    assert passes == [count]


def test_failing_stream_leaves_no_thread(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 100_000).to_batches()
        raise OSError("the source went away")

    with featurestore.connect(tmp_path, engine="duckdb") as store:
        store.create_featuregroup(rows(0, 10), "warm", primary_key="id")
        reader = pa.RecordBatchReader.from_batches(rows(0, 1).schema, batches())
        with pytest.raises(OSError, match="the source went away"):
            store.create_featuregroup(reader, "g", primary_key="id")
    assert not [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("featurestore-aggregate")
    ]


def test_failed_statistics_are_retried_after_commit(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, passes: list[int]
) -> None:
    update, failed = StatisticsAccumulator.update, []

    def failing_once(*args: Any) -> StatisticsState:
        if not failed:
            failed.append(True)
            raise MemoryError("no memory just now")
        return update(*args)

    monkeypatch.setattr(StatisticsAccumulator, "update", failing_once)
    empty_store.create_featuregroup(rows(0, 1_000), "g", primary_key="id")
    assert passes == [1_000]
    assert empty_store.featuregroup("g").statistics().rows == 1_000
