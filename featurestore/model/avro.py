"""Schemas of Avro as columns: https://avro.apache.org/docs/1.12.0/specification/."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from featurestore.errors import InvalidJob
from featurestore.model.types import TIMESTAMP

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_TIMES = ("timestamp-millis", "timestamp-micros")


def columns_of(text: str) -> pa.Schema:
    """Return the columns of a record schema of Avro.

    Raises:
        InvalidJob: It is no record, or a field of it cannot be a column; names the field.

    >>> columns_of('{"type": "record", "name": "c", "fields": [{"name": "n", "type": "long"}]}')
    n: int64
    """
    try:
        told = json.loads(text)
        fields = _fields(told, "schema=")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidJob(
            f"schema= is no record of Avro: {type(error).__name__}: {error}",
            hint='{"type": "record", "name": "click", "fields": [{"name": "at", "type": ...}]}',
        ) from error
    return pa.schema(fields)


def _fields(told: Any, where: str) -> list[pa.Field]:
    if told["type"] != "record":
        raise InvalidJob(
            f"{where} is a {told['type']} of Avro, not a record.", hint='{"type": "record", ...}'
        )
    return [
        pa.field(str(each["name"]), _type(each["type"], each["name"])) for each in told["fields"]
    ]


def _type(told: Any, name: str) -> pa.DataType:
    if isinstance(told, list):
        others = [each for each in told if each != "null"]
        if len(others) == 1:
            return _type(others[0], name)
        raise _refused(name, "a union of several types")
    if isinstance(told, dict):
        return _described_type(told, name)
    if told in _PLAIN:
        return _PLAIN[told]
    raise _refused(name, f"a {told!r}")


def _described_type(told: dict[str, Any], name: str) -> pa.DataType:
    logical, kind = told.get("logicalType"), told["type"]
    if logical in _TIMES:
        return TIMESTAMP
    if logical == "date":
        return pa.date32()
    if logical == "decimal":
        return pa.decimal128(told["precision"], told.get("scale", 0))
    if logical == "uuid":
        raise _refused(name, "a uuid")
    if kind == "array":
        return pa.list_(pa.field("item", _type(told["items"], name)))
    if kind == "record":
        return pa.struct(_fields(told, name))
    return _type(kind, name)


def _refused(name: str, what: str) -> InvalidJob:
    return InvalidJob(
        f"Field {name!r} of the schema of Avro is {what}, which cannot be a column.",
        hint="leave it out of schema=: fields that a reader's schema lacks are passed over",
    )
