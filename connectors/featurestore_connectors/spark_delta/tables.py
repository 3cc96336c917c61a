"""Delta tables: create and write; every function here is one commit."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from featurestore.delta.log import commit_path, is_delta_table
from featurestore.delta.snapshot import transaction_version
from featurestore.errors import InvalidSql, RowsOutsideWindow, StorageError, WriteConflict
from featurestore.model.types import storage_schema
from featurestore.plugins.engine import TABLE_PROPERTIES, Relation, TableWrite, TimeRange
from featurestore_connectors.spark_delta.commits import CommitSession
from featurestore_connectors.spark_delta.failures import first_line, full_text, translated
from featurestore_connectors.spark_delta.relations import cast_to, quoted
from featurestore_connectors.spark_delta.types import spark_schema

# A conflict means that somebody else made progress; more than this in a row is no accident.
_ATTEMPTS = 20
_CONFLICTS = (
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentTransactionException",
    "ConcurrentWriteException",
    "MetadataChangedException",
    "ProtocolChangedException",
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
)


def create_table(
    path: str,
    *,
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    note: Mapping[str, Any],
) -> None:
    """Create an empty table (commit 0) with its properties.

    Raises:
        FileExistsError: There is a table, or another creator was faster.
        StorageError: The directory cannot be written.
    """
    if is_delta_table(path):
        raise FileExistsError(path)
    commit = _commit_zero(schema, partition_by=partition_by, properties=properties, note=note)
    target = commit_path(path, 0)
    temporary = os.path.join(os.path.dirname(target), f".{uuid.uuid4().hex}.tmp")
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            _write_through(temporary, commit)
            os.link(temporary, target)  # unlike a rename, fails when somebody else was faster
        finally:
            Path(temporary).unlink(missing_ok=True)
        _write_through(target.removesuffix(".json") + ".crc", _summary_of_nothing(commit))
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(
            f"The table {path} cannot be created: {error}", hint="is the disk full or read-only?"
        ) from error


def _commit_zero(
    schema: pa.Schema,
    *,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    note: Mapping[str, Any],
) -> bytes:
    """Return the commit that delta-rs writes; we put it in place, since its creators do not exclude each other."""
    from deltalake import CommitProperties, DeltaTable

    text = json.dumps({"operation": "create", **note}, sort_keys=True)
    with TemporaryDirectory(prefix="featurestore-create-") as folder:
        DeltaTable.create(
            folder,
            schema=storage_schema(schema),
            partition_by=list(partition_by) or None,
            configuration={**TABLE_PROPERTIES, **properties},
            raise_if_key_not_exists=False,
            commit_properties=CommitProperties(custom_metadata={"userMetadata": text}),
        )
        return Path(commit_path(folder, 0)).read_bytes()


def _summary_of_nothing(commit: bytes) -> bytes:
    """Return the version checksum file of an empty table.

    With it Delta derives the next version's from the commit alone; without it Spark jobs replay the log, which takes
    longer than a small group's rows. See "Version Checksum File" in Delta's protocol.
    """
    actions: dict[str, Any] = {}
    for line in commit.decode().rstrip("\n").split("\n"):
        actions |= json.loads(line)
    counts = {"tableSizeBytes": 0, "numFiles": 0, "numMetadata": 1, "numProtocol": 1}
    nothing: dict[str, list[Any]] = {"setTransactions": [], "domainMetadata": [], "allFiles": []}
    told = {**counts, **nothing, "metadata": actions["metaData"], "protocol": actions["protocol"]}
    return json.dumps(told).encode()


def _write_through(path: str, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write(session: Any, path: str, given: Relation, how: TableWrite) -> int | None:
    """Write one commit; return its Delta version, None when the transaction was a repeat."""
    if how.transaction is not None and _is_repeat(path, how.transaction):
        return None
    with CommitSession(session, path, how.note) as commit:
        commit.set(
            "spark.databricks.delta.skipRecordingEmptyCommits", "false"
        )  # a write of no rows is a commit, too
        return _retried(path, lambda: _write_once(commit, path, given, how))


def delete(session: Any, path: str, predicate: str, *, note: Mapping[str, Any]) -> int | None:
    """Delete the rows for which the predicate is true; return the Delta version, None when no row matched."""
    from delta.tables import DeltaTable
    from pyspark.errors import AnalysisException, ParseException

    def once() -> int | None:
        try:
            return commit.run(lambda: DeltaTable.forPath(commit.session, path).delete(predicate))
        except (AnalysisException, ParseException) as error:
            if _is_conflict(error):
                raise
            raise InvalidSql(
                f"The predicate {predicate!r} cannot be used: {first_line(error)}"
            ) from error

    with CommitSession(session, path, note) as commit:
        return _retried(path, once)


def set_properties(path: str, properties: Mapping[str, str]) -> None:
    """Set table properties in a commit of their own."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError

    for attempt in range(_ATTEMPTS):
        try:
            DeltaTable(path).alter.set_table_properties(dict(properties), raise_if_not_exists=False)
            return
        except CommitFailedError:
            _wait(attempt)
        except (DeltaError, OSError) as error:
            raise StorageError(f"The properties of {path} cannot be set: {error}") from error
    raise _kept_losing(path)


def compact(session: Any, path: str, *, below: int | None = None) -> int | None:
    """Rewrite files smaller than ``below`` into large ones; return the Delta version, None when nothing was to do."""
    from delta.tables import DeltaTable

    with CommitSession(session, path, {"operation": "compact"}) as commit:
        if below is not None:
            commit.set("spark.databricks.delta.optimize.minFileSize", str(below))
        return _retried(
            path,
            lambda: commit.run(
                lambda: DeltaTable.forPath(commit.session, path).optimize().executeCompaction()
            ),
        )


def _write_once(commit: CommitSession, path: str, given: Relation, how: TableWrite) -> int | None:
    from pyspark.sql.types import StructType

    table = commit.session.read.format("delta").load(path)
    added = () if how.add_columns is None else spark_schema(how.add_columns).fields
    known = {field.name.lower() for field in table.schema.fields}
    wanted = StructType(
        [*table.schema.fields, *(field for field in added if field.name.lower() not in known)]
    )
    rows = cast_to(commit.adopt(given.native), wanted)
    grows = len(wanted.fields) > len(table.schema.fields)
    if how.mode == "upsert":
        return commit.run(lambda: _merge(commit, path, rows, how, grows=grows))
    return commit.run(lambda: _save(path, rows, how, note=commit.note, grows=grows))


def _save(path: str, rows: Any, how: TableWrite, *, note: str, grows: bool) -> None:
    writer = rows.write.format("delta").mode("append" if how.mode == "append" else "overwrite")
    options = {"userMetadata": note, "partitionOverwriteMode": "static"}
    if grows:
        options["mergeSchema"] = "true"
    if how.replace is not None:
        options["replaceWhere"] = _range(how.replace)
    if how.transaction is not None:
        options |= {"txnAppId": how.transaction[0], "txnVersion": str(how.transaction[1])}
    writer.options(**options).save(path)


def _merge(commit: CommitSession, path: str, rows: Any, how: TableWrite, *, grows: bool) -> None:
    from delta.tables import DeltaTable

    if how.transaction is not None:
        app, number = how.transaction
        commit.set("spark.databricks.delta.write.txnAppId", app)
        commit.set("spark.databricks.delta.write.txnVersion", str(number))
    # Null keys match nothing.
    same = " AND ".join(f"old.{quoted(name)} = new.{quoted(name)}" for name in how.key)
    merge = DeltaTable.forPath(commit.session, path).alias("old").merge(rows.alias("new"), same)
    if grows:
        merge = merge.withSchemaEvolution()
    # Named one by one: the short form with schema evolution turns null structs into structs of nulls.
    columns = {quoted(name): f"new.{quoted(name)}" for name in rows.columns}
    merge.whenMatchedUpdate(set=columns).whenNotMatchedInsert(values=columns).execute()


def _range(window: TimeRange) -> str:
    time = quoted(window.column)
    start, end = (
        f"TIMESTAMP '{each.isoformat(timespec='microseconds')}'"
        for each in (window.start, window.end)
    )
    if window.closed == "left":
        return f"{time} >= {start} AND {time} < {end}"
    return f"{time} > {start} AND {time} <= {end}"


def _retried(path: str, once: Callable[[], int | None]) -> int | None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with translated():
        for attempt in range(_ATTEMPTS):
            try:
                return once()
            except (PySparkException, Py4JError) as error:
                if "DELTA_REPLACE_WHERE_MISMATCH" in full_text(error):
                    raise RowsOutsideWindow(
                        f"Rows lie outside the range that is replaced in {path}."
                    ) from error
                if not _is_conflict(error):
                    raise
            _wait(attempt)
    raise _kept_losing(path)


def _is_conflict(error: BaseException) -> bool:
    # delta-spark's Python classes of a conflict share no base of their own, and their text need not repeat their name.
    text = f"{type(error).__name__}: {full_text(error)}"
    return any(sign in text for sign in _CONFLICTS)


def _is_repeat(path: str, transaction: tuple[str, int]) -> bool:
    app, number = transaction
    last = transaction_version(path, app)
    return last is not None and number <= last


def _wait(attempt: int) -> None:
    time.sleep(random.uniform(0.05, min(2.0, 0.1 * 2**attempt)))


def _kept_losing(path: str) -> WriteConflict:
    return WriteConflict(
        f"Other writers of {path} won {_ATTEMPTS} times in a row; nothing of this write landed.",
        hint="write again later",
    )
