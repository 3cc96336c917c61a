"""The engine interface: computation on relations, and writes to Delta tables.

Engines, including the built-in engines, are entry points of the group ``featurestore.engines``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from featurestore.errors import (
    InvalidArgument,
    SchemaMismatch,
    did_you_mean,
    listing,
)
from featurestore.plugins import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import pyarrow as pa

    from featurestore.delta.snapshot import Snapshot
    from featurestore.model.plan import FeaturePlan
    from featurestore.plugins.format import ColumnProfile, WrittenShard
    from featurestore.plugins.native import RecordTask, RowCounts

State = TypeVar("State")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
BatchFunction = Callable[["pa.RecordBatch"], "pa.RecordBatch"]
ShardFunction = Callable[[int, Iterator["pa.RecordBatch"]], Result]
# The user metadata of a commit, a JSON object.
CommitMetadata = Mapping[str, Any]
# (input columns, number of rows) -> the values of the expressions for each row.
RowsFunction = Callable[[Sequence[Sequence[Any]], int], list[tuple[Any, ...]]]

# Properties of all new tables. Versions are removed only by the store's maintenance, so Delta must
# not expire log entries or data files.
TABLE_PROPERTIES = {
    "delta.checkpointInterval": "10",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 3650 days",
}

# The engine that computes in the calling process.
EMBEDDED_ENGINE = "duckdb"
ADD_COLUMNS_HINT = "schema_change='add' adds new nullable columns"


def unknown_columns_error(
    unknown: Sequence[str], available: Sequence[str], *, hint: str | None = None
) -> SchemaMismatch:
    """Return the error for columns that rows or a table do not have."""
    return SchemaMismatch(
        f"Unknown columns {listing(unknown)}. Available: {listing(available, limit=50)}.", hint=hint
    )


@dataclass(frozen=True)
class Relation:
    """A lazy table of an engine.

    The rows are computed on demand and not cached: each call of ``stream``, ``count``, ``write``
    and similar methods computes them again. To read rows more than once, stage them first
    (``Engine.stage``). Relations are immutable; engine methods return new relations. A relation is
    valid until its engine is closed or a relation from which it is derived is released. It belongs
    to one engine in one process and cannot be pickled.

    Attributes:
        engine: The name of the engine.
        native: The engine's native frame (DuckDBPyRelation, Spark DataFrame).
        schema: The feature types that ``stream`` yields. Native types may be less specific (for
            unsigned integers and fixed-size lists).
        single_use: Whether the relation reads a stream. The relation and all derived relations can
            then be read only once in total; the result of a second read is undefined, so callers
            must stage the rows first.
    """

    engine: str
    native: Any = field(repr=False)
    schema: pa.Schema
    single_use: bool = False


class Accumulator(Protocol[State, Result_co]):
    """A mergeable aggregate over record batches, for ``Engine.aggregate``.

    The engine creates a state with ``start`` for each partition or thread, calls ``update`` with
    each batch of the partition, and combines the states with ``merge`` in partition order. It calls
    ``finish`` once, in the calling process, with the merged state. Methods may modify their state
    arguments in place; the engine does not use them afterwards. Batches may be empty and have any
    number of rows; the engine retains no reference to them. Accumulators and states must be
    picklable. An exception in a method ends the aggregation and is propagated to the caller.
    """

    # The number of states that a process may update concurrently; more than 1 only if ``update``
    # releases the GIL.
    threads: int = 1

    def start(self) -> State:
        """Return the initial state, which contains no rows."""
        ...

    def update(self, state: State, batch: pa.RecordBatch) -> State:
        """Add the rows of ``batch`` and return the new state."""
        ...

    def merge(self, left: State, right: State) -> State:
        """Return the merged state."""
        ...

    def finish(self, state: State) -> Result_co:
        """Return the result for the merged state of all rows."""
        ...


@dataclass(frozen=True)
class TimeRange:
    """A range of an event-time column.

    The range is ``[start, end)``, or ``(start, end]`` if ``closed`` is "right".
    """

    column: str
    start: datetime
    end: datetime
    closed: Literal["left", "right"] = "left"

    def contains(self, times: pa.Array) -> pa.Array:
        """Return for each time whether it is in the range; a date is its midnight in UTC.

        >>> import pyarrow as pa
        >>> from datetime import UTC, date
        >>> january = TimeRange("at", datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 2, 1, tzinfo=UTC))
        >>> january.contains(pa.array([date(2024, 1, 1), date(2024, 2, 1), None])).to_pylist()
        [True, False, None]
        """
        import pyarrow.compute as pc

        from featurestore.arrow.types import TIMESTAMP

        times = times.cast(TIMESTAMP)
        if self.closed == "right":
            return pc.and_(pc.greater(times, self.start), pc.less_equal(times, self.end))
        return pc.and_(pc.greater_equal(times, self.start), pc.less(times, self.end))


@dataclass(frozen=True)
class TableWrite:
    """A write to a Delta table.

    Attributes:
        mode: How existing rows are treated.
        key: The merge columns of an upsert. An incoming row replaces all stored rows of its key, so
            that one row is left. The key of a group contains the event time, so rows with an earlier
            or later time are not replaced. Null keys match nothing. ``DuplicateKeys`` is raised if
            the incoming rows have several rows of a key.
        replace: The time range that is deleted in the same commit, for mode "replace".
        add_columns: New nullable columns with feature types.
        commit_metadata: A JSON object that is stored in the commit (run, inputs, validation, unique).
        transaction: The application and transaction number. The write is a no-op if the number does
            not exceed the last committed number of the application.
        offsets: For modes "append" and "upsert": {application: (current number, next number)}. All
            numbers are advanced in the same commit. Before the first commit, None must be used as
            the current number. ``StreamOvertaken`` is raised if the current number of an
            application differs.
        deletes: Additional keys (columns ``key``) that an upsert deletes; they must not overlap with
            the keys of the written rows.
    """

    mode: Literal["append", "upsert", "overwrite", "replace"]
    key: tuple[str, ...] = ()
    replace: TimeRange | None = None
    add_columns: pa.Schema | None = None
    commit_metadata: CommitMetadata = field(default_factory=dict)
    transaction: tuple[str, int] | None = None
    offsets: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    deletes: Relation | None = None


@dataclass(frozen=True)
class PropertyChange:
    """New values of table properties, and the JSON object that is stored in their commit."""

    properties: Mapping[str, str]
    commit_metadata: CommitMetadata = field(default_factory=dict)


@dataclass(frozen=True)
class HashCounts:
    """Statistics of hashed rows by group.

    Attributes:
        bits: The number of leading hash bits that select a bin.
        histograms: The row counts of the ``2**bits`` bins, as int64 arrays ordered by hash.
        hash_sums: The sums of the hashes modulo 2**64.
        profiles: The column profiles over all groups.
    """

    bits: int
    histograms: dict[int, Any]
    hash_sums: dict[int, int]
    profiles: tuple[ColumnProfile, ...]

    def rows(self, group: int) -> int:
        """Return the number of rows in a group."""
        if group not in self.histograms:
            return 0
        return int(self.histograms[group].sum())


class Engine(ABC):
    """Base class of engines: the operations that the store requires.

    Abstract methods are those that every engine implements. The others are capabilities with a
    default: the store then computes in Python, with the same results. Every implementation must
    pass ``featurestore.testing.EngineConformance``.

    **Laziness.** Methods that return a ``Relation`` do not compute rows, except for ``stage``,
    which writes them, and ``from_arrow`` if rows must be sent to executors. Errors that do not
    depend on rows (unknown columns and tables, invalid SQL) are raised immediately. Errors in rows
    are raised when the rows are computed.

    **Location of rows.** Rows enter the calling process only through ``stream``, and as examples of
    ``duplicates``. Functions and accumulators passed to ``map_batches``, ``aggregate`` and
    ``write_shards`` run where the rows are stored (on Spark, in the executors). They and their
    results must be picklable. If a task is retried, they may be called repeatedly for the same
    rows; only the results of one call are used. Batches may have any number of rows, including
    zero. An exception in a function is propagated to the caller, unchanged or quoted by an
    ``EngineError``.

    **SQL** uses the engine's ``dialect``. User queries are parsed and transpiled by
    ``featurestore.usersql`` before. User text is passed only to ``user_sql``, or as a checked
    predicate.

    **Threads.** All methods are thread-safe; a stream is read by one thread. Engines cannot be
    pickled: executors receive functions, not the engine.

    **Tables** are Delta tables of reader version 1 and writer version 2, at a path that the caller
    determines. Several engines, threads and processes may write to the same table. Commits are
    atomic, and conflicts are resolved by reading the table again. After a commit is visible, it is
    not undone and the call does not fail (``PublicationWarning`` describes the remaining work). A
    failed or interrupted write does not change the table; ``vacuum`` removes its orphan files.
    Versions are immutable: ``read_table`` returns the same rows for a version as long as its files
    exist.

    **Files.** The engine owns the files of tables. The caller owns the files written by ``stage``,
    and removes the directory when no relation requires it. Files passed to ``read_files`` are not
    modified. ``release`` and ``close`` remove temporary files of the engine (spilled rows, rows
    sent to executors).

    **Errors.** ``InvalidSql`` for SQL that the engine cannot run, ``SchemaMismatch`` for
    incompatible columns or types, ``WriteConflict`` if retries after conflicts with concurrent
    writers are exhausted, ``VersionNotFound``, ``UnsupportedTable`` and ``TableDamaged`` for
    unreadable tables, ``StorageError`` for file system errors, ``EngineError`` for all other
    failures. Exceptions of the underlying libraries are wrapped.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The entry point's name."""

    @property
    @abstractmethod
    def dialect(self) -> str:
        """The sqlglot name of the SQL dialect that the engine accepts."""

    @property
    @abstractmethod
    def is_distributed(self) -> bool:
        """Whether other machines read rows, so that all files must be in the store's location."""

    @property
    def runs_in_process(self) -> bool:
        """Whether all functions run in the calling process, so that they can share its memory."""
        return False

    def session_settings(self, location: str) -> Mapping[str, str]:
        """Return the settings that a user's session needs for a store at a location.

        No session is started. The result is empty, the default, if the engine has no sessions.
        """
        return {}

    # -- relations ----------------------------------------------------------------------

    @abstractmethod
    def adopt(self, frame: object) -> Relation | None:
        """Return a relation for a native frame of the engine, or None for other objects."""

    @abstractmethod
    def user_frame(self, relation: Relation) -> Any:
        """Return a native frame of a relation for code of a user.

        The code may use the frame in another thread, at any time, also while the engine works.
        """

    @abstractmethod
    def from_arrow(self, reader: pa.RecordBatchReader) -> Relation:
        """Return a relation for an Arrow stream; on Spark, the rows are sent to the executors."""

    def release(self, relation: Relation) -> None:
        """Remove temporary rows that ``from_arrow`` has stored for a relation.

        The relation and all relations derived from it must not be read afterwards.
        """
        return

    @abstractmethod
    def read_table(
        self,
        path: str,
        *,
        version: int | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        data_files: Sequence[str] | None = None,
    ) -> Relation:
        """Return the rows of a table at a Delta version, by default the latest.

        ``schema`` has the feature types to restore; ``columns`` selects columns, and ``data_files``
        some files of the version by their absolute paths.
        """

    @abstractmethod
    def read_files(self, paths: Sequence[str], *, schema: pa.Schema | None = None) -> Relation:
        """Return the rows of Parquet files or folders."""

    @abstractmethod
    def select(self, relation: Relation, columns: Mapping[str, str]) -> Relation:
        """Select and rename columns: ``{result name: column name}``, in this order."""

    @abstractmethod
    def filter(self, relation: Relation, predicate: str) -> Relation:
        """Return the rows that match an SQL predicate in the engine's dialect."""

    @abstractmethod
    def within(self, relation: Relation, window: TimeRange) -> Relation:
        """Return the rows in a time range."""

    @abstractmethod
    def sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        """Return the result of an internal query over named relations.

        The query is in the engine's dialect, with parameters like ``$name``. It must not contain
        user text.
        """

    def check_syntax(self, query: str) -> None:
        """Raise InvalidSql if a user's query cannot be parsed; tables are not resolved.

        An engine whose parser is not available without tables does nothing.
        """
        return

    @abstractmethod
    def user_sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        """Return the result of a user's query; the arguments are those of ``sql``.

        The query is DuckDB SQL, and the rows and types of the result are those of DuckDB. It must
        read only ``tables``. ``featurestore.usersql.query`` checks this before the call, and the
        engine enforces it again at run time.

        Raises:
            InvalidSql: The query is invalid, or has a form that differs between engines.
        """

    @abstractmethod
    def count(self, relation: Relation) -> int:
        """Return the number of rows."""

    @abstractmethod
    def map_batches(
        self, relation: Relation, function: BatchFunction, *, schema: pa.Schema
    ) -> Relation:
        """Apply ``function`` to each record batch."""

    @abstractmethod
    def aggregate(self, relation: Relation, accumulator: Accumulator[State, Result]) -> Result:
        """Return the result of an accumulator over all rows."""

    @abstractmethod
    def duplicates(
        self, relation: Relation, key: Sequence[str], *, limit: int = 5
    ) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of keys that occur more than once, and examples.

        Keys with nulls are ignored. Each example has the key columns, and the row count in ``n``.
        """

    @abstractmethod
    def last_per_key(self, relation: Relation, key: Sequence[str]) -> Relation:
        """Return the last row of each key in the relation's row order (on Spark: partition order)."""

    @abstractmethod
    def stream(
        self, relation: Relation, *, batch_rows: int = 65_536, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """Stream the rows to the calling process as record batches with feature types."""

    @abstractmethod
    def stage(self, relation: Relation, directory: str) -> Relation:
        """Write the rows to Parquet files in ``directory``, and return a relation for the files.

        The row order is lost, so operations that depend on it (``last_per_key``) must come first.
        """

    def stage_and_aggregate(
        self, relation: Relation, directory: str, accumulator: Accumulator[State, Result]
    ) -> tuple[Relation, Result | None]:
        """Stage rows like ``stage``, and return the result of the accumulator.

        None for the result, the default, if the accumulator requires a second pass over the rows.
        """
        return self.stage(relation, directory), None

    def hold(self, relation: Relation) -> Relation:
        """Buffer the rows in memory for repeated reads, if they fit; by default, return them lazy.

        If they do not fit, return a single-use relation with the same rows; the argument must not
        be used any more.
        """
        return relation

    def prepare_rows(
        self, expressions: Sequence[str], *, inputs: pa.Schema, kinds: pa.Schema
    ) -> RowsFunction:
        """Prepare SQL expressions of the columns ``inputs``, and return a thread-safe function.

        The values equal those of the same expressions over a relation. ``kinds`` has the types of
        the expressions. By default, the embedded engine computes them, since a request cannot wait
        for a cluster.
        """
        return find_engine(EMBEDDED_ENGINE).prepare_rows(expressions, inputs=inputs, kinds=kinds)

    # -- tables -------------------------------------------------------------------------

    @abstractmethod
    def create_table(
        self,
        path: str,
        *,
        schema: pa.Schema,
        partition_by: Sequence[str],
        properties: Mapping[str, str],
        commit_metadata: CommitMetadata,
    ) -> None:
        """Create an empty Delta table (commit 0) with ``properties`` and ``TABLE_PROPERTIES``.

        Raises:
            FileExistsError: A table exists at the path.
        """

    @abstractmethod
    def write(self, path: str, relation: Relation, write: TableWrite) -> int | None:
        """Write one commit and return its Delta version.

        Return None if the transaction is already committed. Conflicts with other writers are
        retried.

        Raises:
            WriteConflict: The retries are exhausted.
        """

    @abstractmethod
    def delete(self, path: str, predicate: str, *, commit_metadata: CommitMetadata) -> int | None:
        """Delete the rows that match a predicate.

        Return the new Delta version, or None if no row matches.
        """

    @abstractmethod
    def change_properties(
        self, path: str, change: Callable[[Snapshot], PropertyChange | None]
    ) -> int | None:
        """Change table properties in a separate commit.

        Return the new Delta version, or None if ``change`` returns None.

        Args:
            path: The table.
            change: Returns the change for a snapshot, without side effects. It is called with the
                newest snapshot, and again if another writer commits before this change, so that a
                change that depends on current values never undoes a concurrent one.

        Raises:
            WriteConflict: The retries are exhausted.
        """

    @abstractmethod
    def widen_columns(self, path: str, columns: pa.Schema) -> int | None:
        """Widen decimal columns of a table, so that they can represent the types in ``columns``.

        All files are rewritten in one commit that changes no rows. Earlier versions retain their
        types. Concurrent writers commit their rows with the new types. Return the new Delta
        version, or None if the table is already wide enough.

        Raises:
            SchemaMismatch: More than 38 digits would be required.
        """

    @abstractmethod
    def compact(self, path: str, *, below: int | None = None) -> int | None:
        """Rewrite small files into larger ones.

        Files with fewer than ``below`` bytes are small; None uses the engine's default. Return the
        new Delta version, or None if no file was rewritten.
        """

    @abstractmethod
    def vacuum(self, path: str, *, keep_versions: Sequence[int], retain: datetime) -> Sequence[str]:
        """Remove files that neither versions since ``retain`` nor ``keep_versions`` need."""

    # -- queries ------------------------------------------------------------------------

    @abstractmethod
    def retrieve(self, plan: FeaturePlan, *, labels: Relation | None = None) -> Relation:
        """Return the rows of a feature retrieval plan."""

    @abstractmethod
    def write_shards(
        self,
        relation: Relation,
        *,
        shard: str,
        shard_count: int,
        order: Sequence[str],
        shard_ascends: bool = False,
        row_count: int | None = None,
        write: ShardFunction[Result],
    ) -> list[Result]:
        """Call ``write(shard number, batches)`` for each shard, in the processes that have the rows.

        Args:
            relation: The rows of all shards.
            shard: An int32 column with the shard number of each row. The function is not called for
                shards without rows.
            shard_count: The exclusive upper bound of shard numbers.
            order: The columns by which rows of a shard are sorted, ascending. The batches include
                these columns.
            shard_ascends: Whether sorting all rows by ``order`` also sorts them by shard.
            row_count: The approximate number of rows, if known.
            write: The function; it may be called in executors.

        Returns:
            The results, ordered by shard number.
        """

    # -- exports ------------------------------------------------------------------------

    def can_write_records(self, schema: pa.Schema, directory: str) -> bool:
        """Return whether the engine encodes records of a schema itself, by default False."""
        return False

    def write_records(
        self, relation: Relation, task: RecordTask
    ) -> dict[int, tuple[WrittenShard, RowCounts]]:
        """Write all shards that have rows, with the bytes of the format; return them by number.

        It is called if ``can_write_records`` returns True.
        """
        raise NotImplementedError

    def with_row_hash(
        self, relation: Relation, columns: Sequence[str], *, seed: int, name: str
    ) -> Relation | None:
        """Add an int64 column with the row hash (``featurestore.hashing``) of ``columns``.

        The unsigned hash is mapped to a signed integer with the same order. None, the default, if
        the engine cannot hash the types; the store then hashes Arrow batches.
        """
        return None

    def with_range_number(
        self,
        relation: Relation,
        column: str,
        *,
        starts: Sequence[int],
        numbers: Sequence[int],
        name: str,
    ) -> Relation:
        """Add an int32 column with the number of the range that contains the value of ``column``.

        ``starts`` has the strictly ascending starts of all ranges except the first; ``numbers`` has
        the number of each range. It is called for columns of ``with_row_hash``.
        """
        raise NotImplementedError

    def count_hashes(
        self, relation: Relation, *, hashes: str, group: str, columns: Sequence[str]
    ) -> HashCounts | None:
        """Count hashed rows by group in a query, and compute column profiles over all groups.

        None, the default, if the engine cannot count them; the store then counts Arrow batches.
        """
        return None

    def hashes_of_groups(
        self, relation: Relation, *, hashes: str, group: str, bits: int
    ) -> dict[int, tuple[Any, Any]] | None:
        """Return ``{group: (distinct hashes, row counts)}`` as int64 arrays, ordered by hash.

        Only the leading ``bits`` of the hashes are returned; all other bits are 0. The number of
        distinct hashes should be small, since they are collected in the calling process. None, the
        default, if the engine cannot count them; the store then counts Arrow batches.
        """
        return None

    # -- conversions --------------------------------------------------------------------

    @abstractmethod
    def to_spark(self, relation: Relation) -> Any:
        """Return a Spark DataFrame; engines without Spark raise an error."""

    @abstractmethod
    def explain(self, relation: Relation) -> str:
        """Return the engine's physical plan as a string.

        Tests use it to check that filters and column selections are pushed down.
        """

    def interrupt(self, thread: int) -> None:
        """Cancel the computation of another thread, identified by ``threading.get_ident``.

        This is a no-op if the thread is not computing, or if the engine cannot cancel computations:
        on Spark, the same context may run jobs of another session.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Close all connections and sessions that the engine opened; may be called repeatedly."""


def find_engine(name: str, *, durability: str = "full") -> Engine:
    """Create an engine by its entry point name.

    Raises:
        InvalidArgument: No engine with this name is installed.
    """
    engine: Engine = load_plugin(find_entry_point(name))(durability=durability)
    return engine


def find_entry_point(name: str) -> EntryPoint:
    """Return the entry point of an engine; raise InvalidArgument if it is not installed."""
    entry_point = find_plugin("engines", name)
    if entry_point is None:
        raise InvalidArgument(
            f"Unknown engine {name!r}. Available: {listing(plugin_names('engines'))}.",
            hint=did_you_mean(name, plugin_names("engines"), write="engine={!r}")
            or f"engine={EMBEDDED_ENGINE!r}",
        )
    return entry_point
