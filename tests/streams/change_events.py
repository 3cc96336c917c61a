"""Change events as Debezium's connectors for Postgres and MySQL write them.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
https://debezium.io/documentation/reference/stable/connectors/mysql.html#mysql-events
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

from tests.streams.memory_topics import Record

Row = Mapping[str, Any]
POSTGRES: dict[str, Any] = {
    "version": "3.0.5.Final",
    "connector": "postgresql",
    "name": "shop",
    "snapshot": "false",
    "db": "shop",
    "sequence": '["24023119","24023128"]',
    "schema": "public",
    "table": "customers",
    "txId": 555,
    "lsn": 24023128,
    "xmin": None,
}
MYSQL: dict[str, Any] = {
    "version": "3.0.5.Final",
    "connector": "mysql",
    "name": "shop",
    "snapshot": "false",
    "db": "shop",
    "table": "customers",
    "server_id": 223344,
    "gtid": None,
    "file": "mysql-bin.000003",
    "pos": 484,
    "row": 0,
    "thread": 7,
    "query": None,
}


def envelope(
    op: str, before: Row | None, after: Row | None, time_ms: int, source: Row = POSTGRES
) -> dict[str, Any]:
    """Return the payload of a change at ``time_ms`` that was captured 150 ms later."""
    times = {"ts_ms": time_ms, "ts_us": time_ms * 1000 + 7, "ts_ns": time_ms * 1_000_000 + 7000}
    capture_times = {
        "ts_ms": time_ms + 150,
        "ts_us": (time_ms + 150) * 1000,
        "ts_ns": (time_ms + 150) * 1_000_000,
    }
    actual = {"before": before, "after": after, "source": {**source, **times}}
    return {**actual, "transaction": None, "op": op, **capture_times}


def struct_of(columns: Mapping[str, Mapping[str, Any]], name: str, field: str) -> dict[str, Any]:
    fields = [
        {"optional": True, "field": column, **field_type} for column, field_type in columns.items()
    ]
    return {"type": "struct", "fields": fields, "optional": True, "name": name, "field": field}


def json_event(
    key: Row, payload: Row, columns: Mapping[str, Mapping[str, Any]] | None = None
) -> Record:
    """Return a JSON event; with column types it includes a schema, as by default."""
    if columns is None:
        return json.dumps(key).encode(), json.dumps(payload).encode()
    row = "shop.public.customers.Value"
    schema = {
        "type": "struct",
        "fields": [
            struct_of(columns, row, "before"),
            struct_of(columns, row, "after"),
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
        "optional": False,
        "name": "shop.public.customers.Envelope",
        "version": 2,
    }
    of_key = {"type": "struct", "fields": [], "optional": False, "name": "shop.customers.Key"}
    of_key["fields"] = [
        {"optional": False, "field": name, **columns.get(name, {"type": "int32"})} for name in key
    ]
    documents = []
    for actual, data_schema in ((key, of_key), (payload, schema)):
        documents.append(json.dumps({"schema": data_schema, "payload": actual}).encode())
    return documents[0], documents[1]


def avro_schemas(columns: list[dict[str, Any]], key: str) -> dict[int, dict[str, Any]]:
    """Return the schemas of keys (1) and envelopes (2), as registered by the Avro converter."""
    row = {
        "type": "record",
        "name": "Value",
        "fields": [{**column, "default": None} for column in columns],
        "connect.name": "shop.public.customers.Value",
    }
    times: list[dict[str, Any]] = []
    for name in ("ts_ms", "ts_us", "ts_ns"):
        times.append({"name": name, "type": ["null", "long"], "default": None})
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [{"name": "connector", "type": "string"}, *times],
    }
    fields: list[dict[str, Any]] = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        *times,
    ]
    of_value = {"type": "record", "name": "Envelope", "namespace": "shop.public.customers"}
    of_key = {"type": "record", "name": "Key", "namespace": "shop.public.customers"}
    return {
        1: {**of_key, "fields": [{"name": key, "type": "int"}]},
        2: {**of_value, "fields": fields},
    }


def avro_event(key: Row, payload: Row, schemas: Mapping[int, dict[str, Any]]) -> Record:
    """Return an event in Avro, in the wire format of a schema registry."""
    import fastavro

    datums = []
    for number, actual in ((1, key), (2, payload)):
        out = io.BytesIO()
        out.write(struct.pack(">bI", 0, number))
        fastavro.schemaless_writer(out, fastavro.parse_schema(schemas[number]), actual)
        datums.append(out.getvalue())
    return datums[0], datums[1]
