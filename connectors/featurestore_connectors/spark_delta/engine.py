"""The Engine interface on Spark and Delta. This facade delegates to the other modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from threading import RLock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.delta.scan import plan_scan
from featurestore.errors import UnsupportedDataframe
from featurestore.model.runtime import forked_process_error, reset_in_children
from featurestore.plugins.engine import (
    Accumulator,
    BatchFunction,
    Engine,
    HashCounts,
    PropertyChange,
    Relation,
    Result,
    ShardFunction,
    State,
    TableWrite,
    TimeRange,
)
from featurestore.plugins.format import WrittenShard
from featurestore.plugins.native import (
    RecordTask,
    RowCounts,
)
from featurestore.storage import storage_for
from featurestore.storage.location import scheme_of
from featurestore.storage.publication import is_durable
from featurestore_connectors.spark_delta import (
    buckets,
    jars,
    relations,
    rewrite,
    row_buffer,
    row_hashes,
    scan,
    shards,
    staged,
    streams,
    tables,
)
from featurestore_connectors.spark_delta import session as spark_delta_session
from featurestore_connectors.spark_delta.failures import translate_calls
from featurestore_connectors.spark_delta.relations import QueryTranslator
from featurestore_connectors.spark_delta.row_buffer import BufferedRelation
from featurestore_connectors.spark_delta.staged import StagedRelation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from featurestore.delta.snapshot import Snapshot
    from featurestore.model.plan import FeaturePlan


@translate_calls
class SparkEngine(Engine):
    """An engine on Spark, with the active session or a session that is started on first use.

    Args:
        session: The session to use.
        durability: "full": commits and their local files are synced to disk before the call
            returns. "fast": the operating system decides when to sync.
    """

    name = "spark"
    dialect = "spark"

    def __init__(self, session: SparkSession = None, *, durability: str = "full") -> None:
        self._durable = is_durable(durability)
        self._session: SparkSession = None
        self._user_session = session
        self._owns_session = False
        self._lock = RLock()
        self._spooled = row_buffer.SpooledStreams()
        self._user_sql = QueryTranslator()
        self._is_inherited = False
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Refuse the session in a forked child, which shares the connections to its JVM."""
        self._lock = RLock()
        self._is_inherited = self._session is not None or self._user_session is not None

    @property
    def session(self) -> SparkSession:
        """The SparkSession, found or started on first use."""
        if self._is_inherited:
            raise forked_process_error("The Spark session")
        with self._lock:
            if self._session is None or spark_delta_session.is_stopped(self._session):
                session = (
                    self._user_session
                    if self._user_session is not None
                    else spark_delta_session.find_session()
                )
                # Only a session that the engine started may be stopped by it.
                self._owns_session = session is None
                if session is None:
                    session = spark_delta_session.start_session(jars.connected_bucket())
                else:
                    spark_delta_session.check_session(session)
                    spark_delta_session.forbid_substitution(session)
                self._session = session
            return self._session

    @property
    def is_distributed(self) -> bool:
        return not spark_delta_session.is_local(self.session)

    def session_settings(self, location: str) -> Mapping[str, str]:
        if scheme_of(location) not in ("file", "s3", "gs", "hdfs"):
            return {}
        return spark_delta_session.settings_for_builder(location)

    # -- relations ----------------------------------------------------------------------

    def adopt(self, frame: object) -> Relation | None:
        if is_connect_object(frame) and not is_connect_object(self.session):
            raise UnsupportedDataframe(
                "engine='spark' runs in this process, so it cannot read a Spark Connect DataFrame.",
                hint="featurestore.connect(engine='duckdb')",
            )
        return relations.adopt(frame)

    def user_frame(self, relation: Relation) -> DataFrame:
        return relation.native

    def from_arrow(self, reader: pa.RecordBatchReader) -> Relation:
        return self._spooled.spool(self.session, reader)

    def release(self, relation: Relation) -> None:
        self._spooled.release(relation)

    def read_table(
        self,
        path: str,
        *,
        version: int | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        data_files: Sequence[str] | None = None,
    ) -> Relation:
        buckets.use_location(self.session, path)
        table_scan = plan_scan(
            path, version=version, schema=schema, columns=columns, data_files=data_files
        )
        return scan.read_scan(self.session, table_scan)

    def read_files(self, paths: Sequence[str], *, schema: pa.Schema | None = None) -> Relation:
        # Before Spark lists the paths: it keeps a connection with its first options.
        for path in paths:
            buckets.use_location(self.session, path)
        return scan.read_files(self.session, paths, schema=schema)

    def select(self, relation: Relation, columns: Mapping[str, str]) -> Relation:
        if isinstance(relation, BufferedRelation):
            return row_buffer.select_and_rename(relation, columns)
        if isinstance(relation, StagedRelation):
            return staged.select_and_rename(relation, columns)
        return staged.select_file_columns(relations.select(relation, columns), relation, columns)

    def filter(self, relation: Relation, predicate: str) -> Relation:
        return relations.filter_rows(relation, predicate)

    def within(self, relation: Relation, window: TimeRange) -> Relation:
        return relations.within(relation, window)

    def sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        return relations.run_sql(self.session, query, tables=tables, parameters=parameters)

    def check_syntax(self, query: str) -> None:
        self._user_sql.check_syntax(query)

    def user_sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        return self._user_sql.relation(self.session, query, tables=tables, parameters=parameters)

    def count(self, relation: Relation) -> int:
        if isinstance(relation, BufferedRelation):
            return row_buffer.count(relation)
        if isinstance(relation, StagedRelation):
            return staged.count(relation)
        return int(relation.native.count())

    def map_batches(
        self, relation: Relation, function: BatchFunction, *, schema: pa.Schema
    ) -> Relation:
        if isinstance(relation, BufferedRelation):
            return row_buffer.map_batches(relation, function, schema=schema)
        return streams.map_batches(relation, function, schema=schema)

    def aggregate(self, relation: Relation, accumulator: Accumulator[State, Result]) -> Result:
        if isinstance(relation, BufferedRelation):
            return row_buffer.aggregate(relation, accumulator)
        return streams.aggregate(relation, accumulator)

    def duplicates(
        self, relation: Relation, key: Sequence[str], *, limit: int = 5
    ) -> tuple[int, list[dict[str, Any]]]:
        return row_buffer.duplicates(relation, key, limit=limit)

    def last_per_key(self, relation: Relation, key: Sequence[str]) -> Relation:
        return relations.last_per_key(relation, key)

    def stream(
        self, relation: Relation, *, batch_rows: int = 65_536, limit: int | None = None
    ) -> pa.RecordBatchReader:
        if isinstance(relation, BufferedRelation):
            return row_buffer.stream(relation, batch_rows=batch_rows, limit=limit)
        return streams.stream(relation, batch_rows=batch_rows, limit=limit)

    def stage(self, relation: Relation, directory: str) -> Relation:
        buckets.use_location(self.session, directory)
        if isinstance(relation, BufferedRelation):
            return row_buffer.stage(relation, directory)
        return row_buffer.stage_frame(relation, directory, self.session)

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
        if not storage_for(path).is_local:  # fail before the group is created
            buckets.use_table(self.session, path)
        tables.create_table(
            path,
            schema=schema,
            partition_by=partition_by,
            properties=properties,
            commit_metadata=commit_metadata,
            durable=self._durable,
        )

    def write(self, path: str, relation: Relation, write: TableWrite) -> int | None:
        return tables.write(self.session, path, relation, write, durable=self._durable)

    def delete(
        self, path: str, predicate: str, *, commit_metadata: Mapping[str, Any]
    ) -> int | None:
        return rewrite.delete(
            self.session, path, predicate, commit_metadata=commit_metadata, durable=self._durable
        )

    def change_properties(
        self, path: str, change: Callable[[Snapshot], PropertyChange | None]
    ) -> int | None:
        return tables.change_properties(path, change, durable=self._durable)

    def widen_columns(self, path: str, columns: pa.Schema) -> int | None:
        return rewrite.widen_columns(self.session, path, columns, durable=self._durable)

    def compact(self, path: str, *, below: int | None = None) -> int | None:
        return rewrite.compact(self.session, path, below=below, durable=self._durable)

    def vacuum(self, path: str, *, keep_versions: Sequence[int], retain: datetime) -> Sequence[str]:
        return tables.vacuum(path, keep_versions=keep_versions, retain=retain)

    # -- queries ------------------------------------------------------------------------

    def retrieve(self, plan: FeaturePlan, *, labels: Relation | None = None) -> Relation:
        from featurestore_connectors.spark_delta import point_in_time, windows

        if plan.windows:
            return windows.retrieve(self, plan, labels)
        return point_in_time.retrieve(self, plan, labels)

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
        return shards.write_shards(
            relation,
            shard=shard,
            shard_count=shard_count,
            order=order,
            shard_ascends=shard_ascends,
            write=write,
        )

    def can_write_records(self, schema: pa.Schema, directory: str) -> bool:
        return shards.can_write_in_jvm(self.session, schema, directory)

    def write_records(
        self, relation: Relation, task: RecordTask
    ) -> dict[int, tuple[WrittenShard, RowCounts]]:
        return shards.write_in_jvm(relation, task)

    # -- row hashes ---------------------------------------------------------------------

    def with_row_hash(
        self, relation: Relation, columns: Sequence[str], *, seed: int, name: str
    ) -> Relation | None:
        if isinstance(relation, BufferedRelation):
            return None  # Python hashes few rows faster than a job starts
        return row_hashes.with_row_hash(relation, columns, seed=seed, name=name)

    def with_range_number(
        self,
        relation: Relation,
        column: str,
        *,
        starts: Sequence[int],
        numbers: Sequence[int],
        name: str,
    ) -> Relation:
        return row_hashes.with_range_number(
            relation, column, starts=starts, numbers=numbers, name=name
        )

    def count_hashes(
        self, relation: Relation, *, hashes: str, group: str, columns: Sequence[str]
    ) -> HashCounts | None:
        return row_hashes.count_hashes(relation, hashes=hashes, group=group, columns=columns)

    def hashes_of_groups(
        self, relation: Relation, *, hashes: str, group: str, bits: int
    ) -> dict[int, tuple[Any, Any]]:
        return row_hashes.hashes_of_groups(relation, hashes=hashes, group=group, bits=bits)

    # -- conversions --------------------------------------------------------------------

    def to_spark(self, relation: Relation) -> DataFrame:
        return relation.native

    def explain(self, relation: Relation) -> str:
        return relations.explain(relation)

    def interrupt(self, thread: int) -> None:
        """Do nothing: the Spark context may be shared, and other jobs must not be cancelled."""

    def close(self) -> None:
        """Remove spooled streams, and stop Spark if this engine started it."""
        if self._is_inherited:  # they belong to the parent
            return
        self._spooled.release_all()
        self._user_sql.close()
        with self._lock:
            if self._owns_session and self._session is not None:
                self._session.stop()
            self._session, self._owns_session = None, False
