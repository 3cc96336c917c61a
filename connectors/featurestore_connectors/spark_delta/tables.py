"""Delta table writes: create, append, overwrite and vacuum, and dispatch to the other writers.

Staged files are appended by hard links instead of a rewrite, if the table requires nothing beyond
Spark's Parquet files: they are linked into the table folder and committed with the statistics in
their footers. Otherwise Delta's writer rewrites the rows.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.arrow.types import storage_schema
from featurestore.delta.commits import changed_metadata, duplicate_keys_error, seal_commit
from featurestore.delta.log import Actions, commit_path, is_delta_table, parse_actions
from featurestore.delta.maintenance import remove_unneeded_files
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.delta.table_state import check_writable
from featurestore.errors import StorageError
from featurestore.model.times import to_micros, utc_now
from featurestore.plugins.engine import (
    ADD_COLUMNS_HINT,
    TABLE_PROPERTIES,
    PropertyChange,
    Relation,
    TableWrite,
    unknown_columns_error,
)
from featurestore.storage import storage_for
from featurestore.storage.publication import Publication
from featurestore_connectors.spark_delta import connect, rewrite, row_buffer, sqltext
from featurestore_connectors.spark_delta.commits import (
    ATTEMPTS,
    CommitSession,
    Transaction,
    conflict_error,
    is_repeat,
    wait,
)
from featurestore_connectors.spark_delta.relations import cast_to
from featurestore_connectors.spark_delta.row_buffer import BufferedRelation
from featurestore_connectors.spark_delta.sqltext import spark_schema
from featurestore_connectors.spark_delta.staged import StagedRelation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

# The limits of Delta's writers: the number of columns with statistics, and the length of string
# bounds.
_COUNTED_COLUMNS, _LONGEST_BOUND = 32, 32
# Higher writer versions may require constraints, generated columns or table features.
_PLAIN_WRITER = 2
# Prefixes of column metadata that writers must enforce: invariants and string lengths.
_CONSTRAINT_PREFIXES = ("delta.", "__")


def create_table(
    path: str,
    *,
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    commit_metadata: Mapping[str, Any],
    durable: bool = True,
) -> None:
    """Create an empty table (commit 0) with properties.

    Raises:
        FileExistsError: The table exists, or another process has just created it.
        StorageError: The directory cannot be written.
    """
    if is_delta_table(path):
        raise FileExistsError(path)
    commit = _commit_zero(
        schema, partition_by=partition_by, properties=properties, commit_metadata=commit_metadata
    )
    target = commit_path(path, 0)
    try:
        storage_for(target).make_directory(os.path.dirname(target), durable=durable)
        actions = parse_actions(commit.decode())
        created = _publish_commit(path, 0, actions, durable=durable)
    except OSError as error:
        raise StorageError(
            f"The table {path} cannot be created: {error}", hint="check free space and permissions"
        ) from error
    if not created:
        raise FileExistsError(path)
    # Optional: Spark is slower without the checksum file.
    with suppress(OSError):
        summary = target.removesuffix(".json") + ".crc"
        storage_for(summary).write_new(summary, _checksum_of_empty_table(commit))


def _commit_zero(
    schema: pa.Schema,
    *,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    commit_metadata: Mapping[str, Any],
) -> bytes:
    """Return the content of commit 0 as delta-rs writes it.

    The caller publishes it, since delta-rs does not exclude concurrent creation.
    """
    from deltalake import CommitProperties, DeltaTable

    text = json.dumps({"operation": "create", **commit_metadata}, sort_keys=True)
    with TemporaryDirectory(prefix="featurestore-create-") as folder:
        DeltaTable.create(
            folder,
            schema=storage_schema(schema),
            partition_by=list(partition_by) or None,
            configuration={**TABLE_PROPERTIES, **properties},
            raise_if_key_not_exists=False,
            commit_properties=CommitProperties(custom_metadata={"userMetadata": text}),
        )
        return storage_for(folder).read_bytes(commit_path(folder, 0))


def _checksum_of_empty_table(commit: bytes) -> bytes:
    """Return the version checksum file of an empty table.

    With this file, Delta derives the checksum of the next version from the commit alone. Without
    it, Spark jobs replay the log, which takes longer than writing a small group's rows. See
    "Version Checksum File" in the Delta protocol.
    """
    actions: dict[str, Any] = {}
    for line in commit.decode().rstrip("\n").split("\n"):
        actions |= json.loads(line)
    summary = {
        "tableSizeBytes": 0,
        "numFiles": 0,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [],
        "allFiles": [],
        "metadata": actions["metaData"],
        "protocol": actions["protocol"],
    }
    return json.dumps(summary).encode()


def write(
    session: SparkSession, path: str, relation: Relation, write: TableWrite, *, durable: bool = True
) -> int | None:
    """Write one commit; return its version, or None if its transaction is already committed."""
    if write.offsets:
        connect.refuse(session, "A commit of stream offsets")
    # Checked without a Spark job. Delta checks the transaction again when it commits.
    if is_repeat(path, write.transaction):
        return None
    with CommitSession(session, path, write.commit_metadata, durable=durable) as commit:
        # Commit also if there are no rows.
        commit.set("spark.databricks.delta.skipRecordingEmptyCommits", "false")
        return commit.run(lambda: _write_once(commit, path, relation, write))


def _write_once(commit: CommitSession, path: str, relation: Relation, write: TableWrite) -> None:
    """Write with Delta's writers, or with a cheaper equivalent."""
    from pyspark.sql.types import StructType

    # Links need a transaction of Delta, which needs the JVM.
    if (
        not is_connect_object(commit.session)
        and isinstance(relation, StagedRelation)
        and _append_linked(commit, path, relation, write)
    ):
        return
    table = commit.session.read.format("delta").load(path)
    columns = _add_missing_columns(StructType(list(table.schema.fields)), write.add_columns)
    _check_columns(relation, columns.names)
    grows = len(columns) > len(table.schema)
    rows = cast_to(commit.adopt(relation.native), columns)
    if write.mode == "upsert":
        _upsert_once(commit, path, relation, rows, write, grows=grows)
    elif write.offsets:
        if grows:  # the columns first: readers take them as null
            _save_rows(commit, path, rows.limit(0), TableWrite(mode="append"), grows=True)
        rewrite.append_with_offsets(commit, path, rows, write)
    else:
        _save_rows(commit, path, rows, write, grows=grows)


def _add_missing_columns(columns: StructType, added: pa.Schema | None) -> StructType:
    """Return a Spark schema with the missing columns of ``added`` appended."""
    known_names = {name.lower() for name in columns.names}
    for field in spark_schema(added or pa.schema([])).fields:
        if field.name.lower() not in known_names:
            columns = columns.add(field)
    return columns


def _check_columns(relation: Relation, known_names: Sequence[str]) -> None:
    """Refuse rows with columns that the table lacks, which Spark would omit."""
    columns = {name.lower() for name in known_names}
    unknown = [name for name in relation.schema.names if name.lower() not in columns]
    if unknown:
        raise unknown_columns_error(unknown, known_names, hint=ADD_COLUMNS_HINT)


def _upsert_once(
    commit: CommitSession,
    path: str,
    relation: Relation,
    rows: DataFrame,
    write: TableWrite,
    *,
    grows: bool,
) -> None:
    """Replace rows by key with MERGE, or without it if MERGE is slower or insufficient."""
    from pyspark.sql.types import StructType

    deletes = None
    if write.deletes is not None:
        keys = StructType([rows.schema[name] for name in write.key])
        deletes = cast_to(commit.adopt(write.deletes.native), keys)
    if write.offsets:
        if grows:  # the columns first: readers take them as null
            _save_rows(commit, path, rows.limit(0), TableWrite(mode="append"), grows=True)
        rewrite.upsert_with_offsets(commit, path, rows, write, deletes)
        return
    repeated_count, examples = row_buffer.duplicates(relation, write.key, limit=5)
    if repeated_count:
        # The examples also have the number of rows.
        raise duplicate_keys_error(
            {name: example[name] for name in write.key} for example in examples
        )
    if isinstance(relation, BufferedRelation | StagedRelation):
        # Repeated reads return the same rows, so Delta does not need to materialize the source.
        commit.set("spark.databricks.delta.merge.materializeSource", "none")
    is_plain = deletes is None and not grows and not is_connect_object(rows)
    is_merged = False
    if isinstance(relation, BufferedRelation) and is_plain:
        is_merged = rewrite.upsert_small(commit, path, relation, rows, write)
    if not is_merged:
        rewrite.upsert(commit, path, rows, write, deletes=deletes, grows=grows)


def _save_rows(
    commit: CommitSession, path: str, rows: DataFrame, write: TableWrite, *, grows: bool
) -> None:
    """Append, overwrite the table, or overwrite a range of the table."""
    # The user's session may have the mode "dynamic", in which an overwrite keeps other partitions.
    options = {"userMetadata": commit.note, "partitionOverwriteMode": "static"}
    if grows:
        options["mergeSchema"] = "true"
    if write.replace is not None:
        options["replaceWhere"] = sqltext.range_condition(write.replace)
    if write.transaction is not None:
        app, number = write.transaction
        options |= {"txnAppId": app, "txnVersion": str(number)}
    writer = rows.write.format("delta").options(**options)
    writer.mode("append" if write.mode == "append" else "overwrite").save(path)


def _append_linked(
    commit: CommitSession, path: str, staged_rows: StagedRelation, write: TableWrite
) -> bool:
    """Append staged files by links; return False if Delta's writer must write the rows."""
    if write.mode != "append" or write.add_columns is not None or write.offsets:
        return False
    if not staged_rows.is_unprojected or not (
        storage_for(path).is_local and storage_for(staged_rows.files.folder).is_local
    ):
        return False
    snapshot = read_snapshot(path)
    is_plain = snapshot.protocol.writer <= _PLAIN_WRITER and not snapshot.partition_by
    if not is_plain or not _same_columns(commit.session, path, staged_rows):
        return False
    footers = staged_rows.files.footers
    if footers is None:
        return False
    with Transaction(commit, path) as transaction:
        if not transaction.add_transaction(write.transaction):
            return True
        # The columns were compared before the transaction started.
        if _arrow_types(transaction.columns.fields) != _arrow_types(
            staged_rows.native.schema.fields
        ):
            return False  # another writer has just changed the columns
        # New names in each attempt. Links of a failed attempt are orphans, which a vacuum removes.
        names = _link_files(list(footers), path)
        if names is None:
            return False
        for name, (file, footer) in zip(names, footers.items(), strict=True):
            transaction.add_action(_add_action(file, name, footer, staged_rows.schema))
        nothing = transaction.empty_option()
        mode = commit.session._jvm.org.apache.spark.sql.SaveMode.Append
        transaction.commit("Write", mode, nothing, nothing, nothing)
    return True


def _same_columns(session: SparkSession, path: str, staged_rows: Relation) -> bool:
    """Return whether the rows have exactly the table's columns, which have no constraints."""
    table_fields = session.read.format("delta").load(path).schema.fields
    for column in table_fields:
        constraints = [name for name in column.metadata if name.startswith(_CONSTRAINT_PREFIXES)]
        if constraints or not column.nullable:
            return False
    return _arrow_types(table_fields) == _arrow_types(staged_rows.native.schema.fields)


def _arrow_types(fields: Sequence[StructField]) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in fields]


def _link_files(staged: Sequence[str], path: str) -> list[str] | None:
    """Hard-link files into a table; return None if the file system does not support links."""
    names: list[str] = []
    for file in staged:
        name = f"part-{uuid.uuid4()}.parquet"
        if not storage_for(file).create_link(file, os.path.join(path, name)):
            for linked in names:
                storage_for(path).remove(os.path.join(path, linked), below=path)
            return None
        names.append(name)
    return names


def _add_action(file: str, name: str, footer: parquet.FileMetaData, schema: pa.Schema) -> str:
    """Return the log action that adds a file, with the statistics in its footer."""
    add = {
        "path": name,
        "partitionValues": {},
        "size": storage_for(file).size(file),
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(_statistics(footer, schema)),
    }
    return json.dumps({"add": add})


def _statistics(footer: parquet.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics of a file for the log, from its footer."""
    minimum, maximum, nulls = {}, {}, {}
    numbers = {}
    for number in range(footer.num_columns):
        numbers[footer.schema.column(number).path] = number
    for column in list(schema)[:_COUNTED_COLUMNS]:
        # The path of a struct field also contains a dot.
        if column.name not in numbers or "." in column.name:
            continue
        statistics = _column_statistics(footer, numbers[column.name])
        if statistics is None:
            continue
        nulls[column.name] = sum(group.null_count for group in statistics)
        bounds = _key_bounds(statistics, column.type)
        if bounds is not None:
            minimum[column.name], maximum[column.name] = bounds
    return {
        "numRecords": footer.num_rows,
        "minValues": minimum,
        "maxValues": maximum,
        "nullCount": nulls,
    }


def _column_statistics(
    footer: parquet.FileMetaData, number: int
) -> list[parquet.Statistics] | None:
    """Return the statistics of a column in each row group, or None if any are missing."""
    statistics_by_group = []
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(number).statistics
        # A bound is valid only if every row group has one.
        if statistics is None or not statistics.has_null_count:
            return None
        statistics_by_group.append(statistics)
    return statistics_by_group


def _key_bounds(
    row_groups: Sequence[parquet.Statistics], dtype: pa.DataType
) -> tuple[object, object] | None:
    """Return minimum and maximum in Delta's JSON format, or None if unknown."""
    is_scalar = pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_string(dtype)
    if not (is_scalar or pat.is_date32(dtype) or pat.is_timestamp(dtype)) or pat.is_uint64(dtype):
        return None
    minima, maxima = [], []
    # Python does not support years before 1 or after 9999.
    with suppress(ValueError, OverflowError, OSError):
        for group in row_groups:
            if group.has_min_max:
                minima.append(group.min)
                maxima.append(group.max)
            elif group.num_values:
                return None
        if minima:
            low, high = _bound_text(min(minima)), _bound_text(max(maxima))
            if low is not None and high is not None:
                return low, high
    return None


def _bound_text(value: object) -> object:
    """Return a value in the log's JSON format, or None if it has no exact representation."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    # Delta truncates long strings. Without a bound, readers do not skip the file.
    if isinstance(value, str) and len(value) > _LONGEST_BOUND:
        return None
    if isinstance(value, bytes):
        return None
    return value


def change_properties(
    path: str, change: Callable[[Snapshot], PropertyChange | None], *, durable: bool = True
) -> int | None:
    """Change table properties in a separate commit, without Spark; see ``Engine``."""
    for attempt in range(ATTEMPTS):
        state = read_snapshot(path)
        check_writable(path, state.protocol)
        # Computed again in each attempt: the commit replaces all metadata, so it must include the
        # changes of other writers.
        changed = change(state)
        if changed is None:
            return None
        version = state.version + 1
        actions = _properties_actions(state, changed)
        try:
            if _publish_commit(path, version, actions, durable=durable):
                return version
        except OSError as error:
            raise StorageError(
                f"The properties of {path} cannot be set: {error}",
                hint="check free space and permissions",
            ) from error
        wait(attempt)
    raise conflict_error(path)


def _properties_actions(state: Snapshot, change: PropertyChange) -> list[dict[str, Any]]:
    """Return the actions of a commit that only changes table properties."""
    now = to_micros(utc_now()) // 1000
    info = {
        "timestamp": now,
        "operation": "SET TBLPROPERTIES",
        "operationParameters": {"properties": json.dumps(dict(change.properties))},
        "readVersion": state.version,
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "engineInfo": "featurestore",
    }
    if change.commit_metadata:
        info["userMetadata"] = json.dumps(dict(change.commit_metadata))
    metadata = changed_metadata(state, properties=change.properties)
    return [{"commitInfo": info}, {"metaData": metadata}]


def _publish_commit(path: str, version: int, actions: Actions, *, durable: bool) -> bool:
    """Publish a commit file with checksums; return False if the version exists."""
    content = seal_commit(path, version, actions)
    with Publication(durable=durable) as publication:
        return publication.publish(commit_path(path, version), content)


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> list[str]:
    """Remove files that are neither needed by versions since ``retain`` nor by ``keep_versions``.

    Return the paths of the removed files.
    """
    # Not Spark's VACUUM, which cannot keep selected versions.
    return remove_unneeded_files(path, keep_versions=keep_versions, retain=retain)
