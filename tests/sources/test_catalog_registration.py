"""Feature groups as external tables of catalogs: Unity Catalog, Iceberg REST and Iceberg in SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, example, given, settings

import featurestore
from featurestore.errors import (
    FeatureGroupNotFound,
    InvalidArgument,
    SourceError,
    SourceUnavailable,
)
from featurestore.registry import access
from featurestore.store import FeatureStore
from tests.http_server import serve
from tests.maven import NotFetched
from tests.sources import iceberg_rest_server
from tests.sources.iceberg_rest_server import TOKEN
from tests.sources.test_unity_catalog import CATALOG_TOKEN, UnityHandler

pytest.importorskip("pyiceberg")
SCHEMA = "featurestore"


@dataclass(frozen=True)
class Lake:
    """A catalog: the URI of its source, and what its own clients do."""

    uri: str
    options: dict[str, str]
    list_tables: Callable[[], list[str]]
    create_table: Callable[[str], object]
    find_files: Callable[[str], list[str]]
    list_columns: Callable[[str], list[str]]
    clone_table: Callable[[str, str], object] = print

    @property
    def has_versions(self) -> bool:
        """Whether each commit of a group is a change of its table."""
        return self.uri.startswith("iceberg")


@contextmanager
def unity_lake(folder: Path) -> Iterator[Lake]:
    empty: dict[str, Any] = {"locations": {}, "formats": {}, "registered": {}, "schemas": set()}
    handler = type("Handler", (UnityHandler,), empty)

    def create(name: str) -> None:
        handler.schemas.add(SCHEMA)
        handler.locations[f"{SCHEMA}.{name}"] = "file:///elsewhere"

    def clone(name: str, new_name: str) -> None:
        create(new_name)
        # Databricks copies the properties of a cloned table.
        handler.registered[f"{SCHEMA}.{new_name}"] = handler.registered[f"{SCHEMA}.{name}"]

    with serve(handler) as port:
        yield Lake(
            f"unity://127.0.0.1:{port}/main?tls=false",
            {},
            lambda: [name.removeprefix(f"{SCHEMA}.") for name in handler.locations],
            create,
            lambda name: DeltaTable(handler.locations[f"{SCHEMA}.{name}"]).file_uris(),
            lambda name: [
                column["name"] for column in handler.registered[f"{SCHEMA}.{name}"]["columns"]
            ],
            clone,
        )


def iceberg_lake(client: Any, uri: str, options: dict[str, str]) -> Lake:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    def create(name: str) -> None:
        client.create_namespace_if_not_exists(SCHEMA)
        client.create_table(f"{SCHEMA}.{name}", Schema(NestedField(1, "id", LongType())))

    def files(name: str) -> list[str]:
        scan = client.load_table(f"{SCHEMA}.{name}").scan()
        return [task.file.file_path for task in scan.plan_files()]

    def names() -> list[str]:
        return [name[-1] for name in client.list_tables(SCHEMA)]

    def columns(name: str) -> list[str]:
        return [field.name for field in client.load_table(f"{SCHEMA}.{name}").schema().fields]

    def clone(name: str, new_name: str) -> None:
        create(new_name)
        properties = client.load_namespace_properties(SCHEMA)
        mark = {f"featurestore.table.{new_name}": properties[f"featurestore.table.{name}"]}
        client.update_namespace_properties(SCHEMA, updates=mark)

    return Lake(uri, options, names, create, files, columns, clone)


@contextmanager
def sql_lake(folder: Path) -> Iterator[Lake]:
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{folder}/catalog.db"
    client = SqlCatalog("shop", uri=uri, warehouse=f"file://{folder}/warehouse")
    yield iceberg_lake(client, f"iceberg+{uri}", {"catalog": "shop", "folder": str(folder)})
    client.close()


@contextmanager
def rest_lake(folder: Path) -> Iterator[Lake]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with iceberg_rest_server.serving(folder, {}) as server:
            options = {"folder": str(folder)}
            yield iceberg_lake(server.client(), f"iceberg+{server.uri}", options)
    except NotFetched as error:
        pytest.skip(f"Iceberg REST skipped: {error}")


LAKES: dict[str, Callable[[Path], AbstractContextManager[Lake]]] = {
    "unity": unity_lake,
    "sql": sql_lake,
    "rest": rest_lake,
}


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with LAKES[request.param](tmp_path / "lake") as running:
        yield running


@pytest.fixture
def lake_store(
    lake: Lake, empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> FeatureStore:
    connect(empty_store, lake, monkeypatch)
    return empty_store


def connect(store: FeatureStore, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    token = CATALOG_TOKEN if lake.uri.startswith("unity") else TOKEN
    monkeypatch.setenv("LAKE_TOKEN", token)
    secret = None if "sqlite" in lake.uri else "env:LAKE_TOKEN"
    store.add_source("lake", lake.uri, secret=secret, options=lake.options)


def add_group(store: FeatureStore, name: str, rows: list[dict[str, Any]], **declared: Any) -> None:
    store.create_featuregroup(rows, name, primary_key="id", iceberg=True, **declared)


def make_private(store: FeatureStore, name: str, *, is_private: bool = True) -> None:
    with store.session.registry.transaction() as connection:
        access.set_private(connection, name, is_private)


def ids(lake: Lake, name: str) -> list[int]:
    """Return the ids in a table, whose files a client of the catalog finds by its name."""
    files = [path.removeprefix("file://") for path in lake.find_files(name)]
    with duckdb.connect() as database:
        return sorted(row for (row,) in database.read_parquet(files).project("id").fetchall())


def test_changed_metadata_of_group_is_written_again(
    lake_store: FeatureStore, lake: Lake, tmp_path: Path
) -> None:
    """Clients of a catalog open all files that the metadata of a table names."""
    if not lake.has_versions:
        pytest.skip("the catalog registers Delta tables")
    add_group(lake_store, "trips", [{"id": 1, "zone": "a"}])
    lake_store.register_in("lake")
    folder = Path(lake_store.session.featuregroup_path("trips", 1), "_iceberg", "metadata")
    published = {file: file.read_bytes() for file in folder.glob("*.json")}
    for file, content in published.items():
        file.write_bytes(content.replace(bytes(folder), bytes(tmp_path)))
    lake_store.register_in("lake")
    assert {file: file.read_bytes() for file in folder.glob("*.json")} == published
    assert ids(lake, "trips") == [1]


def test_registered_tables_follow_their_groups(lake_store: FeatureStore, lake: Lake) -> None:
    add_group(lake_store, "trips", [{"id": 1, "zone": "a"}], description="trips of taxis")
    add_group(lake_store, "zones", [{"id": 7}])
    lake.create_table("others")
    first = lake_store.register_in("lake")
    assert first.created == ("featurestore.trips", "featurestore.zones")
    assert sorted(lake.list_tables()) == ["others", "trips", "zones"]
    assert (ids(lake, "trips"), ids(lake, "zones")) == ([1], [7])
    assert lake_store.register_in("lake").unchanged == first.created

    lake_store.insert_into_featuregroup([{"id": 2, "zone": "b"}], "trips")
    second = lake_store.register_in("lake")
    assert second.updated == (("featurestore.trips",) if lake.has_versions else ())
    assert ids(lake, "trips") == [1, 2]
    lake_store.insert_into_featuregroup(
        [{"id": 3, "zone": "a", "tip": 0.5}], "trips", schema_change="add"
    )
    assert lake_store.register_in("lake").updated == ("featurestore.trips",)
    assert lake.list_columns("trips") == ["id", "zone", "tip"]

    # Maintenance removes the metadata to which an Iceberg catalog refers.
    lake_store.compact_featuregroup("trips")
    lake_store.vacuum_featuregroup("trips", retain="0s")
    lake_store.register_in("lake")
    assert ids(lake, "trips") == [1, 2, 3]

    lake_store.delete_featuregroup("zones", version=1)
    third = lake_store.register_in("lake")
    assert third.removed == ("featurestore.zones",)
    assert sorted(lake.list_tables()) == ["others", "trips"]
    assert lake_store.register_in("lake").unchanged == ("featurestore.trips",)


def test_requested_versions_are_tables_of_their_own(lake_store: FeatureStore, lake: Lake) -> None:
    for number in (1, 2):
        add_group(lake_store, "trips", [{"id": number}], version=number)
    add_group(lake_store, "zones", [{"id": 7}])
    assert lake_store.register_in("lake", featuregroups="trips@v1").created == (
        "featurestore.trips_v1",
    )
    registered = lake_store.register_in("lake", featuregroups=["trips"])
    assert registered.created == ("featurestore.trips",)
    assert registered.unchanged == ("featurestore.trips_v1",)
    assert (ids(lake, "trips"), ids(lake, "trips_v1")) == ([2], [1])
    add_group(lake_store, "trips", [{"id": 3}], version=3)
    assert lake_store.register_in("lake", featuregroups=[]).updated == ("featurestore.trips",)
    assert ids(lake, "trips") == [3]
    add_group(lake_store, "trips_v1", [{"id": 9}])
    with pytest.raises(InvalidArgument, match="'trips@v1' and 'trips_v1' would both be"):
        lake_store.register_in("lake")
    lake_store.delete_featuregroup("trips", version=1)
    assert lake_store.register_in("lake", featuregroups=[]).removed == ("featurestore.trips_v1",)
    assert sorted(lake.list_tables()) == ["trips"]


def test_tables_of_others_are_never_changed(
    lake_store: FeatureStore, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_table("trips")
    add_group(lake_store, "trips", [{"id": 1}])
    add_group(lake_store, "zones", [{"id": 1}])
    with pytest.raises(SourceError, match=r"'featurestore\.trips'\. No table was created"):
        lake_store.register_in("lake")
    assert lake.list_tables() == ["trips"]
    lake_store.register_in("lake", featuregroups="zones")
    with featurestore.connect(tmp_path / "second") as second:
        connect(second, lake, monkeypatch)
        add_group(second, "zones", [{"id": 5}])
        add_group(second, "more", [{"id": 6}])
        with pytest.raises(SourceError, match=rf"zones' \(registered by .*{lake_store.location}\)"):
            second.register_in("lake")
        assert second.register_in("lake", featuregroups="more").removed == ()
    assert lake_store.register_in("lake", featuregroups="zones").unchanged == (
        "featurestore.zones",
    )
    assert sorted(lake.list_tables()) == ["more", "trips", "zones"]
    assert ids(lake, "zones") == [1]
    # A clone of another user has the mark, but its own files.
    lake.clone_table("zones", "cloned")
    make_private(lake_store, "zones")
    assert lake_store.register_in("lake", featuregroups=[]).removed == ("featurestore.zones",)
    assert sorted(lake.list_tables()) == ["cloned", "more", "trips"]


def test_groups_that_cannot_be_registered_are_named(
    lake_store: FeatureStore, lake: Lake, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows.parquet")
    lake_store.add_source("files", str(tmp_path))
    lake_store.create_external_featuregroup("outside", source="files", path="rows.parquet")
    lake_store.create_featuregroup([{"id": 1}], "plain")
    add_group(lake_store, "secret", [{"id": 1}])
    lake_store.create_featuregroup(lake_store.get_featuregroup("secret"), "derived", iceberg=True)
    make_private(lake_store, "secret")
    result = lake_store.register_in("lake")
    assert "outside: its rows are in another source" in result.skipped
    assert {"secret: it is private", "derived: it is private"} <= set(result.skipped)
    assert ("plain: it was not created with iceberg=True" in result.skipped) == lake.has_versions
    with pytest.raises(InvalidArgument, match="'outside' cannot be registered: its rows"):
        lake_store.register_in("lake", featuregroups=["outside"])
    for private in ("secret", "derived"):
        with pytest.raises(InvalidArgument, match=f"'{private}' cannot be registered: it is priv"):
            lake_store.register_in("lake", featuregroups=private)
    with pytest.raises(FeatureGroupNotFound, match="'nothing'"):
        lake_store.register_in("lake", featuregroups="nothing")
    with pytest.raises(InvalidArgument, match="is of kind 'file', which is not a catalog"):
        lake_store.register_in("files")
    with pytest.raises(InvalidArgument, match="is not the name of a schema"):
        lake_store.register_in("lake", schema="a.b")


def test_unity_columns_have_documented_fields(
    tmp_path: Path, empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "day": pa.array(["x"]),
            "tip": pa.array([None], pa.decimal128(10, 2)),
            "past": pa.array([[1.5]], pa.list_(pa.float64())),
            "where": pa.array([{"lat": 1}], pa.struct([("lat", pa.int32())])),
        }
    )
    bodies: list[dict[str, Any]] = []

    class Recording(UnityHandler):
        locations, registered, schemas = {}, {}, set()

        def _create(self, path: str, body: dict[str, Any]) -> None:
            bodies.append(body)
            super()._create(path, body)

    with serve(Recording) as port:
        lake = Lake(f"unity://127.0.0.1:{port}/main?tls=false", {}, list, print, list, list)
        connect(empty_store, lake, monkeypatch)
        empty_store.create_featuregroup(
            rows, "trips", partition_by="day", descriptions={"tip": "in dollars"}
        )
        empty_store.register_in("lake", schema="city")
        monkeypatch.setenv("LAKE_TOKEN", "wrong-token-0815")
        with pytest.raises(SourceUnavailable) as refused:
            empty_store.register_in("lake", schema="city")
        assert "0815" not in f"{refused.value!r} {refused.value}"
    schema, table = bodies
    assert schema == {"name": "city", "catalog_name": "main"}
    columns = {column["name"]: column for column in table["columns"]}
    texts = {name: (column["type_name"], column["type_text"]) for name, column in columns.items()}
    assert texts == {
        "id": ("LONG", "bigint"),
        "day": ("STRING", "string"),
        "tip": ("DECIMAL", "decimal(10,2)"),
        "past": ("ARRAY", "array<double>"),
        "where": ("STRUCT", "struct<lat:int>"),
    }
    assert [columns[name]["position"] for name in rows.schema.names] == [0, 1, 2, 3, 4]
    assert (columns["day"]["partition_index"], columns["tip"]["comment"]) == (0, "in dollars")
    assert (columns["tip"]["type_precision"], columns["tip"]["type_scale"]) == (10, 2)
    assert json.loads(columns["id"]["type_json"])["type"] == "long"


NAMES = st.sampled_from(["a", "b", "c"])
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "derive", "insert", "hide", "show", "delete", "register", "fail"]
        ),
        NAMES,
        NAMES,
    ),
    max_size=20,
)


class Interrupted(Exception):
    """The process ends between two requests to the catalog."""


@dataclass
class Groups:
    """The expected groups: their ids, the groups they were computed from, and private names."""

    rows: dict[str, list[int]]
    origins: dict[str, set[str]]
    private: set[str]

    def visible(self) -> dict[str, list[int]]:
        """Return the ids of groups that are neither private nor computed from private ones."""
        hidden: set[str] = set()
        while True:
            # Lineage through deleted groups remains.
            derived = {name for name, origins in self.origins.items() if origins & hidden}
            if (self.private | derived) <= hidden:
                return {name: ids for name, ids in self.rows.items() if name not in hidden}
            hidden |= self.private | derived


@pytest.mark.parametrize("catalog_type", ["unity", "sql"])
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions=ACTIONS)
@example([("create", "a", ""), ("derive", "b", "a"), ("register", "", ""), ("hide", "a", "")])
@example([("create", "a", ""), ("derive", "b", "a"), ("hide", "a", ""), ("delete", "a", "")])
def test_catalog_equals_store_after_any_actions(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    catalog_type: str,
    actions: list[tuple[str, str, str]],
) -> None:
    base = tmp_path_factory.mktemp("actions")
    with LAKES[catalog_type](base / "lake") as lake, featurestore.connect(base / "store") as store:
        connect(store, lake, monkeypatch)
        lake.create_table("others")
        expected = Groups({}, {}, set())
        for number, (action, name, origin) in enumerate([*actions, ("register", "", "")]):
            if action == "register":
                check_registration(store, lake, expected)
            elif action == "fail":
                interrupt(store, catalog_type, monkeypatch)
            else:
                change_groups(store, expected, number, action, name, origin)


def change_groups(
    store: FeatureStore, expected: Groups, number: int, action: str, name: str, origin: str
) -> None:
    """Apply an action to the store and to the expected groups."""
    rows = expected.rows
    if action == "create" and name not in rows:
        add_group(store, name, [{"id": number}])
        rows[name] = [number]
    elif action == "derive" and name not in rows and origin in rows:
        store.create_featuregroup(store.get_featuregroup(origin), name, iceberg=True)
        rows[name] = list(rows[origin])
        expected.origins.setdefault(name, set()).add(origin)
    elif action == "insert" and name in rows:
        store.insert_into_featuregroup([{"id": number}], name)
        rows[name].append(number)
    elif action == "delete" and name in rows:
        store.delete_featuregroup(name, version=1)
        del rows[name]
    elif action in ("hide", "show"):
        make_private(store, name, is_private=action == "hide")
        (expected.private.add if action == "hide" else expected.private.discard)(name)


def check_registration(store: FeatureStore, lake: Lake, expected: Groups) -> None:
    """Register groups, and compare the tables of the catalog with the expected groups."""
    store.register_in("lake")
    visible = expected.visible()
    assert sorted(lake.list_tables()) == sorted([*visible, "others"])
    assert {name: ids(lake, name) for name in visible} == visible
    repeated = store.register_in("lake")
    assert repeated.unchanged == tuple(f"{SCHEMA}.{name}" for name in sorted(visible))
    assert (repeated.created, repeated.updated, repeated.removed) == ((), (), ())
    reasons = {f"{name}: it is private" for name in expected.rows if name not in visible}
    assert set(repeated.skipped) == reasons


def interrupt(store: FeatureStore, catalog_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register groups, and end before the first table is registered."""

    def end(*_: object, **__: object) -> None:
        raise Interrupted

    from pyiceberg.catalog.sql import SqlCatalog

    from featurestore_connectors.sources.catalog_registration import UnityTables

    with monkeypatch.context() as patch:
        if catalog_type == "sql":
            patch.setattr(SqlCatalog, "register_table", end)
        else:
            patch.setattr(UnityTables, "_describe_table", end)
        with suppress(Interrupted, SourceUnavailable):
            store.register_in("lake")
