"""Maintenance of groups: compaction, vacuum and checkpoints keep all rows.

Vacuum removes nothing that a training dataset pins, nor the log that describes it.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    PinnedByTrainingDataset,
    TableDamaged,
    VersionVacuumed,
    WriteConflict,
)
from featurestore.featuregroups import maintenance
from featurestore.recovery import liveness, pins
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import intents, training_datasets
from featurestore.registry.training_datasets import Pin, RegisteredDataset
from tests.on_spark import spark_in_soak

if TYPE_CHECKING:
    from featurestore.store import FeatureStore


def values(store: FeatureStore, as_of: int | None = None) -> list[int]:
    return sorted(store.get_featuregroup("g", as_of=as_of).to_arrow()["n"].to_pylist())


def many_versions(store: FeatureStore) -> None:
    group = store.create_featuregroup(pa.table({"n": [0]}), "g")
    for number in (1, 2, 3):
        group.insert(pa.table({"n": [number]}))
    group.insert(pa.table({"n": [9]}), mode="overwrite")


def pin(store: FeatureStore, delta_version: int) -> None:
    dataset = RegisteredDataset("d", 1, "0" * 64, "tfrecord", 1, pins=(Pin("g", 1, delta_version),))
    with store.session.registry.transaction() as connection:
        training_datasets.add(connection, dataset)


def test_compaction_preserves_rows(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(pa.table({"n": [0]}), "g")
    for number in (1, 2):
        group.insert(pa.table({"n": [number]}))
    commit = empty_store.compact_featuregroup("g")
    assert commit.rows == 3
    assert values(empty_store) == [0, 1, 2]
    assert len(read_snapshot(group.path).files) == 1
    assert empty_store.compact_featuregroup("g").delta_version == group.delta_version


def test_vacuum_keeps_versions_pinned_by_training_dataset(empty_store: FeatureStore) -> None:
    many_versions(empty_store)
    pin(empty_store, 3)
    removed = empty_store.vacuum_featuregroup("g", retain="0s")
    assert len(removed) == 1
    assert values(empty_store, as_of=3) == [0, 1, 2]
    assert values(empty_store) == [9]
    assert empty_store.vacuum_featuregroup("g", retain="0s") == []


def test_vacuum_keeps_recent_versions(empty_store: FeatureStore) -> None:
    many_versions(empty_store)
    assert empty_store.vacuum_featuregroup("g") == []
    assert values(empty_store, as_of=1) == [0]


def test_vacuum_keeps_versions_pinned_by_unregistered_manifest(empty_store: FeatureStore) -> None:
    many_versions(empty_store)
    frame = empty_store.get_featuregroup("g", as_of=2)
    empty_store.create_training_dataset(frame, "d", data_format="parquet")
    with empty_store.session.registry.transaction() as connection:
        training_datasets.remove(connection, "d", 1)
    empty_store.vacuum_featuregroup("g", retain="0s")
    assert values(empty_store, as_of=2) == [0, 1]
    with pytest.raises(PinnedByTrainingDataset, match="'d version 1'"):
        empty_store.delete_featuregroup("g", version=1)


def test_delta_log_is_not_cleaned_by_checkpoints(store: FeatureStore) -> None:
    """Delta writers remove old commits during checkpoints; here all commits exceed the retention."""
    group = store.create_featuregroup(pa.table({"n": [0]}), "g", validation="off", statistics=False)
    assert read_snapshot(group.path).properties["delta.enableExpiredLogCleanup"] == "false"
    for number in range(1, 12):
        for commit in Path(group.path, "_delta_log").glob("*.json"):
            os.utime(commit, (0, 0))
        group.insert(pa.table({"n": [number]}))
    assert list(Path(group.path, "_delta_log").glob("*.checkpoint*.parquet"))
    pin(store, 3)
    store.vacuum_featuregroup("g", retain="0s")
    assert values(store, as_of=3) == [0, 1, 2]
    assert [c.delta_version for c in group.history()] == list(range(12, 0, -1))


def test_delete_pinned_group_requires_force(empty_store: FeatureStore) -> None:
    many_versions(empty_store)
    pin(empty_store, 1)
    with pytest.raises(PinnedByTrainingDataset, match="force=True"):
        empty_store.delete_featuregroup("g", version=1)
    path = empty_store.featuregroup("g").path
    empty_store.delete_featuregroup("g", version=1, force=True)
    assert not os.path.exists(path)


def test_vacuum_keeps_files_of_running_export(empty_store: FeatureStore) -> None:
    many_versions(empty_store)
    frame = empty_store.get_featuregroup("g", as_of=3)
    removed: list[str] = []

    def vacuum(phase: str, count: int, total: int) -> None:
        removed.extend(empty_store.vacuum_featuregroup("g", retain="0s"))

    dataset = empty_store.create_training_dataset(
        frame, "d", data_format="parquet", progress=vacuum
    )
    assert len(removed) == 1  # the file of version 4, which nothing reads
    assert sum(split.rows for split in dataset.manifest.splits) == 3
    assert values(empty_store, as_of=3) == [0, 1, 2]


def test_automatic_compaction_keeps_few_files(empty_store: FeatureStore) -> None:
    store = empty_store
    group = store.create_featuregroup(
        pa.table({"n": [0]}),
        "g",
        primary_key="n",
        validation="off",
        statistics=False,
        compact="auto",
    )
    most = 0
    for number in range(1, 30):
        commit = group.insert(pa.table({"n": [number]}))
        assert commit.rows == number + 1
        state = read_snapshot(group.path)
        most = max(most, len(state.files))
    assert most < 9
    assert state.rows == 30
    assert values(store) == list(range(30))
    assert {c.operation for c in group.history()} == {"create", "append", "compact"}
    assert values(store, as_of=commit.delta_version) == list(range(30))
    with pytest.raises(InvalidArgument, match="compact"):
        store.create_featuregroup(pa.table({"n": [0]}), "h", compact="always")  # type: ignore[arg-type]


def between_pins_and_removal(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], object]
) -> None:
    """Run ``act`` after a call has read the pins and before it removes files."""
    read_pins = getattr(module, name)

    def read_then_act(*arguments: Any) -> Any:
        pins = read_pins(*arguments)
        act()
        return pins

    monkeypatch.setattr(module, name, read_then_act)


class Exporter:
    """An export in another thread, with events for waiting and completion."""

    def __init__(self, store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self._settled = threading.Event()
        self._location = store.location
        self._thread = threading.Thread(target=self._export)
        monkeypatch.setattr(pins, "sleep", self._waits)

    def run_until_it_waits(self) -> None:
        """Start the export; return once it waits for the other call or has finished."""
        self._thread.start()
        assert self._settled.wait(60)

    def end(self) -> None:
        self._thread.join(60)

    def _waits(self, seconds: float) -> None:
        self._settled.set()
        time.sleep(0.001)

    def _export(self) -> None:
        try:
            with featurestore.connect(self._location) as store:
                frame = store.get_featuregroup("g", as_of=2)
                store.create_training_dataset(frame, "d", data_format="parquet")
        except BaseException as error:
            self.error = error
        finally:
            self._settled.set()


def test_export_waits_for_running_vacuum(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_versions(empty_store)
    export = Exporter(empty_store, monkeypatch)
    between_pins_and_removal(monkeypatch, maintenance, "pinned_versions", export.run_until_it_waits)
    assert len(empty_store.vacuum_featuregroup("g", retain="0s")) == 4
    export.end()
    assert isinstance(export.error, VersionVacuumed)
    assert empty_store.get_training_datasets() == []


def test_export_waits_for_running_deletion(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_versions(empty_store)
    export = Exporter(empty_store, monkeypatch)
    between_pins_and_removal(
        monkeypatch, maintenance, "find_pinning_datasets", export.run_until_it_waits
    )
    empty_store.delete_featuregroup("g", version=1)
    export.end()
    assert isinstance(export.error, FeatureStoreError)
    assert empty_store.get_training_datasets() == []


def test_export_does_not_wait_for_vacuum_of_dead_process(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_versions(empty_store)
    host, pid, machine, _ = liveness.owner_of_this_process(empty_store.location).split(".")
    with empty_store.session.registry.transaction() as connection:
        intents.begin(
            connection, run_id="dead", kind="reclaim", name="g", version=1,
            owner=f"{host}.{pid}.{machine}.00000000",
        )  # fmt: skip
    monkeypatch.setattr(pins, "sleep", pytest.fail)
    frame = empty_store.get_featuregroup("g", as_of=2)
    assert empty_store.create_training_dataset(frame, "d", data_format="parquet").version == 1


def test_export_times_out_with_name_of_vacuum(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_versions(empty_store)
    frame = empty_store.get_featuregroup("g", as_of=2)
    seconds = itertools.count(step=60)
    monkeypatch.setattr(pins, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(pins, "sleep", lambda _: None)
    with (
        in_flight(empty_store.session, operation="reclaim", name="g", version=1),
        pytest.raises(WriteConflict, match=r"'g' version 1 .*has been running"),
    ):
        empty_store.create_training_dataset(frame, "d", data_format="parquet")
    assert empty_store.get_training_datasets() == []
    assert values(empty_store, as_of=2) == [0, 1]


@spark_in_soak  # the suite of all engines vacuums on Spark
def test_vacuumed_version_error_lists_readable_versions(store: FeatureStore) -> None:
    many_versions(store)
    pin(store, 3)
    before = store.get_featuregroup("g", as_of=2)
    if store.session.engine.name == "duckdb":
        before.native()  # opened before the vacuum, read after it
    store.delete_from_featuregroup("g", "n = 9")
    store.vacuum_featuregroup("g", retain="0s")
    words = r"can no longer be read: a vacuum .*Readable versions: 0 to 3, 6\.\nHint: as_of="
    with pytest.raises(VersionVacuumed, match=rf"Delta version 5 .*{words}6"):
        store.get_featuregroup("g", as_of=5).to_arrow()
    store.vacuum_featuregroup("g", retain="0s")
    with store.session.registry.transaction() as connection:
        training_datasets.remove(connection, "d", 1)
    store.vacuum_featuregroup("g", retain="0s")
    with pytest.raises(VersionVacuumed, match=r"Readable versions: 0, 6\."):
        before.to_arrow()
    with pytest.raises(VersionVacuumed, match=r"(?s)Delta version 1 .*as_of=6"):
        store.get_features(["g.n"], as_of={"g": 1}).to_arrow()
    assert [commit.delta_version for commit in store.get_featuregroup_history("g")] == [
        6,
        5,
        4,
        3,
        2,
        1,
    ]


def test_verify_recompute_reports_vacuumed_source(empty_store: FeatureStore) -> None:
    many_versions(empty_store)
    frame = empty_store.get_featuregroup("g", as_of=2)
    dataset = empty_store.create_training_dataset(frame, "d", data_format="parquet")
    path = empty_store.featuregroup("g").path
    for file in read_snapshot(path, 2).files:
        os.remove(file.path)  # as a vacuum of another program does, which knows of no pins
    report = dataset.verify(recompute=True)
    (problem,) = report.problems
    assert "a vacuum removed its data files. Readable versions: 0, 5." in str(problem)


def test_missing_file_of_latest_version_raises_table_damaged(empty_store: FeatureStore) -> None:
    many_versions(empty_store)
    os.remove(read_snapshot(empty_store.featuregroup("g").path).files[0].path)
    with pytest.raises(TableDamaged, match="is missing"):
        values(empty_store)
