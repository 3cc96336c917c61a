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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featurestore.errors import InvalidJob, SourceUnavailable, missing_extra

_HEADER = struct.Struct(">bI")
_PATIENCE = 10.0
_schemas: dict[tuple[str | None, int | str], Any] = {}
_fetching = threading.Lock()


@dataclass(frozen=True)
class AvroValues:
    """Records of Avro, read as the job's own schema says.

    Without a registry the writers' schema has to be that one; with it, whatever resolves to it.
    """

    schema: pa.Schema
    text: str
    registry: str | None = None

    def __post_init__(self) -> None:
        _reader_schema(self.text)

    def decode(self, values: pa.Array) -> tuple[Mapping[str, pa.Array], pa.Array]:
        rows: list[dict[str, Any] | None] = []
        reasons: list[str | None] = []
        for value in values.to_pylist():
            row, reason = self._read(value)
            rows.append(row)
            reasons.append(reason)
        columns = {}
        for field in self.schema:
            columns[field.name] = _column(rows, reasons, field)
        return columns, pa.array(reasons, pa.string())

    def _read(self, value: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
        import fastavro

        if value is None:
            return None, "the record has no value"
        if len(value) < _HEADER.size or value[0] != 0:
            return None, "the value does not begin as the wire format of a schema registry does"
        number = _HEADER.unpack_from(value)[1]
        reader = _reader_schema(self.text)
        writer = reader
        if self.registry is not None:
            writer = _writer_schema(self.registry, number)
            if writer is None:
                return None, f"the schema registry has no schema {number}"
        datum = io.BytesIO(value)
        datum.seek(_HEADER.size)
        try:
            found: Any = fastavro.schemaless_reader(datum, writer, reader)
        except Exception as error:  # damaged data raises whatever it happens to hit
            return None, f"the value is no Avro of schema {number}: {type(error).__name__}: {error}"
        if datum.read(1):
            return None, f"bytes follow the datum of schema {number}"
        return found, None


def _column(
    rows: list[dict[str, Any] | None], reasons: list[str | None], field: pa.Field
) -> pa.Array:
    """Return the values of a column; those that do not fit are null and have a reason."""
    values = [None if row is None else row.get(field.name) for row in rows]
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


def _reader_schema(text: str) -> Any:
    """Return a job's own schema as the library wants it."""
    key = (None, text)
    if key not in _schemas:
        try:
            import fastavro
        except ImportError as error:
            raise missing_extra("fastavro", "kafka") from error
        try:
            _schemas[key] = fastavro.parse_schema(json.loads(text))
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise InvalidJob(
                f"schema= is no schema of Avro: {type(error).__name__}: {error}",
                hint='{"type": "record", "name": "click", "fields": [...]}',
            ) from error
    return _schemas[key]


def _writer_schema(registry: str, number: int) -> Any:
    """Return a schema of the registry by its id, None where it has none such."""
    import fastavro

    key = (registry, number)
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
                return None
            raise _unreachable(registry, error) from None
        except (OSError, ValueError) as error:
            raise _unreachable(registry, error) from error
        _schemas[key] = fastavro.parse_schema(json.loads(told["schema"]))
        return _schemas[key]


def _unreachable(registry: str, error: Exception) -> SourceUnavailable:
    return SourceUnavailable(
        f"The schema registry {registry} does not answer as one: {error}",
        hint="is schema_registry= its address? A local schema needs none",
    )
