"""Publish jobs publish a view once for all missed windows, and only what changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import featurestore
from featurestore.cli.main import app
from featurestore.errors import InvalidJob, JobFailed
from featurestore.store import FeatureStore
from tests.jobs.conftest import HOURS, START, Clock, sql_job, trips
from tests.store_copies import Connect, copy_of

Define = Callable[..., Path]
HOUR = timedelta(hours=1)

SOURCE = """
import featurestore
featurestore.publish_job("publish_fares", view="fares", schedule="0 * * * *", {rules})
"""


@pytest.fixture
def city(two_days: Path, tmp_path: Path, clock: Clock, connect: Connect) -> FeatureStore:
    """A copy of the store with two days; the test runs once per engine."""
    return copy_of(two_days, tmp_path / "store", connect=connect)


def test_publish_job_publishes_once_for_missed_windows(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    view = city.create_feature_view("fares", features=["trips.fare"])
    (registered,) = city.register_jobs(define(SOURCE.format(rules="")))
    assert (registered.spec.kind, registered.spec.target) == ("publish", "fares")
    assert city.run_job("publish_fares", due=True) == []
    clock.now += 3 * HOUR
    (run,) = city.run_job("publish_fares", due=True)
    assert (run.state, run.windows, run.rows) == ("done", 3, len(trips()))
    assert city.run_job("publish_fares", due=True) == []
    new_trips = trips(1, start=START + HOURS * HOUR, fare=7)
    new_ids = [1000, 1001, 1002]
    city.insert_into_featuregroup(new_trips.set_column(0, "id", [new_ids]), "trips")
    clock.now += HOUR
    (run,) = city.run_job("publish_fares", due=True)
    assert (run.windows, run.rows) == (1, len(new_ids))
    assert view.server().get_vector({"id": 1001}) == {"fare": 7}
    assert [run.state for run in city.get_runs("publish_fares")] == ["done", "done"]
    result = CliRunner().invoke(
        app, ["--location", city.location, "--output", "json", "job", "show", "publish_fares"]
    )
    shown = json.loads(result.stdout)
    assert shown["publishes"] == [{"view": "fares", "version": None, "online": None}]
    assert (shown["kind"], shown["target"], shown["schedule"]) == ("publish", "fares", "0 * * * *")


def test_publish_job_failure_leaves_window_due(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    city.create_feature_view("fares", features=["trips.fare"])
    city.register_jobs(define(SOURCE.format(rules='to="cache"')))
    clock.now += HOUR
    with pytest.raises(JobFailed, match="'cache'"):
        city.run_job("publish_fares", due=True)
    city.add_online_store("cache", f"sqlite:///{city.location}-cache.db")
    (run,) = city.run_job("publish_fares", due=True)
    assert (run.state, run.rows) == ("done", len(trips()))


def test_publish_job_refuses_invalid_views_and_schedules() -> None:
    with pytest.raises(InvalidJob, match=r"'fares@2' is not a feature view(.|\n)*'view@v2'"):
        featurestore.publish_job("p", view="fares@2", schedule="0 * * * *")
    with pytest.raises(InvalidJob, match="hourly"):
        featurestore.publish_job("p", view="fares", schedule="hourly")


def test_scheduler_publishes_after_the_jobs_that_write_the_groups(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    publication = SOURCE.replace("publish_fares", "a_publication").replace("fares", "zones")
    city.register_jobs(define(sql_job(), publication.format(rules="")))
    city.scheduler().run_due()
    view = city.create_feature_view("zones", features=["demand.fares"])
    clock.now += 2 * HOUR
    # In the order of names, the publication would lack the last windows.
    city.scheduler().run_due()
    (lag,) = view.online_lag()
    assert (lag.featuregroup, lag.commits) == ("demand@v1", 0)
    assert next(run.state for run in city.get_runs("a_publication")) == "done"
