"""Writes that rewrite existing files: upserts, deletes, type widening and compaction.

Upserts use Delta's MERGE, with two exceptions: small upserts, which the driver prepares for a
single Spark job, and upserts that advance several transaction numbers in one commit, which MERGE
does not support.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from featurestore.arrow.fitting import widened_schema
from featurestore.arrow.spark_frames import is_connect_object
from featurestore.delta.commits import stream_overtaken_error
from featurestore.delta.datafile import DataFile, has_bounds, ordinal
from featurestore.delta.scan import check_contents
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import InvalidSql
from featurestore.plugins.engine import TableWrite
from featurestore.storage import storage_for
from featurestore_connectors.spark_delta import connect, scan, staged
from featurestore_connectors.spark_delta.commits import (
    NONE_YET,
    CommitSession,
    Transaction,
    is_conflict,
    removal,
)
from featurestore_connectors.spark_delta.failures import first_line
from featurestore_connectors.spark_delta.relations import cast_to
from featurestore_connectors.spark_delta.row_buffer import BufferedRelation
from featurestore_connectors.spark_delta.sqltext import column, quote, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE, _IS_NEW = "__fs_file", "__fs_is_new"
# Maximum bytes of the files that the driver reads and one task writes.
_MAX_BYTES = 128 << 20
COPIED, SOURCE = "numTargetRowsCopied", "operationNumSourceRows"


def upsert(
    commit: CommitSession,
    path: str,
    rows: DataFrame,
    write: TableWrite,
    *,
    deletes: DataFrame | None = None,
    grows: bool,
) -> None:
    """Replace rows by key, and remove rows with keys of ``deletes``; null keys never match."""
    from pyspark.sql import functions as sf

    if write.transaction is not None:
        app, number = write.transaction
        commit.set("spark.databricks.delta.write.txnAppId", app)
        commit.set("spark.databricks.delta.write.txnVersion", str(number))
    keys = rows.select(*map(column, write.key))
    if deletes is not None:
        keys = keys.unionByName(deletes.select(*map(column, write.key)))
    # The source has the new rows, and the keys whose stored rows are deleted. An update of matched
    # rows would leave two stored rows with one key as two rows.
    new, outgoing = rows.withColumn(_IS_NEW, sf.lit(True)), keys.withColumn(_IS_NEW, sf.lit(False))
    source = new.unionByName(outgoing, allowMissingColumns=True)
    is_same_key = " AND ".join(f"old.{quote(name)} = new.{quote(name)}" for name in write.key)
    matched, inserted = f"NOT new.{_IS_NEW} AND {is_same_key}", f"new.{_IS_NEW}"
    # List the columns explicitly, since insertAll would also insert the marker column.
    columns = {quote(name): f"new.{quote(name)}" for name in rows.columns}
    if is_connect_object(commit.session):
        connect.merge_rows(
            commit.session, path, source, columns, matched=matched, inserted=inserted, grows=grows
        )
        return
    from delta.tables import DeltaTable

    table = DeltaTable.forPath(commit.session, path).alias("old")
    merge = table.merge(source.alias("new"), matched)
    if grows:
        merge = merge.withSchemaEvolution()
    merge.whenMatchedDelete().whenNotMatchedInsert(inserted, columns).execute()


def upsert_small(
    commit: CommitSession, path: str, buffered: BufferedRelation, rows: DataFrame, write: TableWrite
) -> bool:
    """Replace rows by key with buffered rows, without MERGE; return False if MERGE must be used.

    ``rows`` is a frame of the buffered rows with the table's columns. Nothing is written if the
    function returns False.
    """
    # MERGE compares floats and structs in Spark's way.
    if not staged.can_compare(buffered.schema, write.key):
        return False
    with Transaction(commit, path) as transaction:
        # Delta checks the commits after this version for conflicts, so keys are compared with its
        # rows and not with those of a later version.
        snapshot = read_snapshot(path, transaction.version)
        keys = buffered.stored().select(list(write.key))
        candidates = _candidate_files(snapshot, keys)
        if not scan.is_plain(snapshot) or sum(file.bytes for file in candidates) > _MAX_BYTES:
            return False
        check_contents(snapshot, candidates)
        # Statistics only exclude files. Candidates without matching keys are not rewritten.
        affected, copied = _find_affected(candidates, keys)
        # As with MERGE, concurrent appends may add some of these keys.
        transaction.conflict_with_appends()
        if not transaction.add_transaction(write.transaction):
            return True
        for file in affected:
            transaction.add_action(removal(file))
        old = scan.plain_frame(commit.session, snapshot, affected)
        transaction.add(_merge_rows(old, rows, write.key))
        transaction.set_metrics({COPIED: copied, SOURCE: keys.num_rows})
        nothing, none = transaction.empty_option(), transaction.to_sequence()
        transaction.commit("Merge", nothing, nothing, nothing, nothing, none, none, none)
    return True


def _candidate_files(snapshot: Snapshot, keys: pa.Table) -> list[DataFile]:
    """Return the files that may contain some of the keys, based on statistics in the log."""
    may_match = np.ones(len(snapshot.files), dtype=np.bool_)
    for name in keys.schema.names:
        bounds = snapshot.bounds(name)
        if bounds is None or not has_bounds(keys.schema.field(name).type):
            continue
        extremes = pc.min_max(keys[name]).as_py()
        minimum, maximum = ordinal(extremes["min"]), ordinal(extremes["max"])
        if minimum is None or maximum is None:  # null keys match nothing
            return []
        may_match &= bounds.may_contain(minimum, maximum)
    return [snapshot.files[number] for number in np.flatnonzero(may_match)]


def _find_affected(candidates: Sequence[DataFile], keys: pa.Table) -> tuple[list[DataFile], int]:
    """Return the files that contain some of the keys, and their number of other rows."""
    numbers = list(map(str, range(keys.num_columns)))
    target_keys = keys.rename_columns(numbers)
    affected, copied = [], 0
    for file in candidates:
        file_rows = parquet.read_table(
            storage_for(file.path).open_ranges(file.path),
            columns=keys.schema.names,
            partitioning=None,
        )
        present = (
            file_rows.select(keys.schema.names).rename_columns(numbers).cast(target_keys.schema)
        )
        matching = present.join(target_keys, numbers, join_type="left semi").num_rows
        if matching:
            affected.append(file)
            copied += file.rows - matching
    return affected, copied


def _merge_rows(old: DataFrame, rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the remaining old rows and the new rows in one partition, which becomes one file."""
    from pyspark.sql import functions as sf

    # The new rows are buffered in the driver, so a broadcast is possible and avoids a shuffle.
    new = sf.broadcast(rows.select(*map(column, key)).alias("new"))
    same = sf.lit(True)
    for name in key:
        same = same & (sf.col(f"old.{quote(name)}") == sf.col(f"new.{quote(name)}"))
    remaining = old.alias("old").join(new, same, "left_anti")
    return remaining.select(*map(column, rows.columns)).union(rows).coalesce(1)


def append_with_offsets(
    commit: CommitSession, path: str, rows: DataFrame, write: TableWrite
) -> None:
    """Append rows and advance the transaction numbers in ``write.offsets``.

    Raises:
        StreamOvertaken: A transaction number was changed by another commit. Nothing was written.
    """
    jvm = commit.session._jvm
    with Transaction(commit, path) as transaction:
        _advance_offsets(transaction, write)
        transaction.add(rows)
        nothing = transaction.empty_option()
        mode = jvm.org.apache.spark.sql.SaveMode.Append
        transaction.commit("Write", mode, nothing, nothing, nothing)


def upsert_with_offsets(
    commit: CommitSession, path: str, rows: DataFrame, write: TableWrite, deletes: DataFrame | None
) -> None:
    """Replace rows by key, remove rows with keys of ``deletes``, and advance ``write.offsets``.

    MERGE supports a single transaction number, so files with affected keys are rewritten here.

    Raises:
        StreamOvertaken: A transaction number was changed by another commit. Nothing was written.
    """
    from pyspark.sql import functions as sf

    keys = rows.select(*map(column, write.key))
    if deletes is not None:
        keys = keys.unionByName(deletes.select(*map(column, write.key)))
    with Transaction(commit, path) as transaction:
        _advance_offsets(transaction, write)
        snapshot = read_snapshot(path, transaction.version)
        transaction.conflict_with_appends()
        delta = commit.session.read.format("delta").option("versionAsOf", snapshot.version)
        old = delta.load(path).withColumn(_FILE, sf.input_file_name())
        outgoing = old.join(keys, list(write.key), "left_semi").groupBy(_FILE).count()
        removed_rows = dict(map(tuple, outgoing.collect()))
        # Spark returns encoded URIs, and the log has relative paths. The base names are unique.
        file_names = {os.path.basename(unquote(path)) for path in removed_rows}
        affected = [file for file in snapshot.files if os.path.basename(file.path) in file_names]
        copied = sum(file.rows for file in affected) - sum(removed_rows.values())
        transaction.set_metrics({COPIED: copied, SOURCE: rows.count()})
        for file in affected:
            transaction.add_action(removal(file))
        if affected:
            remaining = old.where(sf.col(_FILE).isin(list(removed_rows))).drop(_FILE)
            remaining = remaining.join(keys, list(write.key), "left_anti")
            rows = rows.unionByName(remaining.select(*map(column, rows.columns)))
        transaction.add(rows)
        nothing, none = transaction.empty_option(), transaction.to_sequence()
        transaction.commit("Merge", nothing, nothing, nothing, nothing, none, none, none)


def _advance_offsets(transaction: Transaction, write: TableWrite) -> None:
    """Advance the offsets of a write; raise StreamOvertaken if another commit changed an offset."""
    for app, (expected, number) in write.offsets.items():
        if transaction.last_number(app) != (NONE_YET if expected is None else expected):
            raise stream_overtaken_error(app)
        transaction.set_number(app, number)


def delete(
    session: SparkSession,
    path: str,
    predicate: str,
    *,
    commit_metadata: Mapping[str, Any],
    durable: bool = True,
) -> int | None:
    """Delete the rows that match a predicate; return the version, or None if no row matches."""
    from pyspark.errors import AnalysisException, ParseException

    def once() -> None:
        _check_local_contents(path)
        try:
            if is_connect_object(commit.session):
                table = connect.table_at(path)
                # Without an alias, Spark reads WHERE (name) as an alias with a column.
                commit.session.sql(f"DELETE FROM {table} AS fs_rows WHERE ({predicate}\n)")
                return
            from delta.tables import DeltaTable

            DeltaTable.forPath(commit.session, path).delete(predicate)
        except (AnalysisException, ParseException) as error:
            if is_conflict(error):
                raise
            # Some conflicts of Delta are also AnalysisExceptions, and the caller retries them.
            raise InvalidSql(
                f"Spark rejects the predicate {predicate!r}: {first_line(error)}"
            ) from error

    with CommitSession(session, path, commit_metadata, durable=durable) as commit:
        return commit.run(once)


def widen_columns(
    session: SparkSession, path: str, columns: pa.Schema, *, durable: bool = True
) -> int | None:
    """Rewrite all files with wider decimals; return the version, or None if not necessary."""
    connect.refuse(session, "schema_change='add' with wider decimals")
    with CommitSession(session, path, {"operation": "widen"}, durable=durable) as commit:
        return commit.run(lambda: _widen_once(commit, path, columns))


def _widen_once(commit: CommitSession, path: str, columns: pa.Schema) -> None:
    """Rewrite all files with wider decimals in one transaction; do nothing if they fit."""
    with Transaction(commit, path) as transaction:
        state = read_snapshot(path, transaction.version)
        schema = widened_schema(state.schema, columns)
        if schema == state.schema:
            return
        check_contents(state, state.files)
        transaction.conflict_with_appends()
        # Only the types change. Other metadata of the columns stays as it is.
        widened = [field for field in schema if field.type != state.schema.field(field.name).type]
        kinds = {field.name: field.dataType for field in spark_schema(pa.schema(widened)).fields}
        columns_schema = transaction.columns
        for column in columns_schema.fields:
            column.dataType = kinds.get(column.name, column.dataType)
        frame = commit.session.read.format("delta").option("versionAsOf", state.version).load(path)
        transaction.set_schema(columns_schema.json())
        transaction.replace_files(state.files, cast_to(frame, columns_schema))
        nothing = transaction.empty_option()
        mode = commit.session._jvm.org.apache.spark.sql.SaveMode.Overwrite
        transaction.commit("Write", mode, nothing, nothing, nothing)


def compact(
    session: SparkSession, path: str, *, below: int | None = None, durable: bool = True
) -> int | None:
    """Merge files smaller than ``below`` bytes; return the version, or None without changes."""
    with CommitSession(session, path, {"operation": "compact"}, durable=durable) as commit:
        if below is not None:
            commit.set("spark.databricks.delta.optimize.minFileSize", str(below))

        def once() -> None:
            _check_local_contents(path, below=below)
            if is_connect_object(session):
                commit.session.sql(f"OPTIMIZE {connect.table_at(path)}")
                return
            from delta.tables import DeltaTable

            DeltaTable.forPath(commit.session, path).optimize().executeCompaction()

        return commit.run(once)


def _check_local_contents(path: str, *, below: int | None = None) -> None:
    """Compare the files that a rewrite may read with their checksums, on the driver's file system.

    From a server, the driver would read all files that the executors read.
    """
    if storage_for(path).is_local:
        state = read_snapshot(path)
        check_contents(state, [file for file in state.files if below is None or file.bytes < below])
