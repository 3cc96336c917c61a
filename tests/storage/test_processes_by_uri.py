"""Concurrent and killed processes at a URI lose and duplicate nothing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest

from featurestore.recovery.rebuild import rebuild
from tests.storage.programs import append_batches, backfill_tips, export_datasets, running
from tests.storage.stores import StoreLocation, export, labeled, names_below, on_servers
from tests.storage.trip_jobs import RANGE, filled

pytestmark = pytest.mark.slow
KILLS = pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])


@on_servers("s3", "hdfs")
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.soak)])
def test_concurrent_processes_append_each_row_once(
    store_location: StoreLocation, tmp_path: Path, count: int
) -> None:
    store = store_location.connect()
    store.create_featuregroup(pd.DataFrame({"id": [0]}), "g", primary_key="id")
    for cache in ("first", "second"):  # as on two machines
        rebuild(store.location, url=f"sqlite:///{tmp_path / cache}.db")
    with ExitStack() as stack:
        writers = []
        for number in range(count):
            cache = tmp_path / ("first.db" if number % 2 else "second.db")
            writer = running(append_batches, store, cache, store_location, number)
            writers.append(stack.enter_context(writer))
        for writer in writers:
            writer.begin()
        for writer in writers:
            writer.process.join(120)
            assert writer.process.exitcode == 0
    ids = store.get_featuregroup("g").to_pandas()["id"]
    assert ids.is_unique
    assert len(ids) == 1 + count * 4 * 10
    assert store.featuregroup("g").delta_version == 1 + count * 4


@KILLS
@on_servers("s3", "hdfs")
def test_killed_writer_leaves_old_or_new_state(
    store_location: StoreLocation, tmp_path: Path, kills: int
) -> None:
    store = store_location.connect()
    store.create_featuregroup(pd.DataFrame({"id": [0]}), "g", primary_key="id")
    acknowledged = 0
    for number in range(kills):
        with running(
            append_batches, store, tmp_path / "cache.db", store_location, number
        ) as writer:
            acknowledged += writer.killed_after(0.02 + 0.3 * number / kills)
    again = store_location.connect()  # settles what was left
    ids = again.get_featuregroup("g").to_pandas()["id"]
    assert ids.is_unique
    assert (len(ids) - 1) % 10 == 0
    commits = (len(ids) - 1) // 10
    assert acknowledged <= commits <= acknowledged + kills
    assert names_below(f"{store.location}/_staging") == []
    again.insert_into_featuregroup(pd.DataFrame({"id": [10**6]}), "g")
    assert again.featuregroup("g").statistics().rows == len(ids) + 1


@KILLS
@on_servers("s3", soak=["hdfs"])
def test_killed_export_leaves_complete_dataset_or_nothing(
    store_location: StoreLocation, tmp_path: Path, kills: int
) -> None:
    store = store_location.connect()
    store.create_featuregroup(labeled(600), "weather", primary_key="id")
    acknowledged = 0
    for number in range(kills):
        with running(export_datasets, store, tmp_path / "cache.db", store_location) as exporter:
            acknowledged += exporter.killed_after(0.15 + 0.6 * number / kills)
    again = store_location.connect()  # settles what was left
    actual = again.get_training_datasets()
    assert acknowledged <= len(actual) <= acknowledged + kills
    for dataset in actual:
        assert dataset.verify().ok
    below = names_below(f"{store.location}/trainingdatasets/d")
    shards = [name for name in below if "/" in name]
    assert {name.partition("/")[0] for name in shards} == {
        f"v{dataset.version}" for dataset in actual
    }
    numbers = [dataset.version for dataset in actual]
    assert export(again).version not in numbers


@KILLS
@on_servers("s3", soak=["hdfs"])
def test_killed_backfill_computes_each_window_once(
    store_location: StoreLocation, tmp_path: Path, kills: int
) -> None:
    pytest.importorskip("cronsim")
    store = filled(store_location.connect(), tmp_path / "jobs")
    for number in range(kills):
        with running(backfill_tips, store, tmp_path / "cache.db", store_location) as backfill:
            backfill.killed_after(0.1 + 0.8 * number / kills)
    again = store_location.connect()
    again.backfill_job("tips", *RANGE)
    rows = again.get_featuregroup("tips").to_pandas()
    assert not rows.duplicated(["zone", "hour"]).any()
    assert len(rows) == 8 * 3
