"""An online store that does not respond delays neither others nor other requests for long."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from featurestore.errors import OnlineStoreUnavailable
from featurestore.server.app import create_app
from featurestore.store import FeatureStore
from tests.serving.cut_proxy import CutProxy, cutting

TIMEOUT = 2.0
ENTITY = {"tail": "N1"}


@pytest.fixture
def cut_redis(redis_url: str) -> Iterator[CutProxy]:
    """A Redis server whose network can be cut."""
    port = urlsplit(redis_url).port
    assert port is not None
    with cutting(port) as proxy:
        yield proxy


@pytest.fixture
def published(empty_store: FeatureStore, cut_redis: CutProxy) -> Iterator[FeatureStore]:
    """A store with two views in the embedded store and Redis; another server never responds."""
    rows = [{"tail": "N1", "seats": 100}]
    empty_store.create_featuregroup(rows, "planes", primary_key="tail")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name, port in (("silent", silent.getsockname()[1]), ("cut", cut_redis.port)):
            empty_store.add_online_store(name, f"redis://127.0.0.1:{port}/0?timeout={TIMEOUT}")
        for name in ("v", "w"):
            empty_store.create_feature_view(name, features=["planes.seats"])
            for online in ("cut", None):
                empty_store.publish(name, to=online)
        yield empty_store


@contextmanager
def repeated(call: Callable[[], object], *, threads: int) -> Iterator[None]:
    """Repeat a call in several threads."""
    is_done = threading.Event()

    def run() -> None:
        while not is_done.is_set():
            call()
            is_done.wait(0.5)

    with ThreadPoolExecutor(threads) as pool:
        for _ in range(threads):
            pool.submit(run)
        try:
            yield
        finally:
            is_done.set()


def seconds_of(call: Callable[[], object], count: int) -> list[float]:
    """Return the sorted durations of calls."""
    durations = []
    for _ in range(count):
        begin = time.monotonic()
        call()
        durations.append(time.monotonic() - begin)
    return sorted(durations)


def test_rest_serves_other_stores_while_one_does_not_respond(
    published: FeatureStore, cut_redis: CutProxy
) -> None:
    with TestClient(create_app(published), base_url="http://localhost") as client:

        def read(view: str, online: str | None) -> int:
            address = f"/api/v1/featureviews/{view}/vectors"
            response = client.post(address, json={"entities": [ENTITY], "online": online})
            assert response.status_code in (200, 503), response.text
            if response.status_code == 200:
                assert response.json()["vectors"] == [{"seats": 100}]
            return response.status_code

        # The server runs eight requests of a person at the same time.
        assert [read(view, online) for view in "vw" for online in ("cut", None)] == [200] * 4
        for online in ("silent", "cut"):
            cut_redis.is_cut = online == "cut"
            with repeated(lambda online=online: [read(v, online) for v in "vw"], threads=6):
                begin = time.monotonic()
                durations = []
                while time.monotonic() < begin + 1.25 * TIMEOUT:
                    durations += seconds_of(lambda: read("v", None), 1)
                    durations += seconds_of(lambda: read("w", None), 1)
            durations.sort()
            assert durations[len(durations) * 99 // 100] < TIMEOUT / 4, (online, durations[-9:])
            (first, *_, last) = seconds_of(lambda online=online: read("v", online), 10)
            assert first < 0.25, (online, first)
            assert last < 1.5 * TIMEOUT
        cut_redis.is_cut = False
        deadline = time.monotonic() + 5 * TIMEOUT
        while read("v", "cut") != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert {read(view, "cut") for view in "vw"} == {200}


def test_readers_of_an_unavailable_store_fail_fast_and_recover(
    published: FeatureStore, cut_redis: CutProxy
) -> None:
    view = published.get_feature_view("v")
    # Two servers of the address, and readers of the event loop, share what they learn.
    with view.server(online="cut") as server, view.server(online="cut") as other:
        assert server.get_vector(ENTITY) == other.get_vector(ENTITY) == {"seats": 100}
        cut_redis.is_cut = True

        def fails(read: Callable[[], Any]) -> float:
            begin = time.monotonic()
            with pytest.raises(OnlineStoreUnavailable):
                read()
            return time.monotonic() - begin

        assert fails(lambda: server.get_vector(ENTITY)) < 3 * TIMEOUT
        for read in (
            lambda: server.get_vector(ENTITY),
            lambda: other.get_vector(ENTITY),
            lambda: asyncio.run(other.aget_vector(ENTITY)),
            lambda: view.online_lag(online="cut"),
            lambda: view.server(online="cut"),
        ):
            assert fails(read) < TIMEOUT / 4
        cut_redis.is_cut = False
        time.sleep(1.1)  # the interval of probes
        assert other.get_vector(ENTITY) == server.get_vector(ENTITY) == {"seats": 100}
        # Concurrent first calls of a store that responds wait for each other.
        with ThreadPoolExecutor(40) as pool:
            vectors = list(pool.map(lambda _: server.get_vector(ENTITY), range(400)))
        assert vectors == [{"seats": 100}] * 400
