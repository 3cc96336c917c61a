"""Publication with killed, concurrent and superseded publishers."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import PublicationSuperseded
from featurestore.serving.ownership import PublisherLease
from featurestore.serving.state import Origin, PublishedView
from featurestore.serving.stores import StoreClock, open_online_store
from tests.on_spark import on_engines
from tests.serving.online_reads import (
    read_state,
    read_values,
    retrieve_values,
    wait_until_written,
)
from tests.store_copies import copy_of

pytestmark = pytest.mark.services

ROWS = 20_000
START = datetime(2024, 1, 1, tzinfo=UTC)
PUBLISH = """
import sys, featurestore
store = featurestore.connect(sys.argv[1], engine=sys.argv[2])
store.publish("v", full=sys.argv[3] == "full")
"""
VIEW = PublishedView("v", 1, "embedded")


def rows_of(ids, hour):
    times = pa.array([START + timedelta(hours=hour)] * len(ids), pa.timestamp("us", tz="UTC"))
    return pa.table({"id": ids, "at": times, "x": np.full(len(ids), hour)})


@pytest.fixture(scope="module")
def stored_view(tmp_path_factory):
    """A store with a view."""
    location = tmp_path_factory.mktemp("published") / "store"
    with featurestore.connect(location) as store:
        store.create_featuregroup(
            rows_of(np.arange(ROWS), 0),
            "g",
            primary_key="id",
            event_time="at",
            statistics=False,
        )
        store.create_feature_view("v", features=["g.x"])
    return location


@pytest.fixture
def published_store(stored_view, tmp_path, connect):
    """A copy of the store with a published view; the test runs once per engine."""
    with copy_of(stored_view, tmp_path / "store", connect=connect) as store:
        store.publish("v")
        yield store


def assert_published(store):
    view = store.get_feature_view("v")
    keys = [(key,) for key in range(0, ROWS, 97)]
    now = [datetime.now(UTC)]
    assert read_values(store, view, keys, now) == retrieve_values(view, keys, ["id"], now)


@on_engines("mode", ["full", "changes"], spark=["changes"])
def test_publish_after_a_killed_publisher_equals_retrieval(published_store, engine_name, mode):
    # A publisher on Spark starts its own Java, which takes ten seconds.
    delays = (0.0, 0.25) if engine_name == "duckdb" else (0.25,)
    view = published_store.get_feature_view("v")
    for number, seconds in enumerate(delays, 1):
        published_store.insert_into_featuregroup(rows_of(np.arange(0, ROWS, number), number), "g")
        published_store.delete_from_featuregroup("g", f"id % 7 = {number}")
        command = [sys.executable, "-c", PUBLISH, published_store.location, engine_name, mode]
        with subprocess.Popen(command) as publisher:
            wait_until_written(published_store, view, lambda: publisher.poll() is None)
            time.sleep(seconds)
            publisher.kill()
        # Rows that the killed publisher may have written are removed again.
        published_store.delete_from_featuregroup("g", f"id % 5 = 0 and x = {number}")
        published_store.publish("v")
        assert_published(published_store)


def test_concurrent_publishers_wait_for_each_other(published_store):
    published_store.insert_into_featuregroup(rows_of(np.arange(0, ROWS, 2), 1), "g")
    with ThreadPoolExecutor(3) as pool:
        publications = list(
            pool.map(lambda full: published_store.publish("v", full=full), (False, False, True))
        )
    assert sorted(publication.mode for publication in publications) == [
        "full",
        "incremental",
        "incremental",
    ]
    assert {publication.delta_versions["g@v1"] for publication in publications} == {2}
    assert_published(published_store)


def acquire_lease(online, clock):
    return PublisherLease(online, clock, VIEW, origin=Origin("", 0), check=lambda state: None)


def use_expired_lease(online, clock, first):
    """Let another publisher take over an expired lease, then change the state by the first."""
    state = first.state
    assert state.lease is not None
    expired = replace(state.lease, expires=clock.now() - timedelta(seconds=1))
    content = replace(state, lease=expired).to_bytes(VIEW.key)
    assert online.compare_and_set(VIEW.key, state.to_bytes(VIEW.key), content)
    with acquire_lease(online, clock) as second:
        assert second.token != first.token
        first.update(lambda state: replace(state, generation=99))


def test_superseded_publisher_cannot_change_the_state(published_store):
    with closing(open_online_store(published_store.session)) as online:
        clock = StoreClock(online)
        with (
            pytest.raises(PublicationSuperseded, match="taken over"),
            acquire_lease(online, clock) as first,
        ):
            use_expired_lease(online, clock, first)
        generation = read_state(online, published_store.get_feature_view("v")).generation
        assert generation not in (99, first.token)
