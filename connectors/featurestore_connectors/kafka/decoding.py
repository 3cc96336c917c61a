"""Decode records to rows, with a function on record batches that all engines use.

Decoding never fails on a record. An unreadable record becomes a row with an error reason.

Debezium change events contain the state of a database row before and after a change. They are JSON,
with or without the schema that ``schemas.enable`` adds, or Avro with a schema registry.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.bounds import (
    find_oversized_rows,
    max_cell_bytes,
    out_of_range_mask,
    variable_size_columns,
)
from featurestore.arrow.json_columns import JsonColumns, parse_object
from featurestore.arrow.json_text import NumberText, parse_number
from featurestore.arrow.text_values import TextRules
from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import FeatureStoreError, InvalidJob, listing
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.stream import RECORD_FIELDS, StreamSpec
from featurestore.plugins.source import (
    RECORD_DELETES,
    RECORD_ERROR,
    STORED_COLUMNS,
    DecoderRequest,
)
from featurestore_connectors.kafka import record_values
from featurestore_connectors.kafka.avro_values import AvroValues, read_datum
from featurestore_connectors.kafka.protobuf_values import ProtobufValues
from featurestore_connectors.kafka.record_keys import KeyReader
from featurestore_connectors.kafka.record_values import (
    Decoded,
    JsonSchemaValues,
    JsonValues,
    ValueDecoder,
    check_fields,
    to_strings,
)
from featurestore_connectors.kafka.schema_registry import RecordError

_WRITES = {"c": "create", "r": "read", "u": "update", "d": "delete"}
_UNSUPPORTED = {"t": "truncates the table", "m": "is a message of the database's log"}
# The columns of the records that both readers produce.
RECORDS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
_RECORD_FIELDS = pa.schema(
    [
        (RECORD_ERROR, pa.string()),
        (RECORD_DELETES, pa.bool_()),
        ("record_topic", pa.string()),
        ("record_partition", pa.int32()),
        ("record_offset", pa.int64()),
        ("record_timestamp", TIMESTAMP),
        ("record_key", pa.binary()),
        ("record_value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class RawValues:
    """Decoder that returns values unchanged, as bytes or strings."""

    column: str
    dtype: pa.DataType

    def decode(self, values: pa.Array) -> Decoded:
        if pat.is_binary(self.dtype):
            return Decoded({self.column: values}, pa.nulls(len(values), pa.string()))
        texts, broken = to_strings(values)
        reasons = pc.if_else(broken, "the value is not UTF-8 text", pa.scalar(None, pa.string()))
        return Decoded({self.column: texts}, reasons)


@dataclass(frozen=True)
class MessageDecoder:
    """Decodes record batches to rows of a feature group, with error reasons and record columns."""

    spec: StreamSpec
    request: DecoderRequest
    values: ValueDecoder
    keys: KeyReader | None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode a batch; a record on which a library raises an error becomes an invalid record."""
        try:
            return self._decode(batch)
        except FeatureStoreError:  # such as an unavailable registry: no record is the cause
            raise
        except Exception as error:
            if batch.num_rows <= 1:
                return self._unreadable_rows(
                    batch, f"the record cannot be read: {type(error).__name__}: {error}"
                )
        # Halving isolates the records that cause the error, without decoding each one separately.
        half = batch.num_rows // 2
        halves = [self(batch.slice(0, half)), self(batch.slice(half))]
        (rows,) = pa.Table.from_batches(halves).combine_chunks().to_batches()
        return rows

    def _decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode a batch; a library error affects the complete batch."""
        decoded = self.values.decode(batch.column("value"))
        # Fields of values may have other names than the columns.
        foreign = zip(self.spec.schema.names, self.spec.value_schema.names, strict=True)
        columns = {name: decoded.columns[field] for name, field in foreign}
        reasons = decoded.reasons
        deletes = decoded.deletes or pa.array([False] * batch.num_rows, pa.bool_())
        if self.keys is not None and batch.column("value").null_count:
            columns, reasons, deletes = self._fill_tombstone_keys(batch, columns, reasons, deletes)
        for name, field_name in self.spec.fields.items():
            column = decoded.fields.get(field_name)
            if column is None:
                column = batch.column(field_name)
            if field_name == "key":
                column, broken = to_strings(column)
                reasons = _add_reason(reasons, broken, "the key is not UTF-8 text")
            columns[name] = column
        reasons = self._check_columns(columns, reasons, deletes)
        return self._build_rows(batch, columns, reasons, deletes)

    def _check_columns(
        self, columns: dict[str, pa.Array], reasons: pa.Array, deletes: pa.Array
    ) -> pa.Array:
        """Add reasons for values that no feature group accepts."""
        for field in self.spec.columns:
            outside = out_of_range_mask(columns[field.name])
            if outside is not None:
                reason = f"{field.name} is before year 1 or after year 9999"
                reasons = _add_reason(reasons, outside, reason)
        max_bytes = max_cell_bytes()
        for name in variable_size_columns(self.spec.columns, max_bytes=max_bytes):
            long_rows = find_oversized_rows(columns[name], max_bytes=max_bytes)
            if long_rows:
                numbers = pa.array(range(len(columns[name])), pa.int64())
                is_long = pc.is_in(numbers, pa.array(long_rows, pa.int64()))
                reason = f"{name} has more than {max_bytes:,} bytes"
                reasons = _add_reason(reasons, is_long, reason)
        for name in (*self.request.primary_key, *self.request.times):
            is_absent = pc.is_null(columns[name])
            # A delete needs only its key.
            if name not in self.request.primary_key:
                is_absent = pc.and_(is_absent, pc.invert(deletes))
            reasons = _add_reason(reasons, is_absent, f"{name!r} is null or missing")
        for name in self.request.partition_by:
            if pat.is_string(columns[name].type):
                is_empty = pc.fill_null(pc.equal(columns[name], ""), False)
                reasons = _add_reason(
                    reasons, is_empty, f"{name!r} is empty, which is not a partition name"
                )
        return reasons

    def _fill_tombstone_keys(
        self,
        batch: pa.RecordBatch,
        columns: dict[str, pa.Array],
        reasons: pa.Array,
        deletes: pa.Array,
    ) -> tuple[dict[str, pa.Array], pa.Array, pa.Array]:
        """Fill in the keys of records without a value, which delete their rows."""
        assert self.keys is not None
        is_empty = pc.is_null(batch.column("value"))
        keys, unread = self.keys.read(batch.column("key"))
        for name, key in keys.items():
            columns[name] = pc.if_else(is_empty, key, columns[name])
        return columns, pc.if_else(is_empty, unread, reasons), pc.or_(deletes, is_empty)

    def _build_rows(
        self,
        batch: pa.RecordBatch,
        columns: dict[str, pa.Array],
        reasons: pa.Array,
        deletes: pa.Array,
    ) -> pa.RecordBatch:
        """Return decoded columns as rows, with their reasons and record columns."""
        is_bad = pc.is_valid(reasons)
        numbers = pa.array(range(batch.num_rows), pa.int64())
        # By row number, since pyarrow 14 slices binary arrays incorrectly in if_else.
        bad_row_numbers = pc.if_else(is_bad, numbers, pa.scalar(None, pa.int64()))
        arrays = [columns[name] for name in self.spec.columns.names]
        arrays += [reasons, pc.and_(deletes, pc.invert(is_bad))]
        for name in STORED_COLUMNS:
            column = batch.column(name.removeprefix("record_"))
            # Keys and values of valid records are only stored if the request keeps them.
            if name in ("record_key", "record_value") and not self.request.keep_values:
                column = column.take(bad_row_numbers)
            arrays.append(column)
        schema = decoded_schema(self.spec)
        cast = [
            array if array.type == dtype else array.cast(dtype)
            for array, dtype in zip(arrays, schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(cast, schema=schema)

    def _unreadable_rows(self, batch: pa.RecordBatch, reason: str) -> pa.RecordBatch:
        """Return unreadable records as rows without values."""
        count = batch.num_rows
        columns = {field.name: pa.nulls(count, field.type) for field in self.spec.columns}
        deletes = pa.array([False] * count, pa.bool_())
        return self._build_rows(batch, columns, pa.array([reason] * count, pa.string()), deletes)


def decoded_schema(spec: StreamSpec) -> pa.Schema:
    """Return the schema of the decoded rows."""
    return pa.schema([*spec.columns, *_RECORD_FIELDS])


def decoder(spec: StreamSpec, request: DecoderRequest) -> MessageDecoder:
    """Return the record decoder of a stream.

    Raises:
        InvalidJob: The format does not support a column type of the schema.
    """
    keys = None
    if spec.mode == "upsert":
        fields = [spec.columns.field(name) for name in request.primary_key]
        keys = KeyReader(pa.schema(fields), spec.renames, spec.schema_registry)
    return MessageDecoder(spec, request, _value_decoder(spec, request), keys)


def _value_decoder(spec: StreamSpec, request: DecoderRequest) -> ValueDecoder:
    """Return the decoder for the format of a stream."""
    event_fields = [
        field_name for field_name in spec.fields.values() if field_name not in RECORDS.names
    ]
    if event_fields and spec.format != "debezium":
        raise InvalidJob(
            f"fields= has {listing(event_fields)}, which only change events have.",
            hint=f"use {listing([name for name in RECORD_FIELDS if name in RECORDS.names])}",
        )
    if spec.format == "json":
        return JsonValues(spec.value_schema)
    if spec.format == "debezium":
        key = [spec.renames.get(name, name) for name in request.primary_key]
        return DebeziumValues(spec.value_schema, tuple(key), spec.schema_registry)
    if spec.format == "avro":
        return AvroValues(spec.value_schema, spec.message_schema or "", spec.schema_registry)
    if spec.format == "protobuf":
        return ProtobufValues(spec.value_schema, spec.message_schema or "", spec.schema_registry)
    if spec.format == "json_schema":
        return JsonSchemaValues(spec.value_schema, spec.message_schema or "", spec.schema_registry)
    if len(spec.schema) != 1 or spec.schema.types[0] not in (pa.string(), pa.binary()):
        raise InvalidJob(
            f"format='raw' requires a schema of one column of strings or bytes, not "
            f"{listing(spec.schema.names)}.",
            hint='schema={"value": "binary"}, or format="json"',
        )
    return RawValues(spec.value_schema.names[0], spec.schema.types[0])


def _add_reason(reasons: pa.Array, is_bad: pa.Array, reason: str) -> pa.Array:
    """Set the reason of invalid records that do not have a reason yet."""
    more = pc.if_else(is_bad, reason, pa.scalar(None, pa.string()))
    return pc.coalesce(reasons, more)


@dataclass(frozen=True)
class DebeziumValues:
    """Decodes Debezium change events to schema columns.

    Inserts, updates and snapshot reads become rows, and deletes delete their key. The times of the
    change (in the database, ``source.ts_*``) and of its capture (``ts_*``) are in microseconds.
    """

    schema: pa.Schema
    primary_key: tuple[str, ...]
    registry: str | None = None

    def __post_init__(self) -> None:
        check_fields(self.schema)

    def decode(self, values: pa.Array) -> Decoded:
        events = self._parse_events(values)
        parser = JsonColumns(self.schema, rules=TextRules(declared=True))
        columns, bad = parser.convert([self._event_values(event) for event in events])
        reasons = [
            event.reason or self._incomplete_reason(event) or bad.get(row)
            for row, event in enumerate(events)
        ]
        operations = pa.array([event.operation for event in events], RECORD_FIELDS["operation"])
        deletes = pc.fill_null(pc.equal(operations, "delete"), False)
        fields = {
            "change_timestamp": _event_times(events, "changed"),
            "capture_timestamp": _event_times(events, "captured"),
            "operation": operations,
        }
        return Decoded(columns, pa.array(reasons, pa.string()), deletes, fields)

    def _event_values(self, event: _Event) -> JsonDict:
        """Return the values of an event; for a delete only the key, as others may be missing."""
        row = dict(event.row or {})
        if event.operation == "delete":
            row = {name: row.get(name) for name in self.primary_key}
        for column in self.schema:
            if column.name in row:
                row[column.name] = record_values.from_text(
                    row[column.name], column.type, has_schema=event.has_schema
                )
        return row

    def _incomplete_reason(self, event: _Event) -> str | None:
        """Return why an event is incomplete, or None; large values are omitted if unchanged."""
        if event.operation == "delete":
            return None
        row = event.row or {}
        for name in self.schema.names:
            if record_values.is_unavailable(row.get(name)):
                return f"{name} did not change and is not in the event (REPLICA IDENTITY FULL includes it)"
        return None

    def _parse_events(self, values: pa.Array) -> list[_Event]:
        if self.registry is not None:
            return [self._parse_avro_event(value) for value in values.to_pylist()]
        texts, broken = to_strings(values)
        return [
            _Event(reason="the value is not UTF-8 text") if is_broken else _parse_json_event(text)
            for text, is_broken in zip(texts.to_pylist(), broken.to_pylist(), strict=True)
        ]

    def _parse_avro_event(self, value: bytes | None) -> _Event:
        """Parse a change event in Avro, with a schema of the registry."""
        if value is None:
            return _Event(reason="the record has no value")
        assert self.registry is not None
        try:
            envelope, writer_schema = read_datum(value, self.registry)
        except RecordError as error:
            return _Event(reason=str(error))
        schema = writer_schema.schema
        fields = schema.get("fields", ()) if isinstance(schema, Mapping) else ()
        types = {field["name"]: field["type"] for field in fields}
        if isinstance(envelope, Mapping):
            envelope = dict(envelope)
            for side in ("before", "after"):
                if side in envelope:
                    value = envelope[side]
                    envelope[side] = record_values.from_avro(
                        value, types[side], writer_schema.named_types
                    )
        return _parse_envelope(envelope, has_schema=True)


@dataclass(frozen=True)
class _Event:
    """A parsed change event.

    ``has_schema`` is set if values are converted by a schema, ``reason`` if it cannot be applied.
    """

    row: JsonMapping | None = None
    operation: str | None = None
    changed: int | None = None
    captured: int | None = None
    reason: str | None = None
    has_schema: bool = False


def _parse_json_event(text: str | None) -> _Event:
    """Parse a change event in JSON, with or without its schema."""
    if text is None:
        return _Event(reason="the record has no value")
    envelope, reason = parse_object(text, exact=True)
    if reason is not None:
        return _Event(reason=reason)
    if envelope.keys() == {"schema", "payload"}:
        envelope = record_values.from_json(envelope["payload"], envelope["schema"])
        return _parse_envelope(envelope, has_schema=True)
    return _parse_envelope(envelope, has_schema=False)


def _parse_envelope(envelope: object, *, has_schema: bool) -> _Event:
    """Parse an event envelope; an invalid envelope becomes an event with a reason."""
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
    changed = _event_micros(source if isinstance(source, Mapping) else {})
    captured = _event_micros(envelope)
    return _Event(row, _WRITES[operation], changed, captured, has_schema=has_schema)


def _event_micros(times: JsonMapping) -> int | None:
    """Return the time of an event from its finest unit, in microseconds."""
    for name, factor in (("ts_us", 1), ("ts_ms", 1000)):
        value = times.get(name)
        number = parse_number(value) if isinstance(value, NumberText) else value
        # With this limit, milliseconds fit into 64 bits as microseconds.
        if isinstance(number, int) and not isinstance(number, bool) and abs(number) < 2**53:
            return number * factor
    return None


def _event_times(events: list[_Event], name: str) -> pa.Array:
    micros = [getattr(event, name) for event in events]
    return pa.array(micros, pa.int64()).cast(TIMESTAMP)
