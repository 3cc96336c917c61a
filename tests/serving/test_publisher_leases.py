"""Publishers whose lease has ended publish nothing, and leave no values behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import time_machine

import featurestore
from featurestore.errors import PublicationSuperseded
from featurestore.model.times import utc_now
from featurestore.serving import publication, rows
from featurestore.serving.incremental import ChangeWriter
from featurestore.serving.ownership import PublisherLease
from featurestore.serving.stores import StoreClock, open_online_store
from featurestore.store import FeatureStore
from tests.serving import redis_server as servers

ROWS = [{"id": number, "x": 1} for number in range(60)]
WAIT_SECONDS = 60


@pytest.fixture
def stores(empty_store: FeatureStore) -> list[FeatureStore]:
    """Two handles of a store with a view, as those of two processes."""
    empty_store.create_featuregroup(ROWS, "g", primary_key="id")
    empty_store.create_feature_view("v", features=["g.x"])
    return [empty_store, featurestore.connect(empty_store.location)]


def read_all(store: FeatureStore, online: str | None = None) -> list[Any]:
    with store.get_feature_view("v").server(online=online) as server:
        return [vector["x"] for vector in server.get_vectors([{"id": row["id"]} for row in ROWS])]


@pytest.mark.services
def test_publisher_of_an_emptied_server_does_not_use_the_lease_of_another(
    stores: list[FeatureStore], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stores
    first.add_online_store("cache", redis_url)
    # Both leases begin at the same instant.
    instant = StoreClock(open_online_store(first.session, "cache")).now_micros()
    monkeypatch.setattr(StoreClock, "now_micros", lambda clock: instant)
    is_emptied, is_taken_over, has_ended = threading.Event(), threading.Event(), threading.Event()
    write_all = rows.write_all

    def write_on_both(*arguments: Any, **options: Any) -> Any:
        if not is_emptied.is_set():
            written = write_all(*arguments, **options)
            servers.empty(redis_url)
            is_emptied.set()
            assert is_taken_over.wait(WAIT_SECONDS)
            return written
        is_taken_over.set()
        assert has_ended.wait(WAIT_SECONDS)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(publication, "write_all", write_on_both)
        publishing = pool.submit(first.publish, "v", to="cache")
        publishing.add_done_callback(lambda _: has_ended.set())
        assert is_emptied.wait(WAIT_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            second.publish("v", to="cache")
        assert isinstance(publishing.exception(), PublicationSuperseded)
    first.publish("v", to="cache")
    assert read_all(first, "cache") == [1] * len(ROWS)


@pytest.mark.parametrize("mode", ["full", "changes"])
def test_values_of_a_publisher_that_comes_back_late_are_removed(
    stores: list[FeatureStore], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stores
    first.publish("v")
    first.insert_into_featuregroup([{**row, "x": 2} for row in ROWS], "g", mode="upsert")
    owner: Any = publication if mode == "full" else ChangeWriter
    name = "write_all" if mode == "full" else "write"
    original: Callable[..., Any] = getattr(owner, name)
    with time_machine.travel(utc_now(), tick=True) as clock:

        def write_late(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(owner, name, original)
            # The lease expires, and others publish until the values of this one are removed.
            for _ in range(3):
                clock.shift(timedelta(minutes=2))
                second.publish("v", full=True)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, write_late)
        with pytest.raises(PublicationSuperseded):
            first.publish("v", full=mode == "full")
        for _ in range(2):
            clock.shift(timedelta(minutes=2))
            second.publish("v")
        with closing(open_online_store(first.session)) as online:
            assert online.statistics()["keys"] == len(ROWS) + 1
    assert read_all(first) == [2] * len(ROWS)


def test_lease_of_a_call_that_ended_without_its_server_is_taken_over_at_once(
    stores: list[FeatureStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stores
    monkeypatch.setattr(PublisherLease, "update", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        first.publish("v")
    monkeypatch.undo()
    # The heartbeats of a lease last for 30 seconds.
    monkeypatch.setattr("featurestore.serving.ownership.time.sleep", lambda _: pytest.fail("waits"))
    second.publish("v")
    assert read_all(second) == [1] * len(ROWS)
