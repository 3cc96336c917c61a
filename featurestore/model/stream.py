"""Stream job inputs: the topic, the value format, and the size of micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidJob, did_you_mean, listing
from featurestore.model import display
from featurestore.model.json_object import JsonMapping
from featurestore.model.names import check_name
from featurestore.model.records import Record

ValueFormat = Literal["json", "avro", "protobuf", "json_schema", "raw", "debezium"]
BadRecords = Literal["quarantine", "fail", "skip"]
FORMATS = ("json", "avro", "protobuf", "json_schema", "raw", "debezium")
# Formats whose ``schema=`` is a schema of this format.
SCHEMA_FORMATS = ("avro", "protobuf", "json_schema")
ON_BAD_RECORD = ("quarantine", "fail", "skip")
ON_LOST = ("fail", "skip")
ON_DUPLICATES = ("last", "first", "quarantine")
STREAM_MODES = ("append", "upsert")
BEGINNINGS = ("earliest", "latest")

# The record metadata fields and their column types.
RECORD_FIELDS: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "key": pa.string(),
    # Fields of change events: change time, capture time, and operation.
    "change_timestamp": TIMESTAMP,
    "capture_timestamp": TIMESTAMP,
    "operation": pa.string(),
}


@dataclass(frozen=True)
class StreamSpec(Record, closed=True):
    """The registered input of a stream job.

    ``schema`` contains the value columns, ``fields`` the columns of record metadata (column: one of
    ``RECORD_FIELDS``). ``message_schema`` is the text of the reader schema of ``SCHEMA_FORMATS``,
    ``schema_registry`` the address of the registry of writer schemas. ``begin`` is the start
    position in a new topic, ``on_lost`` the policy for records that were deleted before they were
    read, ``on_duplicates`` the policy for several records with the same key. ``batch_records``
    limits the size of a micro-batch. ``consumer_group`` lets several runners share the partitions.
    ``generation`` counts the successive topics with the same name. In ``mode`` "upsert", a record
    without a value deletes its key. If more than the fraction ``most_bad`` of at least 100 records
    is bad, the run fails. ``renames`` maps columns to their names in records, if these differ.
    """

    source: str
    topic: str
    schema: pa.Schema
    format: ValueFormat = "json"
    fields: Mapping[str, str] = field(default_factory=dict)
    trigger: timedelta = timedelta(seconds=10)
    on_bad_record: BadRecords = "quarantine"
    on_lost: str = "fail"
    begin: str = "earliest"
    batch_records: int = 100_000
    message_schema: str | None = None
    schema_registry: str | None = None
    consumer_group: str | None = None
    generation: int = 1
    on_duplicates: str = "last"
    mode: str = "append"
    most_bad: float = 0.5
    renames: Mapping[str, str] = field(default_factory=dict)

    __repr__ = display.record_repr

    @property
    def value_schema(self) -> pa.Schema:
        """The value columns, with their names in records."""
        names = [self.renames.get(name, name) for name in self.schema.names]
        fields = zip(names, self.schema.types, strict=True)
        return pa.schema([pa.field(name, dtype) for name, dtype in fields])

    @property
    def columns(self) -> pa.Schema:
        """The columns of the group: value columns, then record columns."""
        record_fields = [
            pa.field(name, RECORD_FIELDS[source]) for name, source in self.fields.items()
        ]
        return pa.schema([*self.schema, *record_fields])

    def app(self, partition: int) -> str:
        """Return the transaction application ID of a partition; its version is the next offset."""
        name = f"stream/{self.source}/{self.topic}/{partition}"
        # A topic that was created again restarts its offsets, and a transaction is skipped if its
        # version is not greater than the last one of its application.
        return name if self.generation == 1 else f"{name}#{self.generation}"

    def check_json(self, data: JsonMapping) -> StreamSpec:
        """Refuse invalid options."""
        return check_stream(self)


def check_stream(spec: StreamSpec) -> StreamSpec:
    """Return the specification if all its options are valid.

    Raises:
        InvalidJob: An option is invalid; lists the valid values.
    """
    check_name(spec.source, noun="source")
    for argument, value, allowed in (
        ("format", spec.format, FORMATS),
        ("on_bad_record", spec.on_bad_record, ON_BAD_RECORD),
        ("on_lost", spec.on_lost, ON_LOST),
        ("begin", spec.begin, BEGINNINGS),
        ("on_duplicates", spec.on_duplicates, ON_DUPLICATES),
        ("mode", spec.mode, STREAM_MODES),
    ):
        if value not in allowed:
            raise InvalidJob(
                f"Unknown {argument}={value!r}. Available: {listing(allowed)}.",
                hint=did_you_mean(value, allowed, write=f"{argument}={{!r}}"),
            )
    for argument, number in (
        ("batch_records", spec.batch_records),
        ("generation", spec.generation),
    ):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InvalidJob(f"{argument}={number!r} is not a positive integer.")
    # Booleans are also integers.
    is_number = isinstance(spec.most_bad, int | float) and not isinstance(spec.most_bad, bool)
    if not is_number or not 0 <= spec.most_bad <= 1:
        raise InvalidJob(
            f"most_bad={spec.most_bad!r} is not a fraction from 0 to 1.", hint="most_bad=0.5"
        )
    if spec.format == "debezium" and spec.mode != "upsert":
        raise InvalidJob(
            "Change events replace and delete rows, which mode='append' does not support.",
            hint="mode='upsert'",
        )
    if spec.mode == "upsert" and spec.on_duplicates != "last":
        raise InvalidJob(
            f"mode='upsert' does not support on_duplicates={spec.on_duplicates!r}.",
            hint="on_duplicates='last'",
        )
    _check_strings(spec)
    unknown = [field_name for field_name in spec.fields.values() if field_name not in RECORD_FIELDS]
    if unknown:
        raise InvalidJob(
            f"fields=: unknown record fields {listing(unknown)}. Available: {listing(RECORD_FIELDS)}.",
            hint='fields={"kafka_offset": "offset"}',
        )
    return spec


def _check_strings(spec: StreamSpec) -> None:
    for argument in ("topic", "message_schema", "schema_registry", "consumer_group"):
        value = getattr(spec, argument)
        if value is None and argument != "topic":
            continue
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise InvalidJob(f"{argument}={value!r} is not a string.", hint='topic="clicks"')
    if spec.format in SCHEMA_FORMATS and spec.message_schema is None:
        raise InvalidJob(f"format={spec.format!r} needs a schema.", hint="schema=...")
    if spec.schema_registry is not None and not spec.schema_registry.startswith(
        ("http://", "https://")
    ):
        raise InvalidJob(
            f"schema_registry={spec.schema_registry!r} is not an HTTP address.",
            hint='schema_registry="http://registry:8081"',
        )
