"""Statistics of feature groups.

Counted at write, merged by appends, stale after upserts, the same on both engines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest

import featurestore
from featurestore.featuregroups import quality
from featurestore.plugins.engine import find_engine
from featurestore.statistics import StatisticsAccumulator, finish, statistics_accumulator
from featurestore_connectors.spark_delta import streams
from tests.on_spark import on_executors
from tests.statistics.example_tables import statistics_of, varied_table
from tests.statistics.test_statistics_merge import assert_same

if TYPE_CHECKING:
    from pathlib import Path

    from featurestore.store import FeatureStore


def people(start: int, stop: int) -> pd.DataFrame:
    ids = range(start, stop)
    return pd.DataFrame(
        {"id": ids, "age": [row_id % 90 for row_id in ids], "score": [row_id / 7 for row_id in ids]}
    )


def state_files(store: FeatureStore) -> list[str]:
    folder = os.path.join(store.location, "featuregroups", "people", "v1_statistics")
    return sorted(name for name in os.listdir(folder) if name.endswith(".state"))


@pytest.mark.spark
def test_group_statistics_equal_on_both_engines(spark: object, tmp_path: Path) -> None:
    table = varied_table(3_000, seed=8)
    expected = statistics_of(table)
    for name in ("duckdb", "spark"):
        engine = find_engine(name)
        relation = engine.stage(
            engine.from_arrow(table.to_reader(max_chunksize=500)), str(tmp_path / name)
        )
        if name == "spark":
            relation = on_executors(relation)
            spark.sparkContext.setJobGroup("statistics", "counting")  # type: ignore[attr-defined]
        assert_same(
            finish(engine.aggregate(relation, statistics_accumulator(table.schema))), expected
        )
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup("statistics")  # type: ignore[attr-defined]
    assert len(jobs) == 1, "statistics are one job"


@pytest.mark.spark
def test_group_statistics_on_spark_run_in_one_job(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = featurestore.connect(tmp_path / "store", engine="spark")
    context = spark.sparkContext  # type: ignore[attr-defined]
    store_statistics, job_groups = quality.store_commit_statistics, []

    def watch(*arguments: object, **kwargs: object) -> None:
        job_groups.append(f"statistics of write {len(job_groups)}")
        context.setJobGroup(job_groups[-1], "counting")
        with monkeypatch.context() as patch:
            # Executors are other processes, in which the patched function is intact.
            patch.setattr(StatisticsAccumulator, "update", None)
            patch.setattr(streams, "_TASK_BYTES", 1_000)  # else so few rows are counted here
            store_statistics(*arguments, **kwargs)  # type: ignore[arg-type]
        context.setJobGroup("other", "other")

    monkeypatch.setattr(quality, "store_commit_statistics", watch)
    rows = spark.createDataFrame(people(0, 130))  # type: ignore[attr-defined]
    store.create_featuregroup(rows.filter("id < 100"), "people", primary_key=["id"])
    store.insert_into_featuregroup(rows.filter("id >= 100"), "people")
    jobs = [len(context.statusTracker().getJobIdsForGroup(group)) for group in job_groups]
    assert jobs == [1, 1]
    assert store.get_featuregroup_statistics("people").rows == 130


def test_group_statistics_are_computed_on_write(empty_store: FeatureStore) -> None:
    store = empty_store
    group = store.create_featuregroup(people(0, 100), "people", primary_key=["id"])
    statistics = store.get_featuregroup_statistics("people")
    assert (statistics.rows, statistics.column("age").maximum) == (100, 89)
    assert statistics.source == {"featuregroup": "people", "version": 1, "delta_version": 1}
    assert statistics.column("id").role == "key"
    assert group.statistics() == statistics


def test_group_statistics_disabled_are_computed_on_request(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(people(0, 10), "people", statistics=False)
    assert not os.path.exists(
        os.path.join(empty_store.location, "featuregroups", "people", "v1_statistics")
    )
    assert empty_store.get_featuregroup_statistics("people").rows == 10


def test_group_statistics_of_append_are_merged_on_request(empty_store: FeatureStore) -> None:
    store = empty_store
    store.create_featuregroup(people(0, 100), "people")
    store.insert_into_featuregroup(people(100, 110), "people")
    store.insert_into_featuregroup(people(110, 120), "people")
    assert state_files(store) == ["1.state", "2.since.1.state", "3.since.2.state"]
    assert_same(
        store.get_featuregroup_statistics("people"),
        statistics_of(pa.Table.from_pandas(people(0, 120))),
    )
    assert state_files(store) == ["3.state"]
    assert store.get_featuregroup_statistics("people", delta_version=1).rows == 100
    assert store.get_featuregroup_statistics("people", delta_version=2).rows == 110


def test_group_statistics_restart_after_overwrite(empty_store: FeatureStore) -> None:
    store = empty_store
    store.create_featuregroup(people(0, 100), "people")
    store.insert_into_featuregroup(people(0, 7), "people", mode="overwrite")
    assert store.get_featuregroup_statistics("people").rows == 7
    assert state_files(store) == ["2.state"]


def test_group_statistics_are_stale_after_upsert_or_delete(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(people(0, 100), "people", primary_key=["id"])
    empty_store.insert_into_featuregroup(people(0, 1).assign(age=500), "people", mode="upsert")
    assert state_files(empty_store) == ["1.state"]
    assert empty_store.get_featuregroup_statistics("people").column("age").maximum == 500
    empty_store.delete_from_featuregroup("people", "age = 500")
    statistics = empty_store.get_featuregroup_statistics("people")
    assert (statistics.rows, statistics.column("age").maximum) == (99, 89)


def test_update_featuregroup_statistics_recomputes(flights_copy: FeatureStore) -> None:
    before = flights_copy.get_featuregroup_statistics("weather")
    assert flights_copy.update_featuregroup_statistics("weather") == before


def test_group_statistics_recount_all_rows_after_new_column(empty_store: FeatureStore) -> None:
    store = empty_store
    store.create_featuregroup(people(0, 50), "people")
    store.insert_into_featuregroup(people(50, 60).assign(height=1.8), "people", schema_change="add")
    statistics = store.get_featuregroup_statistics("people")
    assert (
        statistics.rows,
        statistics.column("height").nulls,
        statistics.column("height").count,
    ) == (60, 50, 10)


def test_group_statistics_unchanged_by_compaction(empty_store: FeatureStore) -> None:
    store = empty_store
    store.create_featuregroup(people(0, 50), "people")
    store.insert_into_featuregroup(people(50, 60), "people")
    before = store.get_featuregroup_statistics("people")
    store.compact_featuregroup("people")
    after = store.get_featuregroup_statistics("people")
    assert (after.rows, after.columns) == (60, before.columns)


def test_group_statistics_lost_files_are_recomputed(empty_store: FeatureStore) -> None:
    store = empty_store
    store.create_featuregroup(people(0, 100), "people")
    store.insert_into_featuregroup(people(100, 110), "people")
    folder = os.path.join(store.location, "featuregroups", "people", "v1_statistics")
    os.remove(os.path.join(folder, "1.state"))
    assert store.get_featuregroup_statistics("people").rows == 110


def test_group_statistics_long_append_chain_is_merged(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featurestore.statistics.storage._MAX_CHAIN", 3)
    store = empty_store
    store.create_featuregroup(people(0, 10), "people")
    for start in range(10, 18):
        store.insert_into_featuregroup(people(start, start + 1), "people")
    assert len(state_files(store)) <= 4
    assert store.get_featuregroup_statistics("people").rows == 18


def test_group_statistics_state_contains_sample_for_clusters(flights_store: FeatureStore) -> None:
    state = quality.load_statistics_state(flights_store.session, "weather")
    assert state.sample.rows().num_rows == 72


def test_training_dataset_statistics_cover_every_split(flights_store: FeatureStore) -> None:
    dataset = flights_store.get_training_dataset("late_flights")
    train, test = dataset.statistics("train"), dataset.statistics("test")
    assert train.rows + test.rows == 40
    assert train.source["split"] == "train"
    assert not featurestore.compare_statistics(train, test).removed
