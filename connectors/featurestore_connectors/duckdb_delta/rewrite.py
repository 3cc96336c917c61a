"""Writes that rewrite rows: upsert, replace by range, delete, compaction.

Only files that hold such rows change. Each attempt has a publication of its own: what it wrote goes
when it loses a race.
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

from featurestore.arrow.types import widened_schema
from featurestore.delta import bounds
from featurestore.delta.datafile import DataFile
from featurestore.delta.presence import check_files
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import DuplicateKeys, InvalidArgument, RowsOutsideWindow
from featurestore.model.times import to_micros
from featurestore.plugins.engine import TableWrite, TimeRange
from featurestore.storage.publication import Publication
from featurestore_connectors.duckdb_delta import commits, files, scan, sqltext
from featurestore_connectors.duckdb_delta.commits import Change
from featurestore_connectors.duckdb_delta.files import NewFile
from featurestore_connectors.duckdb_delta.relations import range_condition
from featurestore_connectors.duckdb_delta.session import Database

# Files below this size are worth being put together.
_SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class _Touched:
    """The files of which some rows go, with how many rows go in all."""

    files: tuple[DataFile, ...]
    outgoing: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def staying(self) -> int:
        return self.rows - self.outgoing


def upsert(
    database: Database,
    state: Snapshot,
    source: Sequence[NewFile],
    write: TableWrite,
    *,
    deletes: Sequence[NewFile] = (),
) -> int | None:
    """Replace the rows whose key occurs in the source or is deleted, and append the source."""
    if not write.key:
        raise InvalidArgument("An upsert needs the columns of its key.")
    _check_unique(database, _source(state, source, write), write.key)

    def attempt(state: Snapshot) -> int:
        rows = _source(state, source, write)
        keys = f"SELECT {sqltext.names(write.key)} FROM {rows}"
        if deletes:
            columns = pa.schema([state.schema.field(name) for name in write.key])
            deleted = scan.parquet(columns, [file.path for file in deletes])
            keys += f" UNION ALL SELECT {sqltext.names(write.key)} FROM {deleted}"
        outgoing = f"EXISTS (SELECT 1 FROM ({keys}) AS source WHERE {_same_key(write.key)})"
        candidates = _overlapping(state, _bounds(database, f"({keys})", write.key, state))
        touched = _touched(database, state, candidates, outgoing)
        return _replaced(database, state, touched, outgoing, write, rows=rows)

    return commits.retried(state.path, attempt, state=state)


def replace(
    database: Database, state: Snapshot, source: Sequence[NewFile], write: TableWrite
) -> int | None:
    """Empty a range of times and append the source, in one commit."""
    window = write.replace
    if window is None:
        raise InvalidArgument("Mode 'replace' needs the range that it replaces.")
    _check_inside(database, state, source, write, window)
    source_schema = commits.wider_schema(state.schema, write.add_columns)

    def attempt(state: Snapshot) -> int:
        rows = _source(state, source, write)
        outgoing = range_condition(window)
        ranges = {window.column: (to_micros(window.start), to_micros(window.end))}
        touched = _touched(database, state, _overlapping(state, ranges), outgoing)
        schema = commits.wider_schema(state.schema, write.add_columns)
        if touched.staying or state.partition_by or schema != source_schema:
            return _replaced(database, state, touched, outgoing, write, rows=rows)
        # No row of the old files stays, so those of the source need not be written again.
        with Publication(durable=database.durable) as publication:
            new = files.move_into_table(source, state.path, publication)
            return commits.commit(state, _replacement(state, touched, write, new), publication)

    return commits.retried(state.path, attempt, state=state)


def delete(
    database: Database, path: str, predicate: str, *, commit_metadata: Mapping[str, Any]
) -> int | None:
    """Remove the rows for which the predicate is true; None when there are none."""
    commits.check_writable(read_snapshot(path))

    def attempt(state: Snapshot) -> int | None:
        touched = _touched(database, state, state.files, f"({predicate})")
        if not touched.files:
            return None
        with Publication(durable=database.durable) as publication:
            new = _rewritten(database, state, touched, f"({predicate})", publication)
            change = Change(
                operation="DELETE",
                parameters={"predicate": predicate},
                adds=new,
                removes=touched.files,
                commit_metadata={"operation": "delete", **commit_metadata},
                copied_rows=touched.staying,
                reads=True,
            )
            return commits.commit(state, change, publication)

    return commits.retried(path, attempt)


def compact(database: Database, path: str, *, below: int | None = None) -> int | None:
    """Write files of a partition smaller than ``below`` as large ones; None when none has two."""
    commits.check_writable(read_snapshot(path))

    def attempt(state: Snapshot) -> int | None:
        small = _smaller_than(_SMALL_BYTES if below is None else below, state)
        if not small:
            return None
        with Publication(durable=database.durable) as publication:
            new = _rewritten(database, state, _Touched(small, 0), "false", publication)
            change = Change(
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

    return commits.retried(path, attempt)


def widen_columns(database: Database, path: str, columns: pa.Schema) -> int | None:
    """Write all files again with decimals of more digits; None when they have them already."""
    commits.check_writable(read_snapshot(path))

    def attempt(state: Snapshot) -> int | None:
        schema = widened_schema(state.schema, columns)
        if schema == state.schema:
            return None
        check_files(state, state.files)
        with Publication(durable=database.durable) as publication:
            new = _rewritten(
                database, state, _Touched(state.files, 0), "false", publication, schema=schema
            )
            change = Change(
                operation="CHANGE COLUMN",
                parameters={"columns": columns.names},
                adds=new,
                removes=state.files,
                metadata=commits.changed_metadata(state, schema=schema),
                commit_metadata={"operation": "widen"},
                copied_rows=state.rows,
                data_change=False,
                reads=True,
            )
            return commits.commit(state, change, publication)

    return commits.retried(path, attempt)


def _replaced(
    database: Database,
    state: Snapshot,
    touched: _Touched,
    outgoing: str,
    write: TableWrite,
    *,
    rows: str,
) -> int:
    with Publication(durable=database.durable) as publication:
        schema = commits.wider_schema(state.schema, write.add_columns)
        new = _rewritten(
            database, state, touched, outgoing, publication, incoming=rows, schema=schema
        )
        return commits.commit(state, _replacement(state, touched, write, new), publication)


def _replacement(
    state: Snapshot, touched: _Touched, write: TableWrite, new: Sequence[NewFile]
) -> Change:
    operation = "WRITE"
    parameters: dict[str, Any] = {"mode": "Overwrite"}
    if write.mode == "upsert":
        operation, parameters = "MERGE", {"key": list(write.key)}
    return Change(
        operation=operation,
        parameters=parameters,
        adds=new,
        removes=touched.files,
        metadata=commits.metadata_with(state, write.add_columns),
        commit_metadata={"operation": write.mode, **write.commit_metadata},
        transaction=write.transaction,
        offsets=write.offsets,
        copied_rows=touched.staying,
        reads=True,
    )


def _rewritten(
    database: Database,
    state: Snapshot,
    touched: _Touched,
    outgoing: str,
    publication: Publication,
    *,
    incoming: str | None = None,
    schema: pa.Schema | None = None,
) -> list[NewFile]:
    """Return the files that take the place of the touched ones.

    Their other rows, then the incoming ones, in the types of ``schema`` (None: the table's).
    """
    schema = schema or state.schema
    parts = []
    if touched.staying:
        stored = sqltext.casts(schema, sqltext.types_of(state.schema))
        old = scan.scan_all(state, touched.files)
        parts.append(f"SELECT {stored} FROM {old} AS target WHERE ({outgoing}) IS NOT TRUE")
    if incoming is not None:
        parts.append(f"SELECT {sqltext.names(schema.names)} FROM {incoming} AS source")
    if not parts:
        return []
    with files.scratch(state.path) as scratch:
        folder = os.path.join(scratch, "rows")
        query = " UNION ALL ".join(parts)
        new = files.write(database, query, folder, schema=schema, partition_by=state.partition_by)
        return files.move_into_table(new, state.path, publication, folder=folder)


def _touched(
    database: Database, state: Snapshot, candidates: Sequence[DataFile], outgoing: str
) -> _Touched:
    """Return which of the files hold rows for which ``outgoing`` is true."""
    check_files(state, candidates)
    if not candidates:
        return _Touched((), 0)
    target = scan.scan_all(state, candidates)
    counted = database.rows(
        f"SELECT {scan.FILE}, count(*) FROM {target} AS target WHERE {outgoing} GROUP BY ALL"
    )
    outgoing_rows = dict(counted)
    touched = []
    for file in candidates:
        if file.path in outgoing_rows:
            touched.append(file)
    return _Touched(tuple(touched), sum(outgoing_rows.values()))


def _same_key(key: Sequence[str]) -> str:
    """Return the condition that a row of the table has the key of one of the source.

    Nulls match nothing.
    """
    pairs = []
    for column in key:
        name = sqltext.quote(column)
        pairs.append(f"target.{name} = source.{name}")
    return " AND ".join(pairs)


def _check_inside(
    database: Database,
    state: Snapshot,
    source: Sequence[NewFile],
    write: TableWrite,
    window: TimeRange,
) -> None:
    if all(_is_inside(file, window) for file in source):
        return
    rows = _source(state, source, write)
    time = sqltext.quote(window.column)
    ((outside, first, last),) = database.rows(
        f"SELECT count(*), min({time}), max({time}) FROM {rows} "
        f"WHERE {range_condition(window)} IS NOT TRUE"
    )
    if outside:
        raise RowsOutsideWindow(
            f"{outside} rows lie outside the range from {window.start} to {window.end} of "
            f"{window.column!r} that is replaced (closed {window.closed}); their times go from "
            f"{first} to {last}."
        )


def _is_inside(file: NewFile, window: TimeRange) -> bool:
    """Tell whether the statistics of a file prove that its rows lie in a range.

    False where they do not.
    """
    statistics = json.loads(file.statistics)
    low = statistics["minValues"].get(window.column)
    high = statistics["maxValues"].get(window.column)
    if statistics["nullCount"].get(window.column) != 0:
        return False
    if not (_is_time(low) and _is_time(high)):
        return False
    first, last = datetime.fromisoformat(low), datetime.fromisoformat(high)
    if window.closed == "right":
        return window.start < first and last <= window.end
    return window.start <= first and last < window.end


def _is_time(bound: object) -> bool:
    return isinstance(bound, str) and "T" in bound


def _check_unique(database: Database, rows: str, key: Sequence[str]) -> None:
    listed = sqltext.names(key)
    found = database.rows(
        f"SELECT {listed}, count(*) FROM {rows} WHERE {sqltext.all_present(key)} "
        f"GROUP BY {listed} HAVING count(*) > 1 LIMIT 5"
    )
    if found:
        keys = []
        for row in found:
            keys.append(str(dict(zip(key, row, strict=False))))
        examples = "; ".join(keys)
        raise DuplicateKeys(
            f"The rows of this upsert hold keys more than once, for example {examples}.",
            hint="on_duplicates='last'",
        )


def _source(state: Snapshot, source: Sequence[NewFile], write: TableWrite) -> str:
    """Return a FROM item for the incoming rows with all columns that the table will have."""
    schema = commits.wider_schema(state.schema, write.add_columns)
    if not source:
        return f"({sqltext.empty(schema)})"
    return scan.parquet(schema, [file.path for file in source])


def _bounds(
    database: Database, rows: str, key: Sequence[str], state: Snapshot
) -> dict[str, tuple[int, int]]:
    """Return minimum and maximum of the columns of the key that the log bounds, as it counts."""
    expressions: dict[str, str] = {}
    for name in key:
        kind = state.schema.field(name).type if name in state.schema.names else None
        if kind is not None and bounds.has_bounds(kind):
            expressions[name] = _ordinal(sqltext.quote(name), kind)
    if not expressions:
        return {}
    sides = []
    for each in expressions.values():
        sides += [f"min({each})", f"max({each})"]
    found = database.rows(f"SELECT {', '.join(sides)} FROM {rows}")[0]
    ranges = {}
    for name, least, greatest in zip(expressions, found[::2], found[1::2], strict=True):
        if least is not None:
            ranges[name] = (least, greatest)
    return ranges


def _ordinal(column: str, kind: pa.DataType) -> str:
    """Return a column as bounds count it: microseconds, days or whole numbers."""
    if pat.is_timestamp(kind):
        return f"epoch_us({column})"
    return f"({column} - DATE '1970-01-01')" if pat.is_date(kind) else column


def _overlapping(state: Snapshot, ranges: Mapping[str, tuple[int, int]]) -> tuple[DataFile, ...]:
    """Return the files that may hold rows within all ranges, by the statistics in the log."""
    within = np.ones(len(state.files), dtype=np.bool_)
    for column, (least, greatest) in ranges.items():
        of_files = state.bounds(column)
        if of_files is not None:
            within &= of_files.may_contain(least, greatest)
    return tuple(state.files[number] for number in np.flatnonzero(within))


def _smaller_than(size: int, state: Snapshot) -> tuple[DataFile, ...]:
    """Return the files below a size that have another one in their partition."""
    groups: dict[tuple[Any, ...], list[DataFile]] = {}
    for file in state.files:
        if file.bytes < size:
            groups.setdefault(tuple(file.partition.values()), []).append(file)
    small: list[DataFile] = []
    for group in groups.values():
        if len(group) > 1:
            small += group
    return tuple(small)
