"""Delta table writes: create, append, overwrite and vacuum; ``rewrite`` has upsert and replace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import storage_schema
from featurestore.delta.maintenance import (
    modification_time,
    orphan_cutoff_time,
    remove_unneeded_files,
)
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.delta.table_state import check_writable
from featurestore.errors import InvalidArgument, SchemaMismatch, listing
from featurestore.plugins.engine import TABLE_PROPERTIES, PropertyChange, Relation, TableWrite
from featurestore.storage import files as storage
from featurestore.storage.publication import Publication
from featurestore_connectors.duckdb_delta import commits, files, rewrite, sqltext
from featurestore_connectors.duckdb_delta.commits import Change
from featurestore_connectors.duckdb_delta.files import WRITING, NewFile
from featurestore_connectors.duckdb_delta.relations import StagedRelation
from featurestore_connectors.duckdb_delta.session import Database, query_of, relation_lock


def create(
    database: Database,
    path: str,
    *,
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    commit_metadata: Mapping[str, Any],
) -> None:
    """Create an empty table; raise FileExistsError if the table exists."""
    for column in partition_by:
        kind = schema.field(column).type
        # Partition values are strings in the log, in which floats and binaries have no unique form.
        if pat.is_binary(kind) or pat.is_floating(kind):
            raise InvalidArgument(
                f"Cannot partition a table by column {column!r} of type {kind}.",
                hint="partition by a column of integers, strings, dates or booleans",
            )
    if len(partition_by) >= len(schema.names):
        raise InvalidArgument(
            "All columns are partition columns; at least one must be a data column."
        )
    metadata = commits.new_metadata(
        storage_schema(schema),
        partition_by=partition_by,
        properties={**TABLE_PROPERTIES, **properties},
    )
    commits.create(
        path, metadata=metadata, commit_metadata=commit_metadata, durable=database.durable
    )


def write(database: Database, path: str, relation: Relation, write: TableWrite) -> int | None:
    """Write one commit; return None if its transaction is already committed."""
    state = read_snapshot(path)
    check_writable(state.path, state.protocol)
    # A repeated write ends here, before any row is read. ``commits.commit`` checks again, since
    # another process may commit the same transaction meanwhile.
    if state.has_committed(write.transaction):
        return None
    schema = _table_schema(state, relation, write)
    if write.mode in ("append", "overwrite"):
        return _append_or_overwrite(database, state, relation, schema, write)
    with _stage_source(database, state, relation, schema) as source:
        if write.mode == "upsert":
            with _stage_deleted_keys(database, state, write) as deletes:
                return rewrite.upsert(database, state, source, write, deletes=deletes)
        return rewrite.replace(database, state, source, write)


def _table_schema(state: Snapshot, relation: Relation, write: TableWrite) -> pa.Schema:
    """Return the table schema with the columns that this write adds."""
    schema = commits.add_missing_columns(state.schema, write.add_columns)
    present = set(schema.names)
    unknown = [name for name in relation.schema.names if name not in present]
    if unknown:
        raise SchemaMismatch(
            f"Unknown columns {listing(unknown)}. "
            f"Available: {listing(state.schema.names, limit=50)}.",
            hint="schema_change='add' adds new nullable columns",
        )
    return schema


def _append_or_overwrite(
    database: Database, state: Snapshot, relation: Relation, schema: pa.Schema, write: TableWrite
) -> int | None:
    """Write the rows to new files once, and commit them with retries."""
    with Publication(durable=database.durable) as publication:
        # The rows are written once; only the commit is retried.
        new = _write_uncommitted(database, state, relation, schema, publication)

        def attempt(latest: Snapshot) -> int:
            current = commits.add_missing_columns(latest.schema, write.add_columns)
            if all(current.field(each.name).type == each.type for each in schema):
                return commits.commit(latest, _build_change(latest, new, write), publication)
            # Another writer has widened columns after the files were written.
            narrow_state = replace(latest, schema=schema)
            with Publication(durable=database.durable) as again:
                wider = _rewrite_uncommitted(database, narrow_state, new, current, again)
                return commits.commit(latest, _build_change(latest, wider, write), again)

        return commits.retry_commits(state.path, attempt, state=state)


def _write_uncommitted(
    database: Database,
    state: Snapshot,
    relation: Relation,
    schema: pa.Schema,
    publication: Publication,
) -> list[NewFile]:
    """Write rows to uncommitted files in the table folder.

    Staged files with the table's types are linked instead of rewritten.
    """
    if isinstance(relation, StagedRelation) and _can_link(relation, schema, state):
        return files.move_into_table(relation.files, state.path, publication)
    with files.scratch_folder(state.path) as scratch:
        folder = os.path.join(scratch, "rows")
        query = _storage_query(relation, schema)
        new_files = files.write(
            database, query, folder, schema=schema, partition_by=state.partition_by
        )
        return files.move_into_table(new_files, state.path, publication, folder=folder)


def _can_link(staged: StagedRelation, schema: pa.Schema, state: Snapshot) -> bool:
    """Return whether staged files can be linked into the table: same types, no partitions."""
    if state.partition_by:
        return False
    stored_schema = storage_schema(staged.schema)
    return all(field.type == schema.field(field.name).type for field in stored_schema)


def _rewrite_uncommitted(
    database: Database,
    state: Snapshot,
    narrow_files: Sequence[NewFile],
    schema: pa.Schema,
    publication: Publication,
) -> list[NewFile]:
    """Rewrite uncommitted files from the types of ``state`` to those of ``schema``."""
    if not narrow_files:
        return []
    columns = sqltext.casts(schema, sqltext.types_of(state.schema))
    query = f"SELECT {columns} FROM {files.scan_all(state, narrow_files)}"
    with files.scratch_folder(state.path) as scratch:
        folder = os.path.join(scratch, "rows")
        new = files.write(database, query, folder, schema=schema, partition_by=state.partition_by)
        return files.move_into_table(new, state.path, publication, folder=folder)


def _build_change(state: Snapshot, new: Sequence[NewFile], write: TableWrite) -> Change:
    overwrites = write.mode == "overwrite"
    mode = "Overwrite" if overwrites else "Append"
    return Change(
        operation="WRITE",
        parameters={"mode": mode, "partitionBy": list(state.partition_by)},
        adds=new,
        removes=state.files if overwrites else (),
        metadata=commits.metadata_with(state, write.add_columns),
        commit_metadata={"operation": write.mode, **write.commit_metadata},
        transaction=write.transaction,
        offsets=write.offsets,
        reads=overwrites,
    )


@contextmanager
def _stage_source(
    database: Database, state: Snapshot, relation: Relation, schema: pa.Schema
) -> Iterator[list[NewFile]]:
    """Yield the rows as unpartitioned files, the input of a rewrite."""
    if isinstance(relation, StagedRelation) and _can_link(relation, schema, state):
        yield list(relation.files)
        return
    with files.scratch_folder(state.path) as scratch:
        folder = os.path.join(scratch, "rows")
        yield files.write(database, _storage_query(relation, schema), folder, schema=schema)


@contextmanager
def _stage_deleted_keys(
    database: Database, state: Snapshot, write: TableWrite
) -> Iterator[Sequence[NewFile]]:
    """Yield files with the keys that an upsert deletes, in the table's types."""
    if write.deletes is None:
        yield ()
        return
    # The keys may have other types than the table.
    schema = pa.schema([state.schema.field(name) for name in write.key])
    with files.scratch_folder(state.path) as scratch:
        folder = os.path.join(scratch, "keys")
        yield files.write(database, _storage_query(write.deletes, schema), folder, schema=schema)


def _storage_query(relation: Relation, schema: pa.Schema) -> str:
    """Return the query of the rows in the storage types of a table."""
    projection = sqltext.casts(schema, sqltext.types_of(relation.schema))
    with relation_lock():
        return query_of(relation.native.project(projection))


def change_properties(
    database: Database, path: str, change: Callable[[Snapshot], PropertyChange | None]
) -> int | None:
    """Change table properties in a separate commit; return its version, None without a change."""

    def attempt(state: Snapshot) -> int | None:
        # Computed in each attempt, so that the change is based on the version that it follows: a
        # commit with metadata fails if any other commit precedes it.
        changed = change(state)
        if changed is None:
            return None
        properties = dict(changed.properties)
        commit_change = Change(
            "SET TBLPROPERTIES",
            {"properties": properties},
            metadata=commits.changed_metadata(state, properties=properties),
            commit_metadata=changed.commit_metadata,
        )
        with Publication(durable=database.durable) as publication:
            return commits.commit(state, commit_change, publication)

    return commits.retry_commits(path, attempt)


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> list[str]:
    """Remove files that are neither needed by versions since ``retain`` nor by ``keep_versions``.

    Return the paths of the removed files.
    """
    removed = remove_unneeded_files(path, keep_versions=keep_versions, retain=retain)
    abandoned = orphan_cutoff_time(retain)
    writing = os.path.join(path, WRITING)
    for name in storage.list_directory(writing):
        folder = os.path.join(writing, name)
        # Killed writers leave their folders. Younger ones may belong to running writers.
        if modification_time(folder) < abandoned:
            storage.remove(folder, below=path)
    return removed
