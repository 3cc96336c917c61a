"""Damaged and forged bytes in an online store are refused; no other value is ever served.

The served vector is compared with the published rows: after each change of the stored bytes, a read
returns the published value or raises one of the errors for published values. Forged values have
correct checksums; their reads return values of the columns' types or raise the same errors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import (
    FormatTooNew,
    NotPublished,
    OnlineStoreError,
    PublishedStateDamaged,
    PublishedValueDamaged,
    PublishedValueMismatch,
)
from featurestore.plugins.online import OnlineStore
from featurestore.serving.seals import SEAL_BYTES, Sealer
from featurestore.serving.server import VectorServer
from featurestore.serving.state import PublishedView, ViewState
from featurestore.serving.stores import open_online_store
from featurestore.store import FeatureStore

START = datetime(2024, 1, 1, tzinfo=UTC)
DAMAGE = (PublishedValueDamaged, PublishedStateDamaged)
FORGED = (*DAMAGE, PublishedValueMismatch, FormatTooNew, NotPublished)
KEYS = [1, 2, 3]
# Columns of every layout: fixed width, converted, texts, lists of numbers, and Arrow messages.
COLUMNS = {
    "number": pa.array([1, None, -3], pa.int64()),
    "flag": pa.array([True, None, False]),
    "ratio": pa.array([0.5, None, 2.5], pa.float32()),
    "day": pa.array([date(2020, 1, 1), None, date(1960, 1, 1)]),
    "time": pa.array([START, None, START - timedelta(days=9999)], pa.timestamp("us", tz="UTC")),
    "price": pa.array([Decimal("1.50"), None, Decimal("-99.99")], pa.decimal128(4, 2)),
    "text": pa.array(["é", None, "abc"]),
    "data": pa.array([b"\0", None, b""]),
    "items": pa.array([[1.0, 2.0], None, []], pa.list_(pa.float32())),
    "vector": pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2, 3, 4, 5, 6], pa.float32()), 2),
    "words": pa.array([["a", None], None, []], pa.list_(pa.string())),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": 2, "b": None}]),
}
VIEWS = {"plain": ["number", "ratio"], "fixed": ["number", "flag", "day", "time", "price"]}
VIEWS |= {"all": list(COLUMNS), "texts": ["text", "data"]}
Read = Callable[[VectorServer], list[Any]]


def read_dicts(server: VectorServer) -> list[Any]:
    return [dict(vector) for vector in server.get_vectors([{"id": key} for key in KEYS])]


def read_arrow(server: VectorServer) -> list[Any]:
    table = server.get_vectors([{"id": key} for key in KEYS], as_="arrow")
    table.validate(full=True)
    rows: list[Any] = table.to_pylist()
    return rows


def read_general(server: VectorServer) -> list[Any]:
    """Read by the path of computations."""
    vectors: Any = server._backend
    rows: list[Any] = vectors._drive(vectors._rows([{"id": key} for key in KEYS], None)).rows
    return [{name: row[name] for name in row if name != "id"} for row in rows]


@pytest.fixture(
    scope="module",
    params=["embedded", "redis", pytest.param("postgres", marks=pytest.mark.postgres)],
)
def published(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FeatureStore, OnlineStore]]:
    """A store that has published views of all types, and the connection to its online store."""
    location = tmp_path_factory.mktemp("damaged") / "store"
    with featurestore.connect(location, engine="duckdb") as store:
        if request.param != "embedded":
            server = request.getfixturevalue(f"{request.param}_server")
            uri = f"{server}/postgres" if request.param == "postgres" else server
            store.add_online_store("remote", uri)
        online = "embedded" if request.param == "embedded" else "remote"
        rows = pa.table({"id": KEYS, **COLUMNS})
        store.create_featuregroup(rows, "g", primary_key="id", statistics=False)
        for view, columns in VIEWS.items():
            store.create_feature_view(view, features=[f"g.{name}" for name in columns])
        with closing(open_online_store(store.session, online)) as connection:
            connection.delete_prefix(b"")
            for view in VIEWS:
                store.publish(view, to=online)
            yield store, connection


def content_of(online: OnlineStore) -> dict[bytes, bytes]:
    keys = sorted(key for batch in online.scan(b"") for key in batch)
    return {key: value or b"" for key, value in zip(keys, online.read(keys), strict=True)}


def keys_of(content: dict[bytes, bytes], view: PublishedView, online: OnlineStore) -> list[bytes]:
    """Return the keys of a view: of its state record and its values."""
    store_state = ViewState.parse(content[view.key], view)
    prefix = view.value_prefix(("g", 1), store_state.generation)
    return [view.key, *[key for key in content if key.startswith(prefix)]]


def random_numbers() -> random.Random:
    """Return random numbers, which differ in each run; a failed test shows the seed."""
    seed = random.randrange(2**32)
    print(f"{seed=}")
    return random.Random(seed)


def damage(value: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Flip a bit, truncate, extend, or replace a value by another one."""
    kind = rng.choice(["flip", "truncate", "extend", "replace"])
    if kind == "flip":
        position = rng.randrange(len(value))
        return (
            value[:position]
            + bytes([value[position] ^ 1 << rng.randrange(8)])
            + value[position + 1 :]
        )
    if kind == "truncate":
        return value[: rng.randrange(len(value))]
    if kind == "extend":
        return value + rng.randbytes(rng.randint(1, 12))
    return rng.choice([other for other in others if other != value])


def test_damaged_bytes_are_never_served(published: tuple[FeatureStore, OnlineStore]) -> None:
    store, online = published
    name = online.config.name
    content = content_of(online)
    rng = random_numbers()
    for view_name, columns in VIEWS.items():
        view = store.get_feature_view(view_name)
        expected = pa.table({column: COLUMNS[column] for column in columns}).to_pylist()
        keys = keys_of(content, PublishedView(view_name, 1, name), online)
        with view.server(online=name) as server:
            for read in (read_dicts, read_arrow, read_general):
                assert read(server) == expected
            for _ in range(30):
                key = rng.choice(keys)
                online.write([key], [damage(content[key], list(content.values()), rng)])
                reads: list[Read] = [read_dicts, read_arrow, read_general]
                for read in rng.sample(reads, 1):
                    with pytest.raises((*DAMAGE, FormatTooNew)):
                        read(server)
                online.write([key], [content[key]])
            assert read_dicts(server) == expected


# The bytes are decoded alike on each online store.
@pytest.mark.parametrize("published", ["embedded"], indirect=True)
def test_forged_values_have_the_types_of_their_columns(
    published: tuple[FeatureStore, OnlineStore],
) -> None:
    store, online = published
    name = online.config.name
    content = content_of(online)
    rng = random_numbers()
    sealer = Sealer(b"", b"evil")
    outcomes = {"served": 0, "refused": 0}
    for view_name, columns in VIEWS.items():
        schema = pa.schema([(column, COLUMNS[column].type) for column in columns])
        keys = keys_of(content, PublishedView(view_name, 1, name), online)[1:]
        with store.get_feature_view(view_name).server(online=name) as server:
            for _ in range(150):
                key = rng.choice(keys)
                body = content[key][:-SEAL_BYTES]
                others = [content[other][:-SEAL_BYTES] for other in keys]
                forged = damage(body, others, rng)
                if rng.random() < 0.3:
                    forged = forged[:15] + rng.randbytes(len(forged[15:]))
                online.write(*sealer.seal([key], [forged]))
                for read in (read_dicts, read_arrow, read_general):
                    try:
                        rows = read(server)
                    except FORGED:
                        outcomes["refused"] += 1
                        continue
                    # Values of other types, and times and decimals out of range, are refused.
                    assert pa.Table.from_pylist(rows, schema).num_rows == len(KEYS)
                    outcomes["served"] += 1
                online.write([key], [content[key]])
    assert min(outcomes.values()) > 20, outcomes


def test_publications_repair_damage_only_with_full(
    published: tuple[FeatureStore, OnlineStore],
) -> None:
    store, online = published
    name = online.config.name
    view = PublishedView("texts", 1, name)
    for position, error in ((0, PublishedStateDamaged), (1, PublishedValueDamaged)):
        content = content_of(online)
        key = keys_of(content, view, online)[position]
        online.write([key], [content[key][:-1]])
        # A change of each entity, so that the publication merges all values.
        rows = pa.table({"id": KEYS, **COLUMNS}).set_column(
            7, "text", pa.array([f"{position}{number}" for number in KEYS])
        )
        store.insert_into_featuregroup(rows, "g", mode="upsert")
        with pytest.raises(error) as raised:
            store.publish("texts", to=name)
        assert f"store.publish('texts', version=1, to={name!r}, full=True)" in str(raised.value)
        eval(raised.value.hint, {"store": store})
        with store.get_feature_view("texts").server(online=name) as server:
            assert [row["text"] for row in read_dicts(server)] == rows["text"].to_pylist()


def test_other_contents_of_the_servers_are_typed_errors(
    published: tuple[FeatureStore, OnlineStore],
) -> None:
    store, online = published
    name = online.config.name
    view = store.get_feature_view("plain")
    content = content_of(online)
    state, key = keys_of(content, PublishedView("plain", 1, name), online)[:2]
    if online.name == "redis":
        import redis

        with redis.Redis.from_url(online.config.uri) as client:
            for wrong in (key, state):
                client.delete(wrong)
                client.hset(wrong, mapping={"field": "value"})
                with suppress(OnlineStoreError, NotPublished), view.server(online=name) as server:
                    # The value of a key without a string is missing, as that of a removed key.
                    assert read_dicts(server)[0] == {"number": None, "ratio": None}
                client.delete(wrong)
                online.write([wrong], [content[wrong]])
    if online.name == "sqlite":
        import sqlite3

        with closing(sqlite3.connect(online.config.uri.removeprefix("sqlite:///"))) as file:
            for wrong in ("text", 5, 2.5):
                for changed in (key, state):
                    file.execute("UPDATE entries SET value = ? WHERE key = ?", (wrong, changed))
                    file.commit()
                    with pytest.raises(DAMAGE), view.server(online=name) as server:
                        read_dicts(server)
                    online.write([changed], [content[changed]])
    if online.name == "postgresql":
        import psycopg

        with psycopg.connect(online.config.uri, autocommit=True) as connection:
            table = "featurestore_online"
            for layout in (
                "(key bytea, value bytea)",
                "(key bytea PRIMARY KEY, value text)",
                "(key text, value bytea)",
                "(key bytea, value bytea, more int)",
                "(number int)",
            ):
                connection.execute(f"ALTER TABLE {table} RENAME TO original")
                connection.execute(f"CREATE TABLE {table} {layout}")
                if "key bytea" in layout and "value bytea" in layout:
                    connection.execute(
                        f"INSERT INTO {table} (key, value) VALUES (%b, NULL), (%b, %b)",
                        (key, state, content[state]),
                    )
                refused = suppress(OnlineStoreError, NotPublished, *DAMAGE)
                with refused, view.server(online=name) as server:
                    assert read_dicts(server)[0] == {"number": None, "ratio": None}
                connection.execute(f"DROP TABLE {table}")
                connection.execute(f"ALTER TABLE original RENAME TO {table}")
    with view.server(online=name) as server:
        assert read_dicts(server)[0]["number"] == 1
