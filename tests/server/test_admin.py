"""The pages for admins, and the page of users without a role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import featurestore
from featurestore.registry import access, audit_log
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from tests.server.private_groups import PASSWORD, ROOT, client_of, field_of, sign_in

ADMIN_PAGES = ["/admin", "/admin/tokens", "/admin/groups", "/admin/groups/salaries/public"]
# Each change of the admin pages with a valid form.
CHANGES = {
    "/admin/users": {"user": "new", "role": "reader", "password": PASSWORD},
    "/admin/users/role": {"user": "rea", "role": "writer"},
    "/admin/users/password": {"user": "rea", "password": PASSWORD},
    "/admin/users/remove": {"user": "rea"},
    "/admin/tokens": {"user": "rea", "scope": "read"},
    "/admin/tokens/revoke": {"token": "0123456789ab"},
    "/admin/groups/private": {"group": "salaries", "private": "no"},
    "/admin/groups/role": {"group": "salaries", "user": "rea", "role": "reader"},
}


@pytest.fixture
def staff_store(empty_store: FeatureStore) -> FeatureStore:
    for name in ("salaries", "visits"):
        empty_store.create_featuregroup([{"who": "a", "pay": 1.0}], name, primary_key="who")
    for name, role in (("ann", "admin"), ("rea", "reader"), ("non", "none")):
        changes.add_user(empty_store.session, ROOT, name, role=role, password=PASSWORD)
    return empty_store


@pytest.fixture
def client(staff_store: FeatureStore) -> Iterator[TestClient]:
    with client_of(staff_store, page=2) as client:
        yield client


def test_user_without_role_sees_one_sentence_on_every_page(
    client: TestClient, staff_store: FeatureStore
) -> None:
    sign_in(client, "non")
    pages = ["/", "/groups", "/groups/visits/1", "/nothing", "/jobs/none", "/search?q=visits"]
    for address in [*pages, "/lineage", "/metrics", "/audit", *ADMIN_PAGES]:
        response = client.get(address)
        assert response.status_code == 403, address
        assert "You have no role yet; ask an admin" in response.text
        for hidden in (staff_store.location, "create_featuregroup", "visits", 'href="/groups"'):
            assert hidden not in response.text, (address, hidden)
    account = client.get("/account")
    assert account.status_code == 200
    assert staff_store.location not in account.text
    changes.set_group_role(staff_store.session, ROOT, "visits", "non", "reader")
    assert client.get("/groups/visits/1").status_code == 200


def test_reader_of_empty_store_sees_no_creation_code(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "empty") as store:
        for role in ("reader", "writer"):
            changes.add_user(store.session, ROOT, role, role=role, password=PASSWORD)
            with client_of(store) as client:
                sign_in(client, role)
                text = client.get("/").text
            assert ("create_featuregroup" in text) == (role == "writer")
            assert "empty" in text


def test_admin_pages_manage_users_tokens_and_groups(
    client: TestClient, staff_store: FeatureStore
) -> None:
    sign_in(client, "ann")
    field = {"form_token": field_of(client.get("/admin").text)}

    def change(address: str, **form: str) -> int:
        return client.post(address, data={**field, **form}).status_code

    assert change("/admin/users", user="new", role="none", password=PASSWORD) == 303
    assert change("/admin/users/role", user="new", role="writer") == 303
    assert change("/admin/users/password", user="new", password="another passphrase") == 303
    response = client.post("/admin/tokens", data={**field, "user": "new", "scope": "write"})
    secret = re.search(r"fs_[\w-]{40,}", response.text)
    assert secret is not None
    assert response.headers["cache-control"] == "no-store"
    assert secret[0] not in client.get("/admin/tokens").text
    program = {"Authorization": f"Bearer {secret[0]}"}
    assert change("/admin/groups/private", group="salaries", private="yes") == 303
    assert client.get("/api/v1/featuregroups/salaries", headers=program).status_code == 404
    assert change("/admin/groups/role", group="salaries", user="new", role="reader") == 303
    assert client.get("/api/v1/featuregroups/salaries", headers=program).status_code == 200
    for shown in ("new: reader", "/admin/groups/salaries/public", "Withdraw"):
        assert shown in client.get("/admin/groups").text
    confirmation = client.get("/admin/groups/salaries/public").text
    assert "<li>feature group salaries</li>" in confirmation
    assert "visits" not in confirmation
    assert client.get("/admin/groups/nothing/public").status_code == 404
    assert change("/admin/groups/role", group="salaries", user="new", role="") == 303
    assert change("/admin/groups/private", group="salaries", private="no") == 303
    identifier = re.findall(r'name="token" value="(\w+)"', client.get("/admin/tokens").text)[0]
    assert change("/admin/tokens/revoke", token=identifier) == 303
    assert client.get("/api/v1/store", headers=program).status_code == 401
    assert change("/admin/users/remove", user="new") == 303
    with staff_store.session.registry.reading() as connection:
        assert [user.name for user in access.list_users(connection)] == ["ann", "non", "rea"]
        assert access.private_groups_of_store(connection) == []
        actions = [entry.action for entry in audit_log.entries(connection, who="ann", limit=None)]
    assert actions[::-1] == [
        "sign in", "add user", "set role", "set password", "make token", "make private",
        "set role on group", "set role on group", "make public", "revoke token", "remove user",
    ]  # fmt: skip


def test_admin_pages_show_refused_changes(client: TestClient) -> None:
    sign_in(client, "ann")
    field = {"form_token": field_of(client.get("/admin").text)}
    refusals = {
        ("/admin/users", "user=rea", 409): "already exists",
        ("/admin/users", "user=A B", 400): "not a valid user name",
        ("/admin/users/role", "user=ann&role=none", 403): "is the last admin",
        ("/admin/users/role", "user=rea&role=boss", 400): "Unknown role",
        ("/admin/users/password", "user=rea&password=short", 400): "10 to 1000 characters",
        ("/admin/users/remove", "user=ann", 403): "cannot remove your own account",
        ("/admin/users/remove", "user=", 400): "The form has no user",
        ("/admin/tokens", "user=nobody", 404): "Unknown user",
        ("/admin/tokens/revoke", "token=nothing", 404): "Unknown token",
        ("/admin/groups/private", "group=nothing", 404): "Unknown feature group",
        ("/admin/groups/role", "group=visits&user=rea&role=none", 400): "Unknown role",
    }
    for (address, text, status), message in refusals.items():
        form = dict(pair.split("=") for pair in text.split("&"))
        response = client.post(address, data={**field, **form})
        assert (response.status_code, message in response.text) == (status, True), (address, text)
        assert "<h1>Admin</h1>" in response.text


def test_admin_changes_need_admin_and_form_token(
    client: TestClient, staff_store: FeatureStore
) -> None:
    sign_in(client, "rea")
    assert 'href="/admin"' not in client.get("/groups").text
    field = {"form_token": field_of(client.get("/account").text)}
    for address, form in CHANGES.items():
        assert client.post(address, data={**field, **form}).status_code == 403, address
    assert [client.get(address).status_code for address in ADMIN_PAGES] == [403] * len(ADMIN_PAGES)
    sign_in(client, "ann")
    assert 'href="/admin"' in client.get("/groups").text
    for address, form in CHANGES.items():
        assert client.post(address, data=form).status_code == 403, address
        assert client.post(address, data={**field, **form}).status_code == 403, address
    with staff_store.session.registry.reading() as connection:
        assert [user.role for user in access.list_users(connection)] == ["admin", "none", "reader"]
        assert access.list_tokens(connection) == []


def test_admin_lists_are_paged(client: TestClient, staff_store: FeatureStore) -> None:
    changes.add_user(staff_store.session, ROOT, "zoe")
    sign_in(client, "ann")
    assert "zoe" not in client.get("/admin").text
    assert "zoe" in client.get("/admin?page=2").text
