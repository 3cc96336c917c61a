"""Responses do not depend on hidden objects: each route, role and state of derived objects.

The requests of all routes are sent to a store with public objects. A private group, and a thing of
every noun that derives from it, then come into the store, fail, are published, deleted, rebuilt and
erased. After each of these states the responses have to be the same, with status, headers and tag.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

import featurestore
from featurestore.errors import JobFailed
from featurestore.registry.tables import metadata
from featurestore.store import FeatureStore
from tests.server import canaries
from tests.server.canaries import ANONYMOUS, ROLES, SEES, STATES, headers_of, names_in
from tests.server.canary_requests import (
    CREATE,
    HIDDEN,
    PUBLIC,
    Request,
    Response,
    requests_by_route,
    send_all,
)
from tests.server.private_groups import client_of

# Used in values, descriptions and tags of private objects.
SECRETS = ("canary", "7717177")
# Registry tables in which a private object has no rows, with the reason.
WITHOUT_CANARIES = {
    "sources": "sources have no rows of the store",
    "online_stores": "the embedded online store is not registered",
    "project_definitions": "only admins see projects",
    "stream_offsets": "streams need a broker",
    "stream_progress": "streams need a broker",
    "owners": "processes",
    "intents": "writes that are in progress",
    "sign_ins": "accounts",
    "failed_sign_ins": "accounts",
    "tokens": "accounts",
}
_REBUILT = list(STATES).index("rebuilt")


@dataclass(frozen=True)
class Served:
    """An open store, its server, and the request headers of each role."""

    store: FeatureStore
    client: TestClient
    headers: Mapping[str, Mapping[str, str]]

    def send(self, requests: Sequence[Request]) -> dict[Request, Response]:
        """Return the responses to requests."""
        assert self.client.portal is not None
        return self.client.portal.call(send_all, self.client.app, self.headers, requests)


@dataclass
class Guarded:
    """A store in its last state, and the comparisons of all states."""

    served: Served
    differences: dict[str, list[object]] = field(default_factory=dict)
    compared: dict[str, Counter[str]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)

    def compare(self, state: str, before: Mapping[Request, Response], served: Served) -> None:
        """Send requests again, and compare the responses with those of the public store."""
        counts, differences = Counter[str](), list[object]()
        for request, response in served.send(list(before)).items():
            counts[request.role] += 1
            secrets = leaks(request, response)
            if secrets:
                differences.append((request, secrets))
            # A writer cannot create a group that exists.
            is_hidden = request.address.rpartition("/")[2] in HIDDEN["featuregroups"]
            if (request.method, request.route) == CREATE and request.role == "writer" and is_hidden:
                assert response.status in (400, 404)
            elif response.lasting != before[request].lasting:
                differences.append((request, before[request].status, response.status))
        self.compared[state], self.differences[state] = counts, differences
        for collection, names in names_in(served.store).items():
            self.names.setdefault(collection, set()).update(names)
        for table, count in count_rows(served.store).items():
            self.rows[table] = max(self.rows.get(table, 0), count)


@contextmanager
def serve(folder: Path) -> Iterator[Served]:
    """Open the store in a folder and its server, and sign in every role."""
    with featurestore.connect(folder / "store") as store, client_of(store) as client:
        headers: dict[str, Mapping[str, str]] = {ANONYMOUS: {}}
        for role, (user, _, _, browser) in ROLES.items():
            headers[role] = headers_of(store, user, browser=browser)
        yield Served(store, client, headers)


def count_rows(store: FeatureStore) -> dict[str, int]:
    """Return the number of rows in each table of the registry."""
    with store.session.registry.reading() as connection:
        return {
            table.name: connection.execute(
                sa.select(sa.func.count()).select_from(table)
            ).scalar_one()
            for table in metadata.sorted_tables
        }


def requests_of_states(served: Served, *, choices: int | None) -> list[list[Request]]:
    """Return the requests of each state: ``choices`` of each role and route, None for all.

    A state has one of these choices, and the next state another one.
    """
    candidates = list(requests_by_route(served.client.app, [*ROLES, ANONYMOUS]).values())
    if choices is None:
        return [[request for requests in candidates for request in requests] for _ in STATES]
    return [
        [requests[number % min(len(requests), choices)] for requests in candidates]
        for number in range(len(STATES))
    ]


@pytest.fixture(scope="module", params=[3, pytest.param(None, marks=pytest.mark.soak)])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("canaries")
    store_folder, public_folder, private_folder = (
        folder / name for name in ("store", "public", "private")
    )
    with featurestore.connect(store_folder) as store:
        canaries.fill_public(store, folder)
    with serve(folder) as served:
        requests = requests_of_states(served, choices=request.param)
        before = served.send(union(requests[:_REBUILT]))
        guarded = Guarded(served)
        rows_before, names_before = count_rows(served.store), names_in(served.store)
    shutil.copytree(store_folder, public_folder, ignore=shutil.ignore_patterns("_owners"))
    states = list(STATES.items())
    with serve(folder) as served:
        for number, (state, change) in enumerate(states[:_REBUILT]):
            change(served.store, folder)
            guarded.compare(state, {each: before[each] for each in requests[number]}, served)
    # The registry is lost: first that of the public store, at the same location.
    os.rename(store_folder, private_folder)
    os.rename(public_folder, store_folder)
    canaries.rebuild(folder, jobs="public_jobs")
    with serve(folder) as served:
        before = served.send(union(requests[_REBUILT:]))
    shutil.rmtree(store_folder)
    os.rename(private_folder, store_folder)
    canaries.rebuild(folder)
    with serve(folder) as served:
        for number, (state, change) in enumerate(states[_REBUILT:], _REBUILT):
            change(served.store, folder)
            guarded.compare(state, {each: before[each] for each in requests[number]}, served)
        guarded.served = served
        guarded.rows = {name: count - rows_before[name] for name, count in guarded.rows.items()}
        guarded.names = {key: names - names_before[key] for key, names in guarded.names.items()}
        yield guarded


def union(requests: Sequence[Sequence[Request]]) -> list[Request]:
    """Return the distinct requests of several states."""
    return list(dict.fromkeys(each for of_state in requests for each in of_state))


def leaks(request: Request, response: Response) -> list[str]:
    """Return the secrets in a response that are not in its request."""
    request_text = request.address + request.content.decode()
    response_text = response.text + json.dumps(response.headers)
    return [secret for secret in SECRETS if secret in response_text and secret not in request_text]


def format_table(compared: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the numbers of equal responses by state and role."""
    roles = [*ROLES, ANONYMOUS]
    rows = [["canary responses", *roles]]
    rows += [[state, *(str(counts[role]) for role in roles)] for state, counts in compared.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def test_responses_are_independent_of_hidden_objects(
    guarded: Guarded, record_property: Callable[[str, object], None]
) -> None:
    different = {state: found[:3] for state, found in guarded.differences.items() if found}
    assert not different, different
    assert list(guarded.compared) == list(STATES)
    # Each role sent each route in each state.
    for counts in guarded.compared.values():
        assert set(counts) == {*ROLES, ANONYMOUS}
        assert min(counts.values()) == max(counts.values()) > 85
    record_property("canary responses", format_table(guarded.compared))


def test_every_registry_table_has_rows_of_private_objects(guarded: Guarded) -> None:
    without_rows = {name for name, count in guarded.rows.items() if count <= 0}
    # A new table needs private rows, or a reason.
    assert without_rows <= set(WITHOUT_CANARIES)


def test_hidden_objects_are_visible_with_role(guarded: Guarded) -> None:
    store, client = guarded.served.store, guarded.served.client
    present = names_in(store)
    for collection, names in guarded.names.items():
        assert names
        assert names <= set(HIDDEN[collection]), collection
    for user, (collection, names) in product(SEES, guarded.names.items()):
        headers = headers_of(store, user)
        for name in names & present[collection]:
            pages = {"featuregroups": "groups", "training-datasets": "datasets"}
            page = client.get(f"/{pages.get(collection, collection)}/{name}", headers=headers)
            assert page.status_code in (200, 307), (user, collection, name)


def test_runs_without_store_role_are_hidden(guarded: Guarded) -> None:
    for role in ("other writer", "no role"):
        response = guarded.served.client.get(
            "/api/v1/experiments", headers=guarded.served.headers[role]
        )
        assert response.json()["items"] == []
        page = f"/experiments/{PUBLIC['experiments'][0]}"
        status = guarded.served.client.get(page, headers=guarded.served.headers[role]).status_code
        assert status == (404 if role == "other writer" else 403)
    response = guarded.served.client.get(
        "/api/v1/experiments", headers=guarded.served.headers["reader"]
    )
    assert len(response.json()["items"]) == 3


def test_job_errors_omit_private_names_without_role(guarded: Guarded, tmp_path: Path) -> None:
    store, client = guarded.served.store, guarded.served.client
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
        for role, address in product(["reader", "writer"], addresses):
            response = client.get(address, headers=guarded.served.headers[role])
            assert response.status_code == 200
            assert not any(secret in response.text for secret in SECRETS), (role, address)
        log = client.get(
            f"/jobs/{job}/runs/{run.run_id}/log", headers=guarded.served.headers["reader"]
        ).text
        assert ("'doubled', 'visits'" in log) == (job == "lost_sql")
    assert not any(secret in texts for secret in SECRETS)
    response = client.get("/jobs/lost_sql", headers=headers_of(store, "adm"))
    assert canaries.PRIVATE in response.text
