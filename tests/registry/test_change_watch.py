"""Hidden objects are computed once per registry state, and never for an older state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event

import featurestore
from featurestore.registry import access, tables
from featurestore.registry.database import ChangeWatch
from featurestore.registry.filtered import RegistryViews
from featurestore.registry.hidden import find_hidden_objects
from featurestore.store import FeatureStore


@pytest.fixture
def stores(tmp_path: Path, registry_url: str | None) -> Iterator[tuple[FeatureStore, FeatureStore]]:
    """Two stores at one location: one of the server and one of another process."""
    with (
        featurestore.connect(tmp_path / "store", registry=registry_url) as served,
        featurestore.connect(tmp_path / "store", registry=registry_url) as peer,
    ):
        for name in ("pay", "visits"):
            served.create_featuregroup([{"who": "a", "x": 1.0}], name, primary_key="who")
        yield served, peer


@contextmanager
def statements_of(store: FeatureStore) -> Iterator[list[str]]:
    """Yield the list of statements that the connections of a store run from now on."""
    engine = store.session.registry._engine
    statements: list[str] = []

    def listen(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", listen)
    yield statements
    event.remove(engine, "before_cursor_execute", listen)


def names_in(views: RegistryViews, *, granted: tuple[str, ...] = ()) -> list[str]:
    with views.registry_for(granted=granted, reads_store=True).reading() as connection:
        names = connection.execute(sa.select(tables.featuregroups.c.name)).scalars()
        return sorted(names)


def test_hidden_objects_are_cached_until_commit(
    stores: tuple[FeatureStore, FeatureStore],
) -> None:
    served, peer = stores
    with peer.session.registry.transaction() as connection:
        access.set_private(connection, "pay", True)
    views = RegistryViews(served.session.registry)
    names_in(views)  # a new connection makes its views, which Postgres takes for a change
    names_in(views)
    names_in(views, granted=("pay",))
    with statements_of(served) as statements:
        for _ in range(3):  # users in turns, over the same connections
            assert names_in(views) == ["visits"]
            assert names_in(views, granted=("pay",)) == ["pay", "visits"]
    assert statements == []


def test_hidden_objects_reflect_changes_of_any_process(
    stores: tuple[FeatureStore, FeatureStore],
) -> None:
    """After each change by either store, the cached result equals a new computation."""
    served, peer = stores
    views = RegistryViews(served.session.registry)
    labels = [{"who": "a", "good": True}]

    def make_dataset(store: FeatureStore) -> None:
        frame = store.get_features(["pay.x"], labels=labels)
        store.create_training_dataset(frame, "good", label="good", progress=False)

    def make_view(store: FeatureStore) -> None:
        store.create_feature_view("v", features=["pay.x"])

    for number, store in enumerate((peer, served)):
        for private in (True, False, True):
            with store.session.registry.transaction() as connection:
                access.set_private(connection, "pay", private)
            assert names_in(views) == ["pay", "visits"][private:]
        for change in (make_dataset, make_view):
            change(store)
            hidden = views.registry_for(granted=(), reads_store=True)._hidden
            with served.session.registry.reading() as connection:
                assert hidden == find_hidden_objects(connection, granted=(), reads_store=True)
        assert ("training_dataset", "good", number + 1) in hidden.outputs
        assert ("feature_view", "v", number + 1) in hidden.outputs


def test_change_watch_state_differs_after_commit(stores: tuple[FeatureStore, FeatureStore]) -> None:
    served, peer = stores
    watch = ChangeWatch(served.session.registry)
    states = [watch.state()]
    for store in (served, peer, served):
        assert watch.state() == states[-1]
        with store.session.registry.transaction() as connection:
            access.put_attempt(connection, "somebody")
        assert watch.state() not in states
        states.append(watch.state())
    with served.session.registry.transaction() as connection:
        access.put_attempt(connection, "somebody")
        uncommitted = watch.state()
    assert watch.state() != uncommitted
