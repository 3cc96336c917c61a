"""Users, tokens and roles in both databases, and after the loss of a registry."""

from __future__ import annotations

import io
import json
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.cli.main import main
from featurestore.errors import (
    InvalidArgument,
    InvalidName,
    NotAllowed,
    RegistryDamaged,
    RegistryError,
    TokenNotFound,
    UserExists,
    UserNotFound,
)
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import access, audit_log
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.server.access.visitors import hash_secret, verify_password
from featurestore.store import FeatureStore

ANN = Actor("ann", "browser")
PASSWORD = "a horse on a hill"


def read_access_state(store: FeatureStore) -> dict[str, Any]:
    with store.session.registry.reading() as connection:
        return {
            "users": access.list_users(connection),
            "tokens": access.list_tokens(connection),
            "roles": access.roles_on(connection, "salaries"),
            "private": access.private_groups_of_store(connection),
        }


def fill(store: FeatureStore) -> str:
    """Create users, roles and a private group; return a token."""
    store.create_featuregroup([{"x": 1}], "salaries")
    session = store.session
    changes.add_user(session, ANN, "ann", role="admin", password=PASSWORD)
    changes.add_user(session, ANN, "bob@example.org", role="none")
    changes.set_private(session, ANN, "salaries", True)
    changes.set_group_role(session, ANN, "salaries", "bob@example.org", "reader")
    text, _ = changes.make_token(session, ANN, "bob@example.org", label="nightly")
    return text


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> Any:
    """Run a command and return its JSON output."""
    monkeypatch.setattr(sys, "argv", ["featurestore", "--output=json", *map(str, words)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    return json.loads(printed.out)


def test_commands_create_users_tokens_and_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with featurestore.connect(tmp_path) as store:
        store.create_featuregroup([{"x": 1}], "salaries")

    def run(*words: object) -> Any:
        return command(monkeypatch, capsys, "--location", tmp_path, *words)

    monkeypatch.setattr(sys, "stdin", io.StringIO(PASSWORD + "\n"))
    run("user", "add", "ann", "--role", "admin", "--password-stdin")
    run("user", "add", "bob", "--no-password")
    run("user", "role", "bob", "none")
    run("access", "private", "salaries")
    run("access", "grant", "salaries", "bob", "reader")
    new_token = run("token", "add", "bob", "--expires", "2d", "--label", "nightly")
    assert [user["name"] for user in run("user", "list")] == ["ann", "bob"]
    assert run("user", "list")[1]["groups"] == {"salaries": "reader"}
    assert run("access", "list") == [{"featuregroup": "salaries", "roles": {"bob": "reader"}}]
    (listed,) = run("token", "list", "--user", "bob")
    assert (listed["id"], listed["label"], listed["expired"]) == (new_token["id"], "nightly", False)
    assert new_token["token"] not in json.dumps(listed)
    actions = [line["action"] for line in run("access", "log")]
    assert actions == [
        "make token", "set role on group", "make private", "set role", "add user", "add user",
    ]  # fmt: skip
    run("token", "revoke", new_token["id"])
    assert run("token", "list") == []
    run("access", "withdraw", "salaries", "bob")
    run("access", "public", "salaries")
    run("user", "remove", "bob")
    assert [user["name"] for user in run("user", "list")] == ["ann"]
    everything = (tmp_path / "registry.db").read_bytes() + (tmp_path / "access.json").read_bytes()
    for secret in (PASSWORD, new_token["token"]):
        assert secret.encode() not in everything


def test_rebuild_keeps_access_rules(tmp_path: Path, registry_url: str | None) -> None:
    with featurestore.connect(tmp_path, registry=registry_url) as store:
        text = fill(store)
        before = read_access_state(store)
        assert rebuild(str(tmp_path), url=registry_url).users == 0
        assert read_access_state(store) == before
        with store.session.registry.transaction() as connection:  # as a database that is lost
            for table in ("tokens", "group_roles", "private_groups", "users"):
                connection.exec_driver_sql(f"delete from {table}")
        rebuilt = rebuild(str(tmp_path), url=registry_url)
        assert rebuilt.users == 2
        assert "the audit log" in rebuilt.not_restored
        assert read_access_state(store) == before
        with store.session.registry.reading() as connection:
            token = access.find_token(connection, hash_secret(text))
            user = access.find_user(connection, "ann")
        assert token is not None
        assert token.user == "bob@example.org"
        assert user is not None
        assert verify_password(user.password, PASSWORD)
        assert not verify_password(user.password, PASSWORD + "x")


def test_lost_registry_keeps_private_groups(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path) as store:
        fill(store)
        before = read_access_state(store)
    for name in ("registry.db", "registry.db-wal", "registry.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(RegistryDamaged, match="registry rebuild"):
        featurestore.connect(tmp_path)
    rebuild(str(tmp_path))
    with featurestore.connect(tmp_path) as store:
        changes.add_user(store.session, ANN, "cleo")
        after = read_access_state(store)
    assert after["private"] == before["private"] == ["salaries"]
    assert [user.name for user in after["users"]] == ["ann", "bob@example.org", "cleo"]


def test_rebuild_with_unreadable_access_file_raises(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path) as store:
        fill(store)
    (tmp_path / "registry.db").unlink()
    (tmp_path / "access.json").write_text('{"format": 0}')
    with pytest.raises(RegistryError, match=r"access\.json"):
        rebuild(str(tmp_path))


@pytest.mark.parametrize(
    "users",
    ["7", "{}", "[7]", '["ann"]', '[{"name": "ann"}]',
     '[{"name": 7, "role": "admin", "password": null, "issuer": null, "subject": null, "created": 1}]',
     '[{"name": "ann", "role": null, "password": null, "issuer": null, "subject": null, "created": 1}]',
     '[{"name": "ann", "role": "admin", "password": null, "issuer": null, "subject": null, '
     '"created": "yesterday"}]'],
)  # fmt: skip
def test_rebuild_with_edited_access_file_raises(tmp_path: Path, users: str) -> None:
    with featurestore.connect(tmp_path) as store:
        fill(store)
    (tmp_path / "registry.db").unlink()
    (tmp_path / "access.json").write_text(f'{{"format": 1, "users": {users}}}')
    with pytest.raises(RegistryError, match=r"access\.json"):
        rebuild(str(tmp_path))


def test_concurrent_access_changes_are_all_saved(tmp_path: Path, registry_url: str | None) -> None:
    with featurestore.connect(tmp_path, registry=registry_url) as store:
        session = store.session
        thread = threading.Thread(target=changes.add_user, args=(session, ANN, "bob"))
        with changes.access_transaction(session) as connection:
            access.put_user(connection, "ann", role="admin")
            thread.start()
            thread.join(1)  # it waits, or has not seen the other one
        thread.join()
        names = [user.name for user in read_access_state(store)["users"]]
    document = json.loads((tmp_path / "access.json").read_text())
    assert [user["name"] for user in document["users"]] == names == ["ann", "bob"]


def test_invalid_access_changes_raise(empty_store: FeatureStore) -> None:
    session = empty_store.session
    fill(empty_store)
    with pytest.raises(UserExists):
        changes.add_user(session, ANN, "ann")
    for name in ("", "Ann", "ann smith", "a" * 128, "<b>"):
        with pytest.raises(InvalidName):
            changes.add_user(session, ANN, name)
    with pytest.raises(InvalidArgument, match="Unknown role"):
        changes.add_user(session, ANN, "cleo", role="boss")
    with pytest.raises(InvalidArgument, match="characters"):
        changes.add_user(session, ANN, "cleo", password="short")
    with pytest.raises(UserNotFound, match="Available: 'ann', 'bob@"):
        changes.make_token(session, ANN, "an")
    with pytest.raises(InvalidArgument, match="Unknown scope"):
        changes.make_token(session, ANN, "ann", scope="all")
    with pytest.raises(TokenNotFound):
        changes.revoke_token(session, ANN, "none")
    for change in (changes.remove_user, lambda *arguments: changes.set_role(*arguments, "reader")):
        with pytest.raises(NotAllowed, match="last admin"):
            change(session, ANN, "ann")
    with empty_store.session.registry.reading() as connection:
        assert len(audit_log.entries(connection, limit=100)) == 5


def test_token_expires_after_duration(empty_store: FeatureStore) -> None:
    changes.add_user(empty_store.session, ANN, "ann")
    for expires, expired in ((timedelta(0), True), ("1d", False), (None, False)):
        _, token = changes.make_token(empty_store.session, ANN, "ann", expires=expires)
        assert token.expired is expired
