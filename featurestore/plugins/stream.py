"""The interface of streams: topics with partitions, whose records have offsets and stay as they are.

A source that has topics gives a ``StreamSource`` by its method ``stream``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from featurestore.plugins.engine import BatchFunction, Engine

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.model.stream import StreamSpec

# Columns that a decoder adds to those of the group: where the record was, and what is wrong with it.
RECORD_ERROR = "record_error"
# Whether the record deletes the rows of its primary key; other columns are null then.
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
# Those that a quarantine table has, of rows that came by a stream.
STORED_COLUMNS = RECORD_COLUMNS[2:]


@dataclass(frozen=True)
class OffsetRange:
    """The offsets of a partition: the first that there is, and the one after the last."""

    first: int
    end: int


@dataclass(frozen=True)
class Topic:
    """A topic as it is now; ``identity`` tells it from others of its name, None where none does."""

    name: str
    partitions: Mapping[int, OffsetRange]
    identity: str | None = None


@dataclass(frozen=True)
class MicroBatch:
    """Records of some partitions: all that lie in ``[start, end)`` of each.

    ``records`` is an Arrow table, or a frame of the engine's own.
    """

    records: Any = field(repr=False)
    start: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True)
class DecoderRequest:
    """What a job wants of the rows of records.

    ``primary_key`` are the columns of the key and ``times`` those of times, none of which may be
    null. Texts of ``partition_by`` are never empty. ``keep_values``: also records that can be read
    are there with their key and value.
    """

    primary_key: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    keep_values: bool = False


class StreamSource(Protocol):
    """A connection to a server of topics, used by one thread, until it is closed.

    **Errors.** ``SourceUnavailable`` when it cannot be reached or refuses the user,
    ``SourceTableNotFound`` for an unknown topic, ``SourceError`` for what else it says.
    """

    def topic(self, name: str) -> Topic:
        """Return the partitions of a topic and their offsets at this moment."""
        ...

    def owned(self, spec: StreamSpec, partitions: Collection[int]) -> frozenset[int]:
        """Return those of the partitions that this reader is to read now.

        All of them, unless ``spec.consumer_group`` shares them; then the answer may be another one
        each time, and a partition may be read by two for a while.
        """
        ...

    def batches(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> Iterator[MicroBatch]:
        """Yield the records from ``start`` to ``end`` in micro-batches.

        Each has about ``spec.batch_records`` of them at most, begins where the one before ended,
        and is done with when the next is asked for. Records that came since may follow ``end``.
        Offsets without a record (transactions, compaction) are passed over.
        """
        ...

    def batch(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> MicroBatch:
        """Return all records from ``start`` to ``end``, and no others, as one micro-batch."""
        ...

    def close(self) -> None:
        """End the connection; closing twice is no error."""
        ...


@runtime_checkable
class HasStreams(Protocol):
    """A source that has topics."""

    def stream(self) -> StreamSource:
        """Return a connection; nothing is asked of the server yet."""
        ...

    def decoder(self, spec: StreamSpec, request: DecoderRequest) -> BatchFunction:
        """Return a function from records to rows of the group's columns and ``RECORD_COLUMNS``.

        A record that cannot be read, or that lacks a required column, has its reason in
        ``record_error`` and is there with its key and value; of the others these are null, unless
        they are wanted. The function is picklable, runs where the records are, and raises for no
        record.

        Raises:
            InvalidJob: The values cannot hold a column of the schema; names it.
        """
        ...

    def decoded_schema(self, spec: StreamSpec) -> pa.Schema:
        """Return the columns that the function gives."""
        ...
