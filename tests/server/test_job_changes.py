"""Pausing, running and backfilling jobs in a browser, by role."""

from __future__ import annotations

import html
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import featurestore
from featurestore.registry import audit_log
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.server.job_actions import JobRuns
from featurestore.store import FeatureStore
from tests.server.conftest import JOBS
from tests.server.private_groups import PASSWORD, ROOT, client_of, field_of, sign_in

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
RANGE = {"start": "2024-03-01T12:00Z", "end": "2024-03-01 15:00"}


@pytest.fixture
def shop_store(empty_store: FeatureStore, tmp_path: Path) -> FeatureStore:
    rows = []
    for hour in range(3):
        timestamp = NOON + timedelta(minutes=30 + 60 * hour)
        rows.append({"shop": "a", "seen": timestamp, "sales": float(hour)})
    empty_store.create_featuregroup(rows, "visits", primary_key="shop", event_time="seen")
    (tmp_path / "shop_jobs.py").write_text(JOBS)
    empty_store.register_jobs(tmp_path / "shop_jobs.py")
    for name, role in (("wil", "writer"), ("rea", "reader")):
        changes.add_user(empty_store.session, ROOT, name, role=role, password=PASSWORD)
    return empty_store


def page_once_ended(client: TestClient, name: str) -> str:
    """Return the page of a job after its requested run has finished."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        request = client.app.state.job_runs.last(name)  # type: ignore[attr-defined]
        if request is not None and request.future.done():
            break
        time.sleep(0.02)
    return html.unescape(client.get(f"/jobs/{name}").text)


def test_job_backfill_by_writer_shows_plan_then_runs(shop_store: FeatureStore) -> None:
    with client_of(shop_store) as client:
        sign_in(client, "wil")
        field = field_of(client.get("/jobs/doubled").text)
        planned = client.get("/jobs/doubled/backfill", params=RANGE)
        assert "doubled: 3 windows from 2024-03-01T12:00:00+00:00" in planned.text
        assert client.post("/jobs/doubled/backfill", data=RANGE).status_code == 403
        response = client.post("/jobs/doubled/backfill", data={**RANGE, "form_token": field})
        assert (response.status_code, response.headers["location"]) == (303, "/jobs/doubled")
        assert "3 windows in 1 runs." in page_once_ended(client, "doubled")
        assert len(shop_store.get_featuregroup("doubled").to_arrow()) == 3
        client.post("/jobs/doubled/backfill", data={**RANGE, "form_token": field})
        assert "There were no windows to compute." in page_once_ended(client, "doubled")
        backwards = {"start": RANGE["end"], "end": RANGE["start"], "form_token": field}
        assert client.post("/jobs/doubled/backfill", data=backwards).status_code == 400
        client.post("/jobs/doubled/pause", data={"form_token": field})
        assert shop_store.get_jobs()[0].job.paused
        client.post("/jobs/doubled/run", data={"what": "due", "form_token": field})
        assert "There were no windows to compute." in page_once_ended(client, "doubled")
        client.post("/jobs/doubled/resume", data={"form_token": field})
        assert not shop_store.get_jobs()[0].job.paused
    with shop_store.session.registry.reading() as connection:
        entries = audit_log.entries(connection, who="wil", text="job", limit=None)
    actions = [(entry.action, entry.subject, entry.how) for entry in entries[::-1]]
    expected = ["backfill job", "backfill job", "pause job", "run job", "resume job"]
    assert actions == [(action, "doubled", "browser") for action in expected]


def test_job_changes_by_reader_are_refused(shop_store: FeatureStore) -> None:
    with client_of(shop_store) as client:
        sign_in(client, "rea")
        field = field_of(client.get("/account").text)
        assert "<button>Pause" not in client.get("/jobs/doubled").text
        planned = client.get("/jobs/doubled/backfill", params=RANGE).text
        assert "3 windows" in planned
        assert "Compute these windows" not in planned
        for change in ("pause", "resume", "run", "backfill"):
            actual = {**RANGE, "what": "due", "form_token": field}
            assert client.post(f"/jobs/doubled/{change}", data=actual).status_code == 403
    assert shop_store.get_runs("doubled") == []


def test_job_runs_report_failures_and_run_singly() -> None:
    runs, may_end = JobRuns(), threading.Event()

    def wait() -> list[object]:
        may_end.wait(60)
        return []

    wil = Actor("wil", "browser")
    first = runs.start("a", "run: due", wil, wait)
    second = runs.start("b", "run: due", wil, lambda: [1 // 0])
    give_up = time.monotonic() + 60
    while first.state != "running" and time.monotonic() < give_up:
        time.sleep(0.01)
    with pytest.raises(featurestore.errors.JobLeased, match="requested by wil, is already running"):
        runs.start("a", "run: due", wil, wait)
    assert (first.state, second.state) == ("running", "waiting")
    may_end.set()
    runs.start("c", "run: due", wil, list).future.result(60)
    assert (first.outcome_text, second.outcome_text) == (
        "There were no windows to compute.",
        "Unexpected error; see the server log for the traceback.",
    )
    runs.close()
