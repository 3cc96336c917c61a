"""Catalog jobs keep the tables of a catalog in sync with feature groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

pytest.importorskip("pyiceberg")
import featurestore
from featurestore.cli.main import app
from featurestore.errors import (
    DefinitionsRefused,
    InvalidArgument,
    InvalidJob,
    InvalidReference,
    JobFailed,
    JobWarning,
    SourceNotFound,
)
from featurestore.registry import access
from featurestore.server.app import create_app
from featurestore.store import FeatureStore
from tests.jobs.conftest import Clock, sql_job
from tests.sources.test_catalog_registration import Lake, connect, sql_lake, unity_lake

Define = Callable[..., Path]
HOUR = timedelta(hours=1)
SCHEMA = "featurestore"

SOURCE = """
import featurestore
featurestore.catalog_job("a_lake", source="lake", schedule="0 * * * *", {rules})
"""


@pytest.fixture
def iceberg(city: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    with sql_lake(tmp_path / "lake") as lake:
        connect(city, lake, monkeypatch)
        yield lake


@pytest.fixture
def unity(city: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    with unity_lake(tmp_path / "lake") as lake:
        connect(city, lake, monkeypatch)
        yield lake


def make_private(store: FeatureStore, name: str) -> None:
    with store.session.registry.transaction() as connection:
        access.set_private(connection, name, True)


def run_command(store: FeatureStore, *arguments: str) -> Any:
    command = ["--location", store.location, "--output", "json", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_catalog_job_follows_groups_and_runs_once_for_missed_windows(
    city: FeatureStore, iceberg: Lake, define: Define, clock: Clock
) -> None:
    city.create_featuregroup([{"id": 1}], "zones", iceberg=True)
    city.create_featuregroup([{"id": 1}], "cars", iceberg=True)
    (registered,) = city.register_jobs(define(SOURCE.format(rules="")))
    assert (registered.spec.kind, registered.spec.target) == ("catalog", "lake")
    assert city.run_job("a_lake", due=True) == []
    clock.now += 3 * HOUR
    assert len(city.plan_job("a_lake").windows) == 3
    (run,) = city.run_job("a_lake", due=True)
    assert (run.state, run.windows, run.rows) == ("done", 3, 2)
    assert sorted(iceberg.list_tables()) == ["cars", "zones"]
    assert city.run_job("a_lake", due=True) == []
    (repeated,) = city.run_job("a_lake")
    assert (repeated.state, repeated.rows) == ("done", 0)

    city.insert_into_featuregroup([{"id": 2}], "zones")
    make_private(city, "cars")
    clock.now += HOUR
    (run,) = city.run_job("a_lake", due=True)
    assert (run.windows, run.rows) == (1, 2)
    assert iceberg.list_tables() == ["zones"]
    assert len(iceberg.find_files("zones")) == 2
    # Users without access to the private group can read the log.
    log = Path(str(run.log)).read_text()
    assert "0 tables created, 1 updated, 1 removed, 0 unchanged, 2 groups skipped" in log
    assert "registered featurestore.zones" in log
    assert "cars" not in log

    shown = run_command(city, "job", "show", "a_lake")
    assert shown["registers"] == {"source": "lake", "schema": SCHEMA, "featuregroups": None}
    history = run_command(city, "job", "history", "a_lake")
    assert [entry["rows"] for entry in history] == [2, 0, 2]
    assert {entry["state"] for entry in history} == {"done"}
    assert run_command(city, "job", "run", "a_lake")[0]["state"] == "done"
    with TestClient(create_app(city), base_url="http://localhost") as client:
        page = client.get("/jobs/a_lake").text
        record = client.get("/api/v1/jobs/a_lake").json()
    assert "catalog job" in page
    assert f"<dt>schema</dt><dd>{SCHEMA}</dd>" in page
    assert record["definition"]["registers"] == shown["registers"]


def test_scheduler_registers_after_the_jobs_that_write_groups(
    city: FeatureStore, unity: Lake, define: Define, clock: Clock
) -> None:
    # A job whose group has the name of the source does not wait for the catalog job.
    city.register_jobs(define(sql_job(), sql_job("lake"), SOURCE.format(rules="")))
    clock.now += HOUR
    # In the order of names, the groups would not exist yet.
    city.scheduler().run_due()
    assert sorted(unity.list_tables()) == ["demand", "lake", "trips"]
    (run,) = city.get_runs("a_lake")
    assert (run.state, run.rows) == ("done", 3)
    with pytest.warns(JobWarning, match="again from"):
        city.delete_featuregroup("demand", version=1)
    city.pause_job("demand")
    clock.now += HOUR
    city.scheduler().run_due()
    assert sorted(unity.list_tables()) == ["lake", "trips"]


def test_catalog_job_failure_names_table_and_leaves_window_due(
    city: FeatureStore,
    unity: Lake,
    define: Define,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from featurestore_connectors.sources.unity_client import UnityClient

    city.create_featuregroup([{"id": 1}], "zones")
    city.create_featuregroup([{"id": 1}], "cars")
    city.register_in("lake", featuregroups="cars")
    make_private(city, "cars")
    unity.create_table("trips")
    city.register_jobs(define(SOURCE.format(rules="")))
    clock.now += HOUR
    conflict = r"tables exist that were not registered by this store: 'featurestore\.trips'"
    with pytest.raises(JobFailed, match=conflict):
        city.run_job("a_lake", due=True)
    (run,) = city.get_runs("a_lake")
    assert run.state == "failed"
    assert "'featurestore.trips'" in str(run.error)
    # The private group is no longer in the catalog, and the table of others is unchanged.
    assert unity.list_tables() == ["trips"]
    assert len(city.plan_job("a_lake").windows) == 1

    city.register_jobs(define(SOURCE.format(rules='featuregroups=["zones"]')))
    post = UnityClient.post
    rejected = {"name": "zones"}

    def reject(client: UnityClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
        wrong = {"Authorization": "none"}
        if body.get("name") == rejected["name"]:
            monkeypatch.setattr(client, "token", wrong["Authorization"])
        return post(client, path, body)

    with monkeypatch.context() as patch:
        patch.setattr(UnityClient, "post", reject)
        with pytest.raises(JobFailed, match=r"Table 'main\.featurestore\.zones': .*status 401"):
            city.run_job("a_lake", due=True)
    (run,) = city.run_job("a_lake", due=True)
    assert (run.state, run.rows) == ("done", 1)
    assert sorted(unity.list_tables()) == ["trips", "zones"]


def test_catalog_job_refuses_invalid_arguments(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=r"schema='a\.b' is not the name of a schema"):
        featurestore.catalog_job("j", source="lake", schedule="0 * * * *", schema="a.b")
    with pytest.raises(InvalidReference, match="trips@2"):
        featurestore.catalog_job("j", source="lake", schedule="* * * * *", featuregroups="trips@2")
    with pytest.raises(InvalidJob, match="hourly"):
        featurestore.catalog_job("j", source="lake", schedule="hourly")
    with pytest.raises(SourceNotFound, match="'lake'"):
        city.register_jobs(define(SOURCE.format(rules="")))
    city.add_source("lake", str(tmp_path))
    with pytest.raises(InvalidArgument, match="'lake' is of kind 'file', which is not a catalog"):
        city.register_jobs(define(SOURCE.format(rules="")))
    assert city.get_jobs() == []


def test_apply_creates_catalog_job_and_names_it_in_removals(
    city: FeatureStore, unity: Lake, tmp_path: Path, clock: Clock
) -> None:
    city.remove_source("lake")
    folder = tmp_path / "features"
    folder.mkdir()
    file = folder / "definitions.py"
    job = SOURCE.format(rules='featuregroups=["zones"]')
    file.write_text(job)
    with pytest.raises(DefinitionsRefused, match=r"features/definitions\.py:3: .*'lake'"):
        city.apply(folder)
    group = 'define.featuregroup("zones", schema={"id": "int64"})\n'
    source = f'define.source("lake", {unity.uri!r}, secret="env:LAKE_TOKEN")\n'
    file.write_text(f"from featurestore import define\n{group}{source}{job}")
    assert [str(change) for change in city.apply(folder)] == [
        "create source 'lake'",
        "create feature group 'zones' version 1",
        "create job 'a_lake'",
    ]
    assert city.plan(folder).is_empty
    clock.now += HOUR
    (run,) = city.run_job("a_lake", due=True)
    assert (run.state, run.rows) == ("done", 1)
    # Another project defines the job, which then remains.
    city.register_jobs(folder)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    (other_folder / "jobs.py").write_text(job.replace("a_lake", "b_lake"))
    city.apply(other_folder, project="other")
    file.write_text("from featurestore import define\ndefine.alert_channel('ops', 'log')\n")
    removals = {str(change): change.breaks for change in city.plan(folder).removals}
    assert removals["remove source 'lake'"] == (
        "job 'b_lake', which registers feature groups in it",
    )
    assert removals["remove feature group 'zones' version 1"] == (
        "job 'b_lake', which registers it in source 'lake'",
    )
