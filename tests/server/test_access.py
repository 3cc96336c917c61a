"""Access of each role to each route, by cookie and by token."""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Iterator

import pytest
from fastapi.routing import iter_route_contexts
from starlette.testclient import TestClient

import featurestore
from featurestore.plugins.remote import RETRIEVAL
from featurestore.registry import audit_log
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from tests.server.private_groups import (
    PASSWORD,
    ROOT,
    USERS,
    client_of,
    field_of,
    fill,
    sign_in,
    token_of,
)

# Public routes, and changing routes with the required role.
OPEN = {
    "/healthz",
    "/sign-in",
    "/static",
    "/api/v1/openapi.json",
    "/sign-in/provider",
    "/sign-in/back",
}
CHANGES = {
    ("POST", "/sign-out"): "browser",
    ("POST", "/account/tokens"): "browser",
    ("POST", "/account/tokens/{identifier}/revoke"): "browser",
    ("POST", "/account/password"): "browser",
    ("GET", "/account"): "browser",
    ("GET", "/admin"): "browser",
    ("GET", "/admin/tokens"): "browser",
    ("GET", "/admin/groups"): "browser",
    ("GET", "/admin/groups/{name}/public"): "browser",
    ("POST", "/admin/users"): "browser",
    ("POST", "/admin/users/role"): "browser",
    ("POST", "/admin/users/password"): "browser",
    ("POST", "/admin/users/remove"): "browser",
    ("POST", "/admin/tokens"): "browser",
    ("POST", "/admin/tokens/revoke"): "browser",
    ("POST", "/admin/groups/private"): "browser",
    ("POST", "/admin/groups/role"): "browser",
}  # fmt: skip
READERS = {"ann", "wil", "rea", "mia"}
WRITERS = {"ann", "wil"}
# Empty requests; test_remote_writes covers the committed writes.
WRITES = {
    ("POST", "/api/v1/featuregroups/{name}"),
    ("POST", "/api/v1/featuregroups/{name}/{version}/rows"),
    ("POST", "/api/v1/featuregroups/{name}/{version}/deletions"),
    ("POST", "/api/v1/featuregroups/{name}/{version}/tags"),
}
# Changes of visible jobs; an empty form runs nothing.
JOB_CHANGES = {"pause": 303, "resume": 303, "run": 400, "backfill": 400}
ADMINS = {("GET", "/audit")}
# Empty requests; tests/erasure covers erasures.
ADMIN_CALLS = {("POST", "/api/v1/erasures"), ("POST", "/api/v1/erasures/verify")}
VALUES = {
    "name": {"groups": "visits", "featuregroups": "visits", "datasets": "of_visits",
             "training-datasets": "of_visits", "views": "view_visits", "jobs": "raise_pay",
             "featureviews": "view_visits", "monitors": "watch_pay", "models": "model_visits"},
    "run_id": {"experiments": "20240301-120000-model-visits"},
    "path:path": "train/tfrecord-00000-of-00001", "version": "1", "split": "train", "identifier": "none",
}  # fmt: skip


@pytest.fixture(scope="module")
def guarded_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    folder = tmp_path_factory.mktemp("guarded")
    with featurestore.connect(folder / "store") as store:
        fill(store, folder)
        yield store


@pytest.fixture
def client(guarded_store: FeatureStore) -> Iterator[TestClient]:
    with client_of(guarded_store) as client:
        yield client


def routes_of(client: TestClient) -> list[tuple[str, str]]:
    """Return method and path of every route of the application."""
    result = []
    for route in iter_route_contexts(client.app.routes):  # type: ignore[attr-defined]
        for method in sorted(set(route.methods or ["GET"]) - {"HEAD"}):
            result.append((method, str(route.path)))
    return result


def address_of(path: str, group: str = "visits") -> str:
    """Return the address of a route, filled with names of existing objects."""
    noun = path.removeprefix("/api/v1").split("/")[1]
    for name, value in VALUES.items():
        if isinstance(value, dict):
            value = value.get(noun, "none")
        path = path.replace(f"{{{name}}}", value.replace("visits", group))
    if path in ("/api/v1/search", "/api/v1/matches"):
        path += "?q=pay"
    if path.endswith("/diff"):
        path += "?against=2"
    if path.endswith("/compare"):
        path += f"?run=20240301-120000-model-{group}&run=20240302-120000-model-{group}"
    return path


def is_of_one(path: str) -> bool:
    """Return whether a route shows one object, which may be private."""
    return "{name}" in path or "{run_id}" in path or path.endswith("/compare")


def test_route_access_matches_role_table(client: TestClient, guarded_store: FeatureStore) -> None:
    """No user, an invalid token, every user, and each token scope."""
    routes = routes_of(client)
    assert len(routes) >= 40
    shown = {}
    for name in USERS:
        shown[name] = token_of(guarded_store, name)
    for scope in ("read", "write"):
        shown[f"ann {scope}"] = token_of(guarded_store, "ann", scope=scope)
    for method, path in routes:
        if path in OPEN:
            continue
        address = address_of(path)
        nobody = client.request(method, address)
        unknown = client.request(method, address, headers={"Authorization": "Bearer fs_x"})
        wrong = client.request(method, address, headers={"Authorization": "Basic YTpi"})
        is_page = method == "GET" and not path.startswith("/api")
        assert nobody.status_code == (303 if is_page else 401), (method, path)
        assert unknown.status_code == wrong.status_code == 401, (method, path)
        if is_page:
            assert nobody.headers["location"].startswith("/sign-in?next=")
        for token_name, headers in shown.items():
            response = client.request(method, address, headers=headers)
            message = (
                f"{method} {path} for {token_name}: {response.status_code} {response.text[:300]}"
            )
            expected = expected_of(method, path, token_name)
            assert response.status_code in expected, message


def expected_of(method: str, path: str, token_name: str) -> set[int]:
    """Return the allowed status codes of a user's token for a route."""
    if path == "/sign-out":
        return {303}
    if (method, path) in CHANGES:
        return {403}  # of a browser alone
    user, _, scope = token_name.partition(" ")
    if user == "non" and not path.startswith("/api"):
        return {403}  # no page but the account
    if (method, path) in ADMINS:
        return {200} if user == "ann" and not scope else {403}
    if (method, path) in ADMIN_CALLS:
        return {422} if user == "ann" and scope in ("", "admin") else {403}
    noun = path.removeprefix("/api/v1").split("/")[1]
    if "{run_id}" in path and noun == "jobs":
        return {404}
    if (method, path) == ("GET", "/api/v1/featureviews/{name}/vectors"):
        return {404}  # the view is not published
    if path.endswith(("/vectors", "/predict")):
        return {422} if user in READERS else {404}  # a request without entities
    if path == "/api/v1/rows":
        return {400}  # an empty request; what it may read is in test_remote_client
    if (method, path) in WRITES:
        if user in READERS:
            writes = user in WRITERS and scope != "read"
            return {400, 422} if writes else {403}
        return {403, 404}
    if method == "POST" and noun == "jobs":
        if user not in {"ann", "mia"}:
            return {404}
        is_writer = user in WRITERS and scope != "read"
        return {JOB_CHANGES[path.rpartition("/")[2]]} if is_writer else {403}
    if (method, path) == ("POST", "/basket/view"):
        return {400} if user in WRITERS and scope != "read" else {403}
    if (method, path) == ("POST", "/monitors/{name}/accept"):
        if user not in {"ann", "mia", "own"}:
            return {404}
        return {400} if user in WRITERS and scope != "read" else {403}
    if is_of_one(path):
        # The job reads a private group and writes a public one; the monitor watches the private one.
        sees = {"jobs": {"ann", "mia"}, "monitors": {"ann", "mia", "own"}}
        return {200, 307} if user in sees.get(noun, READERS) else {404}
    return {200}


@pytest.mark.parametrize("name", ["rea", "wil", "non"])
def test_private_group_without_role_is_absent_from_responses(
    client: TestClient, guarded_store: FeatureStore, name: str
) -> None:
    """Every linked page and every REST address."""
    headers = token_of(guarded_store, name)
    for method, path in routes_of(client):
        if is_of_one(path):
            response = client.request(method, address_of(path, "salaries"), headers=headers)
            # Creating a group requires a role whether or not its name exists.
            makes = (method, path) == ("POST", "/api/v1/featuregroups/{name}")
            is_without_role = name == "non" and not path.startswith("/api")
            is_refused = is_without_role or path.startswith("/admin/")
            expected = 403 if is_refused or (makes and name not in WRITERS) else 404
            assert response.status_code == expected, path
    assert "boss_of_salaries" not in crawl(client, headers)
    basket = client.get("/basket?feature=salaries.pay&q=pay", headers=headers)
    assert "boss_of_salaries" not in basket.text
    for text in ("salaries", "boss_of", "pay"):
        for search in ("search", "matches"):
            response = client.get(f"/api/v1/{search}", params={"q": text}, headers=headers)
            assert "salaries" not in response.text
    lineage = client.get("/api/v1/lineage?node=featuregroup:raises@1", headers=headers).text
    assert "salaries" not in lineage
    commits = client.get("/api/v1/featuregroups/raises/1/commits", headers=headers)
    assert "salaries" not in commits.text
    document = client.get("/api/v1/featuregroups/salaries", headers=headers).json()
    absent = client.get("/api/v1/featuregroups/nothing_here", headers=headers).json()
    assert document["detail"].endswith("(not found or not allowed)")
    assert document["detail"].replace("salaries", "nothing_here") == absent["detail"]


def crawl(client: TestClient, headers: dict[str, str]) -> str:
    """Return all pages that a user reaches by links, none of which may contain private names."""
    waiting = deque(["/", "/groups", "/datasets", "/views", "/jobs", "/monitors", "/lineage"])
    waiting += ["/experiments", "/models", "/api/v1/experiments", "/api/v1/models"]
    waiting += ["/search?q=pay", "/metrics", "/api/v1/store", "/api/v1/features"]
    pages: dict[str, str] = {}
    while waiting:
        address = waiting.popleft()
        if address in pages or len(pages) > 150:
            continue
        response = client.get(address, headers=headers, follow_redirects=True)
        if response.status_code == 404:
            continue
        assert response.status_code in (200, 403), f"{address}: {response.text[:300]}"
        pages[address] = response.text
        assert "salaries" not in response.text, f"{address}: {around(response.text)}"
        for link in re.findall(r'href="(/[^"]*|\?[^"]*)"', response.text):
            link = html.unescape(link).split("#")[0]
            waiting.append(address.split("?")[0] + link if link.startswith("?") else link)
    assert len(pages) > 8
    return "\n".join(pages.values())


def around(text: str) -> str:
    start = text.index("salaries")
    return text[max(0, start - 200) : start + 200]


def test_private_group_with_role_is_visible(
    client: TestClient, guarded_store: FeatureStore
) -> None:
    for name in ("mia", "own", "ann"):
        headers = token_of(guarded_store, name, scope="read")
        for address in ("/groups/salaries/1", "/datasets/of_salaries/1", "/views/view_salaries/1"):
            assert client.get(address, headers=headers).status_code == 200, (name, address)
        assert "salaries" in client.get("/api/v1/lineage", headers=headers).text
    own_headers = token_of(guarded_store, "own")
    assert client.get("/groups/visits/1", headers=own_headers).status_code == 404
    counts = client.get("/api/v1/store", headers=own_headers).json()["counts"]
    assert (counts["feature groups"], counts["training datasets"]) == (1, 1)


def test_sign_in_and_sign_out_change_session(client: TestClient) -> None:
    assert client.get("/groups?q=v").headers["location"] == "/sign-in?next=%2Fgroups%3Fq%3Dv"
    assert sign_in(client, "rea", "something else") == 401
    token = field_of(client.get("/sign-in").text)
    form = {"name": "Rea", "password": PASSWORD, "next": "/groups", "form_token": token}
    response = client.post("/sign-in", data=form)
    assert (response.status_code, response.headers["location"]) == (303, "/groups")
    cookie = next(
        header for header in response.headers.get_list("set-cookie") if "featurestore=" in header
    )
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "visits" in client.get("/groups").text
    page = client.get("/account").text
    signed_in = dict(client.cookies)
    assert client.post("/sign-out", data={"form_token": field_of(page)}).status_code == 303
    client.cookies.update(signed_in)  # a copy of the cookie is invalid afterwards
    assert client.get("/groups").status_code == 303


def test_form_without_matching_token_returns_403(client: TestClient) -> None:
    assert sign_in(client, "rea") == 303
    address = "/datasets/of_visits/1/verify"
    assert client.post(address).status_code == 403
    assert client.post(address, data={"form_token": "0" * 64}).status_code == 403
    assert client.post(address, data={"form_token": "\u00e4" * 64}).status_code == 403
    token = field_of(client.get(address).text)
    assert client.post(address, data={"form_token": token}).status_code == 200
    assert client.post("/api/v1/training-datasets/of_visits/1/verify").status_code == 403
    headers = {"X-Form-Token": token}
    assert client.post(address.replace("/datasets", "/api/v1/training-datasets"), headers=headers)
    form = {"name": "rea", "password": PASSWORD, "form_token": token}
    client.cookies.clear()
    assert client.post("/sign-in", data=form).status_code == 403


def test_form_token_is_not_read_from_streamed_body(client: TestClient) -> None:
    """Otherwise a page could make the server buffer a body of any length."""
    assert sign_in(client, "rea") == 303

    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 100_000

    # The route decides what its body is, not the content type.
    for content_type in (RETRIEVAL, "application/x-www-form-urlencoded"):
        response = client.post(
            "/api/v1/rows", content=chunks(), headers={"Content-Type": content_type}
        )
        assert response.status_code == 403


def test_sign_in_repeated_failures_returns_429(
    client: TestClient, guarded_store: FeatureStore
) -> None:
    for _ in range(5):
        assert sign_in(client, "wil", "a wrong password") == 401
    assert sign_in(client, "wil", "a wrong password") == 429
    assert sign_in(client, "wil", PASSWORD) == 429
    assert sign_in(client, "nobody", "a wrong password") == 401
    with guarded_store.session.registry.transaction() as connection:
        connection.exec_driver_sql("delete from failed_sign_ins")
    assert sign_in(client, "wil", PASSWORD) == 303


def test_account_tokens_are_created_and_revoked(
    client: TestClient, guarded_store: FeatureStore
) -> None:
    assert sign_in(client, "rea") == 303
    form = {"form_token": field_of(client.get("/account").text), "label": "<b>nightly</b>"}
    response = client.post("/account/tokens", data={**form, "scope": "read", "expires": "1d"})
    token = re.search(r"fs_[\w-]{40,}", response.text)
    assert token is not None
    assert response.headers["cache-control"] == "no-store"
    page = client.get("/account").text
    assert token[0] not in page
    assert "&lt;b&gt;nightly" in page
    headers = {"Authorization": f"Bearer {token[0]}"}
    with client_of(guarded_store) as program:
        assert program.get("/api/v1/store", headers=headers).status_code == 200
        identifier = re.findall(r"/account/tokens/(\w+)/revoke", page)[-1]
        status = sign_in(program, "wil")
        assert status == 303
        other_form = {"form_token": field_of(program.get("/account").text)}
        address = f"/account/tokens/{identifier}/revoke"
        assert program.post(address, data=other_form).status_code == 404
        assert client.post(address, data=form).status_code == 303
        assert program.get("/api/v1/store", headers=headers).status_code == 401


def test_removed_user_loses_access_immediately(
    client: TestClient, guarded_store: FeatureStore
) -> None:
    changes.add_user(guarded_store.session, ROOT, "gone", password=PASSWORD)
    headers = token_of(guarded_store, "gone")
    assert sign_in(client, "gone") == 303
    assert client.get("/groups").status_code == 200
    changes.remove_user(guarded_store.session, ROOT, "gone")
    assert client.get("/groups").status_code == 303
    client.cookies.clear()
    assert client.get("/api/v1/store", headers=headers).status_code == 401


def test_request_body_over_limit_is_refused(
    client: TestClient, guarded_store: FeatureStore
) -> None:
    body = b"a=" + b"x" * 200_000
    assert client.post("/sign-in", content=body).status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 100_000

    assert client.post("/sign-in", content=chunks()).status_code == 413
    assert client.post("/sign-in", content=b"x" * 2_000_000).status_code == 413


def test_secrets_are_absent_from_logs(
    client: TestClient, guarded_store: FeatureStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        headers = token_of(guarded_store, "ann")
        client.get("/groups", headers=headers)
        sign_in(client, "ann")
    secret = headers["Authorization"].split()[1]
    assert secret not in caplog.text
    assert PASSWORD not in caplog.text
    with guarded_store.session.registry.reading() as connection:
        for entry in audit_log.entries(connection, limit=1000):
            assert secret not in str(entry)
            assert PASSWORD not in str(entry)


def test_audit_page_is_readable_by_admins_only(
    client: TestClient, guarded_store: FeatureStore
) -> None:
    assert sign_in(client, "ann") == 303
    page = client.get("/audit?q=private").text
    assert "make private" in page
    assert "salaries" in page
    assert "sign in" in client.get("/audit?who=ann&format=csv").text
    assert sign_in(client, "wil") == 303
    assert client.get("/audit").status_code == 403
