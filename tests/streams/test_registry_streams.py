"""Records that Confluent's serializers write with a schema registry, from a broker, on both engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.store import FeatureStore
from tests.streams.conftest import require_spark_reader
from tests.streams.registry_server import Registered, message_class, schema_registry
from tests.streams.topics import Broker, job

pytest.importorskip("grpc_tools")
serde = pytest.importorskip("confluent_kafka.schema_registry")

ORDER = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "parts/line.proto";
message Other { int64 id = 1; }
message Order {
  map<string, uint64> counts = 6; uint64 id = 1; optional double price = 2;
  google.protobuf.Timestamp at = 3; repeated parts.Line lines = 4; bytes added = 9;
}
"""
LINE = 'syntax = "proto3"; package parts; message Line { string sku = 1; uint32 count = 2; }'
JOB_ORDER = f"""
{ORDER.partition("message Other")[0].replace("package shop;", "").replace('import "parts/line.proto";', "")}
message Order {{
  uint64 id = 1; optional double price = 2; google.protobuf.Timestamp at = 3;
  repeated Line lines = 4; string later = 5; map<string, uint64> counts = 6;
}}
{LINE.rpartition("package parts;")[2]}
"""
JSON_ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
    },
    "definitions": {
        "line": {
            "type": "object",
            "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
        }
    },
    "required": ["id"],
}
_LINE_FIELDS = [{"name": "sku", "type": "string"}, {"name": "count", "type": "long"}]
_LINES = {"type": "record", "name": "line", "fields": _LINE_FIELDS}
AVRO_ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "lines", "type": {"type": "array", "items": _LINES}},
    ],
}
SCHEMAS = {
    1: Registered(ORDER, "PROTOBUF", {"parts/line.proto": "line"}),
    2: Registered(json.dumps(JSON_ORDER), "JSON"),
    3: AVRO_ORDER,
    4: Registered(LINE, "PROTOBUF"),
}


def orders() -> list[dict[str, Any]]:
    """Return orders, with integers beyond 2**53, no price and no lines."""
    time = "2024-01-01T00:00:0{}.000001Z"
    return [
        {
            "id": 2**53 + number,
            "price": None if number == 1 else number / 3,
            "at": time.format(number),
            "lines": [{"sku": "é", "count": 2**32 - 1}] * number,
        }
        for number in range(3)
    ]


def write_values(address: str) -> dict[str, list[bytes]]:
    """Return the orders in each format, as the serializers of Confluent write them."""
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = serde.SchemaRegistryClient({"url": address})
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    message = message_class(ORDER, "shop.Order", {"parts/line.proto": LINE})

    def to_message(order: Mapping[str, Any]) -> Any:
        filled = message(**{name: order[name] for name in ("id", "price", "lines")}, added=b"\xff")
        filled.at.FromJsonString(order["at"])
        filled.counts["b"] = 2**64 - 1
        filled.counts["a"] = 0
        return filled

    def to_avro(order: dict[str, Any], _: Any) -> dict[str, Any]:
        micros = 1_704_067_200_000_001 + 1_000_000 * int(order["at"][18])
        return {**order, "at": micros}

    writers: dict[str, tuple[Any, Callable[[dict[str, Any]], Any]]] = {
        "protobuf": (ProtobufSerializer(message, client, latest), to_message),
        "json_schema": (JSONSerializer(None, client, conf=latest), dict),
        "avro": (AvroSerializer(client, None, to_avro, latest), dict),
    }
    return {
        name: [
            serialize(convert(order), SerializationContext(name, MessageField.VALUE))
            for order in orders()
        ]
        for name, (serialize, convert) in writers.items()
    }


@pytest.mark.parametrize(
    ("engine_name", "formats"),
    [
        ("duckdb", ("protobuf", "json_schema", "avro")),
        pytest.param("spark", ("protobuf",), marks=pytest.mark.spark),
        pytest.param("spark", ("json_schema", "avro"), marks=[pytest.mark.spark, pytest.mark.soak]),
    ],
)
def test_stream_reads_records_of_serializers(
    engine_name: str,
    formats: tuple[str, ...],
    request: pytest.FixtureRequest,
    broker: Broker,
    job_file: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    require_spark_reader(engine_name)
    if engine_name == "spark":
        request.getfixturevalue("spark")
    store = featurestore.connect(tmp_path / "store", engine=engine_name)
    store.add_source("events", broker.uri)
    subjects = {"protobuf-value": 1, "json_schema-value": 2, "avro-value": 3, "line": 4}
    with schema_registry(SCHEMAS, subjects) as address:
        schemas = {"protobuf": JOB_ORDER, "json_schema": JSON_ORDER, "avro": AVRO_ORDER}
        written = write_values(address)
        for value_format in formats:
            values = written[value_format]
            topic = broker.topic(1, name=f"{value_format}-{engine_name}")
            broker.send(topic, [*values, values[0][:-1], b"\0\0\0\0\x09", b"{}"])
            line = job(
                topic, format=value_format, schema=schemas[value_format], schema_registry=address
            ).replace("clicks", value_format)
            store.register_jobs(job_file(line))
            (run,) = store.run_job(value_format)
            assert (run.state, run.rows) == ("done", 3), value_format
            compare_rows(store, value_format)
    store.close()


def compare_rows(store: FeatureStore, name: str) -> None:
    """Compare the rows of a group with the orders, and its quarantine with the invalid records."""
    rows = store.get_featuregroup(name).to_arrow().sort_by("id").to_pylist()
    for row, order in zip(rows, orders(), strict=True):
        row["at"] = row["at"].isoformat().replace("+00:00", "Z")
        later = {"later": None} if name == "protobuf" else {}
        if name == "protobuf":
            later["counts"] = [{"key": "a", "value": 0}, {"key": "b", "value": 2**64 - 1}]
        assert row == {**order, **later}
    assert store.get_featuregroup_quarantine(name).count() == 3
