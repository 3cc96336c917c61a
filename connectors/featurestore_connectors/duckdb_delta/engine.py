"""The Engine interface on DuckDB and delta-rs. This facade delegates to the other modules."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import pyarrow as pa

from featurestore.arrow.spark_frames import create_frame, find_connect_session
from featurestore.arrow.types import storage_schema
from featurestore.delta.scan import plan_scan
from featurestore.delta.snapshot import read_snapshot
from featurestore.delta.table_state import check_writable
from featurestore.errors import InvalidArgument
from featurestore.model.runtime import usable_cores
from featurestore.plugins.engine import (
    Accumulator,
    BatchFunction,
    Engine,
    PropertyChange,
    Relation,
    RowsFunction,
    ShardFunction,
    TableWrite,
    TimeRange,
)
from featurestore.storage import storage_for
from featurestore.storage.publication import is_durable
from featurestore_connectors.duckdb_delta import (
    commits,
    relations,
    rewrite,
    shards,
    sqltext,
    streams,
    tables,
    time_limits,
)
from featurestore_connectors.duckdb_delta.session import Database, query_of, relation_lock
from featurestore_connectors.duckdb_delta.user_queries import QuerySandbox, RowExpressions

if TYPE_CHECKING:
    from featurestore.delta.snapshot import Snapshot
    from featurestore.model.plan import FeaturePlan

State = TypeVar("State")
Result = TypeVar("Result")


class DuckDBEngine(Engine):
    """An in-process engine: DuckDB queries on Delta tables, without a JVM.

    Args:
        memory_limit: DuckDB's memory limit, such as "4GB". Default:
            ``FEATURESTORE_DUCKDB_MEMORY_LIMIT``, else DuckDB's default.
        threads: Number of threads for DuckDB and for writers. Default:
            ``FEATURESTORE_DUCKDB_THREADS``, else all cores available to the process.
        temp_directory: Directory for spilled data. Default:
            ``FEATURESTORE_DUCKDB_TEMP_DIRECTORY``, else a private folder in the
            system's temporary directory.
        durability: "full": commits and their files are synced to disk before the call returns.
            "fast": the operating system decides when to sync, so a power loss may lose or damage
            the commits of the last seconds.
    """

    def __init__(
        self,
        *,
        memory_limit: str | None = None,
        threads: int | None = None,
        temp_directory: str | None = None,
        durability: str = "full",
    ) -> None:
        self.database = Database(
            memory_limit=memory_limit,
            threads=threads,
            temp_directory=temp_directory,
            durable=is_durable(durability),
        )
        self._sandbox = QuerySandbox(self.database)

    @property
    def name(self) -> str:
        return relations.ENGINE

    @property
    def dialect(self) -> str:
        return "duckdb"

    @property
    def is_distributed(self) -> bool:
        return False

    @property
    def runs_in_process(self) -> bool:
        return True

    # -- relations ----------------------------------------------------------------------

    def adopt(self, frame: object) -> Relation | None:
        if not isinstance(frame, duckdb.DuckDBPyRelation):
            return None
        return relations.adopt(self.database, frame)

    def user_frame(self, relation: Relation) -> Any:
        return self.database.copy_relation(relation.native)

    def from_arrow(self, reader: pa.RecordBatchReader) -> Relation:
        return streams.from_arrow(self.database, reader)

    def read_table(
        self,
        path: str,
        *,
        version: int | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        data_files: Sequence[str] | None = None,
    ) -> Relation:
        scan = plan_scan(
            path, version=version, schema=schema, columns=columns, data_files=data_files
        )
        return relations.read_scan(self.database, scan)

    def read_files(self, paths: Sequence[str], *, schema: pa.Schema | None = None) -> Relation:
        return relations.read_files(self.database, paths, schema=schema)

    def hold(self, relation: Relation) -> Relation:
        # A memory limit of the user applies to DuckDB, which cannot count rows that are buffered in
        # Python.
        if self.database.limit_is_chosen:
            return relation
        return streams.buffer_rows(self.database, relation)

    def select(self, relation: Relation, columns: Mapping[str, str]) -> Relation:
        buffered_columns = streams.select_buffered(self.database, relation, columns)
        if buffered_columns is not None:
            return buffered_columns
        return relations.select(relation, columns)

    def filter(self, relation: Relation, predicate: str) -> Relation:
        return relations.filter_rows(relation, predicate)

    def within(self, relation: Relation, window: TimeRange) -> Relation:
        streams.check_columns(relation.schema, [window.column])
        return relations.filter_rows(relation, relations.range_condition(window))

    def sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        return relations.sql(self.database, query, tables=tables, parameters=parameters)

    def check_syntax(self, query: str) -> None:
        self._sandbox.check_syntax(query)

    def user_sql(
        self, query: str, *, tables: Mapping[str, Relation], parameters: Mapping[str, Any]
    ) -> Relation:
        return self._sandbox.relation(query, tables=tables, parameters=parameters)

    def count(self, relation: Relation) -> int:
        source = streams.source_of(relation)
        if isinstance(source, streams.BufferedBatches):
            return sum(batch.num_rows for batch in source.buffered)
        with relation_lock():
            row_count = relation.native.aggregate("count(*)")
        return int(self.database.rows(query_of(row_count))[0][0])

    def map_batches(
        self, relation: Relation, function: BatchFunction, *, schema: pa.Schema
    ) -> Relation:
        source = streams.MappedStream(schema, relation, self.database, function)
        return streams.mapped_relation(self.database, source, single_use=relation.single_use)

    def aggregate(self, relation: Relation, accumulator: Accumulator[State, Result]) -> Result:
        return streams.aggregate(self.database, relation, accumulator, threads=accumulator.threads)

    def duplicates(
        self, relation: Relation, key: Sequence[str], *, limit: int = 5
    ) -> tuple[int, list[dict[str, Any]]]:
        streams.check_columns(relation.schema, key)
        columns, number = sqltext.names(key), sqltext.quote(relations.NUMBER)
        query = f"""
            WITH repeated AS (
                SELECT {columns}, count(*) AS {number} FROM input WHERE {sqltext.all_present(key)}
                GROUP BY {columns} HAVING count(*) > 1
            )
            SELECT *, count(*) OVER () FROM repeated ORDER BY {number} DESC, {columns}
            LIMIT {limit + 1}
        """
        bound = self.database.bind(query, {"input": relation.native})
        repeated_keys = self.database.rows(query_of(bound))
        if not repeated_keys:
            return 0, []
        names = (*key, "n")
        examples = [dict(zip(names, row[:-1], strict=True)) for row in repeated_keys[:limit]]
        return repeated_keys[0][-1], examples

    def last_per_key(self, relation: Relation, key: Sequence[str]) -> Relation:
        return relations.last_per_key(self.database, relation, key)

    def stream(
        self, relation: Relation, *, batch_rows: int = streams.BATCH_ROWS, limit: int | None = None
    ) -> pa.RecordBatchReader:
        return streams.stream(self.database, relation, batch_rows=batch_rows, limit=limit)

    def stage(self, relation: Relation, directory: str) -> Relation:
        storage_types = storage_schema(relation.schema)
        with relation_lock():
            rows = relation.native.project(
                sqltext.casts(storage_types, sqltext.types_of(relation.schema))
            )
        storage_for(directory).make_directory(directory)
        # A new folder, since several stages of a write may share the directory.
        folder = os.path.join(directory, f"rows-{uuid.uuid4().hex}")
        input_stream = streams.source_of(relation)
        if isinstance(input_stream, streams.SingleUseStream) and not self.database.limit_is_chosen:
            # Recorded while DuckDB reads them, so that small inputs need not be read again.
            input_stream.recorded = []
        staged_files = tables.stage_files(
            self.database, query_of(rows), folder, schema=storage_types
        )
        paths = [file.path for file in staged_files]
        if staged_files:
            from_item = sqltext.parquet_scan(storage_types, paths)
        else:
            from_item = f"({sqltext.empty(storage_types)})"
        columns = sqltext.casts(relation.schema, sqltext.types_of(storage_types))
        native = self.database.bind(f"SELECT {columns} FROM {from_item}")
        return relations.StagedRows(
            relations.ENGINE,
            native,
            relation.schema,
            source=streams.recorded_rows(input_stream),
            files=tuple(staged_files),
        )

    def stage_and_aggregate(
        self, relation: Relation, directory: str, accumulator: Accumulator[State, Result]
    ) -> tuple[Relation, Result | None]:
        input_stream = streams.source_of(relation)
        # Rows that are already stored can be aggregated later. On one core, the aggregation would
        # only delay the staging.
        if not isinstance(input_stream, streams.SingleUseStream) or usable_cores() == 1:
            return self.stage(relation, directory), None
        return streams.aggregate_while(
            lambda: self.stage(relation, directory), input_stream, accumulator
        )

    def prepare_rows(
        self, expressions: Sequence[str], *, inputs: pa.Schema, kinds: pa.Schema
    ) -> RowsFunction:
        return RowExpressions(self.database, expressions, inputs, kinds)

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
        tables.create(
            self.database,
            path,
            schema=schema,
            partition_by=partition_by,
            properties=properties,
            commit_metadata=commit_metadata,
        )

    def write(self, path: str, relation: Relation, write: TableWrite) -> int | None:
        state = read_snapshot(path)
        check_writable(state.path, state.protocol)
        # A repeated write ends here, before any row is read. ``commits.commit`` checks again, since
        # another process may commit the same transaction meanwhile.
        if state.has_committed(write.transaction):
            return None
        if write.mode in ("append", "overwrite"):
            return tables.append_or_overwrite(self.database, state, relation, write)
        return rewrite.write(self.database, state, relation, write)

    def delete(
        self, path: str, predicate: str, *, commit_metadata: Mapping[str, Any]
    ) -> int | None:
        return rewrite.delete(self.database, path, predicate, commit_metadata=commit_metadata)

    def change_properties(
        self, path: str, change: Callable[[Snapshot], PropertyChange | None]
    ) -> int | None:
        return commits.change_properties(path, change, durable=self.database.durable)

    def widen_columns(self, path: str, columns: pa.Schema) -> int | None:
        return rewrite.widen_columns(self.database, path, columns)

    def compact(self, path: str, *, below: int | None = None) -> int | None:
        return rewrite.compact(self.database, path, below=below)

    def vacuum(self, path: str, *, keep_versions: Sequence[int], retain: datetime) -> Sequence[str]:
        return rewrite.vacuum(path, keep_versions=keep_versions, retain=retain)

    # -- queries ------------------------------------------------------------------------

    def retrieve(self, plan: FeaturePlan, *, labels: Relation | None = None) -> Relation:
        from featurestore_connectors.duckdb_delta import (
            late_materialization,
            point_in_time,
            sorted_merge,
        )

        if plan.windows:
            from featurestore_connectors.duckdb_delta import windows

            return windows.retrieve(self, plan, labels)
        if late_materialization.is_worthwhile(self.database, plan):
            return late_materialization.retrieve(self, plan, labels)
        if sorted_merge.is_worthwhile(self, plan):
            return sorted_merge.retrieve(self, plan, labels)
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
        threads = int(self.database.rows("SELECT current_setting('threads')")[0][0])
        return shards.write_shards(
            self.database,
            relation,
            shard=shard,
            order=order,
            row_count=row_count,
            write=write,
            threads=min(threads, 8),
        )

    # -- conversions --------------------------------------------------------------------

    def to_spark(self, relation: Relation) -> Any:
        session = find_connect_session()
        if session is None:
            raise InvalidArgument(
                "The duckdb engine creates Spark DataFrames only in a Spark Connect session, "
                "and none is active.",
                hint="featurestore.connect(engine='spark')",
            )
        return create_frame(session, self.stream(relation).read_all())

    def explain(self, relation: Relation) -> str:
        rows = self.database.rows(f"EXPLAIN {query_of(relation.native)}")
        return "\n".join(str(plan) for _, plan in rows)

    def interrupt(self, thread: int) -> None:
        time_limits.interrupt(thread)

    def close(self) -> None:
        self._sandbox.close()
        self.database.close()
