"""Erasure of entities: nothing of them is left in a store, and all other rows are."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import featurestore
from featurestore.errors import FeatureStoreError, InvalidArgument, VersionVacuumed, WriteConflict
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import audit_log
from featurestore.store import FeatureStore

# Random labels have few classes.
pytestmark = pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
START = datetime(2024, 1, 1, tzinfo=UTC)
CANARY = "canary-q7x91"
USERS = ["ada", "bob", "eve", "canary-q7x9", CANARY]
Row = dict[str, Any]
# The code of a job is a definition, in which a value is only listed.
FAILING_JOB = """
import featurestore

@featurestore.job(featuregroup="failed", primary_key=["user"], event_time="at",
                  schedule="0 * * * *", window="1h", start="2024-01-01T00:00Z")
def failing(window):
    user = "-".join(["canary", "q7x91"])
    print("computing", user)
    raise ValueError("no score for " + user)
"""


def make_rows(random_source: random.Random, users: Sequence[str], day: int) -> list[Row]:
    """Return one row for each user; the canary is also part of another text."""
    return [
        {
            "user": user,
            "at": START + timedelta(days=day),
            "note": f"note of {user}, {random_source.random()}",
            "score": random_source.randrange(100),
            "late": random_source.random() < 0.5,
        }
        for user in users
    ]


class History:
    """Random writes of a feature group, and its rows as plain Python values."""

    def __init__(self, store: FeatureStore, name: str, seed: int, **declared: Any) -> None:
        self.store, self.name = store, name
        self.random = random.Random(seed)
        self.rows: dict[tuple[str, datetime], Row] = {}
        self.day = 0
        rows = self.next_rows()
        store.create_featuregroup(rows, name, primary_key="user", event_time="at", **declared)
        self.put(rows)

    def next_rows(self) -> list[Row]:
        self.day += 1
        users = self.random.sample(USERS, self.random.randint(1, len(USERS)))
        return make_rows(self.random, users if self.day > 1 else USERS, self.day)

    def append(self, users: Sequence[str]) -> None:
        self.day += 1
        rows = make_rows(self.random, users, self.day)
        self.store.insert_into_featuregroup(rows, self.name)
        self.put(rows)

    def put(self, rows: Sequence[Row]) -> None:
        self.rows |= {(row["user"], row["at"]): row for row in rows}

    def change(self) -> None:
        """Make a random change."""
        store, name = self.store, self.name
        action = self.random.choice(["append", "upsert", "delete", "compact", "count", "overwrite"])
        if action in ("append", "overwrite"):
            rows = self.next_rows()
            store.insert_into_featuregroup(rows, name, mode=action)
            if action == "overwrite":
                self.rows = {}
            self.put(rows)
        elif action == "upsert":
            rows = make_rows(
                self.random, self.random.sample(USERS, 3), self.random.randint(1, self.day)
            )
            store.insert_into_featuregroup(rows, name, mode="upsert")
            self.put(rows)
        elif action == "delete":
            user = self.random.choice(USERS)
            store.delete_from_featuregroup(name, f"user = '{user}'")
            self.rows = {key: row for key, row in self.rows.items() if row["user"] != user}
        elif action == "compact":
            store.compact_featuregroup(name)
        else:
            store.get_featuregroup_statistics(name)


def table_rows(frame: Any) -> Counter[str]:
    """Return the rows of a frame, as comparable texts."""
    return Counter(map(row_text, frame.to_arrow().to_pylist()))


def row_text(row: Row) -> str:
    return repr(sorted((name, str(value)) for name, value in row.items()))


def without_canary(rows: Counter[str]) -> Counter[str]:
    return Counter({row: count for row, count in rows.items() if f"'{CANARY}'" not in row})


def texts_of(file: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, and the decoded values of a Parquet file."""
    yield file.read_bytes()
    if file.suffix == ".parquet":
        yield str(parquet.read_table(file, partitioning=None).to_pylist()).encode()
    if file.suffix == ".state":
        from featurestore.statistics.accumulator import state_from_bytes

        yield str(state_from_bytes(file.read_bytes()).sample.rows().to_pylist()).encode()


def traces(location: Path, canary: str = CANARY) -> list[str]:
    """Return the files of a store that contain the canary in any form."""
    forms = [canary.encode(), canary.encode("utf-16-le"), canary.encode("utf-32-le")]
    found = []
    for file in location.rglob("*"):
        if canary in str(file):
            found.append(f"name of {file}")
        elif file.is_file() and any(form in text for text in texts_of(file) for form in forms):
            found.append(str(file))
    return found


def fill(store: FeatureStore, folder: Path, seed: int, *, changes: int) -> list[History]:
    """Fill a store with the data of users, in all areas."""
    histories = [
        History(store, "visits", seed, description=f"like {CANARY}", tags={"sample": CANARY}),
        History(store, "parts", seed + 1, partition_by="user"),
    ]
    for history in histories:
        for _ in range(changes):
            history.change()
        history.append(USERS)
    bad_rows = [{**row, "score": -1} for row in make_rows(random.Random(seed), USERS, 50)]
    store.update_featuregroup(
        "visits", expectations=[{"type": "expect_column_values_to_be_between",
                                 "kwargs": {"column": "score", "min_value": 0}}]
    )  # fmt: skip
    store.insert_into_featuregroup(bad_rows, "visits", validation="quarantine")
    store.delete_from_featuregroup("visits", "user = 'nobody'")
    store.create_feature_view("scores", features=["visits.score", "visits.note"])
    store.publish("scores")
    return histories


def make_datasets(store: FeatureStore, formats: Sequence[str], **options: Any) -> None:
    labels = store.get_featuregroup("visits").to_arrow().select(["user", "at", "late"])
    for data_format in formats:
        store.create_training_dataset(
            store.get_features(["visits.score", "visits.note"], labels=labels),
            f"in_{data_format}", label="late", data_format=data_format, exclude=["note"],
            splits={"train": 0.6, "test": 0.4}, progress=False, **options,
        )  # fmt: skip


def dataset_rows(store: FeatureStore, name: str) -> dict[str, Counter[str]]:
    dataset = store.get_training_dataset(name)
    return {split: table_rows(dataset.read(split)) for split in ("train", "test")}


def fail_job(store: FeatureStore, folder: Path) -> None:
    """Run a job that fails, with the canary in its error and its log."""
    (folder / "failing_jobs.py").write_text(FAILING_JOB)
    store.register_jobs(folder / "failing_jobs.py")
    with pytest.raises(FeatureStoreError):
        store.backfill_job("failing", START, START + timedelta(hours=1))
    (folder / "failing_jobs.py").unlink()


def test_erase_leaves_nothing_but_all_other_rows(empty_store: FeatureStore, tmp_path: Path) -> None:
    store, location = empty_store, tmp_path / "store"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    histories = fill(store, tmp_path, seed, changes=8)
    formats = ["tfrecord", "parquet", "csv"]
    make_datasets(store, formats)
    before = {name: dataset_rows(store, f"in_{name}") for name in formats}
    fail_job(store, tmp_path)
    report = store.erase({"user": CANARY})
    areas = {finding.area for finding in report.findings}
    assert {"feature groups", "quarantine", "training datasets", "job logs", "registry"} <= areas
    assert not report.complete and report.certificate is None
    assert traces(location)
    erased = store.erase({"user": CANARY}, dry_run=False)
    assert erased.complete, erased.remaining
    assert traces(location) == []
    for history in histories:
        remaining = Counter(map(row_text, history.rows.values()))
        read_rows = table_rows(store.get_featuregroup(history.name))
        assert read_rows == without_canary(remaining), history.name
        assert store.get_featuregroup_statistics(history.name).rows == read_rows.total()
    quarantined = store.get_featuregroup_quarantine("visits").to_arrow()["user"].to_pylist()
    assert sorted(quarantined) == sorted(set(USERS) - {CANARY})
    for name in formats:
        expected = {split: without_canary(rows) for split, rows in before[name].items()}
        assert dataset_rows(store, f"in_{name}") == expected
        dataset = store.get_training_dataset(f"in_{name}")
        assert dataset.version == 2 and dataset.verify().ok
        assert erased.datasets[f"in_{name}@v1"] == f"in_{name}@v2"
    view = store.get_feature_view("scores")
    with view.server() as server:
        assert server.get_vector({"user": CANARY})["score"] is None
    check = store.verify_erasure(erased.certificate or {})
    assert check.ok, check
    assert CANARY not in json.dumps(erased.certificate)
    assert store.erase({"user": CANARY}).findings == ()
    # The store works as before.
    for history in histories:
        for _ in range(3):
            history.change()
    store.publish("scores")


def test_erased_versions_cannot_be_read_and_others_can(empty_store: FeatureStore) -> None:
    store = empty_store
    random_source = random.Random(1)
    store.create_featuregroup(
        make_rows(random_source, ["ada"], 1), "g", primary_key="user", event_time="at"
    )
    store.insert_into_featuregroup(make_rows(random_source, [CANARY, "bob"], 2), "g")
    store.erase({"user": CANARY}, dry_run=False)
    assert store.get_featuregroup("g", as_of=1).to_arrow()["user"].to_pylist() == ["ada"]
    with pytest.raises(VersionVacuumed, match="Readable versions: 0 to 1, 3"):
        store.get_featuregroup("g", as_of=2).to_arrow()
    assert [commit.operation for commit in store.get_featuregroup_history("g")][0] == "erase"
