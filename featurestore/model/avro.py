"""Schemas of Avro as columns: https://avro.apache.org/docs/1.12.0/specification/."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
# Logical types of instants by how many microseconds their numbers count; local ones are taken as UTC.
_INSTANTS = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
_NANOS = ("timestamp-nanos", "local-timestamp-nanos")


def columns_of(text: str) -> pa.Schema:
    """Return the columns of a record schema of Avro.

    Times of day are their numbers: milliseconds or microseconds since midnight.

    Raises:
        InvalidJob: It is no record, or a field of it cannot be a column; names the field.

    >>> columns_of('{"type": "record", "name": "c", "fields": [{"name": "n", "type": "long"}]}')
    n: int64
    """
    try:
        told = json.loads(text)
        fields = _fields(told, "schema=")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidJob(
            f"schema= is no record of Avro: {type(error).__name__}: {error}",
            hint='{"type": "record", "name": "click", "fields": [{"name": "at", "type": ...}]}',
        ) from error
    return pa.schema(fields)


def has_meaning(described: Mapping[str, Any]) -> bool:
    """Return whether a type is read by its logical type, and not as what it is written as.

    >>> has_meaning({"type": "long", "logicalType": "timestamp-millis"})
    True
    >>> has_meaning({"type": "int", "logicalType": "time-millis"})
    False
    """
    logical, kind = described.get("logicalType"), described.get("type")
    if logical in _INSTANTS:
        return kind == "long"
    if logical == "date":
        return kind == "int"
    return logical == "decimal" and kind in ("bytes", "fixed")


def units_of(text: str) -> dict[str, Any]:
    """Return how many microseconds the numbers of columns of instants count, those of records nested.

    >>> units_of('{"type": "record", "name": "c", "fields": [{"name": "n", "type": "long"}]}')
    {'n': None}
    """
    units: dict[str, Any] = _units(json.loads(text))
    return units


def _units(told: Any) -> Any:
    if isinstance(told, list):
        return next((_units(each) for each in told if each != "null"), None)
    if not isinstance(told, Mapping):
        return None
    if has_meaning(told):
        return _INSTANTS.get(told["logicalType"])
    if told.get("type") == "record":
        return {each["name"]: _units(each["type"]) for each in told["fields"]}
    return _units(told.get("items", told.get("type")))


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
    if has_meaning(told):
        if logical == "date":
            return pa.date32()
        if logical == "decimal":
            return _decimal(told, name)
        return TIMESTAMP
    if logical in _NANOS:
        raise _refused(name, f"a {logical}, finer than microseconds")
    if logical == "uuid" and kind in ("string", "fixed"):
        return pa.string()
    if kind == "array":
        return pa.list_(pa.field("item", _type(told["items"], name)))
    if kind == "record":
        return pa.struct(_fields(told, name))
    return _type(kind, name)


def _decimal(told: Mapping[str, Any], name: str) -> pa.DataType:
    precision, scale = told["precision"], told.get("scale", 0)
    if not 0 < precision <= 38 or not 0 <= scale <= precision:
        raise _refused(name, f"a decimal of precision {precision} and scale {scale}")
    return pa.decimal128(precision, scale)


def _refused(name: str, what: str) -> InvalidJob:
    return InvalidJob(
        f"Field {name!r} of the schema of Avro is {what}, which cannot be a column.",
        hint="leave it out of schema=: fields that a reader's schema lacks are passed over",
    )
