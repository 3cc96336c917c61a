"""Writes that rewrite or remove existing files: upsert, replace by range, delete, compaction, vacuum.

Only files with affected rows are rewritten. Each attempt has its own publication, which removes the
new files if another commit wins the race.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.fitting import widened_schema
from featurestore.delta.commits import changed_metadata, duplicate_keys_error
from featurestore.delta.datafile import DataFile, has_bounds
from featurestore.delta.maintenance import (
    modification_time,
    orphan_cutoff_time,
    remove_unneeded_files,
)
from featurestore.delta.scan import check_contents, check_files
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.delta.table_state import check_writable
from featurestore.errors import InvalidArgument, RowsOutsideWindow
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Relation, TableWrite, TimeRange
from featurestore.storage import storage_for
from featurestore.storage.publication import Publication
from featurestore_connectors.duckdb_delta import commits, sqltext, tables
from featurestore_connectors.duckdb_delta.commits import TableChange
from featurestore_connectors.duckdb_delta.relations import (
    NewFile,
    StagedRows,
    range_condition,
    scan_files,
)
from featurestore_connectors.duckdb_delta.session import Database

# Files below this size are compacted by default.
_SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class _AffectedFiles:
    """The files that contain rows to remove, and the number of such rows."""

    files: tuple[DataFile, ...]
    outgoing: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def remaining_rows(self) -> int:
        return self.rows - self.outgoing


def write(database: Database, state: Snapshot, relation: Relation, write: TableWrite) -> int | None:
    """Upsert rows, or replace a time range; return None if the transaction is committed."""
    schema = tables.target_schema(state, relation, write)
    if isinstance(relation, StagedRows) and tables.can_link(relation, schema, state):
        return _rewrite(database, state, relation.files, write)
    with tables.scratch_folder(state.path) as scratch:
        folder, query = os.path.join(scratch, "rows"), tables.storage_query(relation, schema)
        source = tables.write_files(database, query, folder, schema=schema)
        return _rewrite(database, state, source, write)


def _rewrite(
    database: Database, state: Snapshot, source: Sequence[NewFile], write: TableWrite
) -> int | None:
    """Upsert or replace with the rows of unpartitioned files."""
    if write.mode == "replace":
        return _replace(database, state, source, write)
    if write.deletes is None:
        return _upsert(database, state, source, write)
    # The keys may have other types than the table.
    schema = pa.schema([state.schema.field(name) for name in write.key])
    with tables.scratch_folder(state.path) as scratch:
        folder, query = os.path.join(scratch, "keys"), tables.storage_query(write.deletes, schema)
        deletes = tables.write_files(database, query, folder, schema=schema)
        return _upsert(database, state, source, write, deletes=deletes)


def _upsert(
    database: Database,
    state: Snapshot,
    source: Sequence[NewFile],
    write: TableWrite,
    *,
    deletes: Sequence[NewFile] = (),
) -> int | None:
    """Replace rows by key with the rows of ``source``, and remove rows with keys of ``deletes``."""
    if not write.key:
        raise InvalidArgument("An upsert needs key columns.")
    # With two rows of one key, the stored row would depend on their order.
    key = sqltext.names(write.key)
    repeated_keys = database.rows(
        f"SELECT {key}, count(*) FROM {_source_query(state, source, write)} "
        f"WHERE {sqltext.all_present(write.key)} GROUP BY {key} HAVING count(*) > 1 LIMIT 5"
    )
    if repeated_keys:
        raise duplicate_keys_error(dict(zip(write.key, row, strict=False)) for row in repeated_keys)
    # Null keys never match.
    is_same_key = " AND ".join(
        [f"target.{name} = source.{name}" for name in map(sqltext.quote, write.key)]
    )

    def attempt(state: Snapshot) -> int:
        # Everything that depends on existing rows is computed again after a lost race.
        rows = _source_query(state, source, write)
        keys = f"SELECT {key} FROM {rows}"
        if deletes:
            columns = pa.schema([state.schema.field(name) for name in write.key])
            deleted = sqltext.parquet_scan(columns, [file.path for file in deletes])
            keys += f" UNION ALL SELECT {key} FROM {deleted}"
        outgoing = f"EXISTS (SELECT 1 FROM ({keys}) AS source WHERE {is_same_key})"
        candidates = _overlapping_files(state, _key_bounds(database, f"({keys})", write.key, state))
        affected = _find_affected(database, state, candidates, outgoing)
        return _replace_rows(database, state, affected, outgoing, write, rows=rows)

    return commits.retry_commits(state.path, attempt, state=state)


def _replace(
    database: Database, state: Snapshot, source: Sequence[NewFile], write: TableWrite
) -> int | None:
    """Replace the rows of a time range with the source rows, in one commit."""
    window = write.replace
    if window is None:
        raise InvalidArgument("Mode 'replace' needs a time range.")
    _check_rows_in_range(database, state, source, write, window)
    source_schema = commits.add_missing_columns(state.schema, write.add_columns)

    def attempt(state: Snapshot) -> int:
        rows = _source_query(state, source, write)
        outgoing = range_condition(window)
        ranges = {window.column: (to_micros(window.start), to_micros(window.end))}
        affected = _find_affected(database, state, _overlapping_files(state, ranges), outgoing)
        schema = commits.add_missing_columns(state.schema, write.add_columns)
        # Source files are not partitioned, and have the columns of the first attempt.
        if affected.remaining_rows or state.partition_by or schema != source_schema:
            return _replace_rows(database, state, affected, outgoing, write, rows=rows)
        # No rows of the old files remain, so the source files are added without a rewrite.
        with Publication(durable=database.durable) as publication:
            new = tables.move_into_table(source, state.path, publication)
            change = commits.build_change(state, new, write, removes=affected.files)
            return commits.commit(state, change, publication)

    return commits.retry_commits(state.path, attempt, state=state)


def delete(
    database: Database, path: str, predicate: str, *, commit_metadata: Mapping[str, Any]
) -> int | None:
    """Delete the rows that match a predicate; return None if no row matches."""
    check_writable(path, read_snapshot(path).protocol)

    def attempt(state: Snapshot) -> int | None:
        affected = _find_affected(database, state, state.files, f"({predicate})")
        if not affected.files:
            return None
        with Publication(durable=database.durable) as publication:
            new = _rewrite_files(database, state, affected, f"({predicate})", publication)
            change = TableChange(
                operation="DELETE",
                parameters={"predicate": predicate},
                adds=new,
                removes=affected.files,
                commit_metadata={"operation": "delete", **commit_metadata},
                copied_rows=affected.remaining_rows,
                reads=True,
            )
            return commits.commit(state, change, publication)

    return commits.retry_commits(path, attempt)


def compact(database: Database, path: str, *, below: int | None = None) -> int | None:
    """Merge files smaller than ``below`` bytes in each partition; return None without changes."""
    check_writable(path, read_snapshot(path).protocol)

    def attempt(state: Snapshot) -> int | None:
        small = _small_files(_SMALL_BYTES if below is None else below, state)
        if not small:
            return None
        with Publication(durable=database.durable) as publication:
            # No row is removed, so all rows are copied.
            new = _rewrite_files(database, state, _AffectedFiles(small, 0), "false", publication)
            change = TableChange(
                operation="OPTIMIZE",
                parameters={"predicate": "[]"},
                adds=new,
                removes=small,
                commit_metadata={"operation": "compact"},
                copied_rows=sum(file.rows for file in small),
                data_change=False,
                reads=True,
            )
            return commits.commit(state, change, publication)

    return commits.retry_commits(path, attempt)


def widen_columns(database: Database, path: str, columns: pa.Schema) -> int | None:
    """Rewrite all files with wider decimals; return None if the table already has these types."""
    check_writable(path, read_snapshot(path).protocol)

    def attempt(state: Snapshot) -> int | None:
        schema = widened_schema(state.schema, columns)
        if schema == state.schema:
            return None
        with Publication(durable=database.durable) as publication:
            new = _rewrite_files(
                database, state, _AffectedFiles(state.files, 0), "false", publication, schema=schema
            )
            change = TableChange(
                operation="CHANGE COLUMN",
                parameters={"columns": columns.names},
                adds=new,
                removes=state.files,
                metadata=changed_metadata(state, schema_string=commits.schema_string(schema)),
                commit_metadata={"operation": "widen"},
                copied_rows=state.rows,
                # The values stay equal, so readers of changes can skip the commit (Delta protocol).
                data_change=False,
                reads=True,
            )
            return commits.commit(state, change, publication)

    return commits.retry_commits(path, attempt)


def _replace_rows(
    database: Database,
    state: Snapshot,
    affected: _AffectedFiles,
    outgoing: str,
    write: TableWrite,
    *,
    rows: str,
) -> int:
    """Rewrite the affected files with the incoming rows, and commit."""
    with Publication(durable=database.durable) as publication:
        schema = commits.add_missing_columns(state.schema, write.add_columns)
        new = _rewrite_files(
            database, state, affected, outgoing, publication, incoming=rows, schema=schema
        )
        change = commits.build_change(
            state,
            new,
            write,
            removes=affected.files,
            copied_rows=affected.remaining_rows,
        )
        return commits.commit(state, change, publication)


def _rewrite_files(
    database: Database,
    state: Snapshot,
    affected: _AffectedFiles,
    outgoing: str,
    publication: Publication,
    *,
    incoming: str | None = None,
    schema: pa.Schema | None = None,
) -> list[NewFile]:
    """Write replacements of the affected files with their remaining rows and the incoming rows.

    ``schema`` defaults to the table schema.
    """
    schema = schema or state.schema
    selects = []
    if affected.remaining_rows:
        # A rewrite would give damaged rows a valid checksum.
        check_contents(state, affected.files)
        stored_columns = sqltext.casts(schema, sqltext.types_of(state.schema))
        old_files = scan_files(state, affected.files)
        selects.append(
            # IS NOT TRUE keeps rows for which the condition is null: rows with a null key or time
            # are never replaced.
            f"SELECT {stored_columns} FROM {old_files} AS target WHERE ({outgoing}) IS NOT TRUE"
        )
    if incoming is not None:
        selects.append(f"SELECT {sqltext.names(schema.names)} FROM {incoming} AS source")
    if not selects:
        return []
    query = " UNION ALL ".join(selects)
    return tables.write_into_table(database, state, query, publication, schema=schema)


def _find_affected(
    database: Database, state: Snapshot, candidates: Sequence[DataFile], outgoing: str
) -> _AffectedFiles:
    """Return the candidate files that contain rows for which ``outgoing`` is true."""
    # A missing file is reported with its name, before DuckDB fails in the middle of the rewrite.
    check_files(state, candidates)
    if not candidates:
        return _AffectedFiles((), 0)
    target = scan_files(state, candidates)
    file_counts = database.rows(
        f"SELECT {sqltext.FILE}, count(*) FROM {target} AS target WHERE {outgoing} GROUP BY ALL"
    )
    outgoing_rows = dict(file_counts)
    affected_files = [file for file in candidates if file.path in outgoing_rows]
    return _AffectedFiles(tuple(affected_files), sum(outgoing_rows.values()))


def _check_rows_in_range(
    database: Database,
    state: Snapshot,
    source: Sequence[NewFile],
    write: TableWrite,
    window: TimeRange,
) -> None:
    """Raise RowsOutsideWindow if source rows are outside of the replaced range."""
    # Statistics usually prove it, so that the rows are not read again.
    if all(_is_inside(file, window) for file in source):
        return
    rows = _source_query(state, source, write)
    time = sqltext.quote(window.column)
    ((outside, first, last),) = database.rows(
        f"SELECT count(*), min({time}), max({time}) FROM {rows} "
        f"WHERE {range_condition(window)} IS NOT TRUE"
    )
    if outside:
        raise RowsOutsideWindow(
            f"{outside} rows are outside the replaced range of {window.column!r} from "
            f"{window.start} to {window.end} (closed {window.closed}); their times range from "
            f"{first} to {last}."
        )


def _is_inside(file: NewFile, window: TimeRange) -> bool:
    """Return whether file statistics prove that all rows of a file are in a range."""
    statistics = json.loads(file.statistics)
    low = statistics["minValues"].get(window.column)
    high = statistics["maxValues"].get(window.column)
    if statistics["nullCount"].get(window.column) != 0:
        return False
    # Bounds of dates have no time, and do not compare with datetimes.
    if not (_is_time(low) and _is_time(high)):
        return False
    first, last = datetime.fromisoformat(low), datetime.fromisoformat(high)
    if window.closed == "right":
        return window.start < first and last <= window.end
    return window.start <= first and last < window.end


def _is_time(bound: object) -> bool:
    return isinstance(bound, str) and "T" in bound


def _source_query(state: Snapshot, source: Sequence[NewFile], write: TableWrite) -> str:
    """Return a FROM item for the incoming rows, with all columns of the resulting table."""
    schema = commits.add_missing_columns(state.schema, write.add_columns)
    if not source:
        return f"({sqltext.empty(schema)})"
    return sqltext.parquet_scan(schema, [file.path for file in source])


def _key_bounds(
    database: Database, rows: str, key: Sequence[str], state: Snapshot
) -> dict[str, tuple[int, int]]:
    """Return the minimum and maximum ordinals of key columns that have file statistics."""
    expressions: dict[str, str] = {}
    for name in key:
        dtype = state.schema.field(name).type if name in state.schema.names else None
        if dtype is not None and has_bounds(dtype):
            expressions[name] = _ordinal_expression(sqltext.quote(name), dtype)
    if not expressions:
        return {}
    aggregates = []
    for expression in expressions.values():
        aggregates += [f"min({expression})", f"max({expression})"]
    extremes = database.rows(f"SELECT {', '.join(aggregates)} FROM {rows}")[0]
    ranges = {}
    for name, minimum, maximum in zip(expressions, extremes[::2], extremes[1::2], strict=True):
        if minimum is not None:
            ranges[name] = (minimum, maximum)
    return ranges


def _ordinal_expression(column: str, dtype: pa.DataType) -> str:
    """Return the SQL for the ordinal of a column: microseconds, days or the integer itself."""
    if pat.is_timestamp(dtype):
        return f"epoch_us({column})"
    return f"({column} - DATE '1970-01-01')" if pat.is_date(dtype) else column


def _overlapping_files(
    state: Snapshot, ranges: Mapping[str, tuple[int, int]]
) -> tuple[DataFile, ...]:
    """Return the files that may contain rows within all ranges, based on statistics in the log."""
    may_match = np.ones(len(state.files), dtype=np.bool_)
    for column, (minimum, maximum) in ranges.items():
        file_bounds = state.bounds(column)
        if file_bounds is not None:
            may_match &= file_bounds.may_contain(minimum, maximum)
    return tuple(state.files[number] for number in np.flatnonzero(may_match))


def _small_files(size: int, state: Snapshot) -> tuple[DataFile, ...]:
    """Return the files below a size, for partitions that have at least two such files."""
    groups: dict[tuple[Any, ...], list[DataFile]] = {}
    for file in state.files:
        if file.bytes < size:
            groups.setdefault(tuple(file.partition.values()), []).append(file)
    small: list[DataFile] = []
    for group in groups.values():
        # A single small file would be rewritten at every compaction.
        if len(group) > 1:
            small += group
    return tuple(small)


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> list[str]:
    """Remove files that are neither needed by versions since ``retain`` nor by ``keep_versions``.

    Return the paths of the removed files.
    """
    storage = storage_for(path)
    removed = remove_unneeded_files(path, keep_versions=keep_versions, retain=retain)
    abandoned = orphan_cutoff_time(retain)
    writing = os.path.join(path, tables.WRITING)
    for name in storage.list_directory(writing):
        folder = os.path.join(writing, name)
        # Killed writers leave their folders. Younger ones may belong to running writers.
        if modification_time(folder) < abandoned:
            storage.remove(folder, below=path)
    return removed
