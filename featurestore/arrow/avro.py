"""Conversion of Avro schemas to Arrow: https://avro.apache.org/docs/1.12.0/specification/."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidJob

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
# Microseconds per unit of the logical time types; local times are read as UTC.
_MICROS_PER_TICK = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
_NANOS = ("timestamp-nanos", "local-timestamp-nanos")


def schema_from_avro(text: str) -> pa.Schema:
    """Return the Arrow schema of an Avro record.

    Times of day become integers: milliseconds or microseconds since midnight.

    Raises:
        InvalidJob: The schema is not a record, or a field cannot be a column.

    >>> schema_from_avro('{"type": "record", "name": "c", "fields": [{"name": "n", "type": "long"}]}')
    n: int64
    """
    try:
        avro_schema = json.loads(text)
        fields = _record_fields(avro_schema, "schema=")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidJob(
            f"schema= is not a record of Avro: {type(error).__name__}: {error}",
            hint='{"type": "record", "name": "click", "fields": [{"name": "at", "type": ...}]}',
        ) from error
    return pa.schema(fields)


def is_logical_type_supported(avro_type: Mapping[str, Any]) -> bool:
    """Return whether values are converted by their logical type.

    >>> is_logical_type_supported({"type": "long", "logicalType": "timestamp-millis"})
    True
    >>> is_logical_type_supported({"type": "int", "logicalType": "time-millis"})
    False
    """
    logical, kind = avro_type.get("logicalType"), avro_type.get("type")
    if logical in _MICROS_PER_TICK:
        return kind == "long"
    if logical == "date":
        return kind == "int"
    return logical == "decimal" and kind in ("bytes", "fixed")


def time_units(text: str) -> dict[str, Any]:
    """Return the microseconds per unit of each time column, nested for records.

    >>> time_units('{"type": "record", "name": "c", "fields": [{"name": "n", "type": "long"}]}')
    {'n': None}
    """
    units: dict[str, Any] = _time_unit(json.loads(text))
    return units


def _time_unit(avro_type: Any) -> Any:
    if isinstance(avro_type, list):
        return next((_time_unit(each) for each in avro_type if each != "null"), None)
    if not isinstance(avro_type, Mapping):
        return None
    if is_logical_type_supported(avro_type):
        return _MICROS_PER_TICK.get(avro_type["logicalType"])
    if avro_type.get("type") == "record":
        return {each["name"]: _time_unit(each["type"]) for each in avro_type["fields"]}
    return _time_unit(avro_type.get("items", avro_type.get("type")))


def _record_fields(record: Any, name: str) -> list[pa.Field]:
    if record["type"] != "record":
        raise InvalidJob(
            f"{name} is a {record['type']} of Avro, not a record.", hint='{"type": "record", ...}'
        )
    return [
        pa.field(str(each["name"]), _arrow_type(each["type"], each["name"]))
        for each in record["fields"]
    ]


def _arrow_type(avro_type: Any, name: str) -> pa.DataType:
    if isinstance(avro_type, list):
        non_null_types = [each for each in avro_type if each != "null"]
        if len(non_null_types) == 1:
            return _arrow_type(non_null_types[0], name)
        raise _unsupported(name, "a union of several types")
    if isinstance(avro_type, dict):
        return _complex_type(avro_type, name)
    if avro_type in _PLAIN:
        return _PLAIN[avro_type]
    raise _unsupported(name, f"a {avro_type!r}")


def _complex_type(avro_type: dict[str, Any], name: str) -> pa.DataType:
    logical, kind = avro_type.get("logicalType"), avro_type["type"]
    if is_logical_type_supported(avro_type):
        if logical == "date":
            return pa.date32()
        if logical == "decimal":
            return _decimal_type(avro_type, name)
        return TIMESTAMP
    if logical in _NANOS:
        raise _unsupported(name, f"a {logical}, finer than microseconds")
    if logical == "uuid" and kind in ("string", "fixed"):
        return pa.string()
    if kind == "array":
        return pa.list_(pa.field("item", _arrow_type(avro_type["items"], name)))
    if kind == "record":
        return pa.struct(_record_fields(avro_type, name))
    return _arrow_type(kind, name)


def _decimal_type(avro_type: Mapping[str, Any], name: str) -> pa.DataType:
    precision, scale = avro_type["precision"], avro_type.get("scale", 0)
    if not 0 < precision <= 38 or not 0 <= scale <= precision:
        raise _unsupported(name, f"a decimal of precision {precision} and scale {scale}")
    return pa.decimal128(precision, scale)


def _unsupported(name: str, description: str) -> InvalidJob:
    return InvalidJob(
        f"Field {name!r} of the schema of Avro is {description}, which cannot be a column.",
        hint="leave it out of schema=: fields that a reader's schema lacks are ignored",
    )
