"""Conversion of Arrow schemas to and from readable JSON, and from Avro.

Avro schemas: https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.hints import NAMED_TYPES, TIMESTAMP
from featurestore.errors import InvalidJob

_AVRO_TYPES = {
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

_TYPES_BY_NAME = {str(dtype): dtype for dtype in (*NAMED_TYPES, pa.null())}


def type_to_json(dtype: pa.DataType) -> Any:
    """Convert a feature type to JSON: a name, or an object for parametric types.

    >>> type_to_json(pa.list_(pa.float32(), 4))
    {'fixed_size_list': 'float', 'size': 4}
    """
    if str(dtype) in _TYPES_BY_NAME:
        return str(dtype)
    if pat.is_decimal128(dtype):
        return {"decimal": [dtype.precision, dtype.scale]}
    if pat.is_fixed_size_list(dtype):
        return {"fixed_size_list": type_to_json(dtype.value_type), "size": dtype.list_size}
    if pat.is_list(dtype):
        return {"list": type_to_json(dtype.value_type)}
    if pat.is_struct(dtype):
        return {"struct": schema_to_json(map(dtype.field, range(dtype.num_fields)))}
    raise TypeError(f"{dtype} is not a feature type")


def type_from_json(data: Any) -> pa.DataType:
    """Convert the output of ``type_to_json`` to a feature type.

    >>> type_from_json({'decimal': [10, 2]})
    Decimal128Type(decimal128(10, 2))
    """
    if isinstance(data, str):
        return _TYPES_BY_NAME[data]
    if "decimal" in data:
        return pa.decimal128(*data["decimal"])
    if "fixed_size_list" in data:
        # All feature types name list items "item": types that differ in this name are equal for
        # Arrow, but are printed differently.
        return pa.list_(pa.field("item", type_from_json(data["fixed_size_list"])), data["size"])
    if "list" in data:
        return pa.list_(pa.field("item", type_from_json(data["list"])))
    return pa.struct(list(schema_from_json(data["struct"])))


def schema_to_json(schema: Iterable[pa.Field]) -> list[dict[str, Any]]:
    """Convert a schema of feature types to JSON."""
    return [{"name": field.name, "type": type_to_json(field.type)} for field in schema]


def schema_from_json(data: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Convert the output of ``schema_to_json`` to a schema."""
    return pa.schema([pa.field(field["name"], type_from_json(field["type"])) for field in data])


def schema_from_avro(text: str) -> pa.Schema:
    """Convert an Avro record schema to an Arrow schema.

    Times of day become integers: milliseconds or microseconds since midnight.

    Raises:
        InvalidJob: The schema is not a record, or a field cannot be converted to a column.

    >>> schema_from_avro('{"type": "record", "name": "c", "fields": [{"name": "n", "type": "long"}]}')
    n: int64
    """
    try:
        avro_schema = json.loads(text)
        fields = _record_fields(avro_schema, "schema=")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidJob(
            f"schema= is not an Avro record schema: {type(error).__name__}: {error}",
            hint='{"type": "record", "name": "click", "fields": [{"name": "at", "type": ...}]}',
        ) from error
    return pa.schema(fields)


def is_logical_type_supported(avro_type: Mapping[str, Any]) -> bool:
    """Return whether values are converted according to their logical type.

    >>> is_logical_type_supported({"type": "long", "logicalType": "timestamp-millis"})
    True
    >>> is_logical_type_supported({"type": "int", "logicalType": "time-millis"})
    False
    """
    logical, type_name = avro_type.get("logicalType"), avro_type.get("type")
    if logical in _MICROS_PER_TICK:
        return type_name == "long"
    if logical == "date":
        return type_name == "int"
    return logical == "decimal" and type_name in ("bytes", "fixed")


def avro_time_units(text: str) -> dict[str, Any]:
    """Return the microseconds per time unit of each time column, nested for records.

    >>> avro_time_units('{"type": "record", "name": "c", "fields": [{"name": "n", "type": "long"}]}')
    {'n': None}
    """
    units: dict[str, Any] = _time_unit(json.loads(text))
    return units


def _record_fields(record: Any, name: str) -> list[pa.Field]:
    """Convert the fields of an Avro record."""
    if record["type"] != "record":
        raise InvalidJob(
            f"{name} is an Avro {record['type']}, not a record.", hint='{"type": "record", ...}'
        )
    return [
        pa.field(str(field["name"]), _arrow_type(field["type"], field["name"]))
        for field in record["fields"]
    ]


def _arrow_type(avro_type: Any, name: str) -> pa.DataType:
    """Convert an Avro type."""
    if isinstance(avro_type, list):
        # A union with null is a nullable column.
        non_null_types = [member_type for member_type in avro_type if member_type != "null"]
        if len(non_null_types) == 1:
            return _arrow_type(non_null_types[0], name)
        raise _unsupported_error(name, "a union of several types")
    if isinstance(avro_type, dict):
        return _complex_type(avro_type, name)
    if avro_type in _AVRO_TYPES:
        return _AVRO_TYPES[avro_type]
    raise _unsupported_error(name, f"a {avro_type!r}")


def _unsupported_error(name: str, description: str) -> InvalidJob:
    return InvalidJob(
        f"Field {name!r} of the Avro schema is {description}, which cannot be a column.",
        hint="remove it from schema=: fields that are not in the reader schema are ignored",
    )


def _complex_type(avro_type: dict[str, Any], name: str) -> pa.DataType:
    """Convert a logical, array, record or other named type."""
    logical, type_name = avro_type.get("logicalType"), avro_type["type"]
    if is_logical_type_supported(avro_type):
        if logical == "date":
            return pa.date32()
        if logical == "decimal":
            precision, scale = avro_type["precision"], avro_type.get("scale", 0)
            if not 0 < precision <= 38 or not 0 <= scale <= precision:
                raise _unsupported_error(
                    name, f"a decimal of precision {precision} and scale {scale}"
                )
            return pa.decimal128(precision, scale)
        return TIMESTAMP
    # Rounding nanoseconds would change values, so the schema is refused.
    if logical in _NANOS:
        raise _unsupported_error(name, f"a {logical}, finer than microseconds")
    if logical == "uuid" and type_name in ("string", "fixed"):
        return pa.string()
    if type_name == "array":
        return pa.list_(pa.field("item", _arrow_type(avro_type["items"], name)))
    if type_name == "record":
        return pa.struct(_record_fields(avro_type, name))
    return _arrow_type(type_name, name)


def _time_unit(avro_type: Any) -> Any:
    """Return the microseconds per unit of an Avro time type, nested for records."""
    if isinstance(avro_type, list):
        return next((_time_unit(member) for member in avro_type if member != "null"), None)
    if not isinstance(avro_type, Mapping):
        return None
    if is_logical_type_supported(avro_type):
        return _MICROS_PER_TICK.get(avro_type["logicalType"])
    if avro_type.get("type") == "record":
        return {member["name"]: _time_unit(member["type"]) for member in avro_type["fields"]}
    return _time_unit(avro_type.get("items", avro_type.get("type")))
