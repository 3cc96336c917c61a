"""Groups of change events from a real Debezium have the rows of the Postgres table."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from featurestore.store import FeatureStore
from tests.maven import NotFetched
from tests.registry.conftest import new_database, postgres_server
from tests.streams.conftest import SKIPPED
from tests.streams.debezium_server import Connect, connecting, debezium_jars
from tests.streams.memory_topics import quarantined
from tests.streams.topics import Broker

if TYPE_CHECKING:
    import psycopg

pytest.importorskip("confluent_kafka")
psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.postgres
assert postgres_server

JobFile = Callable[[str], Path]
_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
# Events with schemas and the default settings; and events without schemas, whose values are strings
# where JSON has no type.
CONNECTORS: Mapping[str, Mapping[str, str]] = {
    "typed": {},
    "plain": {
        "key.converter": _CONVERTER,
        "key.converter.schemas.enable": "false",
        "value.converter": _CONVERTER,
        "value.converter.schemas.enable": "false",
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
    },
}
THINGS_SQL = """
create type mood as enum ('sad', 'fine');
create table things (
    region text, id int, small smallint, big bigint, ratio real, weight double precision,
    price numeric(20, 4), amount numeric, flag boolean, word text, padded char(5), day date,
    local timestamp, local_ms timestamp(3), instant timestamptz, doc jsonb, tag uuid, blob bytea,
    numbers int[], words text[], prices numeric(10, 2)[], weights double precision[], days date[],
    feeling mood, address inet, primary key (region, id)
);
insert into things values (
    'north', 1, -32768, 9223372036854775807, 1.5, 0.1, -1234567890123456.7891,
    0.000000000000000000001, true, E'it''s "odd" \\\\ é 漢 🎉\\n\\t\\u0001', 'ab', '2024-02-29',
    '2024-02-29 23:59:59.123456', '2024-02-29 01:02:03.456', '2024-02-29 23:59:59.123456+05:30',
    '{"a": [1, 2.50, null]}', '12345678-1234-5678-1234-567812345678', '\\x00ff10', '{1, null, -3}',
    '{x, "y z", null}', '{1.25, -0.01}', '{0.1, NaN, -Infinity}', '{2024-02-29, 1969-12-31}',
    'fine', '10.0.0.1'
);
insert into things (region, id) values ('north', 2), ('', 0), ('süd', -1);
insert into things (region, id, weight, ratio, day, local, instant) values
    ('odd', 1, 'NaN', 'Infinity', '0001-01-01', '0001-01-01', '9999-12-31 23:59:59.999999+00'),
    ('odd', 2, '-Infinity', '-Infinity', '9999-12-31', '1969-12-31 23:59:59.999999', '1600-01-01+00');
insert into things (region, id, price, amount) select 'many', n, n / 8.0, n + 0.5 from generate_series(1, 300) n;
"""
DOCUMENTS = """
create table documents (
    id int primary key, note text, body text, blob bytea, doc jsonb, numbers int[], big bigint[],
    words text[], tags uuid[], days date[], blobs bytea[],
    weights double precision[]
);
alter table documents alter body set storage external, alter blob set storage external,
    alter doc set storage external, alter numbers set storage external,
    alter big set storage external, alter words set storage external,
    alter tags set storage external, alter days set storage external,
    alter blobs set storage external, alter weights set storage external;
"""
# A large value of each type.
LARGE = {
    "body": "string_agg(md5(n::text), '')",
    "blob": "string_agg(sha256(n::text::bytea), '')",
    "doc": "jsonb_agg(md5(n::text))",
    "numbers": "array_agg(n * 77777)",
    "big": "array_agg(n * 77777777777)",
    "words": "array_agg(md5(n::text))",
    "tags": "array_agg(md5(n::text)::uuid)",
    "days": "array_agg('2024-01-01'::date + n)",
    "blobs": "array_agg(sha256(n::text::bytea))",
    "weights": "array_agg(n / 7.0)",
}
# Debezium writes nulls for these if they are unchanged.
NULL_IF_UNCHANGED = {"typed": ("weights",), "plain": ("weights", "days")}
DOCUMENT_TYPES = {
    "id": "int64",
    "note": "string",
    **dict.fromkeys(("body", "blob", "doc"), "string"),
    **dict.fromkeys(("numbers", "big"), "list<int64>"),
    **dict.fromkeys(("words", "tags", "blobs"), "list<string>"),
    "days": "list<date>",
    "weights": "list<double>",
}
TYPES = {
    "region": "string",
    "id": "int64",
    "small": "int32",
    "big": "int64",
    "ratio": "float",
    "weight": "double",
    "price": "decimal(20, 4)",
    "amount": "decimal(38, 21)",
    "flag": "bool",
    "day": "date",
    "local": "timestamp",
    "local_ms": "timestamp",
    "instant": "timestamp",
    "numbers": "list<int64>",
    "words": "list<string>",
    "prices": "list<decimal(10, 2)>",
    "weights": "list<double>",
    "days": "list<date>",
    **dict.fromkeys(("word", "padded", "doc", "tag", "blob", "feeling", "address"), "string"),
}


def require_debezium() -> None:
    """Skip the current test if the connectors cannot be fetched."""
    try:
        debezium_jars()
    except NotFetched as error:
        pytest.skip(f"{SKIPPED}: {error}")


@pytest.fixture(scope="module")
def shop(
    broker: Broker, postgres_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connect]:
    """A process with both connectors, and a database with the tables that they capture."""
    require_debezium()
    url = new_database(postgres_server, "shop")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(THINGS_SQL)
        connection.execute(DOCUMENTS)
    connect = Connect(
        tmp_path_factory.mktemp("debezium"),
        broker.address,
        url,
        ("things", "documents"),
        CONNECTORS,
    )
    with connecting(connect):
        yield connect


def job(topic: str, name: str, schema: Mapping[str, str], key: Any) -> str:
    return (
        f"{name} = featurestore.stream_job({name!r}, source='events', topic={topic!r}, "
        f"format='debezium', schema={schema!r}, primary_key={key!r}, event_time='changed_at')"
    )


def rows_of_table(connection: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
    """Return the rows of a table, with the values that its group must have."""
    from psycopg.rows import dict_row
    from psycopg.types.string import TextLoader

    with connection.cursor(row_factory=dict_row) as cursor:
        for name in ("jsonb", "uuid", "inet"):
            cursor.adapters.register_loader(name, TextLoader)
        return comparable(cursor.execute(f"select * from {table}").fetchall())


def current_rows(store: FeatureStore, group: str, key: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the newest row of each key."""
    newest: dict[Any, dict[str, Any]] = {}
    for row in store.get_featuregroup(group).to_arrow().to_pylist():
        identity = tuple(row[name] for name in key)
        last = newest.get(identity)
        if last is None or _times(row) > _times(last):
            newest[identity] = row
    return comparable([{**row, "changed_at": None} for row in newest.values()])


def _times(row: Mapping[str, Any]) -> tuple[datetime, datetime | None]:
    return row["changed_at"], row.get("known_at")


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    result = []
    for row in rows:
        values = {name: _comparable(value) for name, value in row.items()}
        result.append({name: value for name, value in values.items() if name != "changed_at"})
    return sorted(result, key=lambda row: str((row.get("region"), row["id"])))


def _comparable(value: Any) -> Any:
    """Convert a value to one that equals the value of the group."""
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


def test_real_change_events_reproduce_postgres_table(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile, shop: Connect
) -> None:
    key = ("region", "id")
    empty_store.add_source("events", broker.uri)
    with psycopg.connect(shop.database, autocommit=True) as connection:

        def check(types: Mapping[str, str]) -> None:
            shop.wait()
            jobs = [job(shop.topic(name, "things"), name, types, key) for name in CONNECTORS]
            empty_store.register_jobs(job_file("\n".join(jobs)))
            expected = rows_of_table(connection, "things")
            for name in CONNECTORS:
                empty_store.run_job(name)
                assert quarantined(empty_store, name) == []
                assert current_rows(empty_store, name, key) == expected

        shop.wait_for_slots()
        # Some of these changes are committed while the connectors read their snapshots.
        for number in range(1, 300):
            connection.execute("update things set word = 'new' where id = %s", [number])
        check(TYPES)
        connection.execute("insert into things (region, id, word) values ('south', 1, '')")
        connection.execute(
            "update things set price = -0.0001, prices = '{}' where region = 'north'"
        )
        connection.execute("update things set region = 'west', word = null where region = 'north'")
        connection.execute("delete from things where region = 'many' and id % 2 = 0")
        connection.execute("insert into things (region, id, word) values ('many', 4, 'again')")
        with connection.transaction():
            connection.execute("update things set flag = true where region = 'many'")
            connection.execute("update things set flag = false where region = 'many' and id < 50")
        connection.execute("alter table things add column extra numeric(8, 3)")
        connection.execute("update things set extra = id, padded = 'x' where id < 10")
        connection.execute("delete from things where region = ''")
        check({**TYPES, "extra": "decimal(8, 3)"})


def test_unchanged_large_values_need_full_replica_identity(
    empty_store: FeatureStore, broker: Broker, job_file: JobFile, shop: Connect
) -> None:
    """An event without a value of its row is quarantined, for each type of column."""
    empty_store.add_source("events", broker.uri)
    shop.wait()
    with psycopg.connect(shop.database, autocommit=True) as connection:
        for number, (name, value) in enumerate(LARGE.items()):
            connection.execute(
                f"insert into documents (id, {name}) select {number}, {value} "
                "from generate_series(1, 1000) n"
            )
        connection.execute("update documents set note = 'changed'")
        shop.wait()
        jobs = []
        for name in CONNECTORS:
            jobs.append(job(shop.topic(name, "documents"), name, DOCUMENT_TYPES, "id"))
        empty_store.register_jobs(job_file("\n".join(jobs)))
        for name in CONNECTORS:
            empty_store.run_job(name)
            columns = [column for column in LARGE if column not in NULL_IF_UNCHANGED[name]]
            reasons = [row["reasons"][0] for row in quarantined(empty_store, name)]
            assert {reason.split(" (")[0] for reason in reasons} == {
                f"{column} did not change and is not in the event" for column in columns
            }
            rows = current_rows(empty_store, name, ("id",))
            assert [row["id"] for row in rows if row["note"] is None] == [
                number for number, column in enumerate(LARGE) if column in columns
            ]
        connection.execute("alter table documents replica identity full")
        connection.execute("update documents set note = 'changed again'")
        expected = rows_of_table(connection, "documents")
        shop.wait()
        for name in CONNECTORS:
            empty_store.run_job(name)
            bad = quarantined(empty_store, name)
            assert len(bad) == len(LARGE) - len(NULL_IF_UNCHANGED[name])
            assert current_rows(empty_store, name, ("id",)) == expected
