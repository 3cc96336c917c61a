"""Values in Avro, in the wire format of schema registries: a zero, the id of a schema, the datum.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop
"""

from __future__ import annotations

import io
import json
import struct
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidJob, SourceUnavailable, missing_extra
from featurestore.model.avro import has_meaning, units_of
from featurestore_connectors.kafka.connect_types import named_types
from featurestore_connectors.kafka.values import Decoded

_HEADER = struct.Struct(">bI")
_PATIENCE = 10.0
_schemas: dict[Any, Any] = {}
_fetching = threading.Lock()


class AvroError(ValueError):
    """A datum cannot be read; the text is the reason."""


@dataclass(frozen=True)
class AvroValues:
    """Records of Avro, read as the job's own schema says.

    Without a registry the writers' schema has to be that one; with it, whatever resolves to it.
    """

    schema: pa.Schema
    text: str
    registry: str | None = None

    def __post_init__(self) -> None:
        _parsed(("reader", self.text), lambda: _own_schema(self.text))

    def decode(self, values: pa.Array) -> Decoded:
        rows: list[dict[str, Any] | None] = []
        reasons: list[str | None] = []
        for value in values.to_pylist():
            row, reason = self._read(value)
            rows.append(row)
            reasons.append(reason)
        units = units_of(self.text)
        columns = {}
        for field in self.schema:
            columns[field.name] = _column(rows, reasons, field, units.get(field.name))
        return Decoded(columns, pa.array(reasons, pa.string()))

    def _read(self, value: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
        if value is None:
            return None, "the record has no value"
        try:
            number, datum = _opened(value)
            writer = reader = _parsed(("own", self.text), self._own_as_read)
            if self.registry is not None:
                key = ("writer", self.registry, number, self.text)
                writer = _parsed(key, partial(self._written_as_read, number))
            return _read(datum, writer, reader, number), None
        except AvroError as error:
            return None, str(error)

    def _own_as_read(self) -> Any:
        own = _own_schema(self.text)
        return _as_read(own, own)

    def _written_as_read(self, number: int) -> Any:
        assert self.registry is not None
        return _as_read(_registered(self.registry, number), _own_schema(self.text))


@dataclass(frozen=True)
class WriterSchema:
    """A schema of a registry, and its records, enums and fixed types by their names."""

    schema: Any
    named: Mapping[str, Any]


def read_datum(value: bytes, registry: str) -> tuple[Any, WriterSchema]:
    """Return a datum without logical types (numbers, texts, bytes), and its schema.

    Raises:
        AvroError: It cannot be read, or the registry does not have its schema.
    """
    number, datum = _opened(value)
    written = _registered(registry, number)
    writer = _parsed(("plain", registry, number), lambda: _as_read(written, None))
    key = ("named", registry, number)
    if key not in _schemas:
        _schemas[key] = WriterSchema(written, named_types(written))
    return _read(datum, writer, None, number), _schemas[key]


def _opened(value: bytes) -> tuple[int, io.BytesIO]:
    """Return the id of a datum's schema, and the datum."""
    if len(value) < _HEADER.size or value[0] != 0:
        raise AvroError("the value does not begin as the wire format of a schema registry does")
    datum = io.BytesIO(value)
    datum.seek(_HEADER.size)
    return _HEADER.unpack_from(value)[1], datum


def _read(datum: io.BytesIO, writer: Any, reader: Any, number: int) -> Any:
    import fastavro

    try:
        found = fastavro.schemaless_reader(datum, writer, reader)
    except Exception as error:  # damaged data raises whatever it happens to hit
        raise AvroError(
            f"the value is no Avro of schema {number}: {type(error).__name__}: {error}"
        ) from error
    if datum.read(1):
        raise AvroError(f"bytes follow the datum of schema {number}")
    return found


def _as_read(written: Any, own: Any) -> Any:
    """Return a writer's schema with those logical types alone that the reader's has as well.

    Values of the others come as what they are written as: a reader that asks for a string or a
    number gets it.
    """
    if isinstance(written, list):
        return [_as_read(each, _branch(own)) for each in written]
    if not isinstance(written, Mapping):
        return written
    own = _branch(own)
    changed = dict(written)
    if "logicalType" in changed and not _is_wanted(changed, own):
        del changed["logicalType"]
    if isinstance(changed.get("type"), list | Mapping):
        below = own.get("type") if isinstance(own, Mapping) else own
        changed["type"] = _as_read(changed["type"], own if _is_plain(own) else below)
    if "items" in changed:
        changed["items"] = _as_read(changed["items"], own.get("items") if own else None)
    if "fields" in changed:
        wanted = {}
        for each in (own or {}).get("fields") or ():
            wanted[each["name"]] = each["type"]
        fields = []
        for each in changed["fields"]:
            fields.append({**each, "type": _as_read(each["type"], wanted.get(each["name"]))})
        changed["fields"] = fields
    return changed


def _branch(own: Any) -> Any:
    """Return the type of a union that is not null, as a mapping; None where there is none."""
    if isinstance(own, list):
        others = [each for each in own if each != "null"]
        own = others[0] if len(others) == 1 else None
    if isinstance(own, Mapping) and isinstance(own.get("type"), list | Mapping):
        return _branch(own["type"])
    return own if isinstance(own, Mapping) else None


def _is_plain(own: Any) -> bool:
    return not isinstance(own, Mapping) or not isinstance(own.get("type"), list | Mapping)


def _is_wanted(written: Mapping[str, Any], own: Any) -> bool:
    return isinstance(own, Mapping) and has_meaning(written) and has_meaning(own)


def _column(
    rows: list[dict[str, Any] | None],
    reasons: list[str | None],
    field: pa.Field,
    unit: Any,
) -> pa.Array:
    """Return the values of a column; those that do not fit are null and have a reason."""
    values = [
        None if row is None else _value(row.get(field.name), field.type, unit) for row in rows
    ]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    for number, value in enumerate(values):
        try:
            pa.array([value], field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            values[number] = None
            reasons[number] = reasons[number] or f"{field.name} is no {field.type}: {error}"
    return pa.array(values, field.type)


def _value(value: Any, kind: pa.DataType, unit: Any) -> Any:
    """Return a value as Arrow takes it: instants in UTC, uuids as text.

    ``unit`` is how many microseconds a number of the reader's logical type has: of one column, or
    of the fields of a record by name.
    """
    if value is None:
        return None
    if pat.is_struct(kind):
        units = unit or {}
        parts = {}
        for number in range(kind.num_fields):
            field = kind.field(number)
            parts[field.name] = _value(value.get(field.name), field.type, units.get(field.name))
        return parts
    if pat.is_list(kind):
        return [_value(item, kind.value_type, unit) for item in value]
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes) and pat.is_string(kind):
        return str(uuid.UUID(bytes=value))
    if isinstance(value, int) and pat.is_timestamp(kind) and unit is not None:
        return value * unit
    return value


def _own_schema(text: str) -> Any:
    """Return a job's own schema.

    Raises:
        InvalidJob: It is no schema.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise _invalid(error) from error


def _parsed(key: Any, load: Callable[[], Any]) -> Any:
    """Return a schema as the library wants it; it is loaded once."""
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
            raise _invalid(error) from error
        raise AvroError(f"the writer's schema cannot be read: {error}") from error
    return _schemas[key]


def _invalid(error: Exception) -> InvalidJob:
    return InvalidJob(
        f"schema= is no schema of Avro: {type(error).__name__}: {error}",
        hint='{"type": "record", "name": "click", "fields": [...]}',
    )


def _registered(registry: str, number: int) -> Any:
    """Return a schema of the registry by its id.

    Raises:
        AvroError: It has none such.
        SourceUnavailable: It does not answer.
    """
    key = ("registered", registry, number)
    with _fetching:
        if key in _schemas:
            return _schemas[key]
        address = f"{registry.rstrip('/')}/schemas/ids/{number}"
        try:
            with urllib.request.urlopen(address, timeout=_PATIENCE) as answer:
                told = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                raise AvroError(f"the schema registry has no schema {number}") from None
            raise _unreachable(registry, error) from None
        except (OSError, ValueError) as error:
            raise _unreachable(registry, error) from error
        try:
            _schemas[key] = json.loads(told["schema"])
        except (KeyError, TypeError, ValueError) as error:
            raise AvroError(f"schema {number} of the registry is no schema of Avro") from error
        return _schemas[key]


def _unreachable(registry: str, error: Exception) -> SourceUnavailable:
    return SourceUnavailable(
        f"The schema registry {registry} does not answer as one: {error}",
        hint="is schema_registry= its address? A local schema needs none",
    )
