"""Publication from external groups, during schema changes, on both engines, and its cleanup."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import time_machine

import featurestore
from featurestore.recovery.rebuild import rebuild
from featurestore.serving import publication
from featurestore.serving.stores import open_online_store
from featurestore.store import FeatureStore
from tests.on_spark import on_engines
from tests.serving.online_reads import read_values, retrieve_values

NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KEYS = [(f"k{number}", number % 2) for number in range(12)]
INSTANTS = [NOON + number * MINUTE for number in (0, 1, 2, 30)]


def history(first: int) -> pa.Table:
    """Return rows with ties, late rows and rows that become eligible after noon."""
    rows: list[dict[str, Any]] = []
    for number in range(first, first + 40):
        key, key_part = KEYS[number % len(KEYS)]
        rows.append(
            {
                "key": key,
                "part": key_part,
                "at": NOON + (number % 7 - 5) * MINUTE,
                "known": NOON + (number % 5 - 3) * MINUTE,
                "price": None if number % 11 == 3 else Decimal(number) / 4,
                "tags": [str(number)] * (number % 3),
                "score": number * 0.1,
            }
        )
    time = pa.timestamp("us", tz="UTC")
    fields = {"at": time, "known": time, "price": pa.decimal128(10, 2), "part": pa.int32()}
    table = pa.Table.from_pylist(rows)
    return table.cast(
        pa.schema(
            [pa.field(field.name, fields.get(field.name, field.type)) for field in table.schema]
        )
    )


@pytest.mark.spark
def test_publication_on_spark_equals_duckdb(
    empty_store: FeatureStore, spark: object, tmp_path: Path
) -> None:
    store = empty_store
    on_spark = featurestore.connect(store.location, engine="spark")
    for engine in ("duckdb", "spark"):
        store.add_online_store(engine, f"sqlite:///{tmp_path}/{engine}.db")
    with time_machine.travel(NOON, tick=False):
        store.create_featuregroup(
            history(0), "g", primary_key=["key", "part"], event_time="at", created_time="known",
            ttl="3min", validation="off", partition_by="part",
        )  # fmt: skip
        view = store.create_feature_view("v", features=["g.price", "g.tags", "g.score"])
        modes = []
        for change in range(3):
            if change == 1:
                store.insert_into_featuregroup(history(100), "g")
            elif change == 2:
                store.delete_from_featuregroup("g", where="score > 10")
            for publisher, engine in ((store, "duckdb"), (on_spark, "spark")):
                published = publisher.publish("v", to=engine)
                modes.append((published.mode, dict(published.rows)))
                values = read_values(store, view, KEYS, INSTANTS, online=engine)
                expected = retrieve_values(view, KEYS, ["key", "part"], INSTANTS)
                assert values == expected, (change, engine)
    assert modes[0::2] == modes[1::2]
    assert [mode for mode, _ in modes[0::2]] == ["full", "incremental", "incremental"]


def test_schema_change_during_publication_is_published_in_full(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_featuregroup(
        [{"id": 1, "price": Decimal("1.25")}, {"id": 2, "price": Decimal("2.50")}],
        "g",
        primary_key="id",
    )
    view = store.create_feature_view("v", features=["g.price"])
    write_all = publication.write_all
    wide = Decimal("123456789.125")

    def write_during_change(*arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        row = {"id": 1, "price": wide, "seats": 4}
        store.insert_into_featuregroup([row], "g", mode="upsert", schema_change="add")
        return write_all(*arguments, **options)

    monkeypatch.setattr(publication, "write_all", write_during_change)
    # The pinned version is published, with its columns.
    assert dict(store.publish("v").delta_versions) == {"g@v1": 1}
    # A wider type leaves the published values as they are.
    assert view.server().get_vectors([{"id": 1}, {"id": 2}]) == [
        {"price": Decimal("1.25")},
        {"price": Decimal("2.5")},
    ]
    assert store.publish("v").mode == "full"
    assert view.server().get_vectors([{"id": 1}, {"id": 2}]) == [
        {"price": wide},
        {"price": Decimal("2.5")},
    ]
    # A column that the view does not read changes no value.
    row = {"id": 2, "price": Decimal("7"), "seats": 4, "crew": 2}
    store.insert_into_featuregroup([row], "g", mode="upsert", schema_change="add")
    assert store.publish("v").mode == "incremental"
    assert view.server().get_vector({"id": 2}) == {"price": Decimal("7")}


def test_retired_generations_are_removed_after_the_grace_period(
    store: FeatureStore,
) -> None:
    rows = [{"id": number} for number in range(5)]
    store.create_featuregroup([{**row, "x": 1} for row in rows], "g", primary_key="id")
    view = store.create_feature_view("v", features=["g.x"])
    counts = []
    with time_machine.travel(datetime.now(UTC), tick=False) as clock:
        for seconds in (0, 0, 50, 11):
            clock.shift(seconds)
            store.publish("v", full=True)
            with closing(open_online_store(store.session)) as online:
                counts.append(online.statistics()["keys"] - 1)
    # Readers may use a replaced generation for a minute.
    assert counts == [5, 10, 15, 15]
    assert view.server().get_vectors(rows) == [{"x": 1}] * len(rows)


@on_engines("commits", [1, 2, 3], spark=[2])
def test_table_restored_from_backup_is_published_in_full(
    store: FeatureStore, tmp_path: Path, commits: int
) -> None:
    group = store.create_featuregroup([{"id": 1, "x": 1}], "g", primary_key="id")
    view = store.create_feature_view("v", features=["g.x"])
    shutil.copytree(group.path, tmp_path / "backup")
    for row in ({"id": 2, "x": 2}, {"id": 3, "x": 3}):
        store.insert_into_featuregroup([row], "g", mode="upsert")
        store.publish("v")
    shutil.rmtree(group.path)
    shutil.copytree(tmp_path / "backup", group.path)
    # The registry has the later versions, without which the group is damaged.
    rebuild(store.location)
    # The new history has fewer, as many, or more versions than the published one.
    for number in range(commits):
        store.insert_into_featuregroup([{"id": 2, "x": 20 + number}], "g", mode="upsert")
    assert store.publish("v").mode == "full"
    vectors = view.server().get_vectors([{"id": number} for number in (1, 2, 3)])
    assert vectors == [{"x": 1}, {"x": 19 + commits}, {"x": None}]
    assert view.verify_online().ok
    store.insert_into_featuregroup([{"id": 1, "x": 5}], "g", mode="upsert")
    assert store.publish("v").mode == "incremental"


def test_views_of_external_groups_are_published_in_full(
    store: FeatureStore, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("create table customers (id integer primary key, plan text)")
        database.executemany("insert into customers values (?, ?)", [(1, "a"), (2, "b")])
        database.commit()
        store.add_source("shop", f"sqlite:///{tmp_path}/shop.db")
        store.create_external_featuregroup(
            "customers", source="shop", table="customers", primary_key="id"
        )
        store.create_featuregroup([{"id": 1, "spent": 2.5}], "orders", primary_key="id")
        view = store.create_feature_view("v", features=["customers.plan", "orders.spent"])
        assert store.publish("v").mode == "full"
        server = view.server()
        assert server.get_vector({"id": 1}) == {"plan": "a", "spent": 2.5}
        database.execute("update customers set plan = 'c' where id = 1")
        database.execute("delete from customers where id = 2")
        database.commit()
        published = store.publish("v")
        assert (published.mode, published.rows["customers@v1"]) == ("full", 1)
        vectors = server.get_vectors([{"id": 1}, {"id": 2}])
        assert vectors == [{"plan": "c", "spent": 2.5}, {"plan": None, "spent": None}]
        assert vectors[1].status == "missing"
        assert view.verify_online().ok
        # The source is not a table of the store, so its lag is unknown.
        assert [lag.featuregroup for lag in view.online_lag()] == ["orders@v1"]
        database.execute("update customers set plan = 'd'")
        database.commit()
        (difference,) = view.verify_online().differences
        assert (difference.served, difference.offline) == ("c", "d")
        assert (
            difference.reason == "not yet published: the source of the external group customers@v1"
        )
