"""The interface of sources: external tables, queries and files, and streams of records.

Tables are read as Arrow from one snapshot. Sources are entry points of the group
``featurestore.sources``, named by the scheme of the URI; the built-in ones are included.

A source with topics implements ``HasStreams``; its method ``stream`` returns a ``StreamSource``:
topics with partitions of immutable records, identified by offsets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.model.source import SourceTable
from featurestore.plugins import find_plugin, load_plugin, plugin_names
from featurestore.plugins.engine import BatchFunction, Engine, Relation, TimeRange

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
class SourceConfig:
    """The arguments of a source.

    ``secret`` returns the secret; the source calls it when it connects. None if no secret is
    registered. The secret must not appear in messages, reprs or errors.
    """

    name: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    secret: Callable[[], str] | None = field(default=None, repr=False)
    decisions: Decisions | None = field(default=None, repr=False)


class Decisions(Protocol):
    """A persistent store of a source's decisions about its tables, such as inferred types.

    Keys are chosen by the source; a decision is a JSON object. It is kept until the source is
    removed from the store.
    """

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the decision of a key, or None."""
        ...

    def decide(self, key: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store a decision unless the key has one, and return the stored decision."""
        ...


@dataclass(frozen=True)
class BadRow:
    """A row of a file that cannot be parsed, with its position and the reason.

    Without ``column``, the complete line is invalid. ``text`` is the line.
    """

    file: str
    line: int
    column: str | None
    reason: str
    text: str


@dataclass(frozen=True)
class SourceQuery:
    """A query to a source: one of ``table``, ``sql`` and ``path``, as its kind allows.

    Attributes:
        table: A table's name.
        sql: A query in the source's dialect.
        path: A file or folder.
        at: A version or timestamp, if the source supports time travel.
        columns: The required columns, in order; None selects all.
        window: The time range of the rows.
        options: Options of the source for this query.
    """

    table: str | None = None
    sql: str | None = None
    path: str | None = None
    at: int | datetime | None = None
    columns: tuple[str, ...] | None = None
    window: TimeRange | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """SHA-256 of the query."""
        window: dict[str, Any] | None = None
        if self.window is not None:
            window = {**vars(self.window)}
        query_fields = {**vars(self), "window": window, "options": dict(self.options)}
        if not self.options:
            del query_fields["options"]
        text = json.dumps(query_fields, sort_keys=True, default=str, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        query_fields = {"table": self.table, "sql": self.sql, "path": self.path, "at": self.at}
        texts = [f"{name}={value!r}" for name, value in query_fields.items() if value is not None]
        return ", ".join(texts) or "all of the source"


class SourceSnapshot(Protocol):
    """One consistent state of a source, until it is closed.

    All reads of a snapshot see the same state: concurrent writes are not visible. If
    the source cannot guarantee this (files), a detected change raises ``SourceChanged`` before the
    last batch. A snapshot is used by one thread; several of its reads may be open at once.
    """

    @property
    def identity(self) -> str:
        """The identifier of this state: a transaction, a version or a fingerprint."""
        ...

    @property
    def server(self) -> str:
        """The server's product name and version, for display."""
        ...

    def tables(self) -> Sequence[SourceTable]:
        """List the tables (files, folders) and whether they are readable."""
        ...

    def query_of(self, table: SourceTable) -> SourceQuery:
        """Return the query for all rows of one of ``tables``."""
        ...

    def names(self, query: SourceQuery) -> Sequence[str]:
        """Return the columns of a query's result, including unreadable ones."""
        ...

    def schema(self, query: SourceQuery) -> pa.Schema:
        """Return the feature types of a query's result; samples the data at most.

        Raises:
            SourceTableNotFound: The table or path does not exist; the message lists the existing.
            UnsupportedType: Columns have types without a lossless feature type; the message names
                each, with the SQL that converts it.
            InvalidSql: The source rejects the query.
        """
        ...

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        """Stream the rows in the types of ``schema``, in bounded memory.

        The projection and the window of the query are evaluated by the source. Values that do not
        fit (infinite times, numerics of unbounded scale) raise ``UnsupportedType`` naming the
        column.
        """
        ...

    def close(self) -> None:
        """Release the snapshot and its connections. May be called twice."""
        ...


class Source(Protocol):
    """A read-only origin of rows: a database, a folder of files, a lake table.

    Every implementation passes ``featurestore.testing.SourceConformance``.

    A source is constructed from a ``SourceConfig`` without connecting. The constructor rejects
    unknown options and invalid URIs (``InvalidArgument``). A source never writes.

    **SQL** in a query is the user's own text for the user's own database; it is passed on unchanged
    as a subquery. One function quotes the names of tables and columns and formats literals.

    **Errors.** ``SourceUnavailable`` if the source cannot be reached or rejects the credentials,
    ``SourceTableNotFound``, ``InvalidSql``, ``UnsupportedType`` as above, ``SourceError`` for all
    other failures. No message contains the secret; exceptions of libraries are wrapped.
    """

    def snapshot(self, at: int | datetime | None = None) -> SourceSnapshot:
        """Connect and return a snapshot of the current state, or of a version or timestamp."""
        ...


@runtime_checkable
class PartitionedSource(Protocol):
    """A source whose partitions can be read by an engine's tasks in parallel.

    If ``has_parts`` is true, its snapshots are ``PartitionedSnapshot``.
    """

    def has_parts(self, engine: Engine) -> bool:
        """Return True if an engine can read this source in parallel; otherwise use ``read``."""
        ...


@runtime_checkable
class PartitionedSnapshot(Protocol):
    """A snapshot that several tasks can read while it is open."""

    def stage(self, query: SourceQuery, engine: Engine, directory: str) -> Relation:
        """Write the rows to files of a directory by the engine's tasks; return a relation over them.

        Rows, types and errors are those of ``read``. All tasks read this snapshot.

        Raises:
            ConfigurationError: The engine lacks a library for its tasks; the hint installs it.
        """
        ...


@runtime_checkable
class QuarantiningSnapshot(Protocol):
    """A snapshot that can skip and count rows that cannot be parsed."""

    @property
    def bad_row_count(self) -> int:
        """The number of rows that its reads have skipped."""
        ...

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        """Examples of skipped rows, the first ones."""
        ...


@runtime_checkable
class DescribedSnapshot(Protocol):
    """A snapshot that infers the format of its files and can describe it."""

    @property
    def unread(self) -> Sequence[str]:
        """Files of unknown formats, which belong to no table."""
        ...

    def description(self, query: SourceQuery) -> Mapping[str, Any]:
        """Return dialect, types and file count of a table, and the ignored files."""
        ...


def find_source(kind: str) -> Callable[[SourceConfig], Source]:
    """Return the factory for a kind of source.

    Raises:
        InvalidArgument: No such kind is installed.
    """
    entry_point = find_plugin("sources", kind)
    if entry_point is None:
        available = plugin_names("sources")
        raise InvalidArgument(
            f"Unknown kind of source {kind!r}. Available: {listing(available)}.",
            hint=did_you_mean(kind, available, write="uri='{}://...'")
            or "uri='postgresql://user@host/database', 'sqlite:///file.db', or a folder of files; "
            f"'sqlalchemy+{kind}://...' if SQLAlchemy has a dialect for it",
        )
    factory: Callable[[SourceConfig], Source] = load_plugin(entry_point)
    return factory


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

        These are all, unless ``spec.consumer_group`` shares them; then the assignment may differ in
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
