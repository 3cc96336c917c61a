"""Delta schemas and protocols: conversion to Arrow schemas, and checks for unsupported features.

The protocol of a table lists the features that readers must support. Tables with column mapping,
deletion vectors or features other than those below would be read incorrectly, so they are rejected
with the name of the feature
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Table Features").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import UnsupportedTable, listing

# Reader features that do not change the rows of listed files, or that are checked separately:
# deletion vectors for each file, and column mapping by its mode.
# An unknown feature may change how files are read, so everything not listed is refused.
_SUPPORTED_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        # Readers cast files with narrower types to the table schema.
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_COLUMN_MAPPING = "delta.columnMapping.mode"
_FEATURES_READER = 3
_WRITTEN_READER = 1
_WRITTEN_WRITER = 2
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


def arrow_schema(text: str) -> pa.Schema:
    """Convert a ``schemaString`` to an Arrow schema.

    >>> arrow_schema('{"fields": [{"name": "id", "type": "long", "nullable": false}]}')
    id: int64 not null

    Raises:
        UnknownTypeError: The type of a column is unknown.
        ValueError: The text is not a schema.
    """
    fields = []
    try:
        for each in json.loads(text)["fields"]:
            field = _parse_field(each, each["name"])
            metadata = each.get("metadata") or {}
            # Strings (a comment, a shape) are retained when a new schema is written.
            texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
            fields.append(field.with_metadata(texts or None))
        return pa.schema(fields)
    except (KeyError, TypeError, AttributeError, RecursionError, pa.ArrowInvalid) as error:
        raise ValueError(f"the schema of the table cannot be read: {error!r}") from error


def _parse_field(definition: Mapping[str, Any], column: str) -> pa.Field:
    return pa.field(
        definition["name"],
        _parse_type(definition["type"], column),
        bool(definition.get("nullable", True)),
    )


def _parse_type(definition: Any, column: str) -> pa.DataType:
    if isinstance(definition, str):
        if definition in _PRIMITIVES:
            return _PRIMITIVES[definition]
        digits = decimal_digits(definition)
        if digits is None:
            raise UnknownTypeError(column, definition)
        return pa.decimal128(*digits)
    if not isinstance(definition, dict):
        raise UnknownTypeError(column, definition)
    if definition["type"] == "struct":
        return pa.struct([_parse_field(each, column) for each in definition["fields"]])
    if definition["type"] == "array":
        element = _parse_type(definition["elementType"], column)
        return pa.list_(pa.field("element", element, bool(definition.get("containsNull", True))))
    if definition["type"] == "map":
        return pa.map_(
            _parse_type(definition["keyType"], column), _parse_type(definition["valueType"], column)
        )
    raise UnknownTypeError(column, definition)


def type_name(dtype: pa.DataType) -> str | None:
    """Return the name of a primitive type in the log, or None for other types.

    >>> type_name(pa.decimal128(10, 2))
    'decimal(10,2)'
    """
    if pat.is_decimal(dtype):
        return f"decimal({dtype.precision},{dtype.scale})"
    return next((name for name, primitive in _PRIMITIVES.items() if primitive == dtype), None)


def decimal_digits(name: str) -> tuple[int, int] | None:
    """Return the precision and scale of a decimal type by its name in the log, or None.

    >>> decimal_digits("decimal(10,2)")
    (10, 2)
    """
    match = _DECIMAL.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


class UnknownTypeError(ValueError):
    """A column has an unknown type. Only for use within the package."""

    def __init__(self, column: str, kind: object) -> None:
        self.column = column
        self.kind = kind if isinstance(kind, str) else json.dumps(kind)
        super().__init__(f"{column}: {self.kind}")


@dataclass(frozen=True)
class Protocol:
    """The Delta versions and features that readers and writers of a table must support."""

    reader: int = _WRITTEN_READER
    writer: int = _WRITTEN_WRITER
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

    @classmethod
    def from_action(cls, action: Mapping[str, Any]) -> Protocol:
        """Create the protocol from a log action.

        Raises:
            ValueError: The action is invalid.
        """
        reader, writer = action.get("minReaderVersion"), action.get("minWriterVersion")
        if not (isinstance(reader, int) and isinstance(writer, int)):
            raise ValueError(f"invalid protocol: {dict(action)}")
        reader_features = action.get("readerFeatures") or []
        writer_features = action.get("writerFeatures") or []
        for name in chain(reader_features, writer_features):
            if not isinstance(name, str):
                raise ValueError(f"invalid protocol: {dict(action)}")
        return cls(reader, writer, tuple(reader_features), tuple(writer_features))


def check_readable(path: str, protocol: Protocol, properties: Mapping[str, str]) -> None:
    """Raise an error if a table requires unsupported reader features.

    Raises:
        UnsupportedTable: The table is not supported; the message names the features.
    """
    if protocol.reader > _FEATURES_READER:
        raise unsupported_feature_error(
            path, f"reader version {protocol.reader} (this release reads up to {_FEATURES_READER})"
        )
    unknown = sorted(set(protocol.reader_features) - _SUPPORTED_FEATURES)
    if unknown:
        raise unsupported_feature_error(path, f"the table features {listing(unknown)}")
    # Reader version 2 allows column mapping without listing it as a feature.
    mode = properties.get(_COLUMN_MAPPING, "none")
    if mode != "none":
        raise unsupported_feature_error(path, f"column mapping ({_COLUMN_MAPPING}={mode!r})")


def check_no_deletion_vector(path: str, file: str, add: Mapping[str, Any]) -> None:
    """Raise an error if a file has a deletion vector."""
    if add.get("deletionVector") is not None:
        raise unsupported_feature_error(path, f"deletion vectors (its file {file} has one)")


def check_writable(path: str, protocol: Protocol) -> None:
    """Raise an error if a table requires writer features that the embedded engine lacks.

    Raises:
        UnsupportedTable: The table is not supported; the message names the required versions.
    """
    # Higher writer versions may require constraints, generated columns or change data. A commit
    # that ignores them would damage the table.
    if protocol.reader > _WRITTEN_READER or protocol.writer > _WRITTEN_WRITER:
        raise UnsupportedTable(
            f"The Delta table at {path} needs reader version {protocol.reader} and writer version "
            f"{protocol.writer}; the store writes tables of reader version {_WRITTEN_READER} "
            f"and writer version {_WRITTEN_WRITER}.",
            hint="write it with the tool that upgraded it, or copy its rows into a new group",
        )


def unsupported_feature_error(path: str, feature: str) -> UnsupportedTable:
    """Return the error for a table that would be read incorrectly."""
    return UnsupportedTable(
        f"The Delta table at {path} uses {feature}, which the store does not support.",
        hint="copy its rows into a plain Delta table or Parquet files with the tool that wrote it",
    )
