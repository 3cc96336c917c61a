"""Semantic types of Kafka Connect and Debezium as JSON values: times as ISO text, decimals as digits.

A schema names the type of a value (``io.debezium.time.MicroTimestamp``); the value itself is a
number or bytes.
Names: https://debezium.io/documentation/reference/stable/connectors/postgresql.html
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from featurestore.arrow.json_text import NumberText

_UNITS = {
    "io.debezium.time.Date": "D",
    "org.apache.kafka.connect.data.Date": "D",
    "io.debezium.time.Timestamp": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
}
# Logical types of converters that do not use type names of Connect.
_LOGICAL_UNITS = {
    "date": "D",
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"


def from_json(value: Any, schema: Any) -> Any:
    """Convert a JSON value by its Connect schema; without a schema it is unchanged.

    >>> from_json(1, {"type": "int32", "name": "io.debezium.time.Date"})
    '1970-01-02'
    """
    if value is None or not isinstance(schema, Mapping):
        return value
    name = schema.get("name")
    if name in _UNITS:
        return _to_iso_text(value, _UNITS[name])
    if name == _DECIMAL:
        return _to_digits(value, (schema.get("parameters") or {}).get("scale", 0))
    if name == _VARIABLE_DECIMAL and isinstance(value, Mapping):
        return _to_digits(value.get("value"), value.get("scale", 0))
    if schema.get("type") == "struct" and isinstance(value, Mapping):
        fields = {each.get("field"): each for each in schema.get("fields") or ()}
        return {key: from_json(item, fields.get(key)) for key, item in value.items()}
    if schema.get("type") == "array" and isinstance(value, list):
        return [from_json(item, schema.get("items")) for item in value]
    return value


def from_avro(value: Any, schema: Any, types_by_name: Mapping[str, Any]) -> Any:
    """Convert a raw Avro value by its schema; ``named`` are the named types of the schema."""
    if isinstance(schema, list):  # a union of null and another type
        branches = [each for each in schema if each != "null"]
        schema = branches[0] if len(branches) == 1 else None
    if isinstance(schema, str):
        schema = types_by_name.get(schema)
    if value is None or not isinstance(schema, Mapping):
        return value
    if isinstance(schema.get("type"), list | Mapping):
        return from_avro(value, schema["type"], types_by_name)
    if schema.get("type") == "record" and isinstance(value, Mapping):
        fields = {each["name"]: each["type"] for each in schema["fields"]}
        value = {
            key: from_avro(item, fields.get(key), types_by_name) for key, item in value.items()
        }
    if schema.get("type") == "array" and isinstance(value, list):
        return [from_avro(item, schema.get("items"), types_by_name) for item in value]
    return _convert_by_semantic_type(value, schema)


def _convert_by_semantic_type(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert a raw Avro value by the semantic type of its schema."""
    name, logical = schema.get("connect.name"), schema.get("logicalType")
    unit = _UNITS.get(str(name)) or _LOGICAL_UNITS.get(str(logical))
    if unit is not None:
        return _to_iso_text(value, unit)
    if name == _DECIMAL or logical == "decimal":
        parameters = schema.get("connect.parameters") or {}
        return _to_digits(value, schema.get("scale", parameters.get("scale", 0)))
    if name == _VARIABLE_DECIMAL and isinstance(value, Mapping):
        return _to_digits(value.get("value"), value.get("scale", 0))
    return value


def named_types(schema: Any, namespace: str = "") -> dict[str, Any]:
    """Return the records, enums and fixed types of an Avro schema by name."""
    types_by_name: dict[str, Any] = {}
    if isinstance(schema, list):
        for each in schema:
            types_by_name |= named_types(each, namespace)
    if not isinstance(schema, Mapping):
        return types_by_name
    if schema.get("type") in ("record", "enum", "fixed"):
        name = str(schema.get("name", ""))
        namespace = str(schema.get("namespace") or name.rpartition(".")[0] or namespace)
        short = name.rpartition(".")[2]
        types_by_name |= {short: schema, f"{namespace}.{short}": schema}
    for each in schema.get("fields") or ():
        types_by_name |= named_types(each.get("type"), namespace)
    for key in ("items", "values", "type"):
        types_by_name |= named_types(schema.get(key), namespace)
    return types_by_name


def _to_iso_text(value: Any, unit: str) -> Any:
    """Convert a number of days, or of fractions of a second, since 1970 to ISO text."""
    text = str(value)
    if isinstance(value, bool) or not text.lstrip("-").isdigit():
        return value  # does not match its schema: the column type decides
    try:
        instant = np.datetime64(int(text), unit)
    except OverflowError:
        return text
    iso = str(np.datetime_as_string(instant))
    if unit == "ns" and iso.endswith("000"):
        iso = iso[:-3]
    return iso if unit == "D" else f"{iso}Z"


def _to_digits(value: Any, scale: Any) -> Any:
    """Convert an unscaled number in bytes (base64 in JSON) to digits."""
    if isinstance(value, str) and not isinstance(value, NumberText):
        try:
            value = base64.b64decode(value, validate=True)
        except binascii.Error:
            return value
    if not isinstance(value, bytes):
        return value
    unscaled = int.from_bytes(value, "big", signed=True)
    return NumberText(
        f"{Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -int(scale))):f}"
    )
