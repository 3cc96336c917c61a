"""Values of other tables and of other feature stores are neither served nor replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from featurestore.errors import FeatureViewWarning, PublishedValueMismatch
from featurestore.serving import published
from featurestore.store import FeatureStore
from tests.store_copies import Connect


def create_plane(store: FeatureStore, seats: int) -> None:
    store.create_featuregroup([{"tail": "N1", "seats": seats}], "planes", primary_key="tail")


def test_reader_refuses_values_of_a_deleted_group_until_published(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_plane(store, 100)
    view = store.create_feature_view("v", features=["planes.seats"])
    store.publish("v")
    running = view.server()
    with pytest.warns(FeatureViewWarning):
        store.delete_featuregroup("planes", version=1, force=True)
    create_plane(store, 9)
    # A running server compares the tables each minute.
    assert running.get_vector({"tail": "N1"}) == {"seats": 100}
    monkeypatch.setattr(published, "_CHECK_SECONDS", -1.0)
    running._backend._next_check = 0.0  # type: ignore[attr-defined]
    message = (
        r"(?s)another feature group 'planes' version 1.*publish\('v', version=1, to='embedded'\)"
    )
    for read in (
        view.server,
        view.online_lag,
        lambda: running.get_vector({"tail": "N1"}),
        lambda: running.get_vectors([{"tail": "N1"}], as_="arrow"),
    ):
        with pytest.raises(PublishedValueMismatch, match=message):
            read()
    assert store.publish("v").mode == "full"
    assert running.get_vector({"tail": "N1"}) == view.server().get_vector({"tail": "N1"})
    assert running.get_vector({"tail": "N1"}) == {"seats": 9}


def test_stores_that_share_an_online_store_refuse_each_other(
    connect: Connect, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/shared.db"
    locations = [str(tmp_path / name) for name in ("first", "second")]
    for seats, location in enumerate(locations):
        with connect(location) as store:
            create_plane(store, seats)
            store.create_feature_view("v", features=["planes.seats"])
            store.add_online_store("cache", uri)
    with connect(locations[0]) as first:
        first.publish("v", to="cache")
    with connect(locations[1]) as second:
        view = second.get_feature_view("v")
        for use in (
            lambda: second.publish("v", to="cache"),
            lambda: second.publish("v", to="cache", full=True),
            lambda: view.server(online="cache"),
        ):
            with pytest.raises(PublishedValueMismatch, match=locations[0]) as error:
                use()
            assert "add_online_store(" in str(error.value)
            assert "full=True" not in str(error.value)
    with connect(locations[0]) as first:
        assert first.publish("v", to="cache").mode == "incremental"
        server = first.get_feature_view("v").server(online="cache")
        assert server.get_vector({"tail": "N1"}) == {"seats": 0}


def test_moved_store_takes_over_its_values_by_a_full_publication(
    connect: Connect, tmp_path: Path
) -> None:
    with connect(tmp_path / "old") as store:
        create_plane(store, 100)
        store.create_feature_view("v", features=["planes.seats"])
        store.add_online_store("cache", f"sqlite:///{tmp_path}/shared.db")
        store.publish("v", to="cache")
        store.publish("v")
    shutil.move(tmp_path / "old", tmp_path / "new")
    with connect(tmp_path / "new") as store:
        # The grant of the address belongs to the old location.
        store.add_online_store("cache", f"sqlite:///{tmp_path}/shared.db")
        view = store.get_feature_view("v")
        with pytest.raises(
            PublishedValueMismatch, match=r"moved: store\.publish\('v'.*full=True\)"
        ):
            view.server(online="cache")
        assert store.publish("v", to="cache", full=True).mode == "full"
        # The embedded online store was moved with the feature store.
        assert store.publish("v").mode == "incremental"
        for online in ("cache", None):
            assert view.server(online=online).get_vector({"tail": "N1"}) == {"seats": 100}


def test_stores_with_one_path_on_two_machines_refuse_each_other(
    connect: Connect, tmp_path: Path
) -> None:
    location, machines = tmp_path / "store", [tmp_path / "one", tmp_path / "two"]
    for seats, machine in enumerate(machines):
        with connect(location) as store:
            create_plane(store, seats)
            view = store.create_feature_view("v", features=["planes.seats"])
            store.add_online_store("cache", f"sqlite:///{tmp_path}/shared.db")
            if seats:
                with pytest.raises(PublishedValueMismatch, match="another feature store"):
                    store.publish("v", to="cache", full=True)
                with pytest.raises(PublishedValueMismatch, match="another feature store") as raised:
                    view.server(online="cache")
                # Servers send the message, which must not reveal the path of another store.
                assert str(location) not in str(raised.value)
                assert str(location) in "".join(raised.value.__notes__)
            else:
                store.publish("v", to="cache")
        shutil.move(location, machine)
    shutil.move(machines[0], location)
    with connect(location) as store:
        # The same store may register the online store again.
        store.remove_online_store("cache")
        store.add_online_store("cache", f"sqlite:///{tmp_path}/shared.db")
        assert store.publish("v", to="cache").mode == "incremental"
