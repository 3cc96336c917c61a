"""Steps after a commit, and their failures.

It is never reported as a failed write, and the rest is done later.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import PublicationWarning, SchemaMismatch
from featurestore.registry import database, featuregroups, intents
from featurestore.store import FeatureStore

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def impatient_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FeatureStore]:
    """A store with a short timeout for locked registries."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with featurestore.connect(tmp_path / "store") as store:
        yield store


def numbers(store: FeatureStore) -> list[int]:
    return sorted(store.get_featuregroup("g").to_arrow()["n"].to_pylist())


def open_intents(store: FeatureStore) -> list[str]:
    with store.session.registry.reading() as connection:
        return [intent.run_id for intent in intents.list_all(connection)]


def registered(store: FeatureStore) -> int:
    with store.session.registry.reading() as connection:
        return featuregroups.get(connection, "g").delta_version


class LockedRegistry:
    """Rows that lock the registry while they are read, after the write was recorded."""

    def __init__(self, store: FeatureStore, *values: int) -> None:
        self._file = Path(store.location, "registry.db")
        self._values = values
        self._lock: sqlite3.Connection | None = None

    def rows(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(SCHEMA, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        self._lock = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
        self._lock.execute("begin immediate")
        yield pa.record_batch([pa.array(self._values)], schema=SCHEMA)

    def release(self) -> None:
        assert self._lock is not None
        self._lock.close()


def test_insert_with_failed_registration_is_committed(impatient_store: FeatureStore) -> None:
    group = impatient_store.create_featuregroup(pa.table({"n": [1]}), "g")
    locked = LockedRegistry(impatient_store, 2)
    with pytest.warns(PublicationWarning, match="Delta version 2 .* became visible, but"):
        commit = group.insert(locked.rows())
    locked.release()
    assert (commit.delta_version, commit.rows, commit.rows_in) == (2, 2, 1)
    assert numbers(impatient_store) == [1, 2]
    assert registered(impatient_store) == 1
    assert len(open_intents(impatient_store)) == 1
    group.insert(pa.table({"n": [3]}))
    assert registered(impatient_store) == 3
    assert open_intents(impatient_store) == []


def test_create_with_failed_registration_completes_on_next_write(
    impatient_store: FeatureStore,
) -> None:
    locked = LockedRegistry(impatient_store, 1)
    with pytest.warns(PublicationWarning, match="became visible, but"):
        impatient_store.create_featuregroup(locked.rows(), "g")
    locked.release()
    group = impatient_store.create_featuregroup(pa.table({"n": [5]}), "g")
    assert group.version == 2
    assert impatient_store.featuregroup("g", version=1).read().to_arrow()["n"].to_pylist() == [1]
    assert open_intents(impatient_store) == []


def test_insert_with_failing_statistics_file_succeeds(impatient_store: FeatureStore) -> None:
    group = impatient_store.create_featuregroup(pa.table({"n": [1]}), "g", statistics=False)
    new_group = impatient_store.create_featuregroup(pa.table({"n": [1]}), "h")
    folder = Path(f"{new_group.path}_statistics")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_text("no folder")
    with pytest.warns(PublicationWarning, match="became visible, but"):
        commit = new_group.insert(pa.table({"n": [2]}), mode="overwrite")
    assert commit.delta_version == new_group.delta_version == 2
    assert group.delta_version == 1


def test_insert_error_before_commit_leaves_no_intent(impatient_store: FeatureStore) -> None:
    group = impatient_store.create_featuregroup(pa.table({"n": [1]}), "g")
    with pytest.raises(SchemaMismatch):
        group.insert(pa.table({"other": [1]}))
    assert open_intents(impatient_store) == []


@pytest.mark.parametrize(
    "function", ["_checkpoint", "_update_registry", "commit_of", "store_commit_statistics"]
)
def test_insert_interrupted_after_commit_reports_committed_rows(
    impatient_store: FeatureStore, function: str
) -> None:
    group = impatient_store.create_featuregroup(pa.table({"n": [1]}), "g")

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "call" and frame.f_code.co_name == function:
            sys.settrace(None)
            raise KeyboardInterrupt
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            group.insert(pa.table({"n": [2]}))
    finally:
        sys.settrace(before)
    assert "committed as version 2" in str(caught.value.__notes__)
    assert numbers(impatient_store) == [1, 2]
    assert registered(impatient_store) == 2
    assert open_intents(impatient_store) == []
