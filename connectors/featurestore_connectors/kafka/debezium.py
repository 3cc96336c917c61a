"""Change events of Debezium: what a row of a database was before and is after a change.

In JSON with or without the schema that ``schemas.enable`` adds, and in Avro by a schema registry.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.model.json_columns import JsonColumns, parse_object
from featurestore.model.json_text import NumberText, number_of
from featurestore.model.stream import RECORD_FIELDS
from featurestore.model.text_values import TextRules
from featurestore.model.types import TIMESTAMP
from featurestore_connectors.kafka import connect_types
from featurestore_connectors.kafka.avro_values import AvroError, read_datum
from featurestore_connectors.kafka.json_values import check_fields
from featurestore_connectors.kafka.values import Decoded, as_texts

_WRITES = {"c": "create", "r": "read", "u": "update", "d": "delete"}
# What connectors put for values that the database's log does not have.
_UNAVAILABLE = "__debezium_unavailable_value"
_OTHERS = {"t": "truncates the table", "m": "is a message of the database's log"}


@dataclass(frozen=True)
class _Event:
    """What one change event says; ``reason`` is why it cannot be applied."""

    row: Mapping[str, Any] | None = None
    operation: str | None = None
    changed: int | None = None
    captured: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class DebeziumValues:
    """Change events with the columns of the table that the schema names.

    Inserts, updates and rows of snapshots are rows, deletes delete their key. Times of the change
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
        reasons: list[str | None] = []
        for row, event in enumerate(events):
            reasons.append(event.reason or self._unavailable(event) or bad.get(row))
        operations = pa.array([event.operation for event in events], RECORD_FIELDS["operation"])
        deletes = pc.fill_null(pc.equal(operations, "delete"), False)
        fields = {
            "change_timestamp": _instants(events, "changed"),
            "capture_timestamp": _instants(events, "captured"),
            "operation": operations,
        }
        return Decoded(columns, pa.array(reasons, pa.string()), deletes, fields)

    def _members(self, event: _Event) -> dict[str, Any]:
        """Return the values of an event: of a deleted row its key, the rest may not be there."""
        row = dict(event.row or {})
        if event.operation == "delete":
            return {name: row.get(name) for name in self.primary_key}
        return row

    def _unavailable(self, event: _Event) -> str | None:
        """Return the reason of an event that lacks a large value which did not change."""
        row = self._members(event)
        for name in self.schema.names:
            if row.get(name) == _UNAVAILABLE:
                return (
                    f"{name} did not change and is not in the event (REPLICA IDENTITY FULL has it)"
                )
        return None

    def _events(self, values: pa.Array) -> list[_Event]:
        if self.registry is not None:
            return [self._of_avro(value) for value in values.to_pylist()]
        texts, broken = as_texts(values)
        events = []
        for text, is_broken in zip(texts.to_pylist(), broken.to_pylist(), strict=True):
            event = _Event(reason="the value is not UTF-8 text")
            events.append(event if is_broken else _of_json(text))
        return events

    def _of_avro(self, value: bytes | None) -> _Event:
        if value is None:
            return _Event(reason="the record has no value")
        assert self.registry is not None
        try:
            envelope, written = read_datum(value, self.registry)
        except AvroError as error:
            return _Event(reason=str(error))
        schema = written.schema
        fields = schema.get("fields", ()) if isinstance(schema, Mapping) else ()
        types = {each["name"]: each["type"] for each in fields}
        if isinstance(envelope, Mapping):
            envelope = dict(envelope)
            for side in ("before", "after"):
                if side in envelope:
                    value = envelope[side]
                    envelope[side] = connect_types.from_avro(value, types[side], written.named)
        return _event(envelope)


def _of_json(text: str | None) -> _Event:
    if text is None:
        return _Event(reason="the record has no value")
    envelope, reason = parse_object(text, exact=True)
    if reason is not None:
        return _Event(reason=reason)
    if envelope.keys() == {"schema", "payload"}:
        envelope = connect_types.from_json(envelope["payload"], envelope["schema"])
    return _event(envelope)


def _event(envelope: Any) -> _Event:
    """Return what an envelope says; an event with the reason where it is none."""
    if not isinstance(envelope, Mapping) or "op" not in envelope:
        return _Event(reason="the value is no change event: it has no 'op'")
    operation = envelope["op"]
    if operation in _OTHERS:
        return _Event(reason=f"the change event {_OTHERS[operation]} (op {operation!r})")
    if operation not in _WRITES:
        return _Event(reason=f"the change event has an unknown op {operation!r}")
    side = "before" if operation == "d" else "after"
    row, source = envelope.get(side), envelope.get("source")
    if not isinstance(row, Mapping):
        return _Event(reason=f"the change event has no {side!r}")
    changed = _micros(source if isinstance(source, Mapping) else {})
    return _Event(row, _WRITES[operation], changed, _micros(envelope))


def _micros(told: Mapping[str, Any]) -> int | None:
    """Return the finest time of an event that a timestamp holds, in microseconds."""
    for name, factor in (("ts_us", 1), ("ts_ms", 1000)):
        value = told.get(name)
        number = number_of(value) if isinstance(value, NumberText) else value
        if isinstance(number, int) and not isinstance(number, bool) and abs(number) < 2**53:
            return number * factor
    return None


def _instants(events: list[_Event], name: str) -> pa.Array:
    micros = [getattr(event, name) for event in events]
    return pa.array(micros, pa.int64()).cast(TIMESTAMP)
