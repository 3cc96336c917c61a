"""JSON values in the wire format of schema registries: the header, and a JSON object.

A value must be valid by the job's JSON Schema. Clients do not have to validate what they write, so
the writer's schema is not evaluated; with a registry it must exist, and be a JSON Schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featurestore.arrow.json_columns import JsonColumns, parse_object
from featurestore.arrow.json_schemas import JsonNode, parse_json_schema
from featurestore.arrow.json_text import JsonError
from featurestore.arrow.text_values import TextRules
from featurestore_connectors.kafka.record_values import Decoded, read_each
from featurestore_connectors.kafka.schema_registry import RecordError, fetch_schema, split_header


@dataclass(frozen=True)
class JsonSchemaValues:
    """Decoder of JSON records that are valid by the job's JSON Schema."""

    schema: pa.Schema
    text: str
    registry: str | None = None
    node: JsonNode = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "node", parse_json_schema(self.text))

    def decode(self, values: pa.Array) -> Decoded:
        rows, reasons = read_each(values, self._read)
        objects = [row or {} for row in rows]
        columns, bad = JsonColumns(self.schema, rules=TextRules(declared=True)).convert(objects)
        for row_number, reason in bad.items():
            reasons[row_number] = reasons[row_number] or reason
        return Decoded(columns, pa.array(reasons, pa.string()))

    def _read(self, value: bytes) -> Any:
        """Return the valid object in a value."""
        number, content = split_header(value)
        if self.registry is not None:
            fetch_schema(self.registry, number, schema_type="JSON")
        return read_json_object(content, self.node)


def read_json_object(content: bytes, node: JsonNode) -> Any:
    """Return the members of an object that is valid by a schema."""
    try:
        members, reason = parse_object(content.decode(), exact=True)
    except UnicodeDecodeError:
        raise RecordError("the value is not UTF-8 text") from None
    if reason is not None:
        raise RecordError(reason)
    try:
        return node.read(members)
    except JsonError as error:
        raise RecordError(str(error)) from None
