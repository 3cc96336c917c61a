"""The interface of engines: relations in, relations out, Delta tables below.

Engines are entry points of the group ``featurestore.engines``, the built-in ones included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from featurestore.errors import (
    InvalidArgument,
    did_you_mean,
    listing,
)
from featurestore.plugins import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.model.plan import FeaturePlan

State = TypeVar("State")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
BatchFunction = Callable[["pa.RecordBatch"], "pa.RecordBatch"]
ShardFunction = Callable[[int, Iterator["pa.RecordBatch"]], Result]

# Properties of every new table. Only the store's own maintenance removes versions, so Delta must
# expire neither log entries nor data files.
TABLE_PROPERTIES = {
    "delta.checkpointInterval": "10",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 3650 days",
}


@dataclass(frozen=True)
class Relation:
    """A lazy table that an engine owns.

    It describes rows and computes them on demand. Nothing is cached between two reads: each of
    ``stream``, ``count``, ``write`` and similar calls computes the rows again, so a caller that
    needs them twice stages them first (``Engine.stage``). Relations are immutable; engine methods
    that take a relation return a new one. A relation is valid until its engine is closed or the
    relation that it derives from is released. It belongs to one process (not picklable) and to one
    engine.

    Attributes:
        engine: The name of the engine that owns the relation.
        native: The engine's own frame (DuckDBPyRelation, Spark DataFrame).
        schema: The feature types that ``stream`` yields; they may be richer than the native ones
            (unsigned integers, fixed-size lists).
        single_use: Whether the relation reads a stream. Such a relation and all relations derived
            from it can be read once in total; the result of a second read is undefined, so callers
            stage it before they read it twice.
    """

    engine: str
    native: Any = field(repr=False)
    schema: pa.Schema
    single_use: bool = False


class Accumulator(Protocol[State, Result_co]):
    """A mergeable aggregate over record batches, run by ``Engine.aggregate`` where the rows are.

    The engine creates one state with ``start`` for each partition or thread, passes every batch of
    that partition to ``update``, combines the states with ``merge`` in partition order, and calls
    ``finish`` once, in the calling process, on the merged state. Methods may modify the states that
    they receive in place; the engine does not use them afterwards. Batches may be empty and have
    any number of rows; the engine keeps no reference to them. Accumulators and states are
    picklable. An exception from a method ends the aggregation and propagates to the caller.
    """

    @property
    def threads(self) -> int:
        """The number of states that one process may update concurrently.

        Return more than 1 only if ``update`` releases the GIL.
        """
        return 1

    def start(self) -> State:
        """Return the state of no rows."""
        ...

    def update(self, state: State, batch: pa.RecordBatch) -> State:
        """Return the state with the rows of ``batch`` added."""
        ...

    def merge(self, left: State, right: State) -> State:
        """Return the combined state."""
        ...

    def finish(self, state: State) -> Result_co:
        """Return the aggregate of all rows from the merged state."""
        ...


@dataclass(frozen=True)
class TimeRange:
    """A range of an event-time column.

    ``[start, end)``, or ``(start, end]`` when ``closed`` is "right".
    """

    column: str
    start: datetime
    end: datetime
    closed: Literal["left", "right"] = "left"


@dataclass(frozen=True)
class TableWrite:
    """One write into a Delta table.

    Attributes:
        mode: What happens to the existing rows.
        key: The merge columns of an upsert.
        replace: The range that mode "replace" empties in the same commit.
        add_columns: New nullable columns, as feature types.
        commit_metadata: A JSON object stored in the commit's info (run, inputs, validation, unique).
        transaction: (application, number). The write is a no-op if the number is not above the last
            one committed for that application.
        offsets: For modes "append" and "upsert": {application: (current number, next number)}, all
            advanced in the commit of the rows. Before the first commit, the current number is missing (None).
            ``StreamOvertaken`` is raised if an application has another number by then.
        deletes: More keys (columns ``key``) whose rows an upsert removes. They are disjoint from
            the keys of the written rows.
    """

    mode: Literal["append", "upsert", "overwrite", "replace"]
    key: tuple[str, ...] = ()
    replace: TimeRange | None = None
    add_columns: pa.Schema | None = None
    commit_metadata: Mapping[str, Any] = field(default_factory=dict)
    transaction: tuple[str, int] | None = None
    offsets: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    deletes: Relation | None = None


class Engine(Protocol):
    """The operations that the store needs from an engine.

    Every implementation passes ``featurestore.testing.EngineConformance``.

    **Laziness.** Methods that return a ``Relation`` compute no rows, except ``stage``, which writes
    them, and ``from_arrow`` where the rows must be shipped. Errors that need no rows are raised
    immediately: unknown columns and tables, SQL that does not parse. Errors in the rows are raised
    when the rows are computed.

    **Location of rows.** Rows enter this process only through ``stream``, and as the few examples
    of ``duplicates``. Functions and accumulators passed to ``map_batches``, ``aggregate`` and
    ``write_shards`` run where the rows are (on Spark in the executors). They and their results are
    picklable, and they may be called more than once for the same rows when a task is retried; only
    the results of one call count. Batches have any number of rows, also zero. An exception from
    such a function propagates to the caller unchanged or as an ``EngineError`` that quotes it.

    **SQL** is in the engine's own ``dialect``: ``featurestore.usersql`` has parsed and transpiled
    the user's query. User text arrives only through ``user_sql``, or as a predicate that was
    checked there.

    **Threads.** All methods are thread-safe; each stream is read by one thread. Engines are not
    picklable: executors receive functions, not the engine.

    **Tables** are Delta tables of reader version 1 and writer version 2, below a path that the
    caller derived. Several engines, threads and processes may write one table. A commit is atomic,
    conflicts are resolved by reading the table again, and once a commit is visible nothing in it is
    removed and the call does not fail (``PublicationWarning`` names the remaining work). An
    interrupted or failed write leaves the table unchanged; ``vacuum`` removes its orphan files.
    Versions are immutable: ``read_table`` returns the same rows for a version as long as its files
    exist.

    **Files.** The engine owns the files of tables. The caller owns the files of ``stage`` and
    removes the directory when no relation needs it any more. Files passed to ``read_files`` are
    only read. ``release`` and ``close`` remove the engine's temporary files (spilled rows, rows
    shipped to executors).

    **Errors.** ``InvalidSql`` for SQL that the engine cannot run, ``SchemaMismatch`` for columns
    and types that do not fit, ``WriteConflict`` when retries against concurrent writers are
    exhausted, ``VersionNotFound``, ``UnsupportedTable`` and ``TableDamaged`` for unreadable tables,
    ``StorageError`` for the file system, ``EngineError`` for all other failures. Exceptions of the
    underlying libraries are wrapped.
    """

    @property
    def name(self) -> str:
        """The entry point's name."""
        ...

    @property
    def dialect(self) -> str:
        """The sqlglot dialect of SQL that this engine accepts."""
        ...

    @property
    def is_distributed(self) -> bool:
        """Whether other machines read the rows, so that files must be in the store's location."""
        ...

    def session_settings(self, location: str) -> Mapping[str, str]:
        """Return the settings that a user-built session needs for a store at a location.

        Starts nothing. Empty if the engine has no sessions.
        """
        ...

    # -- relations ----------------------------------------------------------------------

    def adopt(self, frame: object) -> Relation | None:
        """Return a relation over the engine's native frame, or None when ``frame`` is not one."""
        ...

    def from_arrow(self, reader: pa.RecordBatchReader) -> Relation:
        """Return a relation over an Arrow stream (on Spark: shipped to the executors)."""
        ...

    def release(self, relation: Relation) -> None:
        """Remove the temporary rows that ``from_arrow`` stored for a relation.

        Neither the relation nor relations derived from it may be read afterwards.
        """
        ...

    def read_table(
        self,
        path: str,
        *,
        version: int | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
    ) -> Relation:
        """Return the rows of a table at a Delta version (None: the latest).

        ``schema`` restores feature types, ``columns`` selects columns.
        """
        ...

    def read_files(self, paths: Sequence[str], *, schema: pa.Schema | None = None) -> Relation:
        """Return the rows of Parquet files or folders."""
        ...

    def select(self, relation: Relation, columns: Mapping[str, str]) -> Relation:
        """Return columns renamed: ``{name in the result: name in the relation}``, in that order."""
        ...

    def filter(self, relation: Relation, predicate: str) -> Relation:
        """Return the rows for which an SQL predicate (this engine's dialect) is true."""
        ...

    def within(self, relation: Relation, window: TimeRange) -> Relation:
        """Return the rows whose time is in a range."""
        ...

    def sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        """Return the result of an internal query over named relations.

        The query is in this engine's dialect, with ``$name`` parameters. It must not contain user
        text.
        """
        ...

    def user_sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        """Return the result of a user's query, as ``sql``.

        The query can read ``tables`` and nothing else. ``featurestore.usersql.query`` has checked
        it; the engine enforces the limit again at run time.
        """
        ...

    def count(self, relation: Relation) -> int:
        """Return the number of rows."""
        ...

    def map_batches(
        self, relation: Relation, function: BatchFunction, *, schema: pa.Schema
    ) -> Relation:
        """Return the relation with ``function`` applied to each record batch."""
        ...

    def aggregate(self, relation: Relation, accumulator: Accumulator[State, Result]) -> Result:
        """Return the result of an accumulator over all rows."""
        ...

    def duplicates(
        self, relation: Relation, key: Sequence[str], *, limit: int = 5
    ) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of keys without nulls that occur more than once, and examples.

        Each example has the key's columns and its count in ``n``.
        """
        ...

    def last_per_key(self, relation: Relation, key: Sequence[str]) -> Relation:
        """Return the last row of each key, in the order of the relation (on Spark: partition order)."""
        ...

    def stream(
        self, relation: Relation, *, batch_rows: int = 65_536, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """Stream the rows into this process as record batches of feature types."""
        ...

    def stage(self, relation: Relation, directory: str) -> Relation:
        """Write the rows as Parquet into ``directory`` and return a relation over the files.

        Row order is lost, so order-dependent operations (``last_per_key``) must come first.
        """
        ...

    # -- tables -------------------------------------------------------------------------

    def create_table(
        self,
        path: str,
        *,
        schema: pa.Schema,
        partition_by: Sequence[str],
        properties: Mapping[str, str],
        commit_metadata: Mapping[str, Any],
    ) -> None:
        """Create an empty Delta table (commit 0) with ``properties`` and ``TABLE_PROPERTIES``.

        Raises:
            FileExistsError: A table exists at the path.
        """
        ...

    def write(self, path: str, relation: Relation, write: TableWrite) -> int | None:
        """Write one commit and return its Delta version; None if its transaction is committed.

        Conflicts with other writers are retried.

        Raises:
            WriteConflict: The retries are exhausted.
        """
        ...

    def delete(
        self, path: str, predicate: str, *, commit_metadata: Mapping[str, Any]
    ) -> int | None:
        """Delete the rows that match a predicate.

        Return the Delta version, or None if no row matched.
        """
        ...

    def set_properties(self, path: str, properties: Mapping[str, str]) -> None:
        """Set table properties in a separate commit."""
        ...

    def widen_columns(self, path: str, columns: pa.Schema) -> int | None:
        """Give decimals of a table more digits, so that they hold those of ``columns``, too.

        One commit writes all files again and changes no row; versions before it keep their types.
        Writers at the same time land their rows in the new types. Return the Delta version, None
        when the table is as wide already; ``SchemaMismatch`` when 38 digits do not hold both.
        """
        ...

    def compact(self, path: str, *, below: int | None = None) -> int | None:
        """Rewrite small files into large ones.

        Files of fewer than ``below`` bytes are small; None uses the engine's default. Return the
        Delta version, or None if no file was rewritten.
        """
        ...

    def vacuum(self, path: str, *, keep_versions: Sequence[int], retain: datetime) -> Sequence[str]:
        """Remove files that neither versions since ``retain`` nor ``keep_versions`` need."""
        ...

    # -- queries ------------------------------------------------------------------------

    def retrieve(self, plan: FeaturePlan, *, labels: Relation | None = None) -> Relation:
        """Return the rows of a feature plan."""
        ...

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
        """Call ``write(shard number, batches)`` for each shard, where its rows are.

        Args:
            relation: The rows of all shards.
            shard: An int32 column with the shard number of each row. Shards without rows get no
                call.
            shard_count: The exclusive upper bound of shard numbers.
            order: Columns by which the rows of a shard are sorted, ascending. The batches include
                them.
            shard_ascends: Whether sorting all rows by ``order`` also sorts them by shard.
            row_count: The approximate number of rows, if known.
            write: The function; it may run in executors.

        Returns:
            The results, by shard number.
        """
        ...

    # -- conversions --------------------------------------------------------------------

    def to_spark(self, relation: Relation) -> Any:
        """Return a Spark DataFrame; engines without Spark raise an error."""
        ...

    def explain(self, relation: Relation) -> str:
        """Return the engine's physical plan as text.

        Tests check it for pushed-down filters and columns.
        """
        ...

    def interrupt(self, thread: int) -> None:
        """Cancel the computation of another thread (``threading.get_ident``).

        A no-op if the thread computes nothing, or if the engine cannot cancel: on Spark a job of
        another session may run in the same context.
        """
        ...

    def close(self) -> None:
        """Release connections and sessions that this engine opened. May be called twice."""
        ...


@runtime_checkable
class HoldsRows(Protocol):
    """An optional capability of engines whose rows are in this process."""

    def hold(self, relation: Relation) -> Relation:
        """Buffer the rows in memory for repeated reads, if they fit.

        If they do not fit, return a single-use relation of the same rows, which replaces the
        argument.
        """
        ...


@runtime_checkable
class AggregatesWhileStaging(Protocol):
    """An optional capability of engines that can aggregate rows while they stage them."""

    def stage_and_aggregate(
        self, relation: Relation, directory: str, accumulator: Accumulator[State, Result]
    ) -> tuple[Relation, Result | None]:
        """Stage rows as ``stage`` does and return the accumulator's result.

        Returns None if the accumulator needs a second pass over the rows.
        """
        ...


def find_engine(name: str, *, durability: str = "full") -> Engine:
    """Create an engine from the name of its entry point.

    Raises:
        InvalidArgument: No such engine is installed.
    """
    entry_point = find_plugin("engines", name)
    if entry_point is None:
        raise InvalidArgument(
            f"Unknown engine {name!r}. Available: {listing(plugin_names('engines'))}.",
            hint=did_you_mean(name, plugin_names("engines"), write="engine={!r}")
            or "engine='duckdb'",
        )
    engine: Engine = load_plugin(entry_point)(durability=durability)
    return engine
