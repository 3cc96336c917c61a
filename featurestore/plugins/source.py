"""The source interface: external tables, queries and files, and streams of records.

Tables are read as Arrow data from a consistent snapshot. Sources, including the built-in sources,
are entry points of the group ``featurestore.sources``, named by the URI scheme.

Sources with topics implement ``HasStreams``; the method ``stream`` returns a ``StreamSource`` with
topics, whose partitions contain immutable records identified by offsets.
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

# Columns that a decoder adds to the columns of the group: record position and decoding error.
RECORD_ERROR = "record_error"
# The column that is true if the record deletes the rows of its primary key. All other columns of
# such rows are null.
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

    ``secret`` is a function that returns the secret, None if no secret is registered. The source
    calls it when it connects. The secret must not appear in messages, reprs or errors. Only with
    ``uses_environment`` may the driver use credentials of the machine: environment variables,
    password files, cloud roles, tickets.
    """

    name: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    secret: Callable[[], str] | None = field(default=None, repr=False)
    decisions: Decisions | None = field(default=None, repr=False)
    uses_environment: bool = False


class Decisions(Protocol):
    """Persistent storage for decisions of a source about its tables, such as inferred types.

    The source chooses the keys; a decision is a JSON object. Decisions are retained until the
    source is removed from the store.
    """

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the decision for a key, or None."""
        ...

    def decide(self, key: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store a decision unless one exists for the key, and return the stored decision."""
        ...


@dataclass(frozen=True)
class BadRow:
    """A row of a file that cannot be parsed, with position and reason.

    Without ``column``, the complete line is invalid. ``text`` contains the line.
    """

    file: str
    line: int
    column: str | None
    reason: str
    text: str


@dataclass(frozen=True)
class SourceQuery:
    """A query to a source: ``table``, ``sql`` or ``path``, depending on the kind of source.

    Attributes:
        table: A table name.
        sql: A query in the source's dialect.
        path: A file or folder.
        at: A version or timestamp, if the source supports time travel; text for a source with named
            versions.
        columns: The required columns, in order; None selects all.
        window: The time range of the rows.
        options: Additional options of the source.
    """

    table: str | None = None
    sql: str | None = None
    path: str | None = None
    at: int | datetime | str | None = None
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
            # A query without options has the same hash as in releases that had no options.
            del query_fields["options"]
        text = json.dumps(query_fields, sort_keys=True, default=str, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        query_fields = {"table": self.table, "sql": self.sql, "path": self.path, "at": self.at}
        texts = [f"{name}={value!r}" for name, value in query_fields.items() if value is not None]
        return ", ".join(texts) or "the entire source"


class SourceSnapshot(Protocol):
    """A consistent state of a source, until it is closed.

    All reads of a snapshot have the same state: concurrent writes are not visible. If the source
    cannot guarantee this (files), ``SourceChanged`` is raised before the last batch when a change
    is detected. A snapshot is used by one thread; several reads may be open at the same time.
    """

    @property
    def identity(self) -> str:
        """The identifier of the state: a transaction, a version or a fingerprint."""
        ...

    @property
    def server(self) -> str:
        """The product name and version of the server, for display."""
        ...

    def tables(self) -> Sequence[SourceTable]:
        """Return the tables (files, folders), with a flag for readability."""
        ...

    def query_of(self, table: SourceTable) -> SourceQuery:
        """Return the query for all rows of a table in ``tables``."""
        ...

    def names(self, query: SourceQuery) -> Sequence[str]:
        """Return the column names of a query result, including unreadable columns."""
        ...

    def schema(self, query: SourceQuery) -> pa.Schema:
        """Return the feature types of a query result, without reading more than a sample.

        Raises:
            SourceTableNotFound: The table or path does not exist; the message lists the available
                ones.
            UnsupportedType: Columns have types without a lossless feature type; the message lists
                them with the SQL that converts them.
            InvalidSql: The source rejects the query.
        """
        ...

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        """Stream the rows with the types of ``schema``, in bounded memory.

        The source evaluates the column selection and the window of the query. For values that
        cannot be represented (infinite times, numerics of unbounded scale), ``UnsupportedType``
        names the column.
        """
        ...

    def close(self) -> None:
        """Close the snapshot and its connections; may be called repeatedly."""
        ...


class Source(Protocol):
    """A read-only source of rows: a database, a folder of files, a lake table.

    Every implementation must pass ``featurestore.testing.SourceConformance``.

    A source is constructed from a ``SourceConfig`` without connecting. The constructor rejects
    unknown options and invalid URIs (``InvalidArgument``). A source never writes data.

    **SQL** in a query is written by the user for the user's database and is used unchanged as a
    subquery. Table and column names must be quoted and literals formatted by a single function.

    **Errors.** ``SourceUnavailable`` if the source cannot be reached or rejects the credentials,
    ``SourceTableNotFound``, ``InvalidSql`` and ``UnsupportedType`` as described for snapshots,
    ``SourceError`` for all other failures. Messages must not contain the secret; exceptions of
    libraries are wrapped.
    """

    def snapshot(self, at: int | datetime | None = None) -> SourceSnapshot:
        """Connect and return a snapshot of the current state, or of a past version or time."""
        ...


@runtime_checkable
class NamedVersionsSource(Protocol):
    """A source whose tables have branches or tags."""

    def named_snapshot(self, name: str) -> SourceSnapshot:
        """Return a snapshot at a branch or tag, or at a version or time as text.

        Each table has its own names, so a read raises ``SourceTableNotFound`` for an unknown name.
        """
        ...


@runtime_checkable
class PartitionedSource(Protocol):
    """A source whose partitions can be read by engine tasks in parallel.

    If ``has_parts`` returns True, snapshots implement ``PartitionedSnapshot``.
    """

    def has_parts(self, engine: Engine) -> bool:
        """Return True if an engine can read this source in parallel, False to use ``read``."""
        ...


@runtime_checkable
class PartitionedSnapshot(Protocol):
    """A snapshot that several tasks can read concurrently while it is open."""

    def stage(self, query: SourceQuery, engine: Engine, directory: str) -> Relation:
        """Write the rows to files in parallel engine tasks, and return a relation for the files.

        Rows, types and errors are the same as for ``read``. All tasks read this snapshot.

        Raises:
            ConfigurationError: The engine lacks a required library; the hint shows how to install
            it.
        """
        ...


@runtime_checkable
class QuarantiningSnapshot(Protocol):
    """A snapshot that skips and counts rows that cannot be parsed."""

    @property
    def bad_row_count(self) -> int:
        """The number of rows that were skipped by all reads."""
        ...

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        """The first skipped rows, as examples."""
        ...


@runtime_checkable
class DescribedSnapshot(Protocol):
    """A snapshot that infers the format of its files and describes it."""

    @property
    def unread(self) -> Sequence[str]:
        """The files with unknown formats, which do not belong to a table."""
        ...

    def description(self, query: SourceQuery) -> Mapping[str, Any]:
        """Return the dialect, types and file count of a table, and the ignored files."""
        ...


def hive_error() -> InvalidArgument:
    """Return the error for a Hive Metastore."""
    return InvalidArgument(
        "A Hive Metastore is not supported: the client of pyiceberg 0.12.0, the newest release, "
        "calls the method get_table, which Hive 4 removed.",
        hint="read its tables by an Iceberg REST service, 'iceberg+https://host', or by their "
        "location, 'delta+s3://bucket/table'",
    )


def find_source(source_kind: str) -> Callable[[SourceConfig], Source]:
    """Return the factory for a kind of source.

    Raises:
        InvalidArgument: The kind is not installed.
    """
    entry_point = find_plugin("sources", source_kind)
    if entry_point is None:
        if source_kind in ("hive", "thrift"):
            raise hive_error()
        available = plugin_names("sources")
        raise InvalidArgument(
            f"Unknown source kind {source_kind!r}. Available: {listing(available)}.",
            hint=did_you_mean(source_kind, available, write="uri='{}://...'")
            or "uri='postgresql://user@host/database', 'sqlite:///file.db', or a folder of files; "
            f"'sqlalchemy+{source_kind}://...' if SQLAlchemy has a dialect for it",
        )
    factory: Callable[[SourceConfig], Source] = load_plugin(entry_point)
    return factory


@dataclass(frozen=True)
class OffsetRange:
    """The available offsets of a partition: the first offset, and the offset after the last."""

    first: int
    end: int


@dataclass(frozen=True)
class Topic:
    """The current state of a topic.

    ``identity`` changes if a topic is recreated with the same name; None if this is not supported.
    """

    name: str
    partitions: Mapping[int, OffsetRange]
    identity: str | None = None


@dataclass(frozen=True)
class MicroBatch:
    """All records with offsets in ``[start, end)``, for each partition.

    ``records`` is an Arrow table or a native frame of the engine.
    """

    records: Any = field(repr=False)
    start: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True)
class DecoderRequest:
    """The requirements of a job on decoded rows.

    Attributes:
        primary_key: The key columns, which must not be null.
        times: The time columns, which must not be null.
        partition_by: The partition columns, whose strings must not be empty.
        keep_values: Whether rows of valid records also contain the raw key and value.
    """

    primary_key: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    keep_values: bool = False


class StreamSource(Protocol):
    """A connection to a message broker, for use by one thread.

    **Errors.** ``SourceUnavailable`` if the broker cannot be reached or rejects the credentials,
    ``SourceTableNotFound`` for an unknown topic, ``SourceError`` for all other failures.
    """

    def topic(self, name: str) -> Topic:
        """Return the partitions of a topic and their current offsets."""
        ...

    def owned(self, spec: StreamSpec, partitions: Collection[int]) -> frozenset[int]:
        """Return the partitions that are currently assigned to this reader.

        All partitions are assigned, unless they are shared by ``spec.consumer_group``. Then the
        assignment may differ in each call, and two readers may briefly read the same partition.
        """
        ...

    def batches(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> Iterator[MicroBatch]:
        """Yield the records from ``start`` to ``end`` in micro-batches.

        A micro-batch has about ``spec.batch_records`` records at most and starts at the end of the
        previous one. It is invalid after the next one is requested. Later records may follow after
        ``end``. Offsets without a record (transactions, compaction) are skipped.
        """
        ...

    def batch(
        self, spec: StreamSpec, start: Mapping[int, int], end: Mapping[int, int], *, engine: Engine
    ) -> MicroBatch:
        """Return exactly the records from ``start`` to ``end`` as one micro-batch."""
        ...

    def close(self) -> None:
        """Close the connection; may be called repeatedly."""
        ...


@runtime_checkable
class HasStreams(Protocol):
    """A source with topics."""

    def stream(self) -> StreamSource:
        """Return a connection without sending a request."""
        ...

    def decoder(self, spec: StreamSpec, request: DecoderRequest) -> BatchFunction:
        """Return a function that decodes records to rows.

        The rows have the columns of the group and ``RECORD_COLUMNS``. If a record cannot be decoded
        or lacks a required column, ``record_error`` contains the reason, and the row contains the
        raw key and value; for valid records these are null unless ``request.keep_values``. The
        function is picklable, runs where the records are stored, and never raises an error for a
        record.

        Raises:
            InvalidJob: The record format cannot represent a column; the message names the column.
        """
        ...

    def decoded_schema(self, spec: StreamSpec) -> pa.Schema:
        """Return the schema of the decoded rows."""
        ...
