"""Upserts of few rows into tables of few files, with a single Spark job.

The driver has the rows. It determines the files with their keys from the log's statistics and the
key columns, and Spark rewrites these files. Delta's MERGE determines them with jobs, each of which
takes longer than reading such files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from featurestore.delta.bounds import has_bounds, ordinal
from featurestore.delta.datafile import DataFile
from featurestore.delta.presence import check_files
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.plugins.engine import TableWrite
from featurestore.storage import files
from featurestore_connectors.spark_delta import repeated_keys, row_buffer, scan
from featurestore_connectors.spark_delta.commits import CommitSession
from featurestore_connectors.spark_delta.row_buffer import BufferedRelation
from featurestore_connectors.spark_delta.sqltext import column, quote
from featurestore_connectors.spark_delta.transactions import Transaction, removal

# The maximum bytes of files that the driver reads and one task writes.
_MAX_BYTES = 128 << 20
COPIED, SOURCE = "numTargetRowsCopied", "operationNumSourceRows"


def upsert(
    commit: CommitSession, path: str, buffered: BufferedRelation, rows: Any, write: TableWrite
) -> bool:
    """Replace the rows whose key occurs among the buffered ones, and append these.

    ``rows`` are those as a frame of the table's columns. Return False where MERGE has to do it:
    nothing was written then.
    """
    if (
        not repeated_keys.can_compare(buffered.schema, write.key)
        or row_buffer.duplicates(buffered, write.key, limit=1)[0]
    ):
        return False
    with Transaction(commit, path) as transaction:
        snapshot = read_snapshot(path, transaction.version)
        keys = buffered.stored().select(list(write.key))
        candidates = _candidates(snapshot, keys)
        if not scan.is_plain(snapshot) or sum(file.bytes for file in candidates) > _MAX_BYTES:
            return False
        check_files(snapshot, candidates)
        affected, copied = _find_affected(candidates, keys)
        # As in MERGE: concurrent appends may add some of these keys.
        transaction.reads_everything()
        if not transaction.carry(write.transaction):
            return True
        for file in affected:
            transaction.act(removal(file))
        old = scan.plain_frame(commit.session, snapshot, affected)
        transaction.add(_merged(old, rows, write.key))
        transaction.measure({COPIED: copied, SOURCE: keys.num_rows})
        nothing, none = transaction.nothing(), transaction.sequence()
        transaction.commit("Merge", nothing, nothing, nothing, nothing, none, none, none)
    return True


def _candidates(snapshot: Snapshot, keys: pa.Table) -> list[DataFile]:
    """Return the files that may hold some of the keys, by the statistics in the log."""
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
    """Return the files that hold some of the keys, and how many of their rows have others."""
    numbers = list(map(str, range(keys.num_columns)))
    target_keys = keys.rename_columns(numbers)
    affected, copied = [], 0
    for file in candidates:
        file_rows = parquet.read_table(
            files.open_ranges(file.path), columns=keys.schema.names, partitioning=None
        )
        present = (
            file_rows.select(keys.schema.names).rename_columns(numbers).cast(target_keys.schema)
        )
        matching = present.join(target_keys, numbers, join_type="left semi").num_rows
        if matching:
            affected.append(file)
            copied += file.rows - matching
    return affected, copied


def _merged(old: Any, rows: Any, key: Sequence[str]) -> Any:
    """Return the remaining and the new rows in one partition, which becomes one file."""
    from pyspark.sql import functions as sf

    new = sf.broadcast(rows.select(*map(column, key)).alias("new"))
    same = sf.lit(True)
    for name in key:
        same = same & (sf.col(f"old.{quote(name)}") == sf.col(f"new.{quote(name)}"))
    remaining = old.alias("old").join(new, same, "left_anti")
    return remaining.select(*map(column, rows.columns)).union(rows).coalesce(1)
