"""Registered and embedded online stores of a feature store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import time_machine

from featurestore.errors import (
    ConfigurationError,
    InvalidArgument,
    OnlineStoreExists,
    OnlineStoreNotFound,
)
from featurestore.model.online_store import OnlineStoreSpec
from featurestore.recovery.rebuild import rebuild
from featurestore.serving.stores import StoreClock, open_online_store
from featurestore.store import FeatureStore

PASSWORD = "tr0ub4dor&3"


def test_online_store_is_registered_listed_and_removed(empty_store: FeatureStore) -> None:
    spec = empty_store.add_online_store("cache", "redis://me@127.0.0.1:1/0")
    assert OnlineStoreSpec.from_text(json.dumps(spec.to_json())) == spec
    embedded, registered = empty_store.get_online_stores()
    assert (embedded.name, embedded.kind, registered) == ("embedded", "sqlite", spec)
    empty_store.add_online_store("cache", "redis://me@127.0.0.1:1/0")  # as on another machine
    with pytest.raises(OnlineStoreExists, match="already registered"):
        empty_store.add_online_store("cache", "redis://elsewhere:1/0")
    with pytest.raises(OnlineStoreNotFound, match=r"'cach'\. Available: 'embedded', 'cache'"):
        empty_store.remove_online_store("cach")
    empty_store.remove_online_store("cache")
    assert empty_store.get_online_stores() == [embedded]


def test_rebuilt_registry_has_the_online_stores(empty_store: FeatureStore) -> None:
    specs = [
        empty_store.add_online_store("cache", "redis://127.0.0.1:1/0"),
        empty_store.add_online_store("rows", "postgres://me@db/shop", secret="env:ROWS"),
    ]
    location = Path(empty_store.location)
    empty_store.close()
    (location / "registry.db").unlink()
    (location / "online_stores" / "bad.json").write_text("[[[")
    report = rebuild(str(location))
    assert report.online_stores == ["cache", "rows"]
    assert [path for path, _ in report.unreadable] == [str(location / "online_stores" / "bad.json")]
    import featurestore

    with featurestore.connect(location) as store:
        assert store.get_online_stores()[1:] == specs


@pytest.mark.parametrize(
    "uri",
    [
        f"redis://:{PASSWORD}@db/0",
        f"postgresql://db/shop?password={PASSWORD}",
        "redis://db/0?ssl_ca_certs=/etc/passwd",
        "postgresql://me@db/shop?passfile=/etc/passwd",
        "redis://db/0?timeout=soon",
        "redis:///0",
        "redis://db:99999/0",
        "redis://db/zero",
        "memcached://db",
        "/online.db",
        "sqlite://",
    ],
)
def test_add_online_store_refuses_invalid_uris(empty_store: FeatureStore, uri: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        empty_store.add_online_store("cache", uri)
    assert PASSWORD not in str(error.value)
    assert len(empty_store.get_online_stores()) == 1


def test_secret_is_sent_only_to_its_registered_address(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_PASSWORD", PASSWORD)
    with pytest.raises(InvalidArgument) as error:
        empty_store.add_online_store("cache", "redis://127.0.0.1:1/0", secret=PASSWORD)
    assert PASSWORD not in str(error.value)
    empty_store.add_online_store("cache", "redis://127.0.0.1:1/0", secret="env:CACHE_PASSWORD")
    config = open_online_store(empty_store.session, "cache").config
    assert PASSWORD not in repr(config.with_resolved_secret())
    assert config.secret is not None
    assert config.secret() == PASSWORD
    # A store that names another address does not get the secret.
    statement = "update online_stores set spec = replace(spec, '127.0.0.1', 'elsewhere')"
    with empty_store.session.registry.transaction() as connection:
        connection.exec_driver_sql(statement)
    with pytest.raises(ConfigurationError, match="differs from the one that was registered"):
        open_online_store(empty_store.session, "cache").read([b"a"])


def test_online_commands_add_check_list_and_remove(
    empty_store: FeatureStore, command_line: Callable[..., Any], tmp_path: Path
) -> None:
    options = ("--location", empty_store.location, "--output", "json")
    uri = f"sqlite:///{tmp_path}/cache.db"
    assert json.loads(command_line("online", "add", "cache", uri, *options).out)["uri"] == uri
    listed = json.loads(command_line("online", "list", *options).out)
    assert [online_store["name"] for online_store in listed] == ["embedded", "cache"]
    report = json.loads(command_line("online", "check", "cache", *options).out)
    assert (report["kind"], report["keys"], report["clock_offset_seconds"]) == ("sqlite", 0, 0.0)
    assert json.loads(command_line("online", "check", *options).out)["name"] == "embedded"
    command_line("online", "remove", "cache", *options)
    command_line("online", "check", "cache", *options, code=1)
    command_line("online", "add", "down", "redis://127.0.0.1:1/0", *options)
    assert "cannot be reached" in command_line("online", "check", "down", *options, code=1).err


def test_embedded_store_is_a_file_of_the_local_store(empty_store: FeatureStore) -> None:
    store = open_online_store(empty_store.session)
    store.write([b"a"], [b"1"])
    assert Path(empty_store.location, "online", "embedded.db").is_file()
    with pytest.raises(OnlineStoreNotFound, match=r"Unknown online store 'cache'"):
        open_online_store(empty_store.session, "cache")
    clock = StoreClock(store)
    with time_machine.travel("2024-01-01T12:00Z", tick=False) as machine:
        assert clock.now() == datetime(2024, 1, 1, 12, tzinfo=UTC)
        machine.shift(3600)
        assert clock.now() == datetime(2024, 1, 1, 13, tzinfo=UTC)
    store.close()
