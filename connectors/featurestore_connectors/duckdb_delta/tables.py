"""Writes into Delta tables: append and overwrite here, what rewrites rows in ``rewrite``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.delta import deltalog
from featurestore.delta.deltalog import TableState
from featurestore.errors import InvalidArgument, SchemaMismatch, listing
from featurestore.model.types import storage_schema
from featurestore.plugins.engine import TABLE_PROPERTIES, Relation, TableWrite
from featurestore_connectors.duckdb_delta import columns, commits, files, rewrite, sqltext
from featurestore_connectors.duckdb_delta.commits import Change
from featurestore_connectors.duckdb_delta.files import NewFile
from featurestore_connectors.duckdb_delta.relations import StagedRelation
from featurestore_connectors.duckdb_delta.session import Database, building, query_of


def create(
    path: str,
    *,
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    note: Mapping[str, Any],
) -> None:
    """Create an empty table; FileExistsError when there is one."""
    for column in partition_by:
        if pat.is_binary(schema.field(column).type) or pat.is_floating(schema.field(column).type):
            raise InvalidArgument(
                f"Column {column!r} of type {schema.field(column).type} cannot partition a table.",
                hint="partition by a column of integers, strings, dates or booleans",
            )
    if len(partition_by) >= len(schema.names):
        raise InvalidArgument(
            "All columns partition the table, so that none is left for its files."
        )
    metadata = commits.new_metadata(
        storage_schema(schema),
        partition_by=partition_by,
        properties={**TABLE_PROPERTIES, **properties},
    )
    commits.create(path, metadata=metadata, note=note)


def write(database: Database, path: str, relation: Relation, how: TableWrite) -> int | None:
    """Write one commit; None when its transaction is a repeat."""
    state = deltalog.table_state(path)
    commits.check_writable(state)
    if _is_repeat(path, how):
        return None
    schema = _table_schema(state, relation, how)
    with _rows_as_files(
        database, state, relation, schema, plain=how.mode in ("append", "overwrite")
    ) as new:
        if how.mode == "upsert":
            return rewrite.upsert(database, state, new, how)
        if how.mode == "replace":
            return rewrite.replace(database, state, new, how)
        return _commit_plain(state, new, how)


def _commit_plain(state: TableState, new: Sequence[NewFile], how: TableWrite) -> int | None:
    def attempt(state: TableState) -> int:
        everything = how.mode == "overwrite"
        return commits.commit(
            state,
            Change(
                operation="WRITE",
                parameters={
                    "mode": "Overwrite" if everything else "Append",
                    "partitionBy": list(state.partition_by),
                },
                adds=new,
                removes=state.files if everything else (),
                metadata=columns.metadata_with(state, how.add_columns),
                note={"operation": how.mode, **how.note},
                transaction=how.transaction,
                reads=everything,
            ),
        )

    version = None
    try:
        version = commits.retried(state.path, attempt, state=state)
        return version
    finally:
        if version is None:
            files.discard(new)


def set_properties(path: str, properties: Mapping[str, str]) -> None:
    """Set table properties in a commit of their own."""

    def attempt(state: TableState) -> int:
        metadata = commits.changed_metadata(state, properties=properties)
        change = Change("SET TBLPROPERTIES", {"properties": dict(properties)}, metadata=metadata)
        return commits.commit(state, change)

    commits.retried(path, attempt)


def _is_repeat(path: str, how: TableWrite) -> bool:
    if how.transaction is None:
        return False
    app, number = how.transaction
    last = deltalog.transaction_version(path, app)
    return last is not None and number <= last


def _table_schema(state: TableState, relation: Relation, how: TableWrite) -> pa.Schema:
    """Return the storage types of the table with the columns that this write adds."""
    schema = columns.wider(state.schema, how.add_columns)
    unknown = [name for name in relation.schema.names if name not in schema.names]
    if unknown:
        raise SchemaMismatch(
            f"The table has no columns {listing(unknown)}; it has {listing(state.schema.names, limit=50)}.",
            hint="schema_change='add' lets new nullable columns in",
        )
    return schema


@contextmanager
def _rows_as_files(
    database: Database, state: TableState, relation: Relation, schema: pa.Schema, *, plain: bool
) -> Iterator[list[NewFile]]:
    """Give the rows as Parquet files: in their place for a plain write, else as the source of a rewrite.

    The files of a stage are used as they are where the table would hold them alike.
    """
    if isinstance(relation, StagedRelation) and _fits(relation, schema, state):
        yield files.move_into_table(relation.files, state.path) if plain else list(relation.files)
        return
    with files.scratch(state.path) as scratch:
        # A source of a rewrite is written out again: whole rows, no partitions.
        partition_by = state.partition_by if plain else ()
        stored = sqltext.casts(schema, sqltext.types_of(relation.schema))
        with building():
            query = query_of(relation.native.project(stored))
        folder = os.path.join(scratch, "rows")
        written = files.write(database, query, folder, schema=schema, partition_by=partition_by)
        yield files.move_into_table(written, state.path, folder=folder) if plain else written


def _fits(staged: StagedRelation, schema: pa.Schema, state: TableState) -> bool:
    """Tell whether the files of a stage can become files of the table: the same types, no partitions."""
    stored = storage_schema(staged.schema)
    return not state.partition_by and all(
        field.type == schema.field(field.name).type for field in stored
    )
