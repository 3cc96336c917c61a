"""The interface of streams: topics with partitions of immutable records, identified by offsets.

A source with topics implements ``HasStreams``; its method ``stream`` returns a ``StreamSource``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from featurestore.plugins.engine import BatchFunction, Engine

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.model.stream import StreamSpec

# Columns that a decoder adds to those of the group: the record's position and its error.
RECORD_ERROR = "record_error"
# True if the record deletes the rows of its primary key; the other columns are null then.
RECORD_DELETES = "record_deletes"
RECORD_COLUMNS = (
    RECORD_ERROR,
    RECORD_DELETES,
    "record_topic",
    "record_partition",
    "record_offset",
    "record_timestamp",
    "record_key",
    "record_value",
)
# The record columns of quarantine tables.
STORED_COLUMNS = RECORD_COLUMNS[2:]


@dataclass(frozen=True)
class OffsetRange:
    """The available offsets of a partition: the first, and the one after the last."""

    first: int
    end: int


@dataclass(frozen=True)
class Topic:
    """The current state of a topic.

    ``identity`` distinguishes topics that were created with the same name; None if unsupported.
    """

    name: str
    partitions: Mapping[int, OffsetRange]
    identity: str | None = None


@dataclass(frozen=True)
class MicroBatch:
    """All records in ``[start, end)`` of each partition.

    ``records`` is an Arrow table or the engine's native frame.
    """

    records: Any = field(repr=False)
    start: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True)
class DecoderRequest:
    """The requirements of a job on decoded rows.

    Attributes:
        primary_key: Key columns, not null.
        times: Time columns, not null.
        partition_by: Columns whose strings must not be empty.
        keep_values: Whether valid records also keep their raw key and value.
    """

    primary_key: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    keep_values: bool = False


class StreamSource(Protocol):
    """A connection to a message broker, used by one thread until it is closed.

    **Errors.** ``SourceUnavailable`` if the broker cannot be reached or rejects the credentials,
    ``SourceTableNotFound`` for an unknown topic, ``SourceError`` for all other failures.
    """

    def topic(self, name: str) -> Topic:
        """Return the partitions of a topic and their current offsets."""
        ...

    def owned(self, spec: StreamSpec, partitions: Collection[int]) -> frozenset[int]:
        """Return the partitions that are assigned to this reader now.

        All of them, unless ``spec.consumer_group`` shares them; then the assignment may differ in
        each call, and two readers may read a partition for a short time.
        """
        ...

    def batches(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> Iterator[MicroBatch]:
        """Yield the records from ``start`` to ``end`` in micro-batches.

        Each has at most about ``spec.batch_records`` records, starts where the previous one ended,
        and is invalid after the next one is requested. Records that arrived since may follow
        ``end``. Offsets without a record (transactions, compaction) are skipped.
        """
        ...

    def batch(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> MicroBatch:
        """Return exactly the records from ``start`` to ``end`` as one micro-batch."""
        ...

    def close(self) -> None:
        """Close the connection. May be called twice."""
        ...


@runtime_checkable
class HasStreams(Protocol):
    """A source with topics."""

    def stream(self) -> StreamSource:
        """Return a lazy connection; no request is sent yet."""
        ...

    def decoder(self, spec: StreamSpec, request: DecoderRequest) -> BatchFunction:
        """Return a function from records to rows of the group's columns and ``RECORD_COLUMNS``.

        A record that cannot be decoded, or that lacks a required column, has the reason in
        ``record_error`` and keeps its raw key and value; for valid records these are null unless
        ``request.keep_values``. The function is picklable, runs where the records are, and never
        raises for a record.

        Raises:
            InvalidJob: The record format cannot represent a column of the schema; names it.
        """
        ...

    def decoded_schema(self, spec: StreamSpec) -> pa.Schema:
        """Return the columns of the decoder's output."""
        ...
