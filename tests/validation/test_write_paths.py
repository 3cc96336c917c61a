"""Every write path validates, on both engines, and readers never see rejected rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import featurestore
from featurestore.delta.log import is_delta_table
from featurestore.delta.snapshot import transaction_version
from featurestore.errors import FeatureStoreError, JobFailed, ValidationFailed
from tests.on_spark import spark_in_soak

if TYPE_CHECKING:
    from pathlib import Path

    from featurestore.store import FeatureStore

START = datetime(2024, 1, 1, tzinfo=UTC)
AGE = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "age", "min_value": 0, "max_value": 120},
}
REJECTED = 999


def people(ids: Any, ages: Any, *, hours: int = 0) -> pd.DataFrame:
    times = [START + timedelta(hours=hours)] * len(ids)
    return pd.DataFrame({"id": pd.array(ids, "Int64"), "age": pd.array(ages, "Int64"), "at": times})


def create(store: FeatureStore) -> None:
    store.create_featuregroup(
        people(range(20), [30] * 20),
        "people",
        primary_key=["id"],
        event_time="at",
        expectations=[AGE],
    )


def ages(store: FeatureStore) -> dict[int, int]:
    return {
        row["id"]: row["age"] for row in store.get_featuregroup("people").to_arrow().to_pylist()
    }


def quarantined(store: FeatureStore) -> list[dict[str, Any]]:
    path = store.session.quarantine_path("people", 1)
    if not is_delta_table(path):
        return []
    return store.session.engine.stream(store.session.engine.read_table(path)).read_all().to_pylist()


@contextmanager
def watched(store: FeatureStore) -> Iterator[set[int]]:
    """Read the group continuously; yield the observed ages."""
    observed_ages: set[int] = set()
    problems: list[BaseException] = []
    stop = threading.Event()
    # A Spark session that reads continuously would starve the writer.
    pause = 0.0 if store.engine == "duckdb" else 0.5

    def watch() -> None:
        reader = featurestore.connect(store.location, engine=store.session.engine)
        try:
            while not stop.wait(pause):
                observed_ages.update(
                    reader.get_featuregroup("people").to_arrow()["age"].to_pylist()
                )
        except BaseException as error:
            problems.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield observed_ages
    finally:
        stop.set()
        watcher.join()
    assert not problems


@spark_in_soak
def test_rejected_rows_are_never_visible_to_readers(store: FeatureStore) -> None:
    # One Spark session alternates reads and writes, which takes seconds per commit.
    modes = ("append", "upsert", "overwrite") if store.engine == "duckdb" else ("append", "upsert")
    create(store)
    bad = people([1, 100], [40, REJECTED])
    with watched(store) as observed_ages:
        for mode in modes:
            changes = bad.assign(at=START + timedelta(hours=1)) if mode == "append" else bad
            with pytest.raises(ValidationFailed):
                store.insert_into_featuregroup(changes, "people", mode=mode, validation="strict")
            commit = store.insert_into_featuregroup(
                changes, "people", mode=mode, validation="quarantine"
            )
            assert commit.validation == "quarantined"
    assert REJECTED not in observed_ages
    assert observed_ages <= {30, 40}
    assert ages(store)[1] == 40
    assert [row["id"] for row in quarantined(store)] == [100] * len(modes)
    history = store.get_featuregroup_history("people")
    landed = [(commit.operation, commit.rows) for commit in reversed(history)]
    expected = [("create", 20), ("append", 21), ("upsert", 21), ("overwrite", 1)]
    assert landed == expected[: len(modes) + 1]


def test_quarantine_commits_first_in_same_transaction(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store)
    engine = type(store.session.engine)
    write, committed = engine.write, []

    def watch(self: Any, path: str, relation: Any, options: Any) -> Any:
        committed.append(
            (path.endswith("_quarantine"), options.transaction, options.commit_metadata["run"])
        )
        return write(self, path, relation, options)

    monkeypatch.setattr(engine, "write", watch)
    changes = people([1, 2], [31, REJECTED])
    with pytest.raises(ValidationFailed, match="1 of 2 rows"):
        store.insert_into_featuregroup(changes, "people", mode="upsert")
    assert committed == []
    for _ in range(2):
        store.insert_into_featuregroup(
            changes, "people", mode="upsert", validation="quarantine", transaction=("nightly", 7)
        )
    assert [entry[:2] for entry in committed] == [(True, ("nightly", 7)), (False, ("nightly", 7))]
    assert len({run for *_, run in committed}) == 1
    for path in (
        store.session.quarantine_path("people", 1),
        store.session.featuregroup_path("people", 1),
    ):
        assert transaction_version(path, "nightly") == 7
    assert (ages(store)[1], ages(store)[2]) == (31, 30)
    assert [row["id"] for row in quarantined(store)] == [2]


def test_quarantine_without_caller_transaction_uses_run_id(
    empty_store: FeatureStore,
) -> None:
    create(empty_store)
    inputs = people([3, 4], [31, REJECTED], hours=1)
    commit = empty_store.insert_into_featuregroup(inputs, "people", validation="quarantine")
    session = empty_store.session
    for path in (session.quarantine_path("people", 1), session.featuregroup_path("people", 1)):
        assert transaction_version(path, f"write/{commit.run_id}") == 0


def test_write_interrupted_between_commits_is_completed_by_retry(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store
    create(store)
    changes = people([1, 2], [31, REJECTED], hours=1)
    engine = type(store.session.engine)
    write = engine.write

    def die(self: Any, path: str, relation: Any, options: Any) -> Any:
        if not path.endswith("_quarantine"):
            raise OSError("the machine is gone")
        return write(self, path, relation, options)

    def attempt() -> None:
        store.insert_into_featuregroup(
            changes, "people", validation="quarantine", transaction=("nightly", 7)
        )

    with monkeypatch.context() as patch:
        patch.setattr(engine, "write", die)
        with pytest.raises((OSError, FeatureStoreError)):
            attempt()
    assert (len(quarantined(store)), ages(store)[1]) == (1, 30)
    attempt()
    assert [row["id"] for row in quarantined(store)] == [2]
    assert len(store.get_featuregroup("people").to_arrow()) == 21


JOB = """
import featurestore
RULE = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "age", "max_value": 120}}
oldest = featurestore.sql_job("oldest", sql="select id, max(age) as age, $window_end as at from people group by id",
                     inputs={"people": "people"}, primary_key=["id"], event_time="at", schedule="0 * * * *",
                     start="2024-01-01T00:00Z", expectations=[RULE], validation="POLICY", retries=0)
"""


def checked_job(store: FeatureStore, folder: Path, policy: str) -> None:
    store.create_featuregroup(
        people([1, 2], [30, REJECTED]), "people", primary_key=["id"], event_time="at"
    )
    file = folder / "checked_jobs.py"
    file.write_text(JOB.replace("POLICY", policy))
    store.register_jobs(file)


def test_job_with_quarantine_writes_passing_rows(empty_store: FeatureStore, tmp_path: Path) -> None:
    checked_job(empty_store, tmp_path, "quarantine")
    empty_store.run_job("oldest", window=START)
    assert empty_store.get_featuregroup("oldest").to_arrow()["id"].to_pylist() == [1]
    path = empty_store.session.quarantine_path("oldest", 1)
    assert empty_store.session.engine.count(empty_store.session.engine.read_table(path)) == 1


def test_job_with_failing_rows_creates_no_group(empty_store: FeatureStore, tmp_path: Path) -> None:
    checked_job(empty_store, tmp_path, "strict")
    with pytest.raises(JobFailed, match="max_value=120"):
        empty_store.run_job("oldest", window=START)
    assert [group.name for group in empty_store.get_featuregroups()] == ["people"]


def test_create_training_dataset_validates_rows(empty_store: FeatureStore) -> None:
    table = pa.table({"id": range(50), "age": [30] * 49 + [REJECTED]})
    options: dict[str, Any] = {"data_format": "parquet", "key": ["id"], "expectations": [AGE]}
    with pytest.raises(ValidationFailed, match="1 of 50 rows"):
        empty_store.create_training_dataset(table, "ages", **options)
    assert empty_store.get_training_datasets() == []
    dataset = empty_store.create_training_dataset(table, "ages", validation="quarantine", **options)
    assert dataset.read("train").to_arrow()["age"].to_pylist() == [30] * 49


def test_training_dataset_validation_warn_keeps_rows(empty_store: FeatureStore) -> None:
    table = pa.table({"id": range(50), "age": [30] * 49 + [REJECTED]})
    dataset = empty_store.create_training_dataset(
        table, "ages", data_format="parquet", key=["id"], expectations=[AGE], validation="warn"
    )
    assert sorted(dataset.read("train").to_arrow()["age"].to_pylist()) == [30] * 49 + [REJECTED]


def test_create_featuregroup_quarantines_failing_rows(empty_store: FeatureStore) -> None:
    inputs = people([1, 2], [30, REJECTED])
    options: dict[str, Any] = {"primary_key": ["id"], "event_time": "at", "expectations": [AGE]}
    with pytest.raises(ValidationFailed):
        empty_store.create_featuregroup(inputs, "people", **options)
    assert empty_store.get_featuregroups() == []
    assert quarantined(empty_store) == []
    empty_store.create_featuregroup(inputs, "people", validation="quarantine", **options)
    assert ages(empty_store) == {1: 30}
    (put_aside,) = quarantined(empty_store)
    assert (put_aside["id"], put_aside["age"], put_aside["at"]) == (2, REJECTED, START)
    assert put_aside["reasons"] == [
        "expect_column_values_to_be_between(column='age', min_value=0, max_value=120)"
    ]
