"""Appends of staged files without a rewrite, by hard links.

If the table needs nothing beyond Spark's Parquet files, the staged files are linked into its folder
and committed with the statistics of their footers. Otherwise Delta's writer rewrites the rows.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.delta.snapshot import read_snapshot
from featurestore.plugins.engine import Relation, TableWrite
from featurestore.storage import files, storage_for
from featurestore_connectors.spark_delta.commits import CommitSession, Transaction
from featurestore_connectors.spark_delta.staged import StagedRelation

# The limits of Delta's writers: columns with statistics, and the length of string bounds.
_COUNTED_COLUMNS, _LONGEST_BOUND = 32, 32
# Higher writer versions may require constraints, generated columns or table features.
_PLAIN_WRITER = 2
# Prefixes of column metadata that writers must enforce: invariants, string lengths.
_CONSTRAINT_PREFIXES = ("delta.", "__")


def append(
    commit: CommitSession, path: str, staged_rows: StagedRelation, write: TableWrite
) -> bool:
    """Append staged files; return False if Delta's writer must write the rows."""
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
        if not transaction.carry(write.transaction):
            return True
        if _types(transaction.columns.fields) != _types(staged_rows.native.schema.fields):
            return False  # another writer has just changed the columns
        names = _linked(list(footers), path)
        if names is None:
            return False
        for name, (file, footer) in zip(names, footers.items(), strict=True):
            transaction.act(_addition(file, name, footer, staged_rows.schema))
        nothing = transaction.nothing()
        mode = commit.session._jvm.org.apache.spark.sql.SaveMode.Append
        transaction.commit("Write", mode, nothing, nothing, nothing)
    return True


def _same_columns(session: Any, path: str, staged_rows: Relation) -> bool:
    """Return True if the rows have the table's columns in order, and the columns no constraints."""
    table_fields = session.read.format("delta").load(path).schema.fields
    for column in table_fields:
        constraints = [name for name in column.metadata if name.startswith(_CONSTRAINT_PREFIXES)]
        if constraints or not column.nullable:
            return False
    return _types(table_fields) == _types(staged_rows.native.schema.fields)


def _types(fields: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(field.name, field.dataType) for field in fields]


def _linked(staged: Sequence[str], path: str) -> list[str] | None:
    """Hard-link files into a table; return None if the file system does not support it."""
    names: list[str] = []
    for file in staged:
        name = f"part-{uuid.uuid4()}.parquet"
        if not files.add_name(file, os.path.join(path, name)):
            for linked in names:
                files.remove(os.path.join(path, linked), below=path)
            return None
        names.append(name)
    return names


def _addition(file: str, name: str, footer: parquet.FileMetaData, schema: pa.Schema) -> str:
    """Return the action that adds a file, with the statistics of its footer."""
    add = {
        "path": name,
        "partitionValues": {},
        "size": files.size(file),
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": json.dumps(_statistics(footer, schema)),
    }
    return json.dumps({"add": add})


def _statistics(footer: parquet.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    minimum, maximum, nulls = {}, {}, {}
    numbers = {}
    for number in range(footer.num_columns):
        numbers[footer.schema.column(number).path] = number
    for column in list(schema)[:_COUNTED_COLUMNS]:
        # The path of a field of a struct has a dot, too.
        if column.name not in numbers or "." in column.name:
            continue
        statistics = _column_statistics(footer, numbers[column.name])
        if statistics is None:
            continue
        nulls[column.name] = sum(group.null_count for group in statistics)
        bounds = _bounds(statistics, column.type)
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
    """Return the statistics of a column in each row group; None if any are missing."""
    statistics_by_group = []
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(number).statistics
        if statistics is None or not statistics.has_null_count:
            return None
        statistics_by_group.append(statistics)
    return statistics_by_group


def _bounds(row_groups: Sequence[parquet.Statistics], kind: pa.DataType) -> tuple[Any, Any] | None:
    """Return minimum and maximum in Delta's JSON form; None if they are unknown."""
    is_scalar = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_string(kind)
    if not (is_scalar or pat.is_date32(kind) or pat.is_timestamp(kind)) or pat.is_uint64(kind):
        return None
    minima, maxima = [], []
    # Python has no years before 1 and after 9999.
    with suppress(ValueError, OverflowError, OSError):
        for group in row_groups:
            if group.has_min_max:
                minima.append(group.min)
                maxima.append(group.max)
            elif group.num_values:
                return None
        if minima:
            low, high = _text(min(minima)), _text(max(maxima))
            if low is not None and high is not None:
                return low, high
    return None


def _text(value: Any) -> Any:
    """Return a value in the log's JSON form; None if it has no exact form."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and len(value) > _LONGEST_BOUND:
        return None
    if isinstance(value, bytes):
        return None
    return value
