"""Record keys as primary keys of rows, for records that delete.

A key is JSON (an object with the columns, or one value), text, or Avro in the wire format of schema
registries. Kafka Connect may wrap it in an envelope ``{"schema": ..., "payload": ...}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featurestore.arrow.json_columns import JsonColumns
from featurestore.arrow.json_text import JsonError, parse_json
from featurestore.arrow.text_values import TextRules
from featurestore_connectors.kafka import connect_types
from featurestore_connectors.kafka.avro_values import AvroError, read_datum


@dataclass(frozen=True)
class KeyReader:
    """Decodes keys to the columns of a schema; ``renames`` are names of key fields that differ."""

    schema: pa.Schema
    renames: Mapping[str, str]
    registry: str | None = None

    def read(self, keys: pa.Array) -> tuple[Mapping[str, pa.Array], pa.Array]:
        """Return the columns, and for each key the reason why it is unreadable, or null."""
        members: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        for key in keys.to_pylist():
            key_fields, reason = self._members(key)
            members.append(key_fields)
            reasons.append(reason)
        columns, bad = JsonColumns(self.schema, rules=TextRules(declared=True)).convert(members)
        for row, reason in bad.items():
            reasons[row] = reasons[row] or f"the key: {reason}"
        return columns, pa.array(reasons, pa.string())

    def _members(self, key: bytes | None) -> tuple[dict[str, Any], str | None]:
        if key is None:
            return {}, "the record has neither key nor value"
        try:
            value = self._value(key)
        except (AvroError, UnicodeDecodeError) as error:
            return {}, f"the key cannot be read: {error}"
        if isinstance(value, dict):
            names = {name: self.renames.get(name, name) for name in self.schema.names}
            absent = [name for name in names.values() if name not in value]
            if absent:
                return {}, f"the key has no {absent[0]!r}"
            return {name: value[foreign] for name, foreign in names.items()}, None
        if len(self.schema) != 1:
            return {}, "the key has one value, and the primary key has more columns"
        return {self.schema.names[0]: value}, None

    def _value(self, key: bytes) -> Any:
        if self.registry is not None and key[:1] == b"\0":
            value, writer_schema = read_datum(key, self.registry)
            return connect_types.from_avro(value, writer_schema.schema, writer_schema.named_types)
        text = key.decode()
        is_text = len(self.schema) == 1 and pa.types.is_string(self.schema.types[0])
        try:
            value = parse_json(text, exact=True)
        except JsonError:
            return text
        if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
            return connect_types.from_json(value["payload"], value["schema"])
        if is_text and not isinstance(value, str | dict):
            return text
        return value
