"""Commits of Delta tables with optimistic concurrency control.

Commits follow the Delta protocol for reader version 1 and writer version 2
(https://github.com/delta-io/delta/blob/master/PROTOCOL.md). A commit is one JSON file that is
published atomically under its final name; the first writer of a version wins.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from featurestore.arrow.types import storage_schema
from featurestore.delta import log
from featurestore.delta.checksums import add_checksum, file_checksums
from featurestore.delta.commits import (
    changed_metadata,
    check_concurrent_transactions,
    check_offsets,
    seal_commit,
)
from featurestore.delta.datafile import DataFile
from featurestore.delta.log import (
    LOG_FOLDER,
    FileState,
    commit_path,
    is_delta_table,
    latest_version,
    read_commit,
)
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import (
    StorageError,
    TableDamaged,
    VersionVacuumed,
    WriteConflict,
    refusal_hint,
)
from featurestore.model.runtime import was_forked
from featurestore.model.threads import independent_tasks
from featurestore.model.times import to_micros, utc_now
from featurestore.plugins.engine import PropertyChange, TableWrite
from featurestore.storage import storage_for
from featurestore.storage.connections import delta_options
from featurestore.storage.failures import warn_after_publication
from featurestore.storage.publication import Publication
from featurestore_connectors.duckdb_delta.relations import NewFile

ATTEMPTS = 40
_CHECKPOINT_EVERY = 10
_CHECKPOINT_SECONDS = 60
_CHECKPOINT_PROGRAM = """
import sys
from deltalake import DeltaTable

DeltaTable(sys.argv[1], version=int(sys.argv[2])).create_checkpoint()
"""
# The checkpoint interval grows by one commit for every this many data files and transactions.
_ENTRIES_PER_COMMIT = 100
# The last known checkpoint of each table written by this process. The log is only listed when the
# next checkpoint may be due.
_LAST_CHECKPOINTS: dict[str, int] = {}


@dataclass(frozen=True)
class TableChange:
    """The content of one commit. ``reads`` is true if the content depends on existing rows."""

    operation: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    adds: Sequence[NewFile] = ()
    removes: Sequence[DataFile] = ()
    metadata: Mapping[str, Any] | None = None
    commit_metadata: Mapping[str, Any] = field(default_factory=dict)
    transaction: tuple[str, int] | None = None
    offsets: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    copied_rows: int = 0
    data_change: bool = True
    reads: bool = False


class LostRaceError(Exception):
    """A concurrent commit conflicts with this one, which must be computed again.

    Internal to the engine.
    """


class RepeatedError(Exception):
    """The transaction is already committed. Internal to the engine."""


def create(
    path: str,
    *,
    metadata: Mapping[str, Any],
    commit_metadata: Mapping[str, Any],
    durable: bool = True,
) -> None:
    """Write commit 0; raise FileExistsError if the table exists."""
    storage_for(path).make_directory(os.path.join(path, LOG_FOLDER), durable=durable)
    info = _commit_info(
        "CREATE TABLE",
        {"partitionBy": json.dumps(metadata["partitionColumns"])},
        {"operation": "create", **commit_metadata},
    )
    actions = [
        info,
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": dict(metadata)},
    ]
    with Publication(durable=durable) as publication:
        # The first check also finds a table whose commit 0 was removed. The publication decides
        # between processes that create the table at the same time.
        if is_delta_table(path) or not _publish_commit(path, 0, actions, publication):
            raise FileExistsError(f"A Delta table exists at {path}.")


def commit(state: Snapshot, change: TableChange, publication: Publication) -> int:
    """Commit a change to the table snapshot ``state`` and return the new version.

    ``publication`` owns the files that the change adds. No errors are raised after the commit is
    visible.

    Raises:
        LostRaceError: A concurrent commit conflicts with the change.
        RepeatedError: The transaction is already committed.
        StreamOvertaken: An offset that the change advances has been changed by another commit.
    """
    version, before = state.version, state.commit
    # ``state`` may be newer than the snapshot whose rows were read: the transaction may have been
    # committed since.
    if state.has_committed(change.transaction):
        raise RepeatedError
    check_offsets(state, change.offsets)
    checksums = _compute_checksums(change.adds, publication)
    actions = list(_build_actions(state, change, checksums))
    while True:
        version += 1
        if _publish_commit(state.path, version, actions, publication, before=before):
            with warn_after_publication(f"Delta version {version} of {state.path}"):
                _checkpoint(state, version, durable=publication.durable)
            return version
        # Another writer took this version. If its commit does not conflict, the same actions are
        # valid for the next version, and no file is written again.
        _check_conflicts(change, read_commit(commit_path(state.path, version)))
        before = None


def _compute_checksums(
    new_files: Sequence[NewFile], publication: Publication
) -> Sequence[str | None]:
    """Return the checksums of files, which are computed while the disk syncs local files."""
    if not new_files or not storage_for(new_files[0].path).is_local:
        return [file.checksum for file in new_files]
    paths = [file.path for file in new_files]
    if not publication.durable:
        return file_checksums(paths)
    with independent_tasks(1, "featurestore-sync") as pool:
        syncing = pool.submit(publication.sync)
        checksums = file_checksums(paths)
        syncing.result()
    return checksums


def retry_commits(
    path: str, attempt: Callable[[Snapshot], int | None], *, state: Snapshot | None = None
) -> int | None:
    """Call ``attempt`` with the latest snapshot until it commits, with exponential backoff.

    ``state``, if not None, is the snapshot of the first call.
    """
    for number in range(ATTEMPTS):
        latest = state if state is not None and number == 0 else read_snapshot(path)
        try:
            return attempt(latest)
        except RepeatedError:
            return None
        except LostRaceError:
            pass
        except (TableDamaged, VersionVacuumed):
            # A vacuum may have removed files of this snapshot; retry if there is a later version.
            if latest_version(path) == latest.version:
                raise
        # Random, so that writers that lost the same race do not meet again.
        time.sleep(random.uniform(0.2, 1) * min(0.005 * 2**number, 1.0))
    raise WriteConflict(
        f"Other writers changed {path} {ATTEMPTS} times while this write was computed; "
        "it was not committed.",
        hint="repeat the write, or run the writers one at a time",
    )


def add_missing_columns(schema: pa.Schema, added: pa.Schema | None) -> pa.Schema:
    """Return a storage schema with the missing columns of ``added`` appended."""
    if added is None:
        return schema
    present = set(schema.names)
    new = [column for column in storage_schema(added) if column.name not in present]
    return pa.schema([*schema, *new])


def schema_string(schema: pa.Schema) -> str:
    """Return a storage schema in Delta's JSON format."""
    from deltalake import Schema

    return str(Schema.from_arrow(schema).to_json())


def build_change(
    state: Snapshot,
    new: Sequence[NewFile],
    write: TableWrite,
    *,
    removes: Sequence[DataFile] = (),
    copied_rows: int = 0,
) -> TableChange:
    """Return the commit of a write: new files, and the files that they replace."""
    operation = "WRITE"
    parameters: dict[str, object] = {"mode": "Overwrite"}
    if write.mode == "upsert":
        operation, parameters = "MERGE", {"key": list(write.key)}
    elif write.mode != "replace":
        parameters = {"mode": write.mode.capitalize(), "partitionBy": list(state.partition_by)}
    schema = add_missing_columns(state.schema, write.add_columns)
    grows = schema.names != state.schema.names
    return TableChange(
        operation=operation,
        parameters=parameters,
        adds=new,
        removes=state.files if write.mode == "overwrite" else removes,
        metadata=changed_metadata(state, schema_string=schema_string(schema)) if grows else None,
        commit_metadata={"operation": write.mode, **write.commit_metadata},
        transaction=write.transaction,
        offsets=write.offsets,
        copied_rows=copied_rows,
        reads=write.mode != "append",
    )


def change_properties(
    path: str, change: Callable[[Snapshot], PropertyChange | None], *, durable: bool
) -> int | None:
    """Change table properties in a separate commit; return its version, None without a change."""

    def attempt(state: Snapshot) -> int | None:
        # Computed in each attempt, so that the change is based on the version that it follows: a
        # commit with metadata fails if any other commit precedes it.
        changed = change(state)
        if changed is None:
            return None
        properties = dict(changed.properties)
        commit_change = TableChange(
            "SET TBLPROPERTIES",
            {"properties": properties},
            metadata=changed_metadata(state, properties=properties),
            commit_metadata=changed.commit_metadata,
        )
        with Publication(durable=durable) as publication:
            return commit(state, commit_change, publication)

    return retry_commits(path, attempt)


def _build_actions(
    state: Snapshot, change: TableChange, checksums: Sequence[str | None]
) -> Iterator[dict[str, Any]]:
    """Yield the log actions of a change, with the commit info first."""
    now = now_millis()
    metrics = {
        "numFiles": len(change.adds),
        "numRemovedFiles": len(change.removes),
        "numOutputRows": sum(file.rows for file in change.adds),
        "numCopiedRows": change.copied_rows,
        "numOutputBytes": sum(file.bytes for file in change.adds),
    }
    # Other writers may skip conflict checks for blind appends, so the flag must be false for a
    # commit that depends on existing rows (Delta protocol).
    blind = not change.reads and not change.removes and change.metadata is None
    yield _commit_info(
        change.operation,
        change.parameters,
        change.commit_metadata,
        metrics=metrics,
        read=state.version,
        blind=blind,
    )
    transactions = [] if change.transaction is None else [change.transaction]
    transactions += [(app, number) for app, (_, number) in change.offsets.items()]
    for app, number in transactions:
        yield {"txn": {"appId": app, "version": number, "lastUpdated": now}}
    if change.metadata is not None:
        yield {"metaData": dict(change.metadata)}
    for old in change.removes:
        yield {
            "remove": {
                "path": old.log_path,
                "deletionTimestamp": now,
                "dataChange": change.data_change,
                "size": old.bytes,
                # The history counts removed rows with this number, without opening the removed
                # file.
                "stats": json.dumps({"numRecords": old.rows}),
            }
        }
    for new, checksum in zip(change.adds, checksums, strict=True):
        relative_path = new.path.removeprefix(os.path.join(state.path, ""))
        add = {
            # Paths in the log are percent-encoded (Delta protocol).
            "path": quote(relative_path.replace(os.sep, "/"), safe="/=-_.~"),
            "partitionValues": dict(new.partition),
            "size": new.bytes,
            "modificationTime": now,
            "dataChange": change.data_change,
            "stats": new.statistics,
        }
        yield {"add": add_checksum(add, checksum)}


def _commit_info(
    operation: str,
    parameters: Mapping[str, object],
    commit_metadata: Mapping[str, Any],
    *,
    metrics: Mapping[str, int] | None = None,
    read: int | None = None,
    blind: bool = False,
) -> dict[str, Any]:
    """Return the ``commitInfo`` action; ``read`` is the version on which the change is based."""
    # Delta defines parameters and metrics as maps of strings, so other values are JSON in a string.
    parameter_strings = {}
    for key, value in parameters.items():
        parameter_strings[key] = value if isinstance(value, str) else json.dumps(value)
    info: dict[str, Any] = {
        # A unique id lets a writer recognize its own commit if the storage response was lost.
        "txnId": str(uuid.uuid4()),
        "timestamp": now_millis(),
        "operation": operation,
        "operationParameters": parameter_strings,
        "isolationLevel": "Serializable",
        "isBlindAppend": blind,
        "operationMetrics": {name: str(count) for name, count in (metrics or {}).items()},
        "engineInfo": "featurestore",
        "userMetadata": json.dumps(commit_metadata, sort_keys=True),
    }
    if read is not None:
        info["readVersion"] = read
    return {"commitInfo": info}


def now_millis() -> int:
    """Return the current time as in the Delta log."""
    return to_micros(utc_now()) // 1000


def _publish_commit(
    path: str,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    publication: Publication,
    *,
    before: FileState | None = None,
) -> bool:
    """Publish a commit file; return False if the version exists."""
    commit_file = commit_path(path, version)
    content = seal_commit(path, version, actions, before=before)
    try:
        return publication.publish(commit_file, content)
    except OSError as error:
        if not storage_for(commit_file).is_local:
            raise  # the commit may exist
        raise StorageError(
            f"The commit {commit_file} could not be written: {error}; the table is unchanged.",
            hint=refusal_hint(error)
            or "check free space, permissions, and that the file system supports hard links",
        ) from error


def _check_conflicts(change: TableChange, winner: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if a concurrent commit (``winner``) conflicts with the change."""
    if change.transaction is not None:
        app, number = change.transaction
        for action in winner:
            txn = action.get("txn")
            # The other process may have done the same write, for example after this one was
            # considered dead.
            if txn is not None and txn["appId"] == app and txn["version"] >= number:
                raise RepeatedError
    check_concurrent_transactions(log.actions_of_kind(winner, "txn"), change.offsets)
    conflicting_actions: tuple[str, ...] = ("metaData", "protocol")
    if not change.data_change:
        # A compaction commutes with appends, unless its input files were removed.
        moved_paths = {file.log_path for file in change.removes}
        if any(remove["path"] in moved_paths for remove in log.actions_of_kind(winner, "remove")):
            raise LostRaceError
    elif change.reads:
        conflicting_actions = ("add", "remove", "metaData", "protocol")
    for action in winner:
        if not action.keys().isdisjoint(conflicting_actions):
            raise LostRaceError
    # The concurrent commit may have added files in the types of the old schema.
    if change.metadata is not None:
        raise LostRaceError


def _write_checkpoint(path: str, version: int) -> None:
    if was_forked():
        # The runtime of delta-rs does not work in a forked child, where S3 is refused before.
        command = [sys.executable, "-P", "-c", _CHECKPOINT_PROGRAM, path, str(version)]
        subprocess.run(command, check=True, capture_output=True, timeout=_CHECKPOINT_SECONDS)
        return
    from deltalake import DeltaTable

    options = delta_options(path)
    DeltaTable(path, version=version, storage_options=options).create_checkpoint()


def _checkpoint(state: Snapshot, version: int, *, durable: bool) -> None:
    """Write a checkpoint if due; the interval grows with the checkpoint size, to limit the cost."""
    interval = int(state.properties.get("delta.checkpointInterval", _CHECKPOINT_EVERY))
    entry_count = len(state.files) + len(state.transactions)
    interval = max(interval, 1, entry_count // _ENTRIES_PER_COMMIT)
    # A lower version than that of the last checkpoint means that the table was created again.
    last_checkpoint = _LAST_CHECKPOINTS.get(state.path, 0)
    if last_checkpoint <= version < last_checkpoint + interval:
        return
    last = max(log.find_checkpoint_before(state.path, version)[0], 0)
    _LAST_CHECKPOINTS[state.path] = last
    if version - last >= interval:
        # Readers do not need the checkpoint, and the next commit tries again.
        from deltalake.exceptions import DeltaError

        with suppress(DeltaError, OSError, ValueError, subprocess.SubprocessError):
            _write_checkpoint(state.path, version)
            if durable:
                # delta-rs does not sync checkpoints; after a power failure, readers could find a
                # truncated one.
                _, checkpoint_paths = log.find_checkpoint_before(state.path, version)
                storage_for(state.path).sync(checkpoint_paths)
