"""A registry with its own URL may serve several locations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import featurestore
from featurestore.errors import ConfigurationError, RegistryDamaged, RegistryError
from featurestore.recovery.rebuild import rebuild
from featurestore.registry.rows import lock
from featurestore.registry.stores import read_reference
from featurestore.store import FeatureStore

ROWS = [{"x": 1, "y": 2}]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database outside of any location."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    response: str = request.getfixturevalue("postgres_url")
    return response


def groups(store: FeatureStore) -> list[str]:
    return [f"{group.name}@v{group.version}" for group in store.get_featuregroups()]


def test_shared_registry_locations_list_own_groups(tmp_path: Path, url: str) -> None:
    with (
        featurestore.connect(tmp_path / "a", registry=url) as first,
        featurestore.connect(tmp_path / "b", registry=url) as second,
    ):
        first.create_featuregroup(ROWS, "left")
        second.create_featuregroup(ROWS, "right")
        second.create_featuregroup(ROWS, "left")
        assert (groups(first), groups(second)) == (["left@v1"], ["left@v1", "right@v1"])
        rebuild(str(tmp_path / "b"), url=url)
        rebuild(str(tmp_path / "a"), url=url)
        assert (groups(first), groups(second)) == (["left@v1"], ["left@v1", "right@v1"])
        first.delete_featuregroup("left", version=1)
    with featurestore.connect(tmp_path / "b", registry=url) as again:
        assert groups(again) == ["left@v1", "right@v1"]
        assert again.get_featuregroup("left").count() == 1


@pytest.mark.postgres
def test_stores_of_one_database_do_not_wait_for_each_other(
    tmp_path: Path, postgres_url: str
) -> None:
    with (
        featurestore.connect(tmp_path / "a", registry=postgres_url) as first,
        featurestore.connect(tmp_path / "b", registry=postgres_url) as second,
        first.session.registry.transaction() as connection,
        second.session.registry.transaction() as other_connection,
    ):
        lock(connection, "featuregroup/left")
        other_connection.exec_driver_sql("set local lock_timeout = '1s'")
        lock(other_connection, "featuregroup/left")


def test_connect_without_registry_url_shows_remembered_url(tmp_path: Path, url: str) -> None:
    with featurestore.connect(tmp_path / "a", registry=url) as store:
        store.create_featuregroup(ROWS, "left")
    with pytest.raises(ConfigurationError, match="has its registry at") as error:
        featurestore.connect(tmp_path / "a")
    hint = error.value.hint or ""
    pasted = hint.split("registry='")[1].split("'")[0]
    with featurestore.connect(tmp_path / "a", registry=pasted) as store:
        assert groups(store) == ["left@v1"]
    with pytest.raises(ConfigurationError, match="has its registry at"):
        rebuild(str(tmp_path / "a"))
    assert not (tmp_path / "a" / "registry.db").exists()


def test_location_stores_registry_url_without_password(tmp_path: Path, url: str) -> None:
    secret = url.replace("store@", "store:hunter2@")
    with featurestore.connect(tmp_path / "a", registry=secret):
        text = (tmp_path / "a" / "registry.json").read_text()
    assert "hunter2" not in text
    assert json.loads(text)["registry"] == url.replace("postgresql+psycopg", "postgresql")


def test_connect_unknown_registry_raises_until_rebuild(tmp_path: Path, url: str) -> None:
    with featurestore.connect(tmp_path / "a") as store:
        store.create_featuregroup(ROWS, "left")
    with pytest.raises(RegistryError, match="missing in the registry") as error:
        featurestore.connect(tmp_path / "a", registry=url)
    assert "registry rebuild" in (error.value.hint or "")
    assert read_reference(str(tmp_path / "a")) is None
    rebuild(str(tmp_path / "a"), url=url)
    with featurestore.connect(tmp_path / "a", registry=url) as store:
        assert groups(store) == ["left@v1"]


def move_store(source: Path, target: Path) -> None:
    shutil.move(source, target)


def copy_store(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


@pytest.mark.parametrize("carry", [move_store, copy_store])
def test_moved_store_keeps_registry_and_copy_rebuilds(
    tmp_path: Path, carry: Callable[[Path, Path], Any]
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with featurestore.connect(tmp_path / "a", registry=url) as store:
        store.create_featuregroup(ROWS, "left")
    carry(tmp_path / "a", tmp_path / "c")
    if carry is copy_store:
        with pytest.raises(RegistryError, match="is a copy of the store at"):
            featurestore.connect(tmp_path / "c", registry=url)
        rebuild(str(tmp_path / "c"), url=url)
    with featurestore.connect(tmp_path / "c", registry=url) as store:
        store.create_featuregroup(ROWS, "left", version=2)
        assert groups(store) == ["left@v1", "left@v2"]
    if carry is copy_store:
        with featurestore.connect(tmp_path / "a", registry=url) as store:
            assert groups(store) == ["left@v1"]


def test_registry_without_location_table_is_refused_until_rebuild(tmp_path: Path, url: str) -> None:
    with featurestore.connect(tmp_path / "a", registry=url) as store:
        store.create_featuregroup(ROWS, "left")
    execute(url, "drop table featurestore_stores")
    with featurestore.connect(tmp_path / "b", registry=url) as neighbor:
        assert groups(neighbor) == []
    with pytest.raises(RegistryDamaged, match=r"missing in the registry(.|\n)*registry rebuild"):
        featurestore.connect(tmp_path / "a", registry=url)
    rebuild(str(tmp_path / "a"), url=url)
    with featurestore.connect(tmp_path / "a", registry=url) as store:
        assert groups(store) == ["left@v1"]


def test_registry_before_first_release_is_refused(tmp_path: Path, url: str) -> None:
    execute(url, "create table featurestore_stores (id text, location text, is_first boolean)")
    with pytest.raises(RegistryDamaged, match="precedes the first release") as error:
        featurestore.connect(tmp_path / "a", registry=url)
    assert (error.value.hint or "").startswith("empty the database, then featurestore --location")
    execute(url, "drop table featurestore_stores")
    with featurestore.connect(tmp_path / "a", registry=url) as store:
        assert groups(store) == []


def execute(url: str, statement: str) -> None:
    """Execute a statement in the database itself, which contains the table of locations."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()
