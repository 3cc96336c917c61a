"""Publications to Postgres servers that lose writes, end connections, or have a full disk."""

from __future__ import annotations

import os
import pwd
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from featurestore.errors import OnlineStoreError, OnlineStoreUnavailable
from featurestore.serving import incremental
from featurestore.store import FeatureStore
from featurestore_connectors.online.postgres import PostgresOnlineStore
from tests.registry.conftest import UNPRIVILEGED
from tests.serving.cut_proxy import crash_postgres

pytestmark = [pytest.mark.services, pytest.mark.postgres]
COUNT = 40
# The server writes asynchronous commits to its log after at most 0.6 seconds.
LOG_SECONDS = 0.7
TERMINATE = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
"""


def execute(url: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def write_rows(store: FeatureStore, value: str) -> None:
    rows = [{"id": number, "x": f"{value}{number}"} for number in range(COUNT)]
    if not store.get_featuregroups():
        store.create_featuregroup(rows, "g", primary_key="id", statistics=False)
    else:
        store.insert_into_featuregroup(rows, "g", mode="upsert")


def read_all(store: FeatureStore) -> list[Any]:
    with store.get_feature_view("v").server(online="cache") as server:
        return [vector["x"] for vector in server.get_vectors([{"id": n} for n in range(COUNT)])]


def expect(value: str) -> list[str]:
    return [f"{value}{number}" for number in range(COUNT)]


@pytest.fixture
def published(
    empty_store: FeatureStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> FeatureStore:
    """A store with a view that is published to Postgres."""
    # Several calls write the changes of one publication.
    monkeypatch.setattr(incremental, "_CHUNK", 10)
    write_rows(empty_store, "a")
    empty_store.create_feature_view("v", features=["g.x"])
    empty_store.add_online_store("cache", postgres_url)
    empty_store.publish("v", to="cache")
    return empty_store


def run_after_second_call(name: str, action: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Run an action after the second call of a method of the online store."""
    original = getattr(PostgresOnlineStore, name)
    calls: list[None] = []

    def run(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            # Earlier writes are in the log of the server.
            time.sleep(LOG_SECONDS)
        result = original(*arguments)
        if len(calls) == 2:
            action()
        return result

    patch.setattr(PostgresOnlineStore, name, run)


@pytest.mark.parametrize("fault", ["crash", "terminate"])
def test_publication_during_faults_of_postgres_has_all_values(
    published: FeatureStore, postgres_url: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = urlsplit(postgres_url).path[1:]
    if fault == "crash":
        # The server acknowledges commits before they are in its log, and loses them.
        execute(postgres_url, f"alter database {database} set synchronous_commit = off")
    actions: dict[str, Callable[[], None]] = {
        "crash": lambda: crash_postgres(postgres_url),
        "terminate": lambda: execute(postgres_url, TERMINATE),
    }
    write_rows(published, "b")
    with monkeypatch.context() as patch:
        run_after_second_call("write_newer", actions[fault], patch)
        with suppress(OnlineStoreError):
            published.publish("v", to="cache")
            assert read_all(published) == expect("b")
    deadline = time.monotonic() + 30
    while True:
        with suppress(OnlineStoreUnavailable):
            published.publish("v", to="cache")
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert read_all(published) == expect("b")


@contextmanager
def small_disk(folder: Path) -> Iterator[str]:
    """Mount a disk of four megabytes that Postgres may write."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a disk cannot be mounted")
    try:
        # The folders of tests are readable for their user only.
        for parent in [folder, *folder.parents][:-2]:
            parent.chmod(0o755)
        account = pwd.getpwnam(UNPRIVILEGED)
        os.chown(folder, account.pw_uid, account.pw_gid)
        yield str(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_publication_to_a_full_disk_of_postgres_keeps_the_old_values(
    published: FeatureStore, postgres_url: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as folder:
        execute(postgres_url, f"create tablespace small location '{folder}'")
        execute(postgres_url, "alter table featurestore_online set tablespace small")
        write_rows(published, "b")
        published.publish("v", to="cache")
        # Random digits are not compressed.
        digits = random.randbytes(100_000).hex()
        write_rows(published, digits)
        for full in (True, False):
            with pytest.raises(OnlineStoreError, match="is full"):
                published.publish("v", to="cache", full=full)
            (lag,) = published.get_feature_view("v").online_lag(online="cache")
            assert lag.commits == 1
        execute(postgres_url, "alter table featurestore_online set tablespace pg_default")
        execute(postgres_url, "drop tablespace small")
    published.publish("v", to="cache")
    assert read_all(published) == expect(digits)
