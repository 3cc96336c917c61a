"""A purge removes the keys that no view needs, and none of other stores and applications."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine

import featurestore
from featurestore.model.times import utc_now
from featurestore.plugins.online import OnlineStore
from featurestore.serving import purge as purges
from featurestore.serving.ownership import PublisherLease, find_origin
from featurestore.serving.state import PublishedView, ViewState
from featurestore.serving.stores import StoreClock, open_online_store
from featurestore.store import FeatureStore

TAILS = [f"N{number}" for number in range(40)]
APPLICATION = {b"session:1": b"x" * 40, b"counter": b"5", b"\x00" * 20: b"\x02" + b"\x00" * 60}


@pytest.fixture(params=["sqlite", "redis", pytest.param("postgres", marks=pytest.mark.postgres)])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def stores(tmp_path: Path, uri: str) -> Iterator[list[FeatureStore]]:
    """Two feature stores that publish views with different names to one database."""
    with (
        featurestore.connect(tmp_path / "first", engine="duckdb") as first,
        featurestore.connect(tmp_path / "second", engine="duckdb") as second,
    ):
        for number, store in enumerate((first, second)):
            rows = [{"tail": tail, "seats": number} for tail in TAILS]
            store.create_featuregroup(rows, "planes", primary_key="tail")
            store.add_online_store("cache", uri)
            for view in ("kept", "dropped"):
                store.create_feature_view(f"{view}{number}", features=["planes.seats"])
                store.publish(f"{view}{number}", to="cache")
        yield [first, second]


def content(online: OnlineStore) -> dict[bytes, bytes | None]:
    """Return all keys with their values."""
    keys = sorted({key for batch in online.scan(b"") for key in batch})
    return dict(zip(keys, online.read(keys), strict=True))


def read(store: FeatureStore, view: str) -> list[Any]:
    with store.get_feature_view(view).server(online="cache") as server:
        return [
            vector["seats"] for vector in server.get_vectors([{"tail": tail} for tail in TAILS])
        ]


def test_purge_removes_only_keys_of_this_store_without_view(stores: list[FeatureStore]) -> None:
    first, second = stores
    with closing(open_online_store(first.session, "cache")) as online:
        online.write(list(APPLICATION), list(APPLICATION.values()))
        before = content(online)
        assert first.purge_online_store("cache").total == 0
        assert content(online) == before
        # A replaced generation is needed until its readers have changed to the next one.
        first.publish("kept0", to="cache", full=True)
        assert first.purge_online_store("cache").total == 0
        # Values of a generation that no record names, such as of a suspended publisher.
        damaged = PublishedView("kept0", 1, "cache").key
        assert online.compare_and_set(damaged, online.read([damaged])[0], b"damaged")
        first.publish("kept0", to="cache", full=True)
        first.delete_feature_view("dropped0", version=1)
        written = content(online)
        planned = first.purge_online_store("cache", dry_run=True)
        assert content(online) == written
        report = first.purge_online_store("cache")
        assert replace(report, dry_run=True) == planned
        assert sorted(report.keys.values()) == [len(TAILS)] * 3
        assert sorted(report.views.values()) == ["dropped0@v1", *["no state record"] * 2]
        assert report.removed_views == ("dropped0@v1",)
        after = content(online)
        assert report.other_keys == 2 * len(TAILS) + len(APPLICATION)
        assert len(after) == 3 * len(TAILS) + 3 + len(APPLICATION)
        assert after.items() <= written.items()
        assert APPLICATION.items() <= after.items()
        assert first.purge_online_store("cache").total == 0
    assert read(first, "kept0") == [0] * len(TAILS)
    assert read(second, "kept1") == read(second, "dropped1") == [1] * len(TAILS)
    # A view that is created again has none of the old values.
    first.delete_from_featuregroup("planes", "tail = 'N1'")
    first.create_feature_view("dropped0", features=["planes.seats"])
    first.publish("dropped0", to="cache")
    assert read(first, "dropped0").count(None) == 1


def test_purge_keeps_what_a_publication_writes(stores: list[FeatureStore]) -> None:
    first, _ = stores
    view = PublishedView("kept0", 1, "cache")
    with closing(open_online_store(first.session, "cache")) as online:
        clock, origin = StoreClock(online), find_origin(first.session, "cache")
        before = content(online)
        lease = PublisherLease(online, clock, view, origin=origin, check=lambda state: None)
        with lease:
            generation = lease.token
            lease.update(lambda state: state.with_unfinished(generation))
            prefix = view.value_prefix(("planes", 1), generation)
            online.write([prefix + b"key"], [b"value"])
            assert first.purge_online_store("cache").total == 0
            assert online.read([prefix + b"key"]) == [b"value"]
            first.delete_feature_view("kept0", version=1)
            report = first.purge_online_store("cache")
            assert (report.total, report.skipped_views) == (0, ("kept0@v1",))
        # After the publication, nothing of the deleted view remains.
        report = first.purge_online_store("cache")
        assert report.removed_views == ("kept0@v1",)
        remaining = content(online)
        assert remaining.items() < before.items()
        assert online.read([view.key, prefix + b"key"]) == [None, None]
        assert ViewState.parse(None, view).generation == 0


def test_online_purge_command_removes_old_generations(
    empty_store: FeatureStore, command_line: Callable[..., Any]
) -> None:
    empty_store.create_featuregroup([{"tail": "N1", "seats": 1}], "planes", primary_key="tail")
    empty_store.create_feature_view("v", features=["planes.seats"])
    empty_store.publish("v")
    empty_store.publish("v", full=True)

    def purge(*options: str) -> dict[str, Any]:
        words = ("--location", empty_store.location, "--output", "json", "online", "purge")
        record: dict[str, Any] = json.loads(command_line(*words, *options).out)
        return record

    assert purge()["total"] == 0
    with time_machine.travel(utc_now() + timedelta(minutes=2)):
        assert purge("--dry-run")["total"] == 1
        assert purge("embedded")["total"] == 1
        assert purge()["total"] == 0
    assert empty_store.get_feature_view("v").server().get_vector({"tail": "N1"}) == {"seats": 1}


def test_purge_removes_views_published_before_the_store_was_added_again(
    stores: list[FeatureStore], uri: str
) -> None:
    first, _ = stores
    first.remove_online_store("cache")
    first.add_online_store("cache", uri)
    first.delete_feature_view("dropped0", version=1)
    report = first.purge_online_store("cache")
    assert (report.removed_views, report.total) == (("dropped0@v1",), len(TAILS))
    assert report.other_keys == 2 * len(TAILS)
    assert read(first, "kept0") == [0] * len(TAILS)


def test_purge_keeps_the_values_of_a_view_that_is_created_again_meanwhile(
    stores: list[FeatureStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = stores
    first.delete_feature_view("dropped0", version=1)
    remove_view = purges._Purge._remove_view

    def create_and_remove(purge: purges._Purge, view: PublishedView) -> bool:
        first.create_feature_view(view.name, features=["planes.seats"])
        return remove_view(purge, view)

    monkeypatch.setattr(purges._Purge, "_remove_view", create_and_remove)
    report = first.purge_online_store("cache")
    assert (report.total, report.skipped_views) == (0, ("dropped0@v1",))
    first.publish("dropped0", to="cache")
    assert read(first, "dropped0") == [0] * len(TAILS)
