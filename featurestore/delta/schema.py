"""Conversion of Delta's JSON schemas to Arrow schemas of storage types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import feature_schema
from featurestore.arrow.untyped import refuse_untyped, sql_casts
from featurestore.errors import SchemaMismatch, listing
from featurestore.model.callers import warn_caller
from featurestore.model.times import NaiveTimeWarning

_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")


class UnknownTypeError(ValueError):
    """The type of a column is unknown. Internal to the package."""

    def __init__(self, column: str, kind: object) -> None:
        self.column = column
        self.kind = kind if isinstance(kind, str) else json.dumps(kind)
        super().__init__(f"{column}: {self.kind}")


def arrow_schema(text: str) -> pa.Schema:
    """Return the Arrow schema of a ``schemaString``.

    >>> arrow_schema('{"fields": [{"name": "id", "type": "long", "nullable": false}]}')
    id: int64 not null

    Raises:
        UnknownTypeError: The type of a column is unknown.
        ValueError: The text is not a schema.
    """
    fields = []
    try:
        for each in json.loads(text)["fields"]:
            field = _field(each, each["name"])
            fields.append(field.with_metadata(_string_metadata(each.get("metadata") or {})))
        return pa.schema(fields)
    except (KeyError, TypeError, AttributeError, RecursionError, pa.ArrowInvalid) as error:
        raise ValueError(f"the schema of the table cannot be read: {error!r}") from error


def requested_schema(
    path: str, table_schema: pa.Schema, schema: pa.Schema | None, columns: Sequence[str] | None
) -> pa.Schema:
    """Return the feature types of the columns that are read from a table.

    ``stored`` is the table's schema at the version, ``schema`` has feature types to restore,
    ``columns`` selects columns. Warns about times without a zone, which are read as UTC. The types
    of other columns are not checked.

    Raises:
        SchemaMismatch: A requested column does not exist.
        UnsupportedType: Types are not supported; the message lists the columns.
    """
    selected = table_schema if schema is None else schema
    if columns is not None:
        missing_columns = [column for column in columns if column not in selected.names]
        if missing_columns:
            raise SchemaMismatch(
                f"{path} has no columns {listing(missing_columns)}; it has {listing(selected.names, limit=50)}."
            )
        selected = pa.schema([selected.field(column) for column in columns])
    feature_types = selected
    if schema is None:
        feature_types = feature_schema(selected)
        refuse_untyped(feature_types, subject=f"The table {path}", hint=_cast_hint)
    _warn_of_naive_times(path, table_schema, feature_types)
    return feature_types


def _cast_hint(columns: pa.Schema) -> str:
    return f"omit them with columns=, or cast them where the table is written: {sql_casts(columns)}"


def _warn_of_naive_times(path: str, table_schema: pa.Schema, feature_types: pa.Schema) -> None:
    naive = [
        field.name
        for field in table_schema
        if pat.is_timestamp(field.type)
        and field.type.tz is None
        and field.name in feature_types.names
    ]
    if naive:
        noun = "Columns" if len(naive) > 1 else "Column"
        warn_caller(
            f"{noun} {listing(naive)} of {path} have no time zone and are read as UTC",
            NaiveTimeWarning,
        )


def _field(definition: Mapping[str, Any], column: str) -> pa.Field:
    return pa.field(
        definition["name"],
        _type(definition["type"], column),
        bool(definition.get("nullable", True)),
    )


def _string_metadata(metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the string values of a column's metadata (a comment, a shape), None if empty.

    They are written again with each new schema of the table.
    """
    return {key: value for key, value in metadata.items() if isinstance(value, str)} or None


def _type(definition: Any, column: str) -> pa.DataType:
    if isinstance(definition, str):
        return _primitive(definition, column)
    if not isinstance(definition, dict):
        raise UnknownTypeError(column, definition)
    if definition["type"] == "struct":
        return pa.struct([_field(each, column) for each in definition["fields"]])
    if definition["type"] == "array":
        element = _type(definition["elementType"], column)
        return pa.list_(pa.field("element", element, bool(definition.get("containsNull", True))))
    if definition["type"] == "map":
        return pa.map_(_type(definition["keyType"], column), _type(definition["valueType"], column))
    raise UnknownTypeError(column, definition)


def _primitive(type_name: str, column: str) -> pa.DataType:
    if type_name in _PRIMITIVES:
        return _PRIMITIVES[type_name]
    decimal = _DECIMAL.fullmatch(type_name)
    if decimal is None:
        raise UnknownTypeError(column, type_name)
    return pa.decimal128(int(decimal[1]), int(decimal[2]))
