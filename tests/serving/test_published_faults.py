"""Published values survive faults of their servers: kills, cuts, full memory and wrong clocks."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
import time_machine

from featurestore.errors import OnlineStoreError, OnlineStoreUnavailable
from featurestore.serving.state import PublishedView, ViewState
from featurestore.serving.stores import open_online_store
from featurestore.store import FeatureStore
from featurestore.views import FeatureView
from tests.on_spark import on_engines
from tests.serving import redis_server as servers
from tests.serving.cut_proxy import crash_postgres, cutting
from tests.serving.online_reads import wait_until_written

pytestmark = pytest.mark.services
ROWS = 10_000
SAMPLE = [{"id": number} for number in range(0, ROWS, 397)]
START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def write_rows(store: FeatureStore, number: int) -> None:
    """Append a row of each entity, whose columns are all ``number``."""
    columns = {name: np.full(ROWS, number) for name in ("x", "y")}
    times = pa.array([START + number * HOUR] * ROWS, pa.timestamp("us", tz="UTC"))
    rows = pa.table({"id": np.arange(ROWS), "at": times, **columns})
    if number == 0:
        store.create_featuregroup(
            rows, "g", primary_key="id", event_time="at", statistics=False, validation="off"
        )
    else:
        store.insert_into_featuregroup(rows, "g")


@dataclass
class Fault:
    """A server that ``begin`` makes unavailable until ``end``."""

    url: str
    begin: Callable[[], None]
    end: Callable[[], None] = lambda: None


# Postgres on Spark in soak: the writer on executors is that of Redis, and its statements those of DuckDB.
KILLED_SERVERS = [
    pytest.param("duckdb", "redis"),
    pytest.param("duckdb", "postgres", marks=pytest.mark.postgres),
    pytest.param("spark", "redis", marks=pytest.mark.spark),
    pytest.param(
        "spark",
        "postgres",
        marks=[pytest.mark.spark, pytest.mark.postgres, pytest.mark.soak],
    ),
]


@pytest.fixture
def killed(request: pytest.FixtureRequest) -> Fault:
    if request.param == "redis":
        server: servers.RedisServer = request.getfixturevalue("durable_redis")
        servers.empty(server.url)
        return Fault(server.url, server.kill, server.start)
    url: str = request.getfixturevalue("postgres_url")
    # The server starts again by itself.
    return Fault(url, partial(crash_postgres, url))


@pytest.fixture
def cut(redis_url: str) -> Iterator[Fault]:
    url = urlsplit(redis_url)
    with cutting(url.port or 0) as proxy:
        address = url._replace(netloc=url.netloc.replace(str(url.port), str(proxy.port)))
        set_cut = partial(setattr, proxy, "is_cut")
        yield Fault(
            f"{address.geturl()}?timeout=1", partial(set_cut, True), partial(set_cut, False)
        )


@contextmanager
def reading(view: FeatureView, online: str) -> Iterator[None]:
    """Read vectors in a thread; check that they are never mixed, missing, or older than before."""
    is_done = threading.Event()
    problems: list[object] = []

    def read() -> None:
        last = dict.fromkeys(range(len(SAMPLE)), 0)
        with closing(view.server(online=online)) as server:
            while not is_done.is_set():
                try:
                    vectors = server.get_vectors(SAMPLE)
                except OnlineStoreUnavailable:
                    time.sleep(0.01)
                    continue
                for number, vector in enumerate(vectors):
                    if vector["x"] is None or vector["x"] != vector["y"]:
                        problems.append(vector)
                    elif vector["x"] < last[number]:
                        problems.append((vector, last[number]))
                    else:
                        last[number] = vector["x"]
                time.sleep(0.01)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        is_done.set()
        reader.join()
    assert problems == []


def wait_until_available(view: FeatureView, online: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            view.online_lag(online=online)
            return
        except OnlineStoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def publish_during_faults(store: FeatureStore, fault: Fault, *modes: str) -> int:
    """Publish in each mode with a fault, then repeat it; return the number of errors."""
    write_rows(store, 0)
    view = store.create_feature_view("v", features=["g.x", "g.y"])
    store.add_online_store("cache", fault.url)
    store.publish(view, to="cache")
    errors = 0

    def publish(mode: str) -> None:
        nonlocal errors
        try:
            store.publish("v", to="cache", full=mode == "full")
        except OnlineStoreUnavailable:
            errors += 1

    numbers = count(1)
    with reading(view, "cache"):
        for mode in modes:
            is_writing = False
            while not is_writing:  # on a loaded machine, a publication may end unseen
                write_rows(store, next(numbers))
                publisher = threading.Thread(target=publish, args=(mode,))
                publisher.start()
                is_writing = wait_until_written(store, view, publisher.is_alive, online="cache")
            fault.begin()
            publisher.join()
            fault.end()
            wait_until_available(view, "cache")
            assert_lag_is_true(view)
            started = time.monotonic()
            store.publish("v", to="cache", full=mode == "full")
            # Not after the lease of the failed publication has expired.
            assert time.monotonic() - started < 20
            assert [lag.commits for lag in view.online_lag(online="cache")] == [0]
            assert view.verify_online(online="cache").ok
    return errors


def assert_lag_is_true(view: FeatureView) -> None:
    """Check that values differ from the retrieval only if the online store reports a lag."""
    (lag,) = view.online_lag(online="cache")
    report = view.verify_online(online="cache", sample=100)
    assert report.ok or lag.commits > 0
    reasons = {difference.reason.partition(":")[0] for difference in report.differences}
    assert reasons <= {"not yet published", "late row"}


@pytest.mark.parametrize(("engine_name", "killed"), KILLED_SERVERS, indirect=["killed"])
def test_publication_during_kills_of_its_server_is_repeated(
    store: FeatureStore, killed: Fault
) -> None:
    errors = publish_during_faults(store, killed, "full", "changes")
    # Postgres may have recovered before the publisher writes.
    assert errors == 2 or killed.url.startswith("postgres")


def test_publication_and_reads_during_cuts_of_the_network_are_repeated(
    store: FeatureStore, cut: Fault
) -> None:
    assert publish_during_faults(store, cut, "full", "changes") == 2


def test_publication_to_a_full_redis_keeps_the_old_values(store: FeatureStore) -> None:
    import redis

    with (
        servers.running("--maxmemory-policy", "allkeys-lru") as server,
        closing(redis.Redis(port=server.port)) as client,
    ):
        write_rows(store, 0)
        view = store.create_feature_view("v", features=["g.x", "g.y"])
        store.add_online_store("cache", server.url)
        with pytest.raises(OnlineStoreError, match="has maxmemory-policy allkeys-lru") as error:
            store.publish(view, to="cache")
        assert "config set maxmemory-policy noeviction" in str(error.value)
        assert client.dbsize() == 0
        client.config_set("maxmemory-policy", "noeviction")
        store.publish(view, to="cache")
        for number, is_full in enumerate((True, False), 1):
            write_rows(store, number)
            headroom = 1_500_000 if is_full else 0
            client.config_set("maxmemory", client.info("memory")["used_memory"] + headroom)
            with (
                reading(view, "cache"),
                pytest.raises(OnlineStoreError, match=r"(?s)is full.*increase maxmemory"),
            ):
                store.publish("v", to="cache", full=is_full)
            assert_lag_is_true(view)
            # The generation that was not completed uses no memory.
            assert client.dbsize() == ROWS * number + 1
            client.config_set("maxmemory", 0)
            assert store.publish("v", to="cache", full=True).mode == "full"
            assert view.verify_online(online="cache").ok


PUBLISH = """
import sys, featurestore
store = featurestore.connect(sys.argv[1])
store.publish("v", to="cache")
"""


def test_suspended_publisher_of_an_older_version_replaces_no_newer_value(
    store: FeatureStore, redis_url: str
) -> None:
    write_rows(store, 0)
    view = store.create_feature_view("v", features=["g.x", "g.y"])
    store.add_online_store("cache", redis_url)
    store.publish(view, to="cache")
    write_rows(store, 1)
    command = [sys.executable, "-c", PUBLISH, store.location]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
        assert wait_until_written(store, view, lambda: first.poll() is None, online="cache"), (
            first.communicate()
        )
        first.send_signal(signal.SIGSTOP)
        expire_lease(store)
        write_rows(store, 2)
        assert store.publish("v", to="cache").mode == "incremental"
        with reading(view, "cache"):
            first.send_signal(signal.SIGCONT)
            _, messages = first.communicate(timeout=60)
    assert "PublicationSuperseded" in messages
    assert [lag.commits for lag in view.online_lag(online="cache")] == [0]
    assert view.verify_online(online="cache").ok


def expire_lease(store: FeatureStore) -> None:
    with closing(open_online_store(store.session, "cache")) as online:
        view = PublishedView("v", 1, online.config.name)
        (content,) = online.read([view.key])
        state = ViewState.parse(content, view)
        assert state.lease is not None
        expired = replace(state.lease, expires=START)
        assert online.compare_and_set(
            view.key, content, replace(state, lease=expired).to_bytes(view.key)
        )


@on_engines("offset", [-HOUR, HOUR], spark=[-HOUR])
def test_rows_are_served_by_the_clock_of_the_online_store(
    store: FeatureStore, redis_url: str, offset: timedelta, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    instants = [now + minutes * timedelta(minutes=1) for minutes in (-90, -30, 30, 90)]
    rows = [
        {"id": number % 2, "at": instant, "x": number} for number, instant in enumerate(instants)
    ]
    # The clock of this machine is wrong, and that of the server is right.
    with time_machine.travel(now + offset, tick=True):
        store.create_featuregroup(rows, "g", primary_key="id", event_time="at", ttl="1h")
        view = store.create_feature_view("v", features=["g.x"])
        store.add_online_store("cache", redis_url)
        store.publish(view, to="cache")
        with closing(view.server(online="cache")) as server:
            vectors = server.get_vectors([{"id": 0}, {"id": 1}])
        assert [(vector["x"], vector.status) for vector in vectors] == [
            (None, "stale"),
            (1, "found"),
        ]
        assert view.verify_online(online="cache").ok
        store.insert_into_featuregroup([{"id": 0, "at": now, "x": 7}], "g")
        assert store.publish("v", to="cache").mode == "incremental"
        assert view.verify_online(online="cache").ok


@on_engines("offset", [-HOUR, HOUR], spark=[-HOUR])
def test_lag_is_measured_by_the_clock_of_the_commits(
    store: FeatureStore, engine_name: str, offset: timedelta, request: pytest.FixtureRequest
) -> None:
    if engine_name == "spark" and offset == HOUR:
        reason = "Spark commits by the clock of the JVM, which a test cannot set"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    store.create_featuregroup([{"id": 0, "x": 1}], "g", primary_key="id")
    view = store.create_feature_view("v", features=["g.x"])
    store.publish(view)
    with time_machine.travel(datetime.now(UTC) + offset, tick=True):
        store.insert_into_featuregroup([{"id": 1, "x": 7}], "g")
        (lag,) = view.online_lag()
        assert (lag.commits, lag.exceeds(timedelta(minutes=1))) == (1, False)
