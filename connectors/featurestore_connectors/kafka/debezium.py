"""Change events of Debezium: the state of a database row before and after a change.

In JSON with or without the schema that ``schemas.enable`` adds, and in Avro with a schema registry.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.json_columns import JsonColumns, parse_object
from featurestore.arrow.json_text import NumberText, parse_number
from featurestore.arrow.text_values import TextRules
from featurestore.arrow.types import TIMESTAMP
from featurestore.model.stream import RECORD_FIELDS
from featurestore_connectors.kafka import record_values
from featurestore_connectors.kafka.avro_values import AvroError, read_datum
from featurestore_connectors.kafka.record_values import Decoded, as_texts, check_fields

_WRITES = {"c": "create", "r": "read", "u": "update", "d": "delete"}
# The placeholder of connectors for values that are not in the database's log.
_UNAVAILABLE = "__debezium_unavailable_value"
_UNSUPPORTED = {"t": "truncates the table", "m": "is a message of the database's log"}


@dataclass(frozen=True)
class _Event:
    """A parsed change event; ``reason`` is why it cannot be applied."""

    row: Mapping[str, Any] | None = None
    operation: str | None = None
    changed: int | None = None
    captured: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class DebeziumValues:
    """Decodes change events to the columns of the table's schema.

    Inserts, updates and snapshot rows become rows, deletes delete their key. Times of the change
    (of the database, ``source.ts_*``) and of its capture (``ts_*``) are in microseconds.
    """

    schema: pa.Schema
    primary_key: tuple[str, ...]
    registry: str | None = None

    def __post_init__(self) -> None:
        check_fields(self.schema)

    def decode(self, values: pa.Array) -> Decoded:
        events = self._events(values)
        parser = JsonColumns(self.schema, rules=TextRules(declared=True))
        columns, bad = parser.convert([self._members(event) for event in events])
        reasons = [
            event.reason or self._unavailable(event) or bad.get(row)
            for row, event in enumerate(events)
        ]
        operations = pa.array([event.operation for event in events], RECORD_FIELDS["operation"])
        deletes = pc.fill_null(pc.equal(operations, "delete"), False)
        fields = {
            "change_timestamp": _instants(events, "changed"),
            "capture_timestamp": _instants(events, "captured"),
            "operation": operations,
        }
        return Decoded(columns, pa.array(reasons, pa.string()), deletes, fields)

    def _members(self, event: _Event) -> dict[str, Any]:
        """Return the values of an event; of a deleted row only its key, as others may be missing."""
        row = dict(event.row or {})
        if event.operation == "delete":
            return {name: row.get(name) for name in self.primary_key}
        return row

    def _unavailable(self, event: _Event) -> str | None:
        """Return the reason why an event is incomplete: a large value that did not change."""
        row = self._members(event)
        for name in self.schema.names:
            if row.get(name) == _UNAVAILABLE:
                return (
                    f"{name} did not change and is not in the event (REPLICA IDENTITY FULL has it)"
                )
        return None

    def _events(self, values: pa.Array) -> list[_Event]:
        if self.registry is not None:
            return [self._parse_avro_event(value) for value in values.to_pylist()]
        texts, broken = as_texts(values)
        return [
            _Event(reason="the value is not UTF-8 text") if is_broken else _parse_json_event(text)
            for text, is_broken in zip(texts.to_pylist(), broken.to_pylist(), strict=True)
        ]

    def _parse_avro_event(self, value: bytes | None) -> _Event:
        if value is None:
            return _Event(reason="the record has no value")
        assert self.registry is not None
        try:
            envelope, writer_schema = read_datum(value, self.registry)
        except AvroError as error:
            return _Event(reason=str(error))
        schema = writer_schema.schema
        fields = schema.get("fields", ()) if isinstance(schema, Mapping) else ()
        types = {each["name"]: each["type"] for each in fields}
        if isinstance(envelope, Mapping):
            envelope = dict(envelope)
            for side in ("before", "after"):
                if side in envelope:
                    value = envelope[side]
                    envelope[side] = record_values.from_avro(
                        value, types[side], writer_schema.named_types
                    )
        return _parse_envelope(envelope)


def _parse_json_event(text: str | None) -> _Event:
    if text is None:
        return _Event(reason="the record has no value")
    envelope, reason = parse_object(text, exact=True)
    if reason is not None:
        return _Event(reason=reason)
    if envelope.keys() == {"schema", "payload"}:
        envelope = record_values.from_json(envelope["payload"], envelope["schema"])
    return _parse_envelope(envelope)


def _parse_envelope(envelope: Any) -> _Event:
    """Parse an envelope; an invalid one becomes an event with a reason."""
    if not isinstance(envelope, Mapping) or "op" not in envelope:
        return _Event(reason="the value is not a change event: it has no 'op'")
    operation = envelope["op"]
    if operation in _UNSUPPORTED:
        return _Event(reason=f"the change event {_UNSUPPORTED[operation]} (op {operation!r})")
    if operation not in _WRITES:
        return _Event(reason=f"the change event has an unknown op {operation!r}")
    side = "before" if operation == "d" else "after"
    row, source = envelope.get(side), envelope.get("source")
    if not isinstance(row, Mapping):
        return _Event(reason=f"the change event has no {side!r}")
    changed = _micros(source if isinstance(source, Mapping) else {})
    return _Event(row, _WRITES[operation], changed, _micros(envelope))


def _micros(times: Mapping[str, Any]) -> int | None:
    """Return the time of an event with the finest unit, in microseconds."""
    for name, factor in (("ts_us", 1), ("ts_ms", 1000)):
        value = times.get(name)
        number = parse_number(value) if isinstance(value, NumberText) else value
        if isinstance(number, int) and not isinstance(number, bool) and abs(number) < 2**53:
            return number * factor
    return None


def _instants(events: list[_Event], name: str) -> pa.Array:
    micros = [getattr(event, name) for event in events]
    return pa.array(micros, pa.int64()).cast(TIMESTAMP)
