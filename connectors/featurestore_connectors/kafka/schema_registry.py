"""Schemas of a schema registry, and the header of records, which refers to a schema by its id.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop
"""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from featurestore.errors import SourceUnavailable
from featurestore.model.json_object import JsonDict
from featurestore.model.runtime import ForkSafeLock

# The zero byte and the schema id, in big-endian order.
_HEADER = struct.Struct(">bI")
_TIMEOUT_SECONDS = 10.0
# Limits of received schemas. The text of a schema is escaped in the response.
_MAX_RESPONSE_BYTES = 2 << 20
_MAX_REFERENCES = 200
# Schemas by registry and id, which are never removed: the schema of an id does not change.
_schemas: dict[tuple[str, int], RegisteredSchema] = {}
# One thread requests a schema while the others wait for it.
_fetching = ForkSafeLock()


class RecordError(ValueError):
    """A record cannot be read. The message is the reason."""


@dataclass(frozen=True)
class RegisteredSchema:
    """The text of a schema, its type in the registry ("AVRO", "JSON", "PROTOBUF"), and imports."""

    text: str
    schema_type: str
    imports: tuple[str, ...] = ()


def split_header(value: bytes) -> tuple[int, bytes]:
    """Split a value into schema id and content.

    Raises:
        RecordError: The value has no header.

    >>> split_header(bytes([0, 0, 0, 0, 7]) + b"content")
    (7, b'content')
    """
    if len(value) < _HEADER.size or value[0] != 0:
        raise RecordError("the value does not begin with the header of a schema registry")
    return _HEADER.unpack_from(value)[1], value[_HEADER.size :]


def fetch_schema(registry: str, number: int, *, schema_type: str | None) -> RegisteredSchema:
    """Fetch a schema from the registry by its id, once per process.

    Raises:
        RecordError: The registry does not contain the schema, it has another type, or it exceeds
            the limits.
        SourceUnavailable: The registry does not respond.
    """
    key = (registry, number)
    with _fetching:
        if key not in _schemas:
            response = _request(registry, f"schemas/ids/{number}", f"schema {number}")
            imports: dict[tuple[str, str], str] = {}
            _add_imports(registry, number, response, imports)
            registered_type = str(response.get("schemaType") or "AVRO")
            texts = tuple(imports.values())
            _schemas[key] = RegisteredSchema(response["schema"], registered_type, texts)
        schema = _schemas[key]
    if schema_type not in (None, schema.schema_type):
        raise RecordError(
            f"schema {number} of the registry has the type {schema.schema_type}, not {schema_type}"
        )
    return schema


def _add_imports(
    registry: str, number: int, response: dict[str, Any], imports: dict[tuple[str, str], str]
) -> None:
    """Add the texts of all schemas to which a schema refers, by subject and version."""
    references = response.get("references")
    for reference in references if isinstance(references, list) else ():
        try:
            subject, version = str(reference["subject"]), str(reference["version"])
        except (KeyError, TypeError) as error:
            raise RecordError(f"schema {number} has an invalid reference") from error
        if (subject, version) in imports:
            continue
        if len(imports) == _MAX_REFERENCES:
            raise RecordError(f"schema {number} has more than {_MAX_REFERENCES} references")
        quoted = [urllib.parse.quote(text, safe="") for text in (subject, version)]
        path = f"subjects/{quoted[0]}/versions/{quoted[1]}"
        referenced = _request(registry, path, f"version {version} of {subject!r}")
        imports[subject, version] = referenced["schema"]
        if sum(map(len, imports.values())) > _MAX_RESPONSE_BYTES:
            raise RecordError(
                f"the references of schema {number} have more than {_MAX_RESPONSE_BYTES:,} bytes"
            )
        _add_imports(registry, number, referenced, imports)


def _request(registry: str, path: str, noun: str) -> JsonDict:
    """Return the response of the registry, an object with the text of a schema."""
    try:
        address = f"{registry.rstrip('/')}/{path}"
        with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as body:
            content = body.read(_MAX_RESPONSE_BYTES + 1)
        if len(content) > _MAX_RESPONSE_BYTES:
            raise RecordError(
                f"{noun} of the registry is larger than {_MAX_RESPONSE_BYTES:,} bytes"
            )
        response = json.loads(content)
    except RecordError:
        raise
    except urllib.error.HTTPError as error:
        # The error keeps the response open.
        error.close()
        # A missing schema makes a record invalid. Other errors of the registry may be temporary.
        if error.code == 404:
            raise RecordError(f"the schema registry has no {noun}") from None
        raise _unreachable_error(registry, error) from None
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        raise _unreachable_error(registry, error) from error
    if not isinstance(response, dict) or not isinstance(response.get("schema"), str):
        raise RecordError(f"the response of the registry has no text of {noun}")
    return response


def _unreachable_error(registry: str, error: Exception) -> SourceUnavailable:
    return SourceUnavailable(
        f"The schema registry {registry} does not respond: {error}",
        hint="check the address schema_registry=, or omit it if the records have the schema of the job",
    )
