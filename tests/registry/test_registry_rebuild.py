"""The registry is an index that can be rebuilt.

Deleted, it comes back from the tables and manifests, and says what does not.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.cli.main import main
from featurestore.errors import DataWarning, JobFailed, ValidationFailed
from featurestore.featuregroups.write import insert
from featurestore.featuregroups.write_request import WriteRequest
from featurestore.recovery.rebuild import NOT_RESTORED, rebuild
from featurestore.registry import artifacts, featuregroups, lineage, training_datasets
from featurestore.store import FeatureStore

DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
# The objects that a rebuild restores, compared value by value.
RESTORED = ("groups", "features", "tags", "lineage", "datasets")


def read_registry_state(store: FeatureStore) -> dict[str, Any]:
    with store.session.registry.reading() as connection:
        groups, datasets = (
            featuregroups.list_all(connection),
            training_datasets.list_all(connection),
        )
        return {
            "groups": [
                (
                    g.name,
                    g.version,
                    g.table_id,
                    g.delta_version,
                    g.description,
                    g.created,
                    g.spec.to_json(),
                )
                for g in groups
            ],
            "features": featuregroups.latest_features(connection),
            "tags": [
                artifacts.tags_of(connection, artifact_type, artifact.name, artifact.version)
                for artifact_type, registered in (
                    ("featuregroup", groups),
                    ("training_dataset", datasets),
                )
                for artifact in registered
            ],
            "lineage": [
                lineage.sources(connection, "featuregroup", g.name, g.version) for g in groups
            ]
            + [
                lineage.sources(connection, "training_dataset", d.name, d.version) for d in datasets
            ],
            "datasets": datasets,
        }


def filled(location: Path, url: str | None = None) -> FeatureStore:
    store = featurestore.connect(location, registry=url)
    table = pa.table({"id": [1, 2], "t": [DAY] * 2, "x": pa.array([1, 2], pa.uint8())})
    store.create_featuregroup(
        table,
        "raw",
        primary_key="id",
        event_time="t",
        description="Raw",
        tags={"team": "a"},
        ttl="7d",
    )
    store.create_featuregroup(table, "raw", primary_key="id")
    store.create_featuregroup(table, "derived", primary_key="id")
    store.add_featuregroup_tag("derived", "pii", "no")
    source = {"featuregroup": "raw", "version": 1, "delta_version": 1}
    request = WriteRequest("derived", mode="upsert", run_id="run1", inputs=(source,))
    insert(store.session, table, request)
    store.insert_into_featuregroup(
        table.append_column("y", pa.array([1, 2])), "raw", mode="upsert", schema_change="add"
    )
    store.compact_featuregroup("raw")
    return store


def test_rebuild_restores_deleted_registry(tmp_path: Path, registry_url: str | None) -> None:
    store = filled(tmp_path, registry_url)
    before = read_registry_state(store)
    store.close()
    if registry_url is None:
        for name in ("registry.db", "registry.db-wal", "registry.db-shm"):
            Path(tmp_path, name).unlink(missing_ok=True)
    else:
        import sqlalchemy as sa

        emptied = featurestore.connect(tmp_path, registry=registry_url)
        with emptied.session.registry.transaction() as connection:
            for table in ("features", "featuregroups", "tags", "lineage"):
                connection.execute(sa.text(f"delete from {table}"))
        emptied.close()

    actual = rebuild(str(tmp_path), url=registry_url)
    assert actual.featuregroups == ["derived@v1", "raw@v1", "raw@v2"]
    assert actual.unreadable == []
    assert actual.not_restored == NOT_RESTORED
    after = read_registry_state(featurestore.connect(tmp_path, registry=registry_url))
    for section in RESTORED:
        assert after[section] == before[section], section


def test_rebuild_restores_training_datasets_with_tags(tmp_path: Path) -> None:
    store = filled(tmp_path)
    frame = store.get_featuregroup("raw", version=2)
    store.create_training_dataset(
        frame, "rides", label="x", data_format="parquet", tags={"for": "model"}, description="Rides"
    )
    before = read_registry_state(store)
    store.close()
    (tmp_path / "registry.db").unlink()
    assert rebuild(str(tmp_path)).training_datasets == ["rides@v1"]
    again = featurestore.connect(tmp_path)
    after = read_registry_state(again)
    assert after["tags"] == before["tags"]
    actual, expected = after["datasets"][0], before["datasets"][0]
    assert actual == expected
    assert again.get_training_dataset("rides").num_rows("train") == 2


JOBS = """
import featurestore
daily = featurestore.sql_job(
    "daily", sql="select id, $window_end as t, count(*) as n from raw where t >= $window_start and t < $window_end "
    "group by 1", primary_key="id", event_time="t", schedule="0 0 * * *", start="2024-01-01T00:00Z",
    inputs={"raw": "raw@v1"},
)
failing = featurestore.sql_job(
    "failing", sql="select ('no' || id)::int as id, $window_end as t from raw", primary_key="id", event_time="t",
    schedule="0 0 * * *", start="2024-01-01T00:00Z", inputs={"raw": "raw@v1"},
)
"""
OF_RUNS = ("run_id", "job", "window", "windows", "state", "rows", "delta_version")


def of_jobs(store: FeatureStore) -> dict[str, Any]:
    successful_runs = [run for run in store.get_runs("daily") if run.state == "done"]
    watermarks = {status.job.spec.name: status.job.watermark for status in store.get_jobs()}
    return {
        "successful runs": [
            tuple(getattr(run, name) for name in OF_RUNS) for run in successful_runs
        ],
        "watermarks": {"daily": watermarks["daily"]},
    }


@pytest.mark.filterwarnings("ignore:the label 'n' of training dataset 'rides' has a single value")
def test_rebuild_command_restores_documented_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups, versions, features, tags, lineage, successful runs, watermarks and datasets.

    And says what is lost.
    """
    location = tmp_path / "store"
    store = filled(location)
    jobs = tmp_path / "jobs.py"
    jobs.write_text(JOBS)
    store.register_jobs(jobs)
    store.backfill_job("daily", DAY, DAY + dt.timedelta(days=3))
    with pytest.raises(JobFailed):
        store.backfill_job("failing", DAY, DAY + dt.timedelta(days=1))
    store.pause_job("daily")
    with pytest.raises(ValidationFailed):
        store.insert_into_featuregroup(
            pa.table({"id": pa.nulls(1), "t": [DAY], "x": pa.array([1], pa.uint8())}), "derived"
        )
    frame = store.get_featuregroup("daily")
    with pytest.warns(DataWarning, match="a single value"):
        store.create_training_dataset(
            frame, "rides", label="n", data_format="parquet", tags={"for": "model"}
        )
    before = read_registry_state(store) | of_jobs(store)
    assert len(before["successful runs"]) >= 1
    assert before["watermarks"]["daily"] == DAY + dt.timedelta(days=3)
    assert len(store.get_runs("failing")) == 1
    assert not store.get_validation_history("derived")[-1].success
    store.close()
    for name in ("registry.db", "registry.db-wal", "registry.db-shm"):
        (location / name).unlink(missing_ok=True)

    monkeypatch.setattr(
        sys,
        "argv",
        ["featurestore", "--location", str(location), "registry", "rebuild", "--output=json"],
    )
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["featuregroups"] == ["daily@v1", "derived@v1", "raw@v1", "raw@v2"]
    assert document["training_datasets"] == ["rides@v1"]
    assert document["not_restored"] == list(NOT_RESTORED)

    again = featurestore.connect(location)
    again.register_jobs(jobs)
    after = read_registry_state(again) | of_jobs(again)
    for section in (*RESTORED, "successful runs", "watermarks"):
        assert after[section] == before[section], section
    assert (
        again.get_runs("failing") == []
    )  # failed runs, pauses and refused writes are what is said to be lost
    assert not next(
        status.job.paused for status in again.get_jobs() if status.job.spec.name == "daily"
    )
    assert again.get_training_dataset("rides").verify().ok


def test_rebuild_moves_damaged_database(tmp_path: Path) -> None:
    filled(tmp_path).close()
    for ending in ("-wal", "-shm"):
        Path(tmp_path, f"registry.db{ending}").unlink(missing_ok=True)
    (tmp_path / "registry.db").write_bytes(b"scrambled" * 1000)
    actual = rebuild(str(tmp_path))
    assert actual.moved_away is not None
    assert Path(actual.moved_away).read_bytes().startswith(b"scrambled")
    assert len(featurestore.connect(tmp_path).get_featuregroups()) == 3


def test_rebuild_reports_unreadable_tables_and_restores_others(tmp_path: Path) -> None:
    store = filled(tmp_path)
    log = Path(store.featuregroup("derived").path, "_delta_log", f"{0:020d}.json")
    store.close()
    log.write_text("{not json")
    actual = rebuild(str(tmp_path))
    assert actual.featuregroups == ["raw@v1", "raw@v2"]
    assert len(actual.unreadable) == 1
    assert str(log) in actual.unreadable[0][1]


def test_moved_store_is_readable(tmp_path: Path) -> None:
    filled(tmp_path / "old").close()
    shutil.move(tmp_path / "old", tmp_path / "new")
    store = featurestore.connect(tmp_path / "new")
    assert store.get_featuregroup("raw").count() == 2
    assert store.featuregroup("raw").path == os.path.join(
        tmp_path, "new", "featuregroups", "raw", "v2"
    )


@pytest.mark.postgres
def test_postgres_registry_supports_store_operations(tmp_path: Path, postgres_url: str) -> None:
    store = filled(tmp_path, postgres_url)
    assert not (tmp_path / "registry.db").exists()
    assert [(g.name, g.version) for g in store.get_featuregroups()] == [
        ("derived", 1),
        ("raw", 1),
        ("raw", 2),
    ]
    assert next(match.where for match in store.search("raw")) == "name"
    store.delete_featuregroup("raw", version=2)
    assert store.get_latest_featuregroup_version("raw") == 1
    matrix = np.ones((3, 2))
    with pytest.raises(featurestore.FeatureStoreError, match="exists already"):
        store.create_featuregroup(matrix, "raw", version=1)
