"""Avro values in the wire format of schema registries: the header, and the datum."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import avro_time_units, is_logical_type_supported
from featurestore.errors import InvalidJob, missing_extra
from featurestore.model.json_object import JsonMapping
from featurestore_connectors.kafka.record_values import (
    AvroSchema,
    Decoded,
    convert_column,
    named_types,
    read_each,
)
from featurestore_connectors.kafka.schema_registry import RecordError, fetch_schema, split_header

# Parsed schemas, which are never removed: the schema of an id does not change.
_schemas: dict[object, AvroSchema] = {}


@dataclass(frozen=True)
class AvroValues:
    """Decoder of Avro records with the job's schema.

    Without a registry, the job's schema must be the writer's schema. With a registry, any writer's
    schema is allowed that resolves to the job's schema.
    """

    schema: pa.Schema
    text: str
    registry: str | None = None

    def __post_init__(self) -> None:
        # An invalid schema is an error of the job, not of its first record.
        _parse_once(("reader", self.text), lambda: _parse_own_schema(self.text))

    def decode(self, values: pa.Array) -> Decoded:
        rows, reasons = read_each(values, self._read)
        units = avro_time_units(self.text)
        columns = {}
        for field in self.schema:
            unit = units.get(field.name)
            values_of_rows = [
                None if row is None else _convert_value(row.get(field.name), field.type, unit)
                for row in rows
            ]
            columns[field.name] = convert_column(values_of_rows, field, reasons)
        return Decoded(columns, pa.array(reasons, pa.string()))

    def _read(self, value: bytes) -> Any:
        """Return the record in a value."""
        number, datum = split_header(value)
        writer = reader = _parse_once(("own", self.text), self._compatible_own_schema)
        if self.registry is not None:
            key = ("writer", self.registry, number, self.text)
            writer = _parse_once(key, partial(self._compatible_writer_schema, number))
        return _read_avro(datum, writer, reader, number)

    def _compatible_own_schema(self) -> AvroSchema:
        own_schema = _parse_own_schema(self.text)
        return _compatible_schema(own_schema, own_schema)

    def _compatible_writer_schema(self, number: int) -> AvroSchema:
        assert self.registry is not None
        return _compatible_schema(
            _fetch_schema(self.registry, number), _parse_own_schema(self.text)
        )


@dataclass(frozen=True)
class WriterSchema:
    """A schema from a registry, and its named types (records, enums and fixed types)."""

    schema: AvroSchema
    named_types: Mapping[str, AvroSchema]


def read_datum(value: bytes, registry: str) -> tuple[Any, WriterSchema]:
    """Return a datum without logical types (as numbers, strings or bytes), and its schema.

    Raises:
        RecordError: The datum cannot be read, or the registry does not contain its schema.
    """
    number, datum = split_header(value)
    writer_schema = _fetch_schema(registry, number)
    writer = _parse_once(
        ("plain", registry, number), lambda: _compatible_schema(writer_schema, None)
    )
    key = ("named", registry, number)
    if key not in _schemas:
        _schemas[key] = WriterSchema(writer_schema, named_types(writer_schema))
    return _read_avro(datum, writer, None, number), _schemas[key]


def _read_avro(content: bytes, writer: AvroSchema, reader: AvroSchema, number: int) -> Any:
    """Read a datum with a writer's schema, resolved to a reader's schema if there is one."""
    import fastavro

    datum = io.BytesIO(content)
    try:
        datum_value = fastavro.schemaless_reader(datum, writer, reader)
    except Exception as error:  # damaged data can raise any error
        raise RecordError(
            f"the value is not Avro of schema {number}: {type(error).__name__}: {error}"
        ) from error
    # Avro has no end marker, so a wrong schema may leave bytes unread.
    if datum.read(1):
        raise RecordError(f"bytes follow the datum of schema {number}")
    return datum_value


def _compatible_schema(writer: AvroSchema, reader: AvroSchema) -> AvroSchema:
    """Remove logical types from a writer's schema that the reader's schema lacks.

    If the reader declares a plain string or number, the value is returned as written, without
    conversion.
    """
    if isinstance(writer, list):
        return [_compatible_schema(branch, _non_null_branch(reader)) for branch in writer]
    if not isinstance(writer, Mapping):
        return writer
    reader = _non_null_branch(reader)
    compatible = dict(writer)
    if "logicalType" in compatible and not _have_same_logical_type(compatible, reader):
        del compatible["logicalType"]
    if isinstance(compatible.get("type"), list | Mapping):
        nested = reader.get("type") if isinstance(reader, Mapping) else reader
        compatible["type"] = _compatible_schema(
            compatible["type"], reader if _is_plain(reader) else nested
        )
    if "items" in compatible:
        compatible["items"] = _compatible_schema(
            compatible["items"], reader.get("items") if reader else None
        )
    if "fields" in compatible:
        reader_types = {
            field["name"]: field["type"] for field in (reader or {}).get("fields") or ()
        }
        compatible["fields"] = [
            {**field, "type": _compatible_schema(field["type"], reader_types.get(field["name"]))}
            for field in compatible["fields"]
        ]
    return compatible


def _non_null_branch(reader: AvroSchema) -> AvroSchema:
    """Return the first non-null type of a union as a mapping, or None."""
    if isinstance(reader, list):
        branches = [branch for branch in reader if branch != "null"]
        reader = branches[0] if len(branches) == 1 else None
    if isinstance(reader, Mapping) and isinstance(reader.get("type"), list | Mapping):
        return _non_null_branch(reader["type"])
    return reader if isinstance(reader, Mapping) else None


def _is_plain(reader: AvroSchema) -> bool:
    return not isinstance(reader, Mapping) or not isinstance(reader.get("type"), list | Mapping)


def _have_same_logical_type(writer: JsonMapping, reader: AvroSchema) -> bool:
    return (
        isinstance(reader, Mapping)
        and is_logical_type_supported(writer)
        and is_logical_type_supported(reader)
    )


def _convert_value(value: Any, dtype: pa.DataType, unit: Any) -> Any:
    """Convert a value for Arrow: times to UTC, UUIDs to strings.

    ``unit`` is the number of microseconds per unit of the reader's logical type; for records it
    maps field names to units.
    """
    if value is None:
        return None
    if pat.is_struct(dtype):
        units = unit or {}
        return {
            field.name: _convert_value(value.get(field.name), field.type, units.get(field.name))
            for field in dtype
        }
    if pat.is_list(dtype):
        return [_convert_value(item, dtype.value_type, unit) for item in value]
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes) and pat.is_string(dtype):
        return str(uuid.UUID(bytes=value))
    if isinstance(value, int) and pat.is_timestamp(dtype) and unit is not None:
        return value * unit
    return value


def _fetch_schema(registry: str, number: int) -> AvroSchema:
    """Fetch an Avro schema from the registry by its id."""
    registered = fetch_schema(registry, number, schema_type="AVRO")
    try:
        return json.loads(registered.text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"schema {number} of the registry is not an Avro schema") from error


def _parse_own_schema(text: str) -> AvroSchema:
    """Parse the schema in a job's settings.

    Raises:
        InvalidJob: The schema is not valid JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise _invalid_schema_error(error) from error


def _parse_once(key: tuple[object, ...], load: Callable[[], AvroSchema]) -> AvroSchema:
    """Return a schema parsed by fastavro. It is loaded once per key."""
    if key in _schemas:
        return _schemas[key]
    try:
        import fastavro
    except ImportError as error:
        raise missing_extra("fastavro", "kafka") from error
    schema = load()
    try:
        _schemas[key] = fastavro.parse_schema(schema)
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        if key[0] == "reader":
            raise _invalid_schema_error(error) from error
        raise RecordError(f"the writer's schema cannot be read: {error}") from error
    return _schemas[key]


def _invalid_schema_error(error: Exception) -> InvalidJob:
    return InvalidJob(
        f"schema= is not an Avro schema: {type(error).__name__}: {error}",
        hint='{"type": "record", "name": "click", "fields": [...]}',
    )
