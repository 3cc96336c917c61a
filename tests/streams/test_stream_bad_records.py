"""Invalid records are quarantined with a reason, and systematic errors fail the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import featurestore
from featurestore.arrow.schemas import schema_from_avro
from featurestore.errors import BadRecord, InvalidJob
from featurestore.featuregroups.table import open_group
from featurestore.model.job import JobSpec, StreamWork
from featurestore.model.stream import StreamSpec
from featurestore.store import FeatureStore
from featurestore.streams.opening import describe_column_changes

pytest.importorskip("confluent_kafka")
pytest.importorskip("fastavro")

from featurestore_connectors.kafka import decoding
from tests.streams.memory_topics import MemoryTopics, Record, quarantined, rows_of, run
from tests.streams.test_stream_values import datum, decoded, schema_registry

GOOD = b'{"id": 1, "at": "2024-01-01T00:00:00Z", "x": 1}'
BAD = [
    b'{"id": 1, "at": "0000-12-31T23:59:59Z", "x": 1}',
    b'{"id": 1, "at": "-0044-03-15T00:00:00Z", "x": 1}',
    b'{"id": 1, "at": "10000-01-01T00:00:00Z", "x": 1}',
    b'{"id": 9223372036854775808, "at": "2024-01-01T00:00:00Z"}',
    b'{"id": 1e400, "at": "2024-01-01T00:00:00Z"}',
    b'{"id": 1, "at": "2024-01-01T00:00:00Z", "price": 12345.678}',
    b'{"id": 1, "at": "2024-01-01T00:00:00Z", "price": 1e999999999}',
    b"[" * 100_000,
    b'{"id": ' + b"9" * 5000 + b"}",
    b'{"id": 1, "at": "2024-01-01T00:00:00Z", "x": "\xff"}',
    b'{"id": 1, "at": "2024-01-01T00:00:00Z", "kind": ""}',
    b"\x00\x00\x00\x00\x07",
    b"",
]


def job(**arguments: Any) -> JobSpec:
    columns = {"id": "int64", "at": "timestamp", "x": "int64", "kind": "string"}
    columns["price"] = pa.decimal128(6, 2)
    options = {
        "source": "events",
        "topic": "events",
        "schema": columns,
        "primary_key": "id",
        "event_time": "at",
        **arguments,
    }
    return featurestore.stream_job("g", **options).spec


def values(*records: bytes | None) -> list[Record]:
    return [(b"k", value) for value in records]


def test_bad_records_are_quarantined_without_failing_run(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = MemoryTopics([values(*BAD, GOOD)], [4])
    run(monkeypatch, empty_store, job(partition_by="kind"), topics)
    assert [row["id"] for row in rows_of(empty_store, "g")] == [1]
    actual = quarantined(empty_store, "g")
    assert [row["record_value"] for row in actual] == BAD
    assert all(row["reasons"][0] for row in actual)


def test_records_with_oversized_cells_are_quarantined(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEATURESTORE_CELL_BYTES", "64")
    texts = {1: "k" * 64, 2: "k" * 65, 3: "k", 4: "\u00e4" * 33}
    records = [
        json.dumps({"id": key, "at": "2024-01-01T00:00:00Z", "kind": text}).encode()
        for key, text in texts.items()
    ]
    run(monkeypatch, empty_store, job(), MemoryTopics([values(*records)], [4]))
    assert sorted(row["id"] for row in rows_of(empty_store, "g")) == [1, 3]
    assert [row["reasons"] for row in quarantined(empty_store, "g")] == [
        ["kind has more than 64 bytes"]
    ] * 2


def test_decoder_exception_marks_only_failing_record(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raising:
        def decode(self, values: pa.Array) -> Any:
            if b"poison" in values.to_pylist():
                raise OverflowError("too large")
            return decoding.Decoded({"x": values}, pa.nulls(len(values), pa.string()))

    spec = StreamSpec("e", "t", pa.schema([("x", pa.binary())]), "raw")
    monkeypatch.setattr(decoding, "_value_decoder", lambda spec, request: Raising())
    rows = decoded(spec, [b"a", b"poison", b"b", b"c", b"poison"])
    reasons = [row["record_error"] for row in rows]
    assert reasons == [None, _OVERFLOW, None, None, _OVERFLOW]


_OVERFLOW = "the record cannot be read: OverflowError: too large"

LOGICAL: dict[str, tuple[Any, Any, Any]] = {
    "date": ({"type": "int", "logicalType": "date"}, date(2024, 2, 29), date(2024, 2, 29)),
    "millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        datetime(2024, 1, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, 1, tzinfo=UTC),
    ),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        datetime(2024, 1, 1, 1, 0, 0, 5),
        datetime(2024, 1, 1, 1, 0, 0, 5, tzinfo=UTC),
    ),
    "local_millis": (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        datetime(1960, 1, 1),
        datetime(1960, 1, 1, tzinfo=UTC),
    ),
    "time_millis": ({"type": "int", "logicalType": "time-millis"}, time(0, 0, 1), 1000),
    "time_micros": ({"type": "long", "logicalType": "time-micros"}, time(0, 0, 1), 1_000_000),
    "uuid": (
        {"type": "string", "logicalType": "uuid"},
        UUID("8e1a9a4e-3b1f-4c2d-9c60-abcdef012345"),
        "8e1a9a4e-3b1f-4c2d-9c60-abcdef012345",
    ),
    "price": (
        ["null", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}],
        Decimal("12.50"),
        Decimal("12.50"),
    ),
    "no_meaning": ({"type": "string", "logicalType": "timestamp-millis"}, "text", "text"),
    "times": (
        {"type": "array", "items": {"type": "long", "logicalType": "local-timestamp-millis"}},
        [datetime(2024, 1, 1)],
        [datetime(2024, 1, 1, tzinfo=UTC)],
    ),
}


def record_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    columns = [{"name": name, "type": avro_type} for name, avro_type in fields.items()]
    return {"type": "record", "name": "row", "fields": columns}


def test_avro_logical_types_are_read() -> None:
    schema = record_of({name: avro_type for name, (avro_type, _, _) in LOGICAL.items()})
    text = json.dumps(schema)
    row = {name: value for name, (_, value, _) in LOGICAL.items()}
    spec = StreamSpec("e", "t", schema_from_avro(text), "avro", message_schema=text)
    (decoded_row,) = decoded(spec, [datum(1, schema, row)])
    assert decoded_row["record_error"] is None
    assert {name: decoded_row[name] for name in LOGICAL} == {
        name: value for name, (_, _, value) in LOGICAL.items()
    }


@pytest.mark.parametrize(
    ("writer_type", "value", "reader_type", "expected"),
    [
        ({"type": "string", "logicalType": "uuid"}, UUID(int=5), "string", str(UUID(int=5))),
        ({"type": "int", "logicalType": "date"}, date(1970, 1, 3), "int", 2),
        ({"type": "int", "logicalType": "time-millis"}, time(0, 0, 2), "long", 2000),
        ({"type": "long", "logicalType": "timestamp-millis"}, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "long", 1000),
        ("long", 1000, {"type": "long", "logicalType": "timestamp-millis"}, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("int", 2, {"type": "int", "logicalType": "date"}, date(1970, 1, 3)),
        (
            {"type": "long", "logicalType": "timestamp-millis"}, datetime(2024, 1, 1, tzinfo=UTC),
            {"type": "long", "logicalType": "timestamp-micros"}, datetime(2024, 1, 1, tzinfo=UTC),
        ),
    ],
)  # fmt: skip
def test_avro_writer_type_is_read_as_job_type(
    writer_type: Any, value: Any, reader_type: Any, expected: Any
) -> None:
    writer, text = record_of({"x": writer_type}), json.dumps(record_of({"x": reader_type}))
    with schema_registry({3: writer}) as address:
        spec = StreamSpec(
            "e", "t", schema_from_avro(text), "avro", message_schema=text, schema_registry=address
        )
        (row,) = decoded(spec, [datum(3, writer, {"x": value})])
    assert (row["x"], row["record_error"]) == (expected, None)


def test_schema_from_avro_unsupported_logical_types_raise() -> None:
    for avro_type in (
        {"type": "long", "logicalType": "timestamp-nanos"},
        {"type": "bytes", "logicalType": "decimal", "precision": 40},
        {"type": "map", "values": "long"},
    ):
        with pytest.raises(InvalidJob, match="'x'"):
            schema_from_avro(json.dumps(record_of({"x": avro_type})))


def test_out_of_range_instants_are_bad_records() -> None:
    instant = {"type": "long", "logicalType": "timestamp-micros"}
    schema = record_of({"at": instant, "all": {"type": "array", "items": "long"}})
    text = json.dumps(schema)
    spec = StreamSpec("e", "t", schema_from_avro(text), "avro", message_schema=text)
    raw = record_of({"at": "long", "all": {"type": "array", "items": "long"}})
    actual = decoded(
        spec, [datum(1, raw, {"at": micros, "all": []}) for micros in (0, 2**62, -(2**62))]
    )
    assert [row["record_error"] is None for row in actual] == [True, False, False]


def test_run_with_mostly_bad_records_fails(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [b'{"id": "one"}'] * 60
    good = [json.dumps({"id": n, "at": "2024-01-01T00:00:00Z"}).encode() for n in range(40)]
    topics = MemoryTopics([values(*good, *bad)], [1000])
    with pytest.raises(BadRecord, match=r"60 of 100 records .* \(60 records\): id is a string"):
        run(monkeypatch, empty_store, job(), topics)
    assert len(rows_of(empty_store, "g")) == 40
    assert len(quarantined(empty_store, "g")) == 60
    lenient = featurestore.stream_job("h", most_bad=0.6, **arguments_of(job())).spec
    assert run(monkeypatch, empty_store, lenient, topics).bad == 60
    few = MemoryTopics([values(*bad)], [1000])
    assert (
        run(
            monkeypatch, empty_store, featurestore.stream_job("i", **arguments_of(job())).spec, few
        ).bad
        == 60
    )


def arguments_of(spec: JobSpec) -> dict[str, Any]:
    assert isinstance(spec.work, StreamWork)
    actual = {"source": "events", "topic": "events", "schema": spec.work.stream.schema}
    return {**actual, "primary_key": "id", "event_time": "at"}


@pytest.mark.parametrize(
    ("columns", "version"),
    [
        ({"id": "int64", "at": "timestamp", "x": "double"}, 2),
        ({"id": "int64", "at": "timestamp"}, 2),
        ({"id": "int64", "at": "timestamp", "x": "int32"}, 1),
        ({"id": "int64", "at": "timestamp", "x": "int64", "new": "string"}, 1),
    ],
)
def test_incompatible_stream_columns_create_next_version(
    empty_store: FeatureStore,
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, str],
    version: int,
) -> None:
    first = {"id": "int64", "at": "timestamp", "x": "int64"}
    topics = MemoryTopics([values(b'{"id": 1, "at": "2024-01-01T00:00:00Z", "x": 1}')])
    run(monkeypatch, empty_store, job(schema=first), topics)
    changed = job(schema=columns)
    assert isinstance(changed.work, StreamWork)
    group = open_group(empty_store.session, "g").spec
    assert bool(describe_column_changes(changed.work.stream, group)) == (version == 2)
    more = b'{"id": 2, "at": "2024-01-02T00:00:00Z", "x": 2}'
    topics = MemoryTopics([[*topics.partitions[0], (b"k", more)]])
    progress = run(monkeypatch, empty_store, changed, topics)
    assert (progress.version, progress.bad) == (version, 0)
    assert sorted(row["id"] for row in rows_of(empty_store, "g")) == [1, 2]
