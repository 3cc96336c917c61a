"""From records to rows: a function over batches of records, the same on every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import InvalidJob, listing
from featurestore.model.stream import StreamSpec
from featurestore.model.types import TIMESTAMP
from featurestore.plugins.stream import RECORD_COLUMNS, RECORD_ERROR
from featurestore_connectors.kafka.avro_values import AvroValues
from featurestore_connectors.kafka.json_values import JsonValues

# What both readers give of a record.
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
_TOLD = pa.schema(
    [
        (RECORD_ERROR, pa.string()),
        ("record_topic", pa.string()),
        ("record_partition", pa.int32()),
        ("record_offset", pa.int64()),
        ("record_key", pa.binary()),
        ("record_value", pa.binary()),
    ]
)


class Values(Protocol):
    """One way in which values are written."""

    def decode(self, values: pa.Array) -> tuple[Mapping[str, pa.Array], pa.Array]:
        """Return the columns of binary values, and why each cannot be read (null: it can)."""
        ...


@dataclass(frozen=True)
class RawValues:
    """Values as they are: bytes, or text."""

    column: str
    kind: pa.DataType

    def decode(self, values: pa.Array) -> tuple[Mapping[str, pa.Array], pa.Array]:
        if pat.is_binary(self.kind):
            return {self.column: values}, pa.nulls(len(values), pa.string())
        texts, broken = as_texts(values)
        reasons = pc.if_else(broken, "the value is no UTF-8 text", pa.scalar(None, pa.string()))
        return {self.column: texts}, reasons


@dataclass(frozen=True)
class RecordDecoder:
    """Rows of a group's columns and of what is told of records that cannot be read."""

    spec: StreamSpec
    required: tuple[str, ...]
    values: Values

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found, reasons = self.values.decode(batch.column("value"))
        columns = dict(found)
        for name, told in self.spec.fields.items():
            column = batch.column(told)
            if told == "key":
                column, broken = as_texts(column)
                reasons = _first(reasons, broken, "the key is no UTF-8 text")
            columns[name] = column
        for name in self.required:
            reasons = _first(reasons, pc.is_null(columns[name]), f"{name!r} is null or missing")
        is_bad = pc.is_valid(reasons)
        arrays = [columns[name] for name in self.spec.columns.names]
        arrays.append(reasons)
        for name in RECORD_COLUMNS[1:]:
            column = batch.column(name.removeprefix("record_"))
            if name in ("record_key", "record_value"):
                column = pc.if_else(is_bad, column, pa.scalar(None, column.type))
            arrays.append(column)
        schema = decoded_schema(self.spec)
        cast = []
        for array, kind in zip(arrays, schema.types, strict=True):
            cast.append(array if array.type == kind else array.cast(kind))
        return pa.RecordBatch.from_arrays(cast, schema=schema)


def decoded_schema(spec: StreamSpec) -> pa.Schema:
    """Return the columns that a decoder gives."""
    return pa.schema([*spec.columns, *_TOLD])


def decoder(spec: StreamSpec, required: Sequence[str]) -> RecordDecoder:
    """Return the decoder of a stream.

    Raises:
        InvalidJob: Its format cannot hold a column of the schema.
    """
    return RecordDecoder(spec, tuple(required), _values(spec))


def _values(spec: StreamSpec) -> Values:
    if spec.format == "json":
        return JsonValues(spec.schema)
    if spec.format == "avro":
        return AvroValues(spec.schema, spec.avro or "", spec.schema_registry)
    if len(spec.schema) != 1 or spec.schema.types[0] not in (pa.string(), pa.binary()):
        raise InvalidJob(
            f"format='raw' puts the value into one column of text or bytes; the schema has "
            f"{listing(spec.schema.names)}.",
            hint='schema={"value": "binary"}, or format="json"',
        )
    return RawValues(spec.schema.names[0], spec.schema.types[0])


def as_texts(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return binary values as texts, and which of them are none."""
    try:
        texts = values.cast(pa.string())
        return texts, pa.array([False] * len(values), pa.bool_())
    except pa.ArrowInvalid:
        pass
    found: list[str | None] = []
    broken = []
    for value in values.to_pylist():
        try:
            found.append(None if value is None else value.decode())
            broken.append(False)
        except UnicodeDecodeError:
            found.append(None)
            broken.append(True)
    return pa.array(found, pa.string()), pa.array(broken, pa.bool_())


def _first(reasons: pa.Array, is_bad: pa.Array, reason: str) -> pa.Array:
    """Return the reasons, with one more for those that have none yet."""
    more = pc.if_else(is_bad, reason, pa.scalar(None, pa.string()))
    return pc.coalesce(reasons, more)
