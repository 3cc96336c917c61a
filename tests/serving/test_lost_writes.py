"""Published values are correct, or their lag is visible, if servers lose acknowledged writes."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.errors import FeatureStoreError
from featurestore.serving import incremental
from featurestore.store import FeatureStore
from featurestore.views import FeatureView
from tests.serving import redis_server as servers
from tests.serving.cut_proxy import CutProxy, cutting

pytestmark = pytest.mark.services
IDS = range(40)
GROUPS = ("g", "h")
# The requests of one publication; a fault at a later one follows the publication.
MAX_REQUESTS = 25
PUBLISH_FAULTS = ("restart", "replica", "empty replica", "flush", "evict", "cut", "slow")


class Cluster:
    """A primary Redis server behind a proxy, and its replica."""

    def __init__(self, proxy: CutProxy, primary: servers.RedisServer, replica: servers.RedisServer):
        self.proxy, self.primary, self.replica = proxy, primary, replica
        self.url = f"redis://127.0.0.1:{proxy.port}/0?timeout=2"

    def begin(self, fault: str) -> None:
        """Prepare a fault: the server loses what is written from now on."""
        if fault == "restart":
            with self.primary.client() as client:
                client.save()
        elif fault.endswith("replica"):
            self.replica.copy(self.primary)
            if fault == "empty replica":
                with self.replica.client() as client:
                    client.flushall()

    def end(self, fault: str) -> None:
        """Let a fault happen."""
        if fault == "restart":
            self.primary.crash()
        elif fault.endswith("replica"):
            self.primary, self.replica = self.replica, self.primary
            self.proxy.backend = self.primary.port
            self.proxy.reset()
        elif fault == "flush":
            with self.primary.client() as client:
                client.flushall()
        elif fault == "evict":
            self._evict()
        elif fault == "cut":
            self.proxy.reset()
        elif fault == "slow":
            time.sleep(0.2)

    def _evict(self) -> None:
        """Let the server delete some keys as if its memory were full."""
        with self.primary.client() as client:
            client.config_set("maxmemory-policy", "allkeys-random")
            client.config_set("maxmemory", client.info("memory")["used_memory"] - 2_000)
            # The server evicts before it executes a command that writes.
            with suppress(Exception):
                client.set("other", b"1")
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")

    @contextmanager
    def failing(self, fault: str, first: int, last: int) -> Iterator[None]:
        """Let a fault begin at one request of the block and end at a later one, or after it."""
        steps: list[tuple[int, Callable[[str], None]]] = [(first, self.begin), (last, self.end)]
        number, lock = count(), threading.Lock()

        def run_steps(request: float) -> None:
            with lock:
                while steps and steps[0][0] <= request:
                    steps.pop(0)[1](fault)

        self.proxy.before_request = lambda: run_steps(next(number))
        yield
        self.proxy.before_request = lambda: None
        run_steps(MAX_REQUESTS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        servers.running() as primary,
        servers.running() as replica,
        cutting(primary.port) as proxy,
    ):
        yield Cluster(proxy, primary, replica)


class Model:
    """The latest rows of both groups in plain Python, and the store with the published view."""

    def __init__(self, store: FeatureStore, cluster: Cluster) -> None:
        self.store, self.cluster = store, cluster
        self.values: dict[str, dict[int, int]] = {name: dict.fromkeys(IDS, 0) for name in GROUPS}
        self.numbers = count(1)
        for name, values in self.values.items():
            rows = [{"id": key, name: value} for key, value in values.items()]
            store.create_featuregroup(rows, f"{name}s", primary_key="id", statistics=False)
        features = [f"{name}s.{name}" for name in GROUPS]
        self.view: FeatureView = store.create_feature_view("v", features=features)
        store.add_online_store("cache", cluster.url)

    def insert(self, name: str, keys: list[int]) -> None:
        value = next(self.numbers)
        self.values[name].update(dict.fromkeys(keys, value))
        rows = [{"id": key, name: value} for key in keys]
        self.store.insert_into_featuregroup(rows, f"{name}s", mode="upsert")

    def delete(self, name: str, key: int) -> None:
        self.values[name].pop(key, None)
        self.store.delete_from_featuregroup(f"{name}s", f"id = {key}")

    def publish(self) -> None:
        self.store.publish("v", to="cache")

    def differences(self) -> list[object]:
        """Return the served vectors that differ from the rows."""
        with closing(self.view.server(online="cache")) as server:
            vectors: list[dict[str, Any]] = server.get_vectors([{"id": key} for key in IDS])
        expected = [{name: self.values[name].get(key) for name in GROUPS} for key in IDS]
        return [pair for pair in zip(vectors, expected, strict=True) if pair[0] != pair[1]]

    def assert_lag_is_true(self) -> None:
        """Check that vectors differ from the rows only with a lag or an error."""
        try:
            lags = self.view.online_lag(online="cache")
            if all(lag.commits == 0 and lag.behind is None for lag in lags):
                assert self.differences() == []
        except FeatureStoreError:
            return


KEYS = st.lists(st.sampled_from(IDS), min_size=1, max_size=30, unique=True)
NAMES = st.sampled_from(GROUPS)
REQUESTS = st.tuples(st.integers(0, MAX_REQUESTS), st.integers(0, MAX_REQUESTS)).map(sorted)
OPERATIONS = st.one_of(
    st.tuples(st.just("insert"), NAMES, KEYS),
    st.tuples(st.just("delete"), NAMES, st.sampled_from(IDS)),
    st.tuples(st.just("publish"), st.sampled_from(PUBLISH_FAULTS), REQUESTS),
    st.tuples(st.just("fault"), st.sampled_from(PUBLISH_FAULTS), st.none()),
)


def test_vectors_are_correct_after_a_publication_to_servers_that_lose_writes(
    cluster: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Several calls write the changes of one publication.
    monkeypatch.setattr(incremental, "_CHUNK", 8)

    @settings(max_examples=12, deadline=None, database=None, phases=[Phase.generate])
    @given(st.lists(OPERATIONS, min_size=3, max_size=6))
    def run(operations: list[tuple[Any, ...]]) -> None:
        with featurestore.connect(tmp_path_factory.mktemp("lost") / "store") as store:
            servers.empty(f"redis://127.0.0.1:{cluster.primary.port}/0")
            model = Model(store, cluster)
            model.publish()
            for operation, subject, argument in operations:
                if operation == "insert":
                    model.insert(subject, argument)
                elif operation == "delete":
                    model.delete(subject, argument)
                elif operation == "publish":
                    model.insert(random.choice(GROUPS), list(IDS))
                    with cluster.failing(subject, *argument), suppress(FeatureStoreError):
                        model.publish()
                else:
                    cluster.begin(subject)
                    cluster.end(subject)
                model.assert_lag_is_true()
            model.publish()
            assert model.differences() == []
            assert [lag.commits for lag in model.view.online_lag(online="cache")] == [0, 0]

    run()


def test_restarted_server_has_a_lag_until_all_values_are_published(
    empty_store: FeatureStore, durable_redis: servers.RedisServer
) -> None:
    servers.empty(durable_redis.url)
    empty_store.create_featuregroup([{"id": 1, "x": 1}], "g", primary_key="id")
    view = empty_store.create_feature_view("v", features=["g.x"])
    empty_store.add_online_store("cache", durable_redis.url)
    empty_store.publish("v", to="cache")
    durable_redis.crash()
    # The values are there, but that is not known.
    assert view.server(online="cache").get_vector({"id": 1}) == {"x": 1}
    (lag,) = view.online_lag(online="cache")
    assert lag.is_uncertain
    assert lag.commits > 0
    assert lag.exceeds(timedelta(0))
    assert empty_store.publish("v", to="cache").mode == "full"
    (lag,) = view.online_lag(online="cache")
    assert (lag.is_uncertain, lag.commits, lag.behind) == (False, 0, None)
    assert empty_store.publish("v", to="cache").mode == "incremental"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["appendonly", "save", "min-replicas-to-write"]),
        (("--save", "60 1000"), ["appendonly", "min-replicas-to-write"]),
        (("--appendonly", "yes"), ["appendfsync", "min-replicas-to-write"]),
        (("--appendonly", "yes", "--appendfsync", "always", "--min-replicas-to-write", "1"), []),
    ],
)
def test_online_check_names_the_settings_that_lose_writes(
    empty_store: FeatureStore,
    command_line: Callable[..., Any],
    options: tuple[str, ...],
    expected: list[str],
) -> None:
    with servers.running(*options) as server:
        empty_store.add_online_store("cache", server.url)
        words = ("--location", empty_store.location, "online", "check", "cache")
        record = json.loads(command_line("--output", "json", *words).out)
        assert [risk["setting"] for risk in record["risks"]] == expected
        text = command_line(*words).out
        assert all(setting in text for setting in expected)
        # Each remedy changes the setting.
        for risk in record["risks"]:
            command = shlex.split(risk["remedy"].split(": ")[-1])
            subprocess.run([command[0], "-p", str(server.port), *command[1:]], check=True)
        # The log of a server that had none must also be synchronized.
        remaining = json.loads(command_line("--output", "json", *words).out)["risks"]
        assert [risk["setting"] for risk in remaining if risk["setting"] != "appendfsync"] == []
