"""Concurrent and killed processes at a URI lose and duplicate nothing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest

from featurestore.recovery.rebuild import rebuild
from tests.storage.jobs_at_a_uri import RANGE, filled
from tests.storage.programs import BACKFILL, EXPORT, WRITER, begin, killed_after, running
from tests.storage.stores import StoreLocation, export, hdfs_in_soak, labeled, names_below

pytestmark = pytest.mark.slow
KILLS = pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])


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
            writer = running(WRITER, store, cache, store_location, str(number))
            writers.append(stack.enter_context(writer))
        for process in writers:
            begin(process)
        for process in writers:
            process.communicate(timeout=120)
            assert process.returncode == 0
    ids = store.get_featuregroup("g").to_pandas()["id"]
    assert ids.is_unique
    assert len(ids) == 1 + count * 4 * 10
    assert store.featuregroup("g").delta_version == 1 + count * 4


@KILLS
def test_killed_writer_leaves_old_or_new_state(
    store_location: StoreLocation, tmp_path: Path, kills: int
) -> None:
    store = store_location.connect()
    store.create_featuregroup(pd.DataFrame({"id": [0]}), "g", primary_key="id")
    acknowledged = 0
    for number in range(kills):
        with running(WRITER, store, tmp_path / "cache.db", store_location, str(number)) as writer:
            output = killed_after(writer, 0.02 + 0.3 * number / kills)
            acknowledged += len(output.split())
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
@hdfs_in_soak
def test_killed_export_leaves_complete_dataset_or_nothing(
    store_location: StoreLocation, tmp_path: Path, kills: int
) -> None:
    store = store_location.connect()
    store.create_featuregroup(labeled(600), "weather", primary_key="id")
    acknowledged = 0
    for number in range(kills):
        with running(EXPORT, store, tmp_path / "cache.db", store_location) as process:
            output = killed_after(process, 0.15 + 0.6 * number / kills)
            acknowledged += output.count("done")
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
@hdfs_in_soak
def test_killed_backfill_computes_each_window_once(
    store_location: StoreLocation, tmp_path: Path, kills: int
) -> None:
    pytest.importorskip("croniter")
    store = filled(store_location.connect(), tmp_path / "jobs")
    for number in range(kills):
        with running(BACKFILL, store, tmp_path / "cache.db", store_location) as process:
            killed_after(process, 0.1 + 0.8 * number / kills)
    again = store_location.connect()
    again.backfill_job("tips", *RANGE)
    rows = again.get_featuregroup("tips").to_pandas()
    assert not rows.duplicated(["zone", "hour"]).any()
    assert len(rows) == 8 * 3
