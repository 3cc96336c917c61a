"""The interface of engines: relations in, relations out, Delta tables below.

An engine is looked up by name among the entry points ``featurestore.engines``; ours come that way
too.
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
from featurestore.plugins.lookup import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.model.plan import FeaturePlan

State = TypeVar("State")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
BatchFunction = Callable[["pa.RecordBatch"], "pa.RecordBatch"]
ShardFunction = Callable[[int, Iterator["pa.RecordBatch"]], Result]

# Every table is created with these: nothing but our own maintenance removes versions, so the log
# keeps all it has.
TABLE_PROPERTIES = {
    "delta.checkpointInterval": "10",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 3650 days",
}


@dataclass(frozen=True)
class Relation:
    """A lazy table that an engine owns.

    A description of rows, which are computed when they are asked for.

    Nothing is kept between two readings: each of ``stream``, ``count``, ``write`` and the like
    computes the rows anew, so a caller that needs them twice stages them first (``Engine.stage``).
    Relations are not changed; every method of an engine that takes one returns a new one. They are
    valid until the engine is closed, or until the relation that they come from is released, and
    belong to the process that made them: they are not pickled. Another engine's relation is never
    given to an engine.

    Attributes:
        engine: The name of the engine that owns it.
        native: The engine's own frame (DuckDBPyRelation, Spark DataFrame).
        schema: The feature types that ``stream`` gives; they may be richer than the native ones
            (unsigned integers, lists of one size).
        single_use: Whether it is made of a stream. Such a relation, and all that is made of it, can
            be read once, by one of them; what a second reading gives is undefined, so callers stage
            it before they read it twice.
    """

    engine: str
    native: Any = field(repr=False)
    schema: pa.Schema
    single_use: bool = False


class Accumulator(Protocol[State, Result_co]):
    """A mergeable aggregate over record batches, run by ``Engine.aggregate`` where the rows are.

    The engine makes one state with ``start`` for each partition or thread, hands it every batch of
    that partition with ``update``, puts the states together with ``merge`` (in the order of the
    partitions) and calls ``finish`` once, in the calling process, on the last state that is left.
    Every method may change the states that it is given in place, and nobody uses them afterwards.
    Batches may be empty, come in any cut, and are not kept by the engine. Accumulators and states
    are picklable. What a method raises ends the aggregation and reaches the caller.
    """

    @property
    def threads(self) -> int:
        """How many states one process may update at the same time.

        More than 1 where ``update`` frees the GIL.
        """
        return 1

    def start(self) -> State:
        """Return the state of no rows."""
        ...

    def update(self, state: State, batch: pa.RecordBatch) -> State:
        """Return the state with the rows of ``batch`` added."""
        ...

    def merge(self, left: State, right: State) -> State:
        """Return the state of both."""
        ...

    def finish(self, state: State) -> Result_co:
        """Return what the aggregation gives, from the state of all rows."""
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

    ``key`` holds the merge columns of an upsert, ``deletes`` more keys (columns ``key``) whose rows
    go in its commit; none of them is among the rows. ``replace`` is the range that mode "replace"
    empties in the same commit. ``add_columns`` are new nullable columns (feature types). ``note``
    is a JSON object that the commit's info carries (run, inputs, validation, unique).
    ``transaction`` is (app, n): an n at or below the last one of that app is a no-op. ``offsets``
    moves applications from the number that they have (None: none yet) to the next, all of them in
    the commit of the rows, or raises ``StreamOvertaken`` where one has another number by then; for
    modes "append" and "upsert".
    """

    mode: Literal["append", "upsert", "overwrite", "replace"]
    key: tuple[str, ...] = ()
    replace: TimeRange | None = None
    add_columns: pa.Schema | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    transaction: tuple[str, int] | None = None
    offsets: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    deletes: Relation | None = None


class Engine(Protocol):
    """What an engine does for the store.

    Every implementation passes ``featurestore.testing.EngineConformance``.

    **Laziness.** Methods that return a ``Relation`` compute no rows, except ``stage``, which writes
    them, and ``from_arrow`` where the rows have to be shipped. What can be known without rows is
    said at once: unknown columns and tables, SQL that cannot be read. Errors of the rows themselves
    come when they are computed.

    **Where rows are.** Rows enter this process through ``stream`` alone, and the few rows of
    ``duplicates``. Functions and accumulators given to ``map_batches``, ``aggregate`` and
    ``write_shards`` run where the rows are (on Spark in the executors), so they and what they
    return are picklable, and they may be called more than once for the same rows where a task is
    repeated; only the results of one call count. Batches come in any cut and may be empty. An
    exception of theirs reaches the caller as it is, or as an ``EngineError`` that quotes it.

    **SQL** is already in the engine's own ``dialect``: ``featurestore.usersql`` has parsed and
    transpiled what users wrote. Text of a user comes through ``user_sql`` alone, or as a predicate
    that was checked there.

    **Threads.** All methods may be called by several threads at the same time; each stream is read
    by one. Engines are not picklable: an executor gets functions, not the engine.

    **Tables** are Delta tables of reader version 1 and writer version 2, below a path that the
    caller derived. Several engines, threads and processes may write one table: a commit is atomic,
    conflicts are settled by reading the table again, and after a commit has become visible nothing
    of it is removed and the call does not fail (``PublicationWarning`` says what is left to do). An
    interrupted or failed write leaves the table as it was; files that it may leave behind are
    removed by ``vacuum``. Versions are immutable: ``read_table`` of one version gives the same rows
    for as long as its files are kept.

    **Files.** The engine owns the files of tables. Those of ``stage`` belong to the caller, who
    removes the directory when no relation over it is needed any more; files given to ``read_files``
    are only read. What the engine writes for itself (spilled rows, rows shipped to executors) it
    removes by ``release`` or ``close``.

    **Errors.** ``InvalidSql`` for SQL that the engine cannot run, ``SchemaMismatch`` for columns
    and types that do not fit, ``WriteConflict`` when other writers kept winning,
    ``VersionNotFound``, ``UnsupportedTable`` and ``TableDamaged`` for tables that cannot be read,
    ``StorageError`` for the file system, ``EngineError`` for what else the engine says. Errors of
    the libraries below do not leave the engine.
    """

    @property
    def name(self) -> str:
        """The entry point's name."""
        ...

    @property
    def dialect(self) -> str:
        """The sqlglot dialect of SQL that this engine takes."""
        ...

    @property
    def is_distributed(self) -> bool:
        """Whether other machines read the rows, so that their files have to lie in the store."""
        ...

    def session_settings(self, location: str) -> Mapping[str, str]:
        """Return what a session that somebody else builds needs for a store at a location.

        Nothing is started. Empty where an engine has no sessions.
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
        """Remove what ``from_arrow`` keeps for a relation.

        Neither it nor what was made of it is read afterwards.
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
        """Return a Delta version of a table.

        ``schema`` restores feature types, ``columns`` selects.
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
        """Return the rows whose time lies in a range."""
        ...

    def sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        """Return the result of a query of the store's own over named relations.

        The query is in this engine's dialect, with ``$name`` parameters. No text of a user may be
        in it.
        """
        ...

    def user_sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        """Return the result of a user's query, as ``sql``.

        It can read the tables given, and nothing else.

        The query was checked by ``featurestore.usersql.query``; the engine stands in for what that
        overlooks.
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
        """Return what an accumulator makes of all rows."""
        ...

    def duplicates(
        self, relation: Relation, key: Sequence[str], *, limit: int = 5
    ) -> tuple[int, list[dict[str, Any]]]:
        """Return how many keys without nulls occur more than once; examples have counts in ``n``."""
        ...

    def last_per_key(self, relation: Relation, key: Sequence[str]) -> Relation:
        """Return one row per key.

        The last in the order of the relation (on Spark: of the partitions as they come).
        """
        ...

    def stream(
        self, relation: Relation, *, batch_rows: int = 65_536, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows as record batches of feature types in this process, lazily."""
        ...

    def stage(self, relation: Relation, directory: str) -> Relation:
        """Write the rows once as Parquet into ``directory`` and return them from there.

        Their order is lost: whatever depends on it (``last_per_key``) comes before.
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
        note: Mapping[str, Any],
    ) -> None:
        """Create an empty Delta table (commit 0) of feature types.

        FileExistsError when there is one already.

        It has ``properties`` and ``TABLE_PROPERTIES``.
        """
        ...

    def write(self, path: str, relation: Relation, how: TableWrite) -> int | None:
        """Write one commit and return its Delta version; None when the transaction was a repeat.

        Conflicts with other writers are retried; ``WriteConflict`` when they kept winning.
        """
        ...

    def delete(self, path: str, predicate: str, *, note: Mapping[str, Any]) -> int | None:
        """Delete the rows for which the predicate is true.

        Return the Delta version, None when no row matched.
        """
        ...

    def set_properties(self, path: str, properties: Mapping[str, str]) -> None:
        """Set table properties in a commit of their own."""
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

        ``below`` says in bytes what is small; None leaves it to the engine. Return the Delta
        version, None when nothing was to do.
        """
        ...

    def vacuum(self, path: str, *, keep_versions: Sequence[int], retain: datetime) -> Sequence[str]:
        """Remove files that no version since ``retain`` and none of ``keep_versions`` needs."""
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
        """Call ``write(shard number, batches)`` once for every shard where its rows are.

        ``shard`` names an int32 column with the number of the shard of each row, which is below
        ``shard_count``; a shard without rows gives no call. The batches of a shard come sorted by
        the columns ``order`` (ascending) and still hold these columns. ``shard_ascends`` says that
        sorting all rows by ``order`` sorts them by shard, too. ``row_count`` is about how many rows
        there are, where that is known. Results come back by shard number.
        """
        ...

    # -- conversions --------------------------------------------------------------------

    def to_spark(self, relation: Relation) -> Any:
        """Return a Spark DataFrame (an engine without Spark raises MissingExtra or starts one)."""
        ...

    def explain(self, relation: Relation) -> str:
        """Return the engine's physical plan as text.

        Tests look for pushed-down filters and columns.
        """
        ...

    def interrupt(self, thread: int) -> None:
        """End what a thread (``threading.get_ident``) computes; other threads call this.

        Nothing happens where it computes nothing, or where an engine cannot: on Spark a job of
        another session may run in the same context.
        """
        ...

    def close(self) -> None:
        """Release what this engine opened itself.

        Connections, a session that it started. Closing twice is no error.
        """
        ...


@runtime_checkable
class HoldsRows(Protocol):
    """What an engine has, too, whose rows are in this process."""

    def hold(self, relation: Relation) -> Relation:
        """Return the rows in memory, to be read again, where the engine has room for them.

        Otherwise a relation of the same rows instead of the given one: where that was read already,
        it can be read once.
        """
        ...


@runtime_checkable
class AggregatesWhileStaging(Protocol):
    """What an engine has, too, that can look at rows while it stages them."""

    def stage_and_aggregate(
        self, relation: Relation, directory: str, accumulator: Accumulator[State, Result]
    ) -> tuple[Relation, Result | None]:
        """Stage rows as ``stage`` does, and return what an accumulator made of them meanwhile.

        None where that would take another pass over them.
        """
        ...


def find_engine(name: str, *, durability: str = "full") -> Engine:
    """Return a new engine by the name of its entry point: its class, called with ``durability=``.

    Raises:
        InvalidArgument: No such engine; lists those installed.
    """
    found = find_plugin("engines", name)
    if found is None:
        raise InvalidArgument(
            f"engine={name!r} is not installed; there are {listing(plugin_names('engines'))}.",
            hint=did_you_mean(name, plugin_names("engines"), write="engine={!r}")
            or "engine='duckdb'",
        )
    engine: Engine = load_plugin(found)(durability=durability)
    return engine
