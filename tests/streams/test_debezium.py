"""Debezium change events become upserts and deletes of a feature group."""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.errors import InvalidJob
from featurestore.model.job import JobSpec
from featurestore.store import FeatureStore

pytest.importorskip("confluent_kafka")
pytest.importorskip("fastavro")

from tests.registry.conftest import postgres_server
from tests.streams.change_events import (
    MYSQL,
    avro_event,
    avro_schemas,
    envelope,
    json_event,
)
from tests.streams.memory_topics import MemoryTopics, Record, quarantined, rows_of, run
from tests.streams.test_stream_values import schema_registry

assert postgres_server
NOON = 1_714_000_000_000
COLUMNS = {"id": "int64", "name": "string", "born": "date", "seen": "timestamp"}
TYPES = {
    "id": {"type": "int32"},
    "name": {"type": "string"},
    "born": {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
    "seen": {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
    "price": {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    },
}


def job(**arguments: Any) -> JobSpec:
    options = {
        "schema": {**COLUMNS, "price": pa.decimal128(10, 2)},
        "primary_key": "id",
        "event_time": "changed_at",
        "created_time": "known_at",
        **arguments,
    }
    return featurestore.stream_job(
        "customers", source="events", topic="shop.public.customers", format="debezium", **options
    ).spec


def utc_time(milliseconds: int, microseconds: int = 7) -> datetime:
    instant = timedelta(milliseconds=milliseconds, microseconds=microseconds)
    return datetime(1970, 1, 1, tzinfo=UTC) + instant


ROW = {"id": 1, "name": "Ann", "born": 19_782, "seen": 1_714_000_000_123_456, "price": "BII="}
EXPECTED = {
    "id": 1,
    "name": "Ann",
    "born": date(2024, 2, 29),
    "seen": utc_time(1_714_000_000_123, 456),
    "price": Decimal("11.54"),
    "changed_at": utc_time(NOON),
    "known_at": utc_time(NOON + 150, 0),
}


@pytest.mark.parametrize("op", ["c", "r", "u"])
def test_change_event_with_schema_keeps_exact_values(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    event = json_event({"id": 1}, envelope(op, None, ROW, NOON), TYPES)
    run(monkeypatch, empty_store, job(), MemoryTopics([[event]]))
    assert quarantined(empty_store, "customers") == []
    assert rows_of(empty_store, "customers") == [EXPECTED]


def test_mysql_event_without_schema_reads_unambiguous_values(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job(schema={"id": "int64", "name": "string", "seen": "timestamp"})
    row = {"id": 1, "name": "Ann", "seen": "2024-04-24T23:06:40Z"}
    number = {**row, "id": 2, "seen": 1_714_000_000_000}
    events = []
    for after in (row, number):
        events.append(json_event({"id": after["id"]}, envelope("c", None, after, NOON, MYSQL)))
    run(monkeypatch, empty_store, spec, MemoryTopics([events]))
    (stored_row,) = rows_of(empty_store, "customers")
    assert stored_row["seen"] == datetime(2024, 4, 24, 23, 6, 40, tzinfo=UTC)
    (bad,) = quarantined(empty_store, "customers")
    assert "seen is a number" in bad["reasons"][0]


def test_avro_change_events_are_read_by_registered_schema(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: list[dict[str, Any]] = [
        {"name": "id", "type": ["null", "int"]},
        {"name": "name", "type": ["null", "string"]},
        {
            "name": "born",
            "type": ["null", {"type": "int", "connect.name": "io.debezium.time.Date"}],
        },
        {
            "name": "seen",
            "type": ["null", {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}],
        },
        {
            "name": "price",
            "type": [
                "null",
                {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            ],
        },
    ]
    schemas = avro_schemas(columns, "id")
    row = {**ROW, "price": Decimal("11.54")}
    events = [
        avro_event({"id": 1}, envelope("c", None, row, NOON), schemas),
        avro_event({"id": 2}, envelope("c", None, {**row, "id": 2}, NOON), schemas),
        avro_event({"id": 2}, envelope("d", {**row, "id": 2}, None, NOON + 1), schemas),
        (avro_event({"id": 3}, envelope("c", None, row, NOON), schemas)[0], None),
    ]
    with schema_registry(schemas) as address:
        spec = job(schema_registry=address)
        run(monkeypatch, empty_store, spec, MemoryTopics([events]))
    assert quarantined(empty_store, "customers") == []
    assert rows_of(empty_store, "customers") == [EXPECTED]


def test_delete_events_and_tombstones_remove_rows(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_only = {"id": 1, "name": None, "born": None, "seen": None, "price": None}
    events: list[Record] = [
        json_event({"id": 1}, envelope("c", None, ROW, NOON), TYPES),
        json_event({"id": 1}, envelope("u", None, {**ROW, "name": "Bea"}, NOON + 1), TYPES),
        json_event({"id": 2}, envelope("c", None, {**ROW, "id": 2}, NOON), TYPES),
        json_event({"id": 1}, envelope("d", key_only, None, NOON + 2), TYPES),
        (json_event({"id": 1}, {}, TYPES)[0], None),
    ]
    topics = MemoryTopics([events[:3]])
    run(monkeypatch, empty_store, job(), topics)
    names = [row["name"] for row in rows_of(empty_store, "customers")]
    assert sorted(names) == ["Ann", "Ann", "Bea"]
    run(monkeypatch, empty_store, job(), MemoryTopics([events], [1]))
    assert [row["id"] for row in rows_of(empty_store, "customers")] == [2]
    assert quarantined(empty_store, "customers") == []


def test_invalid_change_events_are_quarantined_with_reason(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {**ROW, "name": "__debezium_unavailable_value"}
    events: list[Record] = [
        json_event({"id": 1}, envelope("t", None, None, NOON), TYPES),
        json_event({"id": 1}, envelope("c", None, None, NOON), TYPES),
        json_event({"id": 1}, envelope("u", None, large, NOON), TYPES),
        (b'{"id": 1}', b'{"id": 1}'),
        (b'{"id": 1}', b"no JSON"),
    ]
    run(monkeypatch, empty_store, job(), MemoryTopics([events]))
    reasons = [row["reasons"][0] for row in quarantined(empty_store, "customers")]
    assert reasons == [
        "the change event truncates the table (op 't')",
        "the change event has no 'after'",
        "name did not change and is not in the event (REPLICA IDENTITY FULL includes it)",
        "the value is not a change event: it has no 'op'",
        "the value is not JSON: Expecting value at column 1",
    ]


UNAVAILABLE = "__debezium_unavailable_value"


BASE64 = base64.b64encode(UNAVAILABLE.encode()).decode()
# What the connector for Postgres writes for large values of columns of different types.
UNAVAILABLE_FORMS: list[tuple[Any, Any]] = [
    ("string", UNAVAILABLE),
    ("string", BASE64),
    ("string", json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":"))),
    ("list<string>", [UNAVAILABLE]),
    ("list<string>", [BASE64]),
    ("list<string>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),  # an array of UUIDs
    ("list<int64>", list(UNAVAILABLE.encode())),
    ("list<date>", list(UNAVAILABLE.encode())),
    (pa.struct([pa.field(UNAVAILABLE, pa.string())]), {UNAVAILABLE: UNAVAILABLE}),
]


@pytest.mark.parametrize("has_schema", [True, False])
def test_unchanged_large_value_is_quarantined_in_each_form(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, has_schema: bool
) -> None:
    schema: dict[str, Any] = {"id": "int64"}
    types: dict[str, dict[str, Any]] = {"id": {"type": "int32"}}
    for number, (field_type, value) in enumerate(UNAVAILABLE_FORMS):
        schema[f"large{number}"] = field_type
        types[f"large{number}"] = {"type": "string"}
        if isinstance(value, list):
            day = {"type": "int32", "name": "io.debezium.time.Date"}
            items = day if field_type == "list<date>" else {"type": "string"}
            types[f"large{number}"] = {"type": "array", "items": items}
    events = []
    for number, (_, value) in enumerate(UNAVAILABLE_FORMS):
        row = {"id": number, f"large{number}": value}
        payload = envelope("u", None, row, NOON)
        events.append(json_event({"id": number}, payload, types if has_schema else None))
    spec = job(schema=schema)
    run(monkeypatch, empty_store, spec, MemoryTopics([events]))
    assert [row["reasons"][0] for row in quarantined(empty_store, "customers")] == [
        f"large{number} did not change and is not in the event (REPLICA IDENTITY FULL includes it)"
        for number in range(len(UNAVAILABLE_FORMS))
    ]


@pytest.mark.parametrize("has_schema", [True, False])
def test_values_that_connectors_write_as_strings_are_converted(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, has_schema: bool
) -> None:
    """Floats that JSON does not have, and dates and decimals of connectors configured for strings."""
    schema = {
        "id": "int64",
        "ratio": "double",
        "small": "float",
        "day": "date",
        "price": pa.decimal128(30, 4),
        "ratios": "list<double>",
        "prices": pa.list_(pa.decimal128(10, 2)),
        "days": "list<date>",
    }
    rows: list[dict[str, Any]] = [
        {
            "id": 1,
            "ratio": "NaN",
            "small": "Infinity",
            "day": "2024-02-29Z",
            "price": "-12345678901234567890.5000",
            "ratios": [1, "-Infinity", None],
            "prices": ["1.25", None],
            "days": ["0001-01-01Z"],
        },
        {"id": 2, "ratio": 0.1, "small": 1, "day": "9999-12-31", "price": "0.1"},
    ]
    strings = {"type": "array", "items": {"type": "string"}}
    types: dict[str, Any] = {"id": {"type": "int32"}, "price": {"type": "string"}}
    types |= {"ratio": {"type": "double"}, "small": {"type": "float"}, "ratios": strings}
    types |= {"day": {"type": "string", "name": "io.debezium.time.IsoDate"}, "prices": strings}
    types["days"] = strings
    events = []
    for row in rows:
        payload = envelope("c", None, row, NOON)
        events.append(json_event({"id": row["id"]}, payload, types if has_schema else None))
    run(monkeypatch, empty_store, job(schema=schema), MemoryTopics([events]))
    assert quarantined(empty_store, "customers") == []
    first, second = rows_of(empty_store, "customers")
    assert math.isnan(first["ratio"])
    assert first["small"] == math.inf
    assert first["day"] == date(2024, 2, 29)
    assert first["price"] == Decimal("-12345678901234567890.5")
    assert first["ratios"] == [1, -math.inf, None]
    assert first["prices"] == [Decimal("1.25"), None]
    assert first["days"] == [date(1, 1, 1)]
    assert (second["ratio"], second["small"], second["price"]) == (0.1, 1, Decimal("0.1"))


@pytest.mark.parametrize("has_schema", [True, False])
def test_tombstone_with_key_of_strings_deletes_row(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, has_schema: bool
) -> None:
    types: dict[str, Any] = {
        "day": {"type": "string", "name": "io.debezium.time.IsoDate"},
        "price": {"type": "string"},
    }
    events: list[Record] = []
    for price in ("1.50", "2.50"):
        row = {"day": "2024-02-29Z", "price": price}
        events.append(
            json_event(row, envelope("c", None, row, NOON), types if has_schema else None)
        )
    events.append((events[0][0], None))
    spec = job(schema={"day": "date", "price": pa.decimal128(10, 2)}, primary_key=("day", "price"))
    run(monkeypatch, empty_store, spec, MemoryTopics([events]))
    assert quarantined(empty_store, "customers") == []
    assert [row["price"] for row in rows_of(empty_store, "customers")] == [Decimal("2.5")]


@pytest.mark.parametrize(
    ("text", "has_schema", "expected"),
    [("1234", True, Decimal(1234)), ("1234", False, None), ("NAN", True, None), ("", True, None)],
)
def test_decimal_string_without_point_needs_schema(
    empty_store: FeatureStore,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    has_schema: bool,
    expected: Decimal | None,
) -> None:
    """Four digits are also the base64 text of a decimal in bytes."""
    types = {"id": {"type": "int32"}, "price": {"type": "string"}} if has_schema else None
    event = json_event({"id": 1}, envelope("c", None, {"id": 1, "price": text}, NOON), types)
    spec = job(schema={"id": "int64", "price": pa.decimal128(10, 2)})
    run(monkeypatch, empty_store, spec, MemoryTopics([[event]]))
    assert [row["price"] for row in rows_of(empty_store, "customers")] == (
        [] if expected is None else [expected]
    )
    assert len(quarantined(empty_store, "customers")) == (expected is None)


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("size", [1, 3])
def test_change_with_earlier_time_replaces_snapshot_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    engine: Any,
    size: int,
) -> None:
    """A change that was committed before the time of the snapshot, but is not in it."""
    if engine == "spark":
        request.getfixturevalue("spark")
    store = featurestore.connect(tmp_path / "store", engine=engine)
    spec = job(schema={"id": "int64", "name": "string"}, created_time=None)
    events = []
    for op, name, time_ms in (
        ("r", "old", NOON + 90),
        ("u", "new", NOON),
        ("u", "newer", NOON + 1),
    ):
        row = {"id": 1, "name": name}
        events.append(json_event({"id": 1}, envelope(op, None, row, time_ms)))
    run(monkeypatch, store, spec, MemoryTopics([events], [size]))
    rows = rows_of(store, "customers")
    assert [(row["name"], row["changed_at"]) for row in rows] == [
        ("new", utc_time(NOON)),
        ("newer", utc_time(NOON + 1)),
    ]
    store.close()


CHANGES = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from("ccccd"), st.integers(0, 5)),
    min_size=30,
    max_size=60,
)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=CHANGES,
    sizes=st.lists(st.integers(8, 30), min_size=1, max_size=4),
    has_created_time=...,
)
def test_group_has_changes_that_no_later_change_precedes(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    changes: list[tuple[int, str, int]],
    sizes: list[int],
    has_created_time: bool,
) -> None:
    """The rows do not depend on the sizes of micro-batches."""
    expected: dict[int, dict[int, set[int]]] = {}
    partitions: list[list[Record]] = [[], []]
    for number, (key, op, time) in enumerate(changes):
        row = {"id": key, "number": number}
        sides = (row, None) if op == "d" else (None, row)
        partitions[key % 2].append(json_event({"id": key}, envelope(op, *sides, NOON + time)))
        times = expected.setdefault(key, {})
        if op == "d":
            times.clear()
            continue
        if time not in times:
            for later in [instant for instant in times if instant > time]:
                del times[later]
        times[time] = {number}
    spec = job(
        schema={"id": "int64", "number": "int64"},
        created_time="known_at" if has_created_time else None,
    )
    store = featurestore.connect(tmp_path_factory.mktemp("log"))
    run(monkeypatch, store, spec, MemoryTopics(partitions, sizes))
    rows = {(row["id"], row["changed_at"], row["number"]) for row in rows_of(store, "customers")}
    store.close()
    assert rows == {
        (key, utc_time(NOON + time), number)
        for key, times in expected.items()
        for time, numbers in times.items()
        for number in numbers
    }


def test_change_event_job_without_upsert_key_is_refused() -> None:
    with pytest.raises(InvalidJob, match="replace and delete"):
        job(mode="append")
    with pytest.raises(InvalidJob, match="primary_key"):
        job(primary_key=())


_CHANGE = re.compile(r"table public\.customers: (INSERT|UPDATE|DELETE): (.*)")
_COLUMN = re.compile(r"(\w+)\[[^\]]*\]:('(?:[^']|'')*'|\S+)")


def decoded_changes(lines: list[str]) -> list[Record]:
    """Convert the output of logical decoding to change events of a connector."""
    events: list[Record] = []
    for number, line in enumerate(lines):
        match = _CHANGE.fullmatch(line)
        if match is None:
            continue
        operation, text = match.groups()
        old, _, new = text.rpartition("new-tuple: ")
        sides = []
        for side in (old.removeprefix("old-key: "), new):
            row: dict[str, Any] = {}
            for name, value in _COLUMN.findall(side):
                plain = value.strip("'").replace("''", "'")
                row[name] = None if value == "null" else (int(plain) if name == "id" else plain)
            sides.append(row)
        time_ms = NOON + number
        before, after = sides
        if operation == "DELETE":
            events.append(json_event({"id": after["id"]}, envelope("d", after, None, time_ms)))
            events.append((json.dumps({"id": after["id"]}).encode(), None))
        elif operation == "UPDATE" and before and before["id"] != after["id"]:
            events.append(json_event({"id": before["id"]}, envelope("d", before, None, time_ms)))
            events.append((json.dumps({"id": before["id"]}).encode(), None))
            events.append(json_event({"id": after["id"]}, envelope("c", None, after, time_ms)))
        else:
            op = "c" if operation == "INSERT" else "u"
            events.append(json_event({"id": after["id"]}, envelope(op, None, after, time_ms)))
    return events


@pytest.mark.postgres
def test_decoded_postgres_log_reproduces_table(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, postgres_server: str
) -> None:
    import psycopg

    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        connection.execute("create table customers (id int primary key, name text)")
        connection.execute("select pg_create_logical_replication_slot('shop', 'test_decoding')")
        connection.execute("insert into customers select n, 'c' || n from generate_series(1, 40) n")
        connection.execute("update customers set name = 'it''s ' || id where id % 3 = 0")
        connection.execute("delete from customers where id % 5 = 0")
        connection.execute("update customers set id = id + 100 where id % 7 = 0")
        connection.execute("insert into customers values (5, 'again'), (200, null)")
        changes = connection.execute(
            "select data from pg_logical_slot_get_changes('shop', null, null)"
        ).fetchall()
        expected = connection.execute("select id, name from customers").fetchall()
        connection.execute("select pg_drop_replication_slot('shop')")
        connection.execute("drop table customers")
    events = decoded_changes([text for (text,) in changes])
    partitions: list[list[Record]] = [[], []]
    for event in events:
        assert event[0] is not None
        partitions[json.loads(event[0])["id"] % 2].append(event)
    spec = job(schema={"id": "int64", "name": "string"}, created_time=None)
    run(monkeypatch, empty_store, spec, MemoryTopics(partitions, [7, 30, 1]))
    assert quarantined(empty_store, "customers") == []
    latest: dict[int, tuple[datetime, str]] = {}
    for row in rows_of(empty_store, "customers"):
        latest[row["id"]] = max(
            latest.get(row["id"], (utc_time(0), "")), (row["changed_at"], row["name"])
        )
    assert sorted((key, name) for key, (_, name) in latest.items()) == sorted(expected)
