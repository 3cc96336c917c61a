"""Responses do not depend on hidden objects: each route, role and derived object.

Every request is made before and after a private group, and a thing of every kind that derives from
it, come into a store. Each answer has to be the same, with its status, headers and tag.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from starlette.testclient import TestClient

import featurestore
from featurestore.errors import JobFailed
from featurestore.plugins.remote import RETRIEVAL
from featurestore.store import FeatureStore
from tests.server import canaries
from tests.server.canaries import PRIVATE, SECRETS, SEES, USERS, headers_of, names_in
from tests.server.private_groups import client_of

_RUN = "20240301-120000-canary-model"
# Objects added between the two passes, by the noun of their routes.
HIDDEN = {
    "featuregroups": [
        PRIVATE, "canary_twice", "canary_third", "canary_compared", "canary_copy", "canary_split", "canary_refused",
        "canary_scores", "canary_windows", "canary_never",
    ],
    "training-datasets": ["canary_set", "canary_likeness", "canary_by_view", "canary_trained"],
    "views": ["canary_view"],
    "jobs": [
        "canary_sql", "canary_python", "canary_failing", "canary_training", "canary_window",
        "canary_watch", "canary_baseline", "canary_publish",
    ],
    "monitors": ["canary_watch", "canary_baseline"],
    "models": ["canary_model"],
    "experiments": [
        _RUN, "20240302-120000-canary-model", "20240303-120000-canary-model",
        "20240303-120000-canary-model-0", "20240304-120000-names",
    ],
}  # fmt: skip
PUBLIC = {
    "featuregroups": ["visits", "doubled"], "training-datasets": ["of_visits"],
    "views": ["view_visits"], "jobs": ["doubled"], "monitors": ["watch"],
    "models": ["model_visits"], "experiments": ["20240301-120000-model-visits"],
}  # fmt: skip
_SYNONYMS = {"groups": "featuregroups", "datasets": "training-datasets"}
_TYPO = "canary_pai"
# Values of query parameters by their name; a parameter of another name gets the first of them.
QUERIES = {
    "q": ["canary", "pay"],
    "node": [
        f"featuregroup:{PRIVATE}@1", f"feature:{PRIVATE}.canary_amount@1", "job:canary_sql",
        "training_dataset:canary_set@1", "model:canary_model@1", "featuregroup:visits@1",
        "experiment:canary_model", "feature:visits.pay@1",
    ],
    "feature": [f"{PRIVATE}.canary_amount", "canary_amount"],
    "run": [_RUN], "name": ["canary_model", "names"], "dataset": ["canary_set"],
    "tag": ["canary=canary"], "owner": ["canary"], "format": ["csv"],
}  # fmt: skip
_UNTOUCHED = {"limit", "offset", "number", "up", "down", "sort", "fresh", "partial"}
READS: list[dict[str, Any]] = [
    {"kind": "featuregroup", "name": PRIVATE},
    {"kind": "featuregroup", "name": "canary_copy"},
    {"kind": "features", "features": [f"{PRIVATE}.canary_amount"]},
    {"kind": "features", "features": ["canary_amount"]},
    {"kind": "features", "features": ["visits.pay"], "labels": PRIVATE},
    {"kind": "split", "name": "canary_set", "version": 1, "split": "train"},
]
# Elapsed times, which differ between two responses.
_PASSING = re.compile(
    r"(\d+ (second|minute|hour|day)s? ago|just now"
    r"|featurestore_job_watermark_lag_seconds\{.*|_created\{.*"
    r'|"at": "[^"]*")'
)


# These routes would end the session of the test.
_OF_THE_ACCOUNT = ("/sign-out", "/sign-in", "/account")
_REQUESTS = 4  # requests per user and route, unless all are sent
_CREATE = ("POST", "/api/v1/featuregroups/{name}")
# Bodies of changes; each request is refused before its body is read.
_CHANGE = b'{"where": "true", "key": "a"}'


@dataclass(frozen=True)
class Request:
    """One request of a user."""

    user: str
    method: str
    route: str
    address: str
    content: bytes = b""


@dataclass(frozen=True)
class Response:
    """The response to a request."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def lasting(self) -> tuple[int, dict[str, str], str]:
        """The response without elapsed times."""
        text = _PASSING.sub("", self.text)
        changing = {"date"} if text == self.text else {"date", "etag", "content-length"}
        headers = {name: value for name, value in self.headers.items() if name not in changing}
        return self.status, headers, text


@dataclass(frozen=True)
class Guarded:
    """A store with canaries, and all responses before and after they were added."""

    store: FeatureStore
    client: TestClient
    headers: dict[str, dict[str, str]]
    before: dict[Request, Response]
    after: dict[Request, Response]
    came: dict[str, set[str]]


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.soak)])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("canaries")
    with featurestore.connect(folder / "store") as store, client_of(store) as client:
        canaries.fill_public(store, folder)
        headers = {}
        for user, (_, _, browser) in USERS.items():
            headers[user] = headers_of(store, user, browser=browser)
        requests = [Request(user, *target) for target in requests_of(client.app) for user in USERS]
        if request.param == "some":
            requests = some_of(requests)
        before = {item: send_request(client, headers, item) for item in requests}
        names_before = names_in(store)
        canaries.fill_private(store, folder)
        came = {
            collection: names - names_before[collection]
            for collection, names in names_in(store).items()
        }
        after = {item: send_request(client, headers, item) for item in requests}
        yield Guarded(store, client, headers, before, after, came)


def some_of(requests: list[Request]) -> list[Request]:
    """Return a few requests of each user for each route."""
    requests_by_route: dict[tuple[str, ...], list[Request]] = {}
    for request in sorted(requests, key=lambda request: zlib.crc32(repr(request).encode())):
        of_route = requests_by_route.setdefault((request.user, request.method, request.route), [])
        if len(of_route) < _REQUESTS:
            of_route.append(request)
    return [request for of_route in requests_by_route.values() for request in of_route]


def send_request(
    client: TestClient, headers: dict[str, dict[str, str]], request: Request
) -> Response:
    request_headers = dict(headers[request.user])
    if request.content:
        is_retrieval = request.route == "/api/v1/rows"
        request_headers["Content-Type"] = RETRIEVAL if is_retrieval else "application/json"
    response = client.request(
        request.method, request.address, content=request.content, headers=request_headers
    )
    return Response(response.status_code, dict(response.headers), response.text)


def requests_of(app: Any) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield (method, route, address, content) of the requests for an application."""
    for route in iter_route_contexts(app.routes):
        path = str(route.path)
        for method in sorted(set(route.methods or ["GET"]) - {"HEAD"}):
            if path.startswith(_OF_THE_ACCOUNT) or path == "/static":
                continue
            for address in addresses_of(path, method):
                if path == "/api/v1/rows":
                    for read in READS:
                        yield method, path, address, json.dumps({"read": read}).encode() + b"\n"
                    continue
                yield method, path, address, b"" if method == "GET" else _CHANGE
                for name in query_names(route) if method == "GET" else ():
                    for value in QUERIES.get(name, []):
                        yield method, path, f"{address}?{name}={value}", b""


def query_names(route: Any) -> list[str]:
    dependant = getattr(route, "dependant", None)
    names = [] if dependant is None else [parameter.alias for parameter in dependant.query_params]
    return [name for name in names if name not in _UNTOUCHED]


def addresses_of(path: str, method: str) -> Iterator[str]:
    """Yield addresses of a route with hidden, mistyped and public names of its kind."""
    noun = path.removeprefix("/api/v1").split("/")[1]
    collection = _SYNONYMS.get(noun, noun)
    parameters = re.findall(r"{([^}]+)}", path)
    choices = []
    for parameter in parameters:
        fixed = {"version": "1", "split": "train", "path:path": "train/tfrecord-00000-of-00001"}
        if parameter in fixed:
            choices.append([fixed[parameter]])
            continue
        hidden = HIDDEN.get(collection) or [name for names in HIDDEN.values() for name in names]
        if collection == "jobs" and parameter == "run_id":
            hidden = [_RUN]
        # Repeating a change of a public object has another result.
        public = PUBLIC.get(collection, []) if method == "GET" else []
        choices.append([*hidden, _TYPO, *public])
    for values in product(*choices):
        address = path
        for parameter, value in zip(parameters, values, strict=True):
            address = address.replace(f"{{{parameter}}}", value)
        yield address


def leaks(request: Request, response: Response) -> list[str]:
    """Return the secrets in a response that are not in its request."""
    request_text = request.address + request.content.decode()
    response_text = response.text + json.dumps(response.headers)
    return [secret for secret in SECRETS if secret in response_text and secret not in request_text]


def test_responses_are_independent_of_hidden_objects(guarded: Guarded) -> None:
    different = []
    for request, before in guarded.before.items():
        after = guarded.after[request]
        if leaks(request, after):
            different.append((request, leaks(request, after)))
        is_hidden = request.address.rpartition("/")[2] in HIDDEN["featuregroups"]
        if (request.method, request.route) == _CREATE and request.user == "wil" and is_hidden:
            assert after.status in (400, 404)  # a writer cannot create an existing group
            continue
        if after.lasting != before.lasting:
            different.append((request, [before.status, after.status]))
    assert not different, different[:5]
    routes = {request.route for request in guarded.after}
    assert len(routes) > 60
    assert {request.user for request in guarded.after} == set(USERS)


def test_hidden_objects_are_visible_with_role(guarded: Guarded) -> None:
    for collection, names in guarded.came.items():
        assert names
        assert names <= set(HIDDEN[collection]), collection
    for user in SEES:
        headers = headers_of(guarded.store, user)
        for collection, names in guarded.came.items():
            pages = {"featuregroups": "groups", "training-datasets": "datasets"}
            for name in names:
                page = guarded.client.get(
                    f"/{pages.get(collection, collection)}/{name}", headers=headers
                )
                assert page.status_code in (200, 307), (user, collection, name)


def test_runs_without_store_role_are_hidden(guarded: Guarded) -> None:
    for user in ("vis", "non"):
        response = guarded.client.get("/api/v1/experiments", headers=guarded.headers[user])
        assert response.json()["items"] == []
        page = f"/experiments/{PUBLIC['experiments'][0]}"
        status = guarded.client.get(page, headers=guarded.headers[user]).status_code
        assert status == (404 if user == "vis" else 403)
    response = guarded.client.get("/api/v1/experiments", headers=guarded.headers["rea"])
    assert len(response.json()["items"]) == 3


def test_job_errors_omit_private_names_without_role(guarded: Guarded, tmp_path: Path) -> None:
    store, client = guarded.store, guarded.client
    (tmp_path / "lost_jobs.py").write_text(canaries.LOST_JOB)
    store.register_jobs(tmp_path / "lost_jobs.py")
    for name in ("lost", "lost_sql"):
        with pytest.raises(JobFailed):
            store.backfill_job(name, canaries.NOON, canaries.NOON + timedelta(hours=1))
    with store.session.registry.reading() as connection:
        rows = connection.exec_driver_sql("select error, hint from runs where job like 'lost%'")
        texts = str(rows.all())
    assert "Available: [list of feature groups]" in texts
    assert "visits" not in texts
    for job in ("lost", "lost_sql"):
        run = store.get_runs(job)[-1]
        assert run.log is not None
        texts += Path(run.log).read_text()
        addresses = ["/", "/jobs", "/jobs?format=csv", "/api/v1/jobs", f"/jobs/{job}"]
        addresses += [f"/jobs/{job}?format=csv", f"/api/v1/jobs/{job}/runs"]
        addresses += [f"/jobs/{job}/runs/{run.run_id}/log", "/metrics"]
        for user, address in product(["rea", "wil"], addresses):
            response = client.get(address, headers=guarded.headers[user])
            assert response.status_code == 200
            assert not any(secret in response.text for secret in SECRETS), (user, address)
        log = client.get(f"/jobs/{job}/runs/{run.run_id}/log", headers=guarded.headers["rea"]).text
        assert ("'doubled', 'visits'" in log) == (job == "lost_sql")
    assert not any(secret in texts for secret in SECRETS)
    response = client.get("/jobs/lost_sql", headers=headers_of(store, "adm"))
    assert PRIVATE in response.text
