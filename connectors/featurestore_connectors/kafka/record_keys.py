"""Keys of records, which have the primary key of the rows that an upsert deletes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from featurestore.arrow.json_columns import JsonColumns
from featurestore.arrow.json_text import JsonError, parse_json
from featurestore.arrow.text_values import TextRules
from featurestore.model.json_object import JsonDict
from featurestore_connectors.kafka import record_values
from featurestore_connectors.kafka.avro_values import read_datum
from featurestore_connectors.kafka.protobuf_values import read_registered
from featurestore_connectors.kafka.schema_registry import RecordError, fetch_schema, split_header


@dataclass(frozen=True)
class KeyReader:
    """Decodes keys to schema columns; ``renames`` maps columns to key fields with other names."""

    schema: pa.Schema
    renames: Mapping[str, str]
    registry: str | None = None

    def read(self, keys: pa.Array) -> tuple[Mapping[str, pa.Array], pa.Array]:
        """Return the columns, and for each key the reason why it cannot be read, or null."""
        members: list[JsonDict] = []
        reasons: list[str | None] = []
        for key in keys.to_pylist():
            key_fields, reason = self._members(key)
            members.append(key_fields)
            reasons.append(reason)
        columns, bad = JsonColumns(self.schema, rules=TextRules(declared=True)).convert(members)
        for row, reason in bad.items():
            reasons[row] = reasons[row] or f"the key: {reason}"
        return columns, pa.array(reasons, pa.string())

    def _members(self, key: bytes | None) -> tuple[JsonDict, str | None]:
        """Return the fields of a key by column, or the reason why it cannot be read."""
        if key is None:
            return {}, "the record has neither key nor value"
        try:
            value, has_schema = self._value(key)
        except (RecordError, UnicodeDecodeError) as error:
            return {}, f"the key cannot be read: {error}"
        if isinstance(value, dict):
            names = {name: self.renames.get(name, name) for name in self.schema.names}
            absent = [name for name in names.values() if name not in value]
            if absent:
                return {}, f"the key has no {absent[0]!r}"
            types = zip(names.items(), self.schema.types, strict=True)
            return {
                name: record_values.from_text(value[foreign], dtype, has_schema=has_schema)
                for (name, foreign), dtype in types
            }, None
        if len(self.schema) != 1:
            return {}, "the key has one value, but the primary key has several columns"
        return {self.schema.names[0]: value}, None

    def _value(self, key: bytes) -> tuple[object, bool]:
        """Parse a key: of a registry, JSON, or a plain string. Also return whether it has a schema."""
        # The format of a key does not depend on the value. Only a header begins with a zero byte.
        if self.registry is not None and key[:1] == b"\0":
            return self._registered_value(key, self.registry)
        text = key.decode()
        is_text = len(self.schema) == 1 and pa.types.is_string(self.schema.types[0])
        try:
            value = parse_json(text, exact=True)
        except JsonError:
            # Keys are often plain strings, which are not JSON.
            return text, False
        if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
            return record_values.from_json(value["payload"], value["schema"]), True
        # A key such as 007 is a JSON number, but a string column keeps its digits.
        if is_text and not isinstance(value, str | dict):
            return text, False
        return value, False

    def _registered_value(self, key: bytes, registry: str) -> tuple[object, bool]:
        """Read a key by the type of its schema; also return whether times and decimals are texts."""
        number, content = split_header(key)
        schema_type = fetch_schema(registry, number, schema_type=None).schema_type
        if schema_type == "PROTOBUF":
            return read_registered(key, registry), False
        if schema_type == "JSON":
            try:
                return parse_json(content.decode(), exact=True), False
            except JsonError as error:
                raise RecordError(f"it is not JSON: {error}") from error
        value, writer_schema = read_datum(key, registry)
        value = record_values.from_avro(value, writer_schema.schema, writer_schema.named_types)
        return value, True
