"""Delta's JSON schemas as Arrow schemas of storage types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import SchemaMismatch, listing
from featurestore.model.callers import warn_caller
from featurestore.model.times import NaiveTimeWarning
from featurestore.model.types import feature_schema
from featurestore.model.untyped import refuse_untyped, sql_casts

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
    """A column has a type that the store does not know. Does not leave the package."""

    def __init__(self, column: str, kind: object) -> None:
        self.column = column
        self.kind = kind if isinstance(kind, str) else json.dumps(kind)
        super().__init__(f"{column}: {self.kind}")


def arrow_schema(text: str) -> pa.Schema:
    """Return the Arrow schema of a ``schemaString``.

    >>> arrow_schema('{"fields": [{"name": "id", "type": "long", "nullable": false}]}')
    id: int64 not null

    Raises:
        UnknownTypeError: Names the column and its type.
        ValueError: The text is no schema.
    """
    fields = []
    try:
        for each in json.loads(text)["fields"]:
            field = _field(each, each["name"])
            fields.append(field.with_metadata(_texts(each.get("metadata") or {})))
        return pa.schema(fields)
    except (KeyError, TypeError, AttributeError, RecursionError, pa.ArrowInvalid) as error:
        raise ValueError(f"the schema of the table cannot be read: {error!r}") from error


def requested_schema(
    path: str, stored: pa.Schema, schema: pa.Schema | None, columns: Sequence[str] | None
) -> pa.Schema:
    """Return the feature types that a read of a table gives.

    Only columns that are read have to have some.

    ``stored`` is the table's schema at the version, ``schema`` are feature types to restore,
    ``columns`` selects. Warns of times without a zone, which are taken as UTC.

    Raises:
        SchemaMismatch: A column is asked for that is not there.
        UnsupportedType: Lists the columns that a feature group cannot hold.
    """
    given = stored if schema is None else schema
    if columns is not None:
        absent = [column for column in columns if column not in given.names]
        if absent:
            raise SchemaMismatch(
                f"{path} has no columns {listing(absent)}; it has {listing(given.names, limit=50)}."
            )
        given = pa.schema([given.field(column) for column in columns])
    wanted = given
    if schema is None:
        wanted = feature_schema(given)
        refuse_untyped(wanted, what=f"The table {path}", hint=_typing)
    _warn_of_naive_times(path, stored, wanted)
    return wanted


def _typing(columns: pa.Schema) -> str:
    return (
        f"leave them out with columns=, or cast them where the table is made: {sql_casts(columns)}"
    )


def _warn_of_naive_times(path: str, stored: pa.Schema, wanted: pa.Schema) -> None:
    naive = []
    for field in stored:
        is_naive = pat.is_timestamp(field.type) and field.type.tz is None
        if is_naive and field.name in wanted.names:
            naive.append(field.name)
    if naive:
        noun = "Columns" if len(naive) > 1 else "Column"
        warn_caller(
            f"{noun} {listing(naive)} of {path} have no time zone and are taken as UTC",
            NaiveTimeWarning,
        )


def _field(given: Mapping[str, Any], column: str) -> pa.Field:
    return pa.field(given["name"], _type(given["type"], column), bool(given.get("nullable", True)))


def _texts(metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the texts of a column's metadata (a comment, a shape), None where there are none.

    It is written again with each new schema of the table.
    """
    texts = {}
    for key, value in metadata.items():
        if isinstance(value, str):
            texts[key] = value
    return texts or None


def _type(given: Any, column: str) -> pa.DataType:
    if isinstance(given, str):
        return _primitive(given, column)
    if not isinstance(given, dict):
        raise UnknownTypeError(column, given)
    if given["type"] == "struct":
        fields = []
        for each in given["fields"]:
            fields.append(_field(each, column))
        return pa.struct(fields)
    if given["type"] == "array":
        element = _type(given["elementType"], column)
        return pa.list_(pa.field("element", element, bool(given.get("containsNull", True))))
    if given["type"] == "map":
        return pa.map_(_type(given["keyType"], column), _type(given["valueType"], column))
    raise UnknownTypeError(column, given)


def _primitive(given: str, column: str) -> pa.DataType:
    if given in _PRIMITIVES:
        return _PRIMITIVES[given]
    decimal = _DECIMAL.fullmatch(given)
    if decimal is None:
        raise UnknownTypeError(column, given)
    return pa.decimal128(int(decimal[1]), int(decimal[2]))
