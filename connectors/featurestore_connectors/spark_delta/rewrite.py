"""Writes that rewrite existing files: upsert, delete, type widening and compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from featurestore.arrow.fitting import widened_schema
from featurestore.delta.presence import check_files
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidSql
from featurestore.plugins.engine import TableWrite
from featurestore_connectors.spark_delta.commits import CommitSession, is_conflict
from featurestore_connectors.spark_delta.failures import first_line
from featurestore_connectors.spark_delta.relations import cast_to
from featurestore_connectors.spark_delta.sqltext import quote
from featurestore_connectors.spark_delta.transactions import Transaction
from featurestore_connectors.spark_delta.types import spark_schema


def upsert(commit: CommitSession, path: str, rows: Any, write: TableWrite, *, grows: bool) -> None:
    """Merge rows by key; null keys match nothing."""
    from delta.tables import DeltaTable

    if write.transaction is not None:
        app, number = write.transaction
        commit.set("spark.databricks.delta.write.txnAppId", app)
        commit.set("spark.databricks.delta.write.txnVersion", str(number))
    is_same_key = " AND ".join(f"old.{quote(name)} = new.{quote(name)}" for name in write.key)
    merge = (
        DeltaTable.forPath(commit.session, path).alias("old").merge(rows.alias("new"), is_same_key)
    )
    if grows:
        merge = merge.withSchemaEvolution()
    # List the columns explicitly: updateAll with schema evolution turns null structs into structs
    # of nulls.
    columns = {quote(name): f"new.{quote(name)}" for name in rows.columns}
    merge.whenMatchedUpdate(set=columns).whenNotMatchedInsert(values=columns).execute()


def delete(
    session: Any,
    path: str,
    predicate: str,
    *,
    commit_metadata: Mapping[str, Any],
    durable: bool = True,
) -> int | None:
    """Delete the rows that match a predicate; return the version, None if no row matches."""
    from delta.tables import DeltaTable
    from pyspark.errors import AnalysisException, ParseException

    def once() -> None:
        try:
            DeltaTable.forPath(commit.session, path).delete(predicate)
        except (AnalysisException, ParseException) as error:
            if is_conflict(error):
                raise
            raise InvalidSql(
                f"The predicate {predicate!r} cannot be used: {first_line(error)}"
            ) from error

    with CommitSession(session, path, commit_metadata, durable=durable) as commit:
        return commit.run(once)


def widen_columns(
    session: Any, path: str, columns: pa.Schema, *, durable: bool = True
) -> int | None:
    """Rewrite all files with wider decimals; return the version, None if they are wide enough."""
    with CommitSession(session, path, {"operation": "widen"}, durable=durable) as commit:
        return commit.run(lambda: _widen_once(commit, path, columns))


def _widen_once(commit: CommitSession, path: str, columns: pa.Schema) -> None:
    with Transaction(commit, path) as transaction:
        state = read_snapshot(path, transaction.version)
        schema = widened_schema(state.schema, columns)
        if schema == state.schema:
            return
        check_files(state)
        transaction.reads_everything()
        widened = [field for field in schema if field.type != state.schema.field(field.name).type]
        kinds = {field.name: field.dataType for field in spark_schema(pa.schema(widened)).fields}
        columns_schema = transaction.columns
        for column in columns_schema.fields:
            column.dataType = kinds.get(column.name, column.dataType)
        frame = commit.session.read.format("delta").option("versionAsOf", state.version).load(path)
        transaction.redefine(columns_schema.json())
        transaction.move_rows(state.files, cast_to(frame, columns_schema))
        nothing = transaction.nothing()
        mode = commit.session._jvm.org.apache.spark.sql.SaveMode.Overwrite
        transaction.commit("Write", mode, nothing, nothing, nothing)


def compact(
    session: Any, path: str, *, below: int | None = None, durable: bool = True
) -> int | None:
    """Merge files smaller than ``below`` bytes; return the version, None without changes."""
    from delta.tables import DeltaTable

    with CommitSession(session, path, {"operation": "compact"}, durable=durable) as commit:
        if below is not None:
            commit.set("spark.databricks.delta.optimize.minFileSize", str(below))
        return commit.run(
            lambda: DeltaTable.forPath(commit.session, path).optimize().executeCompaction()
        )
