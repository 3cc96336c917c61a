"""Expensive requests are limited by length and by time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

import featurestore
from featurestore.plugins.remote import RETRIEVAL
from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.attacks.hourly_job import JOB

SECONDS = 0.5
# Processor seconds of this process, which do not grow with the load of the machine. Uninterruptible
# steps, such as one parser call, may exceed the limit.
PATIENCE = 4.0
UNBOUNDED = {"condition": 1 << 30, "windows": 1 << 40, "url": 1 << 20}


@pytest.fixture(scope="module")
def hourly_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    folder = tmp_path_factory.mktemp("numbers")
    with featurestore.connect(folder / "store") as store:
        rows = [{"k": number, "t": "2024-03-01T12:30Z", "x": 1.0} for number in range(10)]
        columns = {name: [row[name] for row in rows] for name in ("k", "x")}
        columns["t"] = [featurestore_time() for _ in rows]
        store.create_featuregroup(columns, "numbers", primary_key="k", event_time="t")
        (folder / "hourly_jobs.py").write_text(JOB)
        store.register_jobs(folder / "hourly_jobs.py")
        yield store


def featurestore_time() -> Any:
    from datetime import UTC, datetime

    return datetime(2024, 3, 1, 12, 30, tzinfo=UTC)


@contextmanager
def client_of(store: FeatureStore, **settings: Any) -> Iterator[TestClient]:
    app = create_app(store, ServerSettings(**settings))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def retrieve(client: TestClient, *filters: str, **read: Any) -> tuple[int, dict[str, Any], float]:
    """Return the status, problem and processor seconds of a retrieval."""
    request = {
        "read": {"kind": "featuregroup", "name": "numbers", **read},
        "steps": [{"filter": text} for text in filters],
        "answer": "count",
    }
    return post(client, request)


def post(client: TestClient, request: dict[str, Any]) -> tuple[int, dict[str, Any], float]:
    start = time.process_time()
    response = client.post(
        "/api/v1/rows", content=json.dumps(request) + "\n", headers={"Content-Type": RETRIEVAL}
    )
    is_problem = response.headers["content-type"].startswith("application/problem")
    return response.status_code, response.json() if is_problem else {}, time.process_time() - start


def condition(characters: int) -> str:
    return " or ".join(["x = 1"] * (characters // 9))


def test_conditions_of_many_characters_are_refused(hourly_store: FeatureStore) -> None:
    with client_of(hourly_store) as client:
        for filters in ([condition(99_000)], [condition(30_000)] * 40, [condition(3_000)] * 8):
            status, problem, seconds = retrieve(client, *filters)
            assert (status, problem["title"]) == (413, "LimitExceeded")
            assert "the limit is 20,000" in problem["detail"]
            assert seconds < 1
        assert retrieve(client, condition(1_000))[0] == 200
        response = client.post(
            "/api/v1/featuregroups/numbers/1/deletions", json={"where": condition(30_000)}
        )
        assert response.status_code == 413


def test_texts_and_lists_of_a_retrieval_are_bounded(hourly_store: FeatureStore) -> None:
    on_demand = {"on_demand": {"name": "d", "sql": condition(30_000)}}
    too_long: list[dict[str, Any]] = [
        {"read": {"kind": "featuregroup", "name": "n" * 10_000}},
        {"read": {"kind": "features", "features": ["f"] * 10_001}},
        {"read": {"kind": "features", "features": ["f" * 100_000]}},
        {"read": {"kind": "features", "features": [on_demand], "labels": "numbers"}},
        {"read": {"kind": "features", "features": ["f"], "join_key": ["k"] * 10_001}},
        {"read": {"kind": "features", "features": ["f"], "versions": {str(n): 1 for n in range(10_001)}}},
        {"read": {"kind": "featuregroup", "name": "numbers"}, "steps": [{"select": ["x"]}] * 101},
        {"read": {"kind": "featuregroup", "name": "numbers"}, "steps": [{"select": ["x"] * 10_001}]},
    ]  # fmt: skip
    with client_of(hourly_store) as client:
        for request in too_long:
            status, problem, seconds = post(client, request)
            assert (status, problem["title"]) == (413, "LimitExceeded"), request
            assert any(letter.isdigit() for letter in problem["detail"])
            assert seconds < 1


def test_upload_content_type_keeps_page_time_limit(hourly_store: FeatureStore) -> None:
    with client_of(hourly_store, query_seconds=1e-9) as client:
        for headers in ({}, {"Content-Type": RETRIEVAL}):
            assert client.get("/groups", headers=headers).status_code == 503


def test_addresses_of_many_bytes_are_refused(hourly_store: FeatureStore) -> None:
    with client_of(hourly_store, url=16_384) as client:
        for path in ("/groups?q=", "/search?q=", "/api/v1/search?q=", "/groups/"):
            response = client.get(path + "a" * 17_000)
            assert response.status_code == 414
            assert "16,384" in response.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("years", [("0001-01-01", "9999-12-31"), ("2024-03-01", "9999-12-31")])
def test_plans_of_many_windows_are_refused(
    hourly_store: FeatureStore, method: str, years: tuple[str, str]
) -> None:
    times = {"start": f"{years[0]}T00:00Z", "end": f"{years[1]}T23:59Z"}
    form = {"params": times} if method == "GET" else {"data": times}
    start = time.process_time()
    with client_of(hourly_store, windows=1000) as client:
        response = client.request(method, "/jobs/hourly/backfill", **form)
    assert response.status_code == 413
    assert "more than 1,000 windows" in response.text
    assert time.process_time() - start < PATIENCE


def test_time_limits_cover_parsing_and_planning(hourly_store: FeatureStore) -> None:
    """Raised length limits do not raise the time limit."""
    times = {"start": "0001-01-01T00:00Z", "end": "9999-12-31T23:59Z"}
    with client_of(hourly_store, seconds=SECONDS, query_seconds=SECONDS, **UNBOUNDED) as client:
        retrieve(client, "x = 1")  # imports
        for filters in ([condition(30_000)] * 40, ["x = 1 and " + condition(6_000)] * 100):
            status, problem, seconds = retrieve(client, *filters)
            assert (status, problem["title"]) == (503, "QueryEnded")
            assert "cancelled after 0.5 seconds" in problem["detail"]
            assert seconds < PATIENCE
        start = time.process_time()
        response = client.get("/jobs/hourly/backfill", params=times)
        assert response.status_code == 503
        assert "cancelled after 0.5 seconds" in response.text
        assert time.process_time() - start < PATIENCE


def test_time_limits_cover_rendering(hourly_store: FeatureStore) -> None:
    with client_of(hourly_store, query_seconds=0.0) as client:
        page = client.get("/groups")
        assert page.status_code == 503
        assert "cancelled after 0 seconds" in page.text
        assert client.get("/groups/numbers/1?format=csv").status_code == 503
