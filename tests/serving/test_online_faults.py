"""Online stores lose no acknowledged write, and report what prevents reliable serving."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from featurestore.errors import MissingExtra, OnlineStoreError, OnlineStoreUnavailable
from featurestore.plugins.online import OnlineConfig, OnlineStore, open_config
from featurestore.testing.online_conformance import sequenced
from featurestore_connectors.online.connections import ConnectionPool
from tests.serving import redis_server as servers
from tests.serving.cut_proxy import CutProxy, crash_postgres, cutting

pytestmark = pytest.mark.services
PASSWORD = "tr0ub4dor&3"
KEYS = [b"key%d" % number for number in range(50)]


def open_store(uri: str, secret: Callable[[], str] | None = None) -> OnlineStore:
    return open_config(OnlineConfig("cache", uri, secret))


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.postgres)])
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[OnlineStore, CutProxy]]:
    """A store behind a proxy."""
    url = urlsplit(request.getfixturevalue(f"{request.param}_url"))
    with cutting(url.port or 0) as proxy:
        address = url._replace(netloc=url.netloc.replace(str(url.port), str(proxy.port)))
        store = open_store(f"{address.geturl()}?timeout=0.5")
        store.write(KEYS, [sequenced(1)] * len(KEYS))
        yield store, proxy
        store.close()


def test_a_lost_response_is_repeated_once(proxied: tuple[OnlineStore, CutProxy]) -> None:
    store, proxy = proxied
    proxy.lost_marker, proxy.losses = b"lease", 1
    assert store.compare_and_set(b"lease", None, b"first")
    assert proxy.losses == 0
    proxy.losses = 2
    with pytest.raises(OnlineStoreUnavailable):
        store.compare_and_set(b"lease", b"first", b"second")
    # The publisher repeats the call, which has already changed the value.
    assert store.compare_and_set(b"lease", b"first", b"second")
    assert not store.compare_and_set(b"lease", b"first", b"third")
    proxy.lost_marker, proxy.losses = KEYS[7], 1
    store.write_newer(KEYS, [sequenced(3)] * len(KEYS))
    proxy.losses = 1
    store.write(KEYS, [sequenced(4)] * len(KEYS))
    assert store.read([*KEYS, b"lease"]) == [*[sequenced(4)] * len(KEYS), b"second"]


@pytest.mark.parametrize("call", ["write", "write_newer"])
def test_a_request_of_new_values_that_arrives_late_replaces_no_newer_ones(
    redis_url: str, call: str
) -> None:
    url = urlsplit(redis_url)
    with (
        cutting(url.port or 0) as proxy,
        closing(open_store(f"redis://127.0.0.1:{proxy.port}/0")) as store,
    ):
        store.check()
        proxy.late_marker = KEYS[0]
        getattr(store, call)(KEYS, [sequenced(1)] * len(KEYS))
        # The driver has repeated the request.
        assert store.read(KEYS) == [sequenced(1)] * len(KEYS)
        store.write_newer(KEYS, [sequenced(2)] * len(KEYS))
        assert proxy.deliver_late() == b":0\r\n"
        assert store.read(KEYS) == [sequenced(2)] * len(KEYS)


def test_a_cut_network_ends_calls_after_the_timeout(
    proxied: tuple[OnlineStore, CutProxy],
) -> None:
    store, proxy = proxied
    proxy.is_cut = True
    started = time.monotonic()
    with pytest.raises(OnlineStoreUnavailable, match="cache"):
        store.read(KEYS)
    with pytest.raises(OnlineStoreUnavailable, match=str(proxy.port)):
        store.write(KEYS, [sequenced(2)] * len(KEYS))
    assert time.monotonic() - started < 10
    proxy.is_cut = False
    assert store.read(KEYS) == [sequenced(1)] * len(KEYS)


def test_redis_with_a_log_keeps_acknowledged_writes_after_a_kill(
    durable_redis: servers.RedisServer,
) -> None:
    _write_during_crashes(open_store(durable_redis.url), durable_redis.crash)


@pytest.mark.postgres
def test_postgres_keeps_acknowledged_writes_after_a_kill(postgres_url: str) -> None:
    store = open_store(postgres_url)
    store.check()
    _write_during_crashes(store, partial(crash_postgres, postgres_url))


def _write_during_crashes(store: OnlineStore, crash: Callable[[], None]) -> None:
    """Write increasing sequences while the server is killed three times, and compare the values."""
    acknowledged = 0
    is_done = threading.Event()

    def write() -> None:
        nonlocal acknowledged
        sequence = 0
        while not is_done.is_set():
            sequence += 1
            while not _write_all(store, sequence):
                time.sleep(0.01)
            acknowledged = sequence

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(3):
        time.sleep(0.2)
        before = acknowledged
        crash()
        values = _read_all(store)
        assert min(values) >= sequenced(before)
    is_done.set()
    writer.join()
    assert acknowledged > 3
    assert _read_all(store) == [sequenced(acknowledged)] * len(KEYS)
    store.close()


def _write_all(store: OnlineStore, sequence: int) -> bool:
    try:
        store.write_newer(KEYS, [sequenced(sequence)] * len(KEYS))
    except OnlineStoreUnavailable:
        return False
    return True


def _read_all(store: OnlineStore) -> list[bytes]:
    deadline = time.monotonic() + 30
    while True:
        try:
            return [value or b"" for value in store.read(KEYS)]
        except OnlineStoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_redis_that_evicts_values_fails_the_check() -> None:
    options = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
    with servers.running(*options, "--requirepass", PASSWORD) as server:
        import redis

        store = open_store(server.url, secret=lambda: PASSWORD)
        with pytest.raises(OnlineStoreError, match="has maxmemory-policy allkeys-lru") as error:
            store.check()
        assert error.value.hint is not None
        assert "maxmemory-policy noeviction" in error.value.hint
        with redis.Redis(port=server.port, password=PASSWORD) as client:
            client.config_set("maxmemory-policy", "noeviction")
            store.check()
            store.write([b"first"], [b"1"])
            # An empty server needs more memory.
            client.config_set("maxmemory", "100kb")
        with pytest.raises(OnlineStoreError, match="is full"):
            store.write(KEYS, KEYS)
        with pytest.raises(OnlineStoreError, match="is full"):
            store.compare_and_set(b"first", b"1", b"2")
        assert store.read([b"first"]) == [b"1"]
        store.close()
        for secret in (None, lambda: PASSWORD[::-1]):
            refused = open_store(server.url, secret)
            with pytest.raises(OnlineStoreError, match="denies access") as error:
                refused.read([b"first"])
            assert PASSWORD[::-1] not in f"{error.value}{error.value.hint}"
            refused.close()


@pytest.mark.postgres
def test_postgres_user_without_permissions_fails_the_check(postgres_url: str) -> None:
    import psycopg

    name = urlsplit(postgres_url).path[1:]
    guest = postgres_url.replace("store@", f"guest_{name}@")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create role guest_{name} login")
        store = open_store(guest)
        with pytest.raises(OnlineStoreError, match="denies access"):
            store.check()
        owner = open_store(postgres_url)
        owner.check()
        owner.close()
        with pytest.raises(OnlineStoreError, match="may not read and write"):
            store.check()
        with pytest.raises(OnlineStoreError, match="denies access"):
            store.read(KEYS)
        connection.execute(
            f"grant select, insert, update, delete on featurestore_online to guest_{name}"
        )
        store.check()
        store.close()


@pytest.mark.parametrize("uri", ["redis://127.0.0.1:1/0", "postgresql://me@127.0.0.1:1/shop"])
def test_an_unreachable_server_is_an_error_with_its_address(uri: str) -> None:
    store = open_store(uri, secret=lambda: PASSWORD)
    with pytest.raises(
        OnlineStoreUnavailable, match=r"'cache' at 127\.0\.0\.1:1 cannot be reached"
    ):
        store.read([b"a"])
    store.close()


@pytest.mark.parametrize(
    ("uri", "driver", "extra"),
    [("redis://db/0", "redis", "redis"), ("postgresql://db/shop", "psycopg", "postgres")],
)
def test_a_missing_driver_is_an_error_with_its_extra(
    uri: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    store = open_store(uri)
    for call in (lambda: store.read([b"a"]), lambda: store.write([b"a"], [b"1"]), store.check):
        with pytest.raises(MissingExtra, match=driver) as error:
            call()
        assert error.value.hint == f"pip install 'featurestore[{extra}]'"
    store.close()


def test_a_damaged_sqlite_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "online.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(OnlineStoreError, match=r"online\.db"):
        open_store(f"sqlite:///{path}").read([b"a"])


class Closable:
    """A driver connection."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_dropped_pool_closes_idle_connections_of_its_process() -> None:
    pools: list[ConnectionPool[Closable]] = [ConnectionPool(Closable)]
    with pools[0].borrow() as first, pools[0].borrow() as second:
        pass

    def drop_in_child() -> None:
        with pools[0].borrow() as child_connection:
            pass
        pools.clear()
        os._exit(
            [first.is_closed, second.is_closed, child_connection.is_closed] != [False, False, True]
        )

    with warnings.catch_warnings():  # Python 3.12 warns about forks of processes with threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = multiprocessing.get_context("fork").Process(target=drop_in_child)
        child.start()
    child.join(60)
    assert child.exitcode == 0
    assert not first.is_closed
    pools.clear()
    assert first.is_closed
    assert second.is_closed


BARRIER: Any = None


def _set_barrier(barrier: Any) -> None:
    global BARRIER
    BARRIER = barrier


def _open_in_threads(path: str) -> list[bytes | None]:
    """Write a key in each of eight threads, which open the file at once with other processes."""

    def write(key: bytes) -> None:
        store = open_store(f"sqlite:///{path}")
        BARRIER.wait(60)
        store.write_newer([key], [sequenced(1)])
        store.close()

    keys = [b"%d-%d" % (os.getpid(), number) for number in range(8)]
    with ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(write, keys))
    store = open_store(f"sqlite:///{path}")
    values = store.read(keys)
    store.close()
    return values


def test_a_new_sqlite_file_is_opened_by_threads_of_several_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4 * 8)
    with ProcessPoolExecutor(4, context, initializer=_set_barrier, initargs=(barrier,)) as pool:
        paths = [str(tmp_path / f"{number}.db") for number in range(20) for _ in range(4)]
        for values in pool.map(_open_in_threads, paths):
            assert values == [sequenced(1)] * 8
