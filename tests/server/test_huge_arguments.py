"""Huge numbers, times and strings are refused with 4xx on every route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.testclient import TestClient

from featurestore.plugins.remote import RETRIEVAL
from featurestore.store import FeatureStore

NAMES = {
    "groups": "visits",
    "featuregroups": "visits",
    "datasets": "sells",
    "training-datasets": "sells",
    "views": "selling",
    "models": "seller",
    "jobs": "doubled",
    "monitors": "watch",
}
HUGE = ["0", str(2**31), str(10**30)]
LONG = "x" * 50_000
TIMES = ["10000-01-01T00:00:00Z", "0000-12-31", "0001-01-01T00:00:00+14:00"]


def address_of(path: str) -> str:
    """Return the address of a route for existing objects."""
    noun = path.removeprefix("/api/v1").split("/")[1]
    for name, value in (("name", NAMES.get(noun, "none")), ("version", "1"), ("split", "train")):
        path = path.replace(f"{{{name}}}", value)
    return path


def requests_of(client: TestClient) -> Iterator[str]:
    """Yield addresses of all reading routes, each with one out-of-range argument."""
    for context in iter_route_contexts(client.app.routes):  # type: ignore[attr-defined]
        route = context.original_route
        if not isinstance(route, APIRoute) or "GET" not in (route.methods or ()):
            continue
        path = str(context.path)
        if "{version}" in path:
            for number in HUGE:
                yield address_of(path.replace("{version}", number))
        for parameter in route.dependant.query_params:
            address = address_of(path)
            for value in (str(2**63), "9" * 5_000, LONG):
                yield f"{address}?{parameter.alias}={quote(value)}"


def test_reading_routes_refuse_huge_arguments(
    client: TestClient, served_store: FeatureStore
) -> None:
    tried = 0
    wrong = []
    for address in requests_of(client):
        response = client.get(address)
        tried += 1
        # Pages show the store's location to signed-in users.
        shows_location = "/api/" in address and served_store.location in response.text
        if response.status_code >= 500 or shows_location:
            wrong.append((address[:120], response.status_code, response.text[:200]))
    assert tried > 200
    assert wrong == []


def post(client: TestClient, body: dict[str, object]) -> Any:
    """Send the request of a remote client."""
    line = json.dumps(body).encode() + b"\n"
    return client.post("/api/v1/rows", content=line, headers={"Content-Type": RETRIEVAL})


READS = [
    {"kind": "featuregroup", "name": "visits"},
    {"kind": "features", "features": ["visits.sales"], "labels": "visits"},
    {"kind": "split", "name": "sells", "version": 1, "split": "train"},
]


@pytest.mark.parametrize("number", [2**63, 10**30])
@pytest.mark.parametrize("read", READS, ids=lambda read: str(read["kind"]))
def test_rows_request_huge_numbers_are_refused(
    client: TestClient, read: dict[str, object], number: int
) -> None:
    bodies: list[dict[str, object]] = [
        {"read": read, "limit": number},
        {"read": {**read, "version": number}},
        {"read": {**read, "as_of": number}},
        {"read": {**read, "as_of": {"visits": number}}},
        {"read": {**read, "versions": {"visits": number}}},
        {"read": read, "steps": [{"sample": {"fraction": 0.5, "seed": number}}]},
    ]
    for body in bodies:
        assert post(client, body).status_code in (400, 422), body
    assert post(client, bodies[0]).status_code == 422


@pytest.mark.parametrize("time", TIMES)
def test_rows_request_time_out_of_range_is_refused(client: TestClient, time: str) -> None:
    for argument in ("as_of", "label_time"):
        read = {**READS[1], argument: time}
        response = post(client, {"read": read})
        assert response.status_code in (400, 422), response.text
    response = post(client, {"read": {**READS[1], "as_of": TIMES[0]}})
    assert response.status_code == 422
    assert "years 1 to 9999" in response.json()["detail"]


def test_search_long_text_is_refused(client: TestClient) -> None:
    response = client.get("/search", params={"q": LONG})
    assert response.status_code == 422
    assert "the maximum is 1,000" in response.text


def test_missing_version_error_omits_store_path(
    client: TestClient, served_store: FeatureStore
) -> None:
    read = {**READS[0], "as_of": "2001-01-01T00:00:00Z"}
    response = post(client, {"read": read})
    assert response.status_code == 404
    assert "has no version at" in response.json()["detail"]
    assert served_store.location not in response.text
