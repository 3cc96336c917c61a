"""Erasure of entities: their data are removed from a store, and all other rows remain."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

import featurestore
from featurestore.erasure import erase
from featurestore.erasure.keys import canonical_text
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
            store.insert_into_featuregroup(
                rows, name, mode="append" if action == "append" else "overwrite"
            )
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
        from featurestore.statistics.state import state_from_bytes

        yield str(state_from_bytes(file.read_bytes()).sample.rows().to_pylist()).encode()


def traces(location: Path, canary: str = CANARY) -> list[str]:
    """Return the files of a store that contain the canary in any form."""
    forms = [canary.encode(), canary.encode("utf-16-le"), canary.encode("utf-32-le")]
    trace_paths = []
    for file in location.rglob("*"):
        if canary in str(file):
            trace_paths.append(f"name of {file}")
        elif file.is_file() and any(form in text for text in texts_of(file) for form in forms):
            trace_paths.append(str(file))
    return trace_paths


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
        DeltaTable(store.session.featuregroup_path(history.name, 1)).create_checkpoint()
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
    assert not report.complete
    assert report.certificate is None
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
        assert dataset.version == 2
        assert dataset.verify().ok
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
    assert next(commit.operation for commit in store.get_featuregroup_history("g")) == "erase"


def test_keys_of_every_type_are_erased(empty_store: FeatureStore) -> None:
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "whole": (pa.int64(), [5, 50, -5]),
        "small": (pa.uint8(), [5, 50, 0]),
        "text": (pa.string(), ["5", "it's \\ ü", "a\nb"]),
        "amount": (pa.decimal128(9, 2), [Decimal("5.00"), Decimal("5.01"), Decimal("-0.50")]),
        "day": (pa.date32(), [date(2024, 1, 1), date(2024, 1, 2), date(1969, 12, 31)]),
        "at": (pa.timestamp("us", "UTC"), [START, START + timedelta(microseconds=1), START - timedelta(1)]),
        "flag": (pa.bool_(), [True, False, True]),
        "raw": (pa.binary(), [b"\x00\xff", b"'", b"abc"]),
    }  # fmt: skip
    for name, (kind, keys) in values.items():
        rows = pa.table({name: pa.array(keys, kind), "n": pa.array([0, 1, 2])})
        empty_store.create_featuregroup(rows, f"by_{name}", primary_key=["n"])
    for name, (_, keys) in values.items():
        expected = list(keys)
        for key in keys[1:]:
            report = empty_store.erase({name: key}, dry_run=False)
            assert report.complete, (name, key, report.remaining)
            expected = [value for value in expected if value != key]
            table = empty_store.get_featuregroup(f"by_{name}").to_arrow().sort_by("n")
            assert table[name].to_pylist() == expected, (name, key)
            assert empty_store.verify_erasure(report.certificate or {}).ok
    assert canonical_text(np.datetime64("2024-01-01", "ns")) == canonical_text(START)
    assert canonical_text(np.datetime64("2024-01-01", "D")) == canonical_text(date(2024, 1, 1))


def test_entity_with_several_keys_needs_all_of_them(empty_store: FeatureStore) -> None:
    rows = [
        {"shop": shop, "customer": customer, "n": n}
        for n, (shop, customer) in enumerate([("north", 1), ("north", 2), ("south", 1)])
    ]
    empty_store.create_featuregroup(rows, "orders", primary_key=["shop", "customer"])
    empty_store.create_featuregroup([{"shop": "north", "n": 0}], "shops", primary_key="shop")
    empty_store.create_featuregroup(
        [{"id": 1, "buyer": 2, "seller": 1}, {"id": 2, "buyer": 1, "seller": 3}], "deals", primary_key="id"
    )  # fmt: skip
    report = empty_store.erase(
        [{"shop": "north", "customer": 1}, {"person": 2}],
        columns={"deals.buyer": "person"},
        dry_run=False,
    )
    assert report.complete
    assert sorted(empty_store.get_featuregroup("orders").to_arrow()["n"].to_pylist()) == [1, 2]
    assert empty_store.get_featuregroup("shops").count() == 1
    assert empty_store.get_featuregroup("deals").to_arrow()["id"].to_pylist() == [2]


def test_invalid_subjects_are_refused_before_a_change(empty_store: FeatureStore) -> None:
    rows = make_rows(random.Random(0), USERS, 1)
    group = empty_store.create_featuregroup(rows, "g", primary_key="user", event_time="at")
    refused: list[tuple[Any, str]] = [
        ({}, "not an entity"),
        ([], "not an entity"),
        ("ada", "not an entity"),
        ({"user": None}, "not a key value"),
        ({"user": 1.5}, "not a key value"),
        ({"user": ["ada"]}, "not a key value"),
        ({"usr": "ada"}, "No feature group has a column 'usr'. Keys of the store: 'user'"),
        ({"user": "ada", "device": 1}, "No feature group has a column 'device'"),
    ]
    for subject, message in refused:
        with pytest.raises(InvalidArgument, match=message):
            empty_store.erase(subject, dry_run=False)
    with pytest.raises(InvalidArgument, match="datasets='drop'"):
        empty_store.erase({"user": "ada"}, datasets="drop", dry_run=False)  # type: ignore[arg-type]
    for certificate in ({}, "{", {"id": 1, "salt": ""}, "[]"):
        with pytest.raises(InvalidArgument, match="certificate"):
            empty_store.verify_erasure(certificate)
    with (
        in_flight(empty_store.session, operation="write", name="g", version=1),
        pytest.raises(WriteConflict, match="is being written"),
    ):
        empty_store.erase({"user": "ada"}, dry_run=False)
    assert group.read().count() == len(rows)
    assert not (Path(empty_store.location) / "_erasures").exists()


def test_restored_backup_and_changed_audit_log_fail_the_check(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    store = empty_store
    rows = make_rows(random.Random(0), USERS, 1)
    store.create_featuregroup(rows, "g", primary_key="user", event_time="at")
    shutil.copytree(Path(store.location) / "featuregroups", tmp_path / "backup")
    first = store.erase({"user": CANARY}, dry_run=False).certificate or {}
    second = store.erase({"user": "ada"}, dry_run=False).certificate or {}
    assert store.verify_erasure(first).ok
    assert store.verify_erasure(json.dumps(second)).ok
    forged = {**first, "entities": second["entities"]}
    assert "signature" in str(store.verify_erasure(forged))
    assert "signature" in str(store.verify_erasure({**first, "signature": "é"}))
    shutil.rmtree(Path(store.location) / "featuregroups")
    shutil.copytree(tmp_path / "backup", Path(store.location) / "featuregroups")
    check = store.verify_erasure(first)
    assert not check.ok
    assert check.problems == ()
    assert [finding.item for finding in check.findings] == ["g@v1", "g@v1"]
    assert CANARY not in json.dumps(check.to_json())
    with store.session.registry.transaction() as connection:
        entries = audit_log.entries_of_action(connection, "erase")
        assert [entry.subject for entry in entries] == [first["id"], second["id"]]
        connection.exec_driver_sql(f"delete from audit_log where subject = '{first['id']}'")
    assert len(store.verify_erasure(first).problems) == 2
    assert len(store.verify_erasure(second).problems) == 1


def test_erased_admins_remain_in_certificates(empty_store: FeatureStore) -> None:
    """A certificate is signed with the name of the admin."""
    rows = make_rows(random.Random(0), [*USERS, "maria"], 1)
    empty_store.create_featuregroup(rows, "g", primary_key="user", event_time="at")
    for user in (CANARY, "maria"):
        actor = audit_log.Actor("maria", "browser")
        report = erase(empty_store.session, {"user": user}, dry_run=False, actor=actor)
        assert report.complete
        check = empty_store.verify_erasure(report.certificate or {})
        assert check.ok, check
        assert "audit_log.who" in [finding.item for finding in check.listed] or user == CANARY


KILLED = """
import os, signal, sys
import featurestore
from featurestore.storage import Storage

location, count = sys.argv[1], int(sys.argv[2])
store = featurestore.connect(location, engine="duckdb")
steps = 0

def kill_at(function):
    def step(*arguments, **options):
        global steps
        steps += 1
        if steps == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return step

for name in ("write_atomically", "write_new", "remove"):
    setattr(Storage, name, kill_at(getattr(Storage, name)))
print(store.erase({"user": "canary-q7x91"}, dry_run=False).complete, steps)
"""


@pytest.mark.services
def test_killed_erasure_is_completed_by_the_next_call(tmp_path: Path) -> None:
    template = tmp_path / "template"
    with featurestore.connect(template, engine="duckdb") as store:
        rows = make_rows(random.Random(0), USERS, 1)
        for name, columns in {"g": (), "parts": ("user",)}.items():
            store.create_featuregroup(
                rows, name, primary_key="user", event_time="at", partition_by=columns
            )
        store.get_featuregroup_statistics("g")
        store.create_training_dataset(
            store.get_featuregroup("g"), "d", data_format="parquet", progress=False
        )
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    complete = run_program(program, template_copy(template, tmp_path / "complete"), 10**6)
    assert complete.stdout.startswith("True")
    steps = int(complete.stdout.split()[1])
    for kill_at in sorted(random.sample(range(1, steps + 1), min(steps, 3))):
        location = template_copy(template, tmp_path / f"killed_{kill_at}")
        assert run_program(program, location, kill_at).returncode == -signal.SIGKILL
        with featurestore.connect(location, engine="duckdb") as store:
            assert store.erase({"user": CANARY}, dry_run=False).complete, kill_at
            for name in ("g", "parts"):
                users = store.get_featuregroup(name).to_arrow()["user"].to_pylist()
                assert sorted(users) == sorted(set(USERS) - {CANARY}), kill_at
            users = store.get_training_dataset("d").read("train").to_arrow()["user"].to_pylist()
            assert sorted(users) == sorted(set(USERS) - {CANARY}), kill_at
        assert traces(location) == [], kill_at


def template_copy(template: Path, location: Path) -> Path:
    shutil.copytree(template, location, ignore=shutil.ignore_patterns("_owners"))
    return location


def run_program(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
