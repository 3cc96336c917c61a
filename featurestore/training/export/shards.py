"""Writing of shards, and comparison of the written shards with the plan.

A function that runs inside the engine writes each shard and counts its rows. If the format has a
record description, an engine may write the shards itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.batches import select_rows
from featurestore.arrow.types import is_nested
from featurestore.errors import DatasetDamaged
from featurestore.hashing import canonical_bytes
from featurestore.plugins.engine import Relation
from featurestore.plugins.format import DatasetFormat, Layout, WrittenShard
from featurestore.plugins.native import (
    RecordTask,
    RowCounts,
    ShardPlan,
    format_label_value,
)
from featurestore.statistics import StatisticsState
from featurestore.storage import storage_for
from featurestore.storage.shards import is_temporary
from featurestore.training.export.assignment import SHARD
from featurestore.training.export.boundaries import HASH, row_hashes
from featurestore.training.export.hashed_rows import HashedRows, assign_shards_in_engine
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shard_plan import ExportPlan
from featurestore.training.export.split_statistics import ShardCounting, ShardStatistics

MAX_LABEL_VALUES = 1000
# Number of first rows in which labels with many values usually exceed the limit.
_SAMPLED_LABELS = 8 * MAX_LABEL_VALUES
_CHANGED = "the source changed while it was read; run the export again"


Written = tuple[WrittenShard, RowCounts]
# A shard, and its row statistics if the writer runs in another process.
ShardResult = tuple[Written, StatisticsState | None]


def write_shards(
    rows: HashedRows,
    plan: ExportPlan,
    *,
    directory: str,
    statistics: ShardStatistics | None = None,
    records: Relation | None = None,
) -> list[list[Written]]:
    """Write all shards and return those of each split, in order, with counts of their rows.

    Empty shards are written in this process. ``statistics`` counts the rows while they are written.
    ``records`` are the rows if the engine writes the shards itself.
    """
    storage = storage_for(directory)
    request = rows.request
    shards = tuple(chain.from_iterable(plan.shards))
    writer = ShardWriter(
        directory,
        request.format,
        plan.layout,
        shards,
        request.columns,
        request.labels,
        counting=None if statistics is None else statistics.counting,
        collect=statistics.add if statistics is not None and rows.engine.runs_in_process else None,
    )
    if records is not None:
        results = _write_records(rows, records, plan, shards, directory=directory)
    else:
        results = _write_by_function(rows, plan, writer)
    written: list[Written] = []
    for number in range(len(shards)):
        # A result is removed, so that its statistics do not stay in memory.
        result = results.pop(number, None)
        if result is None:
            # Empty shards receive no batches from the engine, but every planned file must exist.
            _, result = writer(number, iter(()))
        written_shard, state = result
        if statistics is not None and state is not None:
            statistics.add(number, state)
        written.append(written_shard)
    # Checked before the manifest is written: a source that changed between the passes must not be
    # published.
    _check_rows(shards, written)
    remaining = iter(written)
    splits = [list(islice(remaining, len(split_shards))) for split_shards in plan.shards]
    _check_splits(request, plan, splits)
    # If a cluster retried a task, its first attempt may have left temporary files.
    for folder in sorted({os.path.dirname(shard.path) for shard in shards}):
        for name in storage.list_directory(os.path.join(directory, folder)):
            if is_temporary(name):
                storage.remove(os.path.join(directory, folder, name), below=directory)
    return splits


def _write_by_function(
    rows: HashedRows, plan: ExportPlan, writer: ShardWriter
) -> dict[int, ShardResult]:
    """Write nonempty shards by a function that runs inside the engine; return its results."""
    assigned = None
    if rows.by_engine:
        assigned = assign_shards_in_engine(rows, plan.assignment)
    shard_ascends = assigned is not None  # by hash, over all splits
    if assigned is None:
        fields = [*rows.request.schema, pa.field(HASH, pa.int64()), pa.field(SHARD, pa.int32())]
        assigned = rows.map_rows(plan.assignment, schema=pa.schema(fields))
    return dict(
        rows.engine.write_shards(
            assigned,
            shard=SHARD,
            shard_count=len(writer.shards),
            order=(HASH,),
            shard_ascends=shard_ascends,
            row_count=sum(plan.rows),
            write=writer,
        )
    )


def _check_rows(shards: Sequence[ShardPlan], written: Sequence[Written]) -> None:
    for shard, (written_shard, _) in zip(shards, written, strict=True):
        if written_shard.rows != shard.rows:
            raise DatasetDamaged(
                f"{shard.path} has {written_shard.rows:,} rows, but {shard.rows:,} were counted.",
                hint=_CHANGED,
            )


def _check_splits(
    request: ExportRequest, plan: ExportPlan, splits: Sequence[Sequence[Written]]
) -> None:
    """Compare the written rows of each split with the counted rows.

    The groups of the counting pass are the splits, and no row or ``split_by`` key is in two groups.
    Thus if the hash sum of each split equals that of its group, no row and no key is in two splits.
    """
    for name, expected, shards in zip(request.rule.names, plan.hash_sums, splits, strict=True):
        hash_sum = sum(counts.hash_sum for _, counts in shards) % 2**64
        # Hashes must ascend across shards, because the canonical order of a split is their
        # concatenation.
        hashes = [
            boundary_hash
            for _, counts in shards
            for boundary_hash in (counts.first_hash, counts.last_hash)
            if boundary_hash is not None  # an empty shard
        ]
        if hash_sum != expected or hashes != sorted(hashes):
            raise DatasetDamaged(
                f"The written rows of split {name!r} differ from the counted rows.", hint=_CHANGED
            )


@dataclass(frozen=True)
class ShardWriter:
    """A picklable writer of shards in a format, which can run on executors.

    ``counting`` computes row statistics. ``collect`` receives them if the writer runs in the
    calling process; otherwise they are part of the result.
    """

    directory: str
    format: DatasetFormat
    layout: Layout
    shards: tuple[ShardPlan, ...]
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    counting: ShardCounting | None = None
    collect: Callable[[int, StatisticsState], None] | None = None

    def __call__(self, number: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, ShardResult]:
        """Write a shard from batches sorted by hash; return its number and result."""
        shard = self.shards[number]
        counter = RowCounter(self.columns, self.labels)
        ordered = sort_equal_hashes(batches, columns=self.columns)
        rows = counter.count_batches(take_rows(ordered, skip=shard.skip, rows=shard.rows))
        states: list[StatisticsState] = []
        if self.counting is not None:
            rows = self.counting.count_batches(number, rows, states.append)
        written_shard = self.format.write_shard(
            self.directory, shard.path, rows, layout=self.layout
        )
        state = states[0] if states else None
        if self.collect is not None and state is not None:
            self.collect(number, state)
            state = None
        return number, ((written_shard, counter.counts()), state)


class RowCounter:
    """A counter of nulls, label values and row hashes in a stream of batches."""

    def __init__(self, columns: Sequence[str], labels: Sequence[str]) -> None:
        self._columns = list(columns)
        self._labels: dict[str, dict[str, int] | None] = {name: {} for name in labels}
        self._nulls: dict[str, int] = {}
        self._hash_sum = 0
        self._first_hash: int | None = None
        self._last_hash: int | None = None

    def count_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count batches and yield them without internal columns."""
        for batch in batches:
            if batch.num_rows == 0:
                continue
            self._count_hashes(batch)
            plain = batch.select(self._columns)
            for name, array in zip(self._columns, plain.columns, strict=True):
                if array.null_count:
                    self._nulls[name] = self._nulls.get(name, 0) + array.null_count
                if name in self._labels:
                    self._count_label(name, array)
            yield plain

    def counts(self) -> RowCounts:
        """Return the counts of all batches so far."""
        return RowCounts(
            self._nulls, self._labels, self._hash_sum, self._first_hash, self._last_hash
        )

    def _count_hashes(self, batch: pa.RecordBatch) -> None:
        hashes = row_hashes(batch)
        if self._first_hash is None:
            self._first_hash = int(hashes[0])
        self._last_hash = int(hashes[-1])
        # The addition of uint64 wraps modulo 2**64, as the hash sum requires.
        self._hash_sum = (self._hash_sum + int(hashes.sum(dtype=np.uint64))) % 2**64

    def _count_label(self, name: str, array: pa.Array) -> None:
        """Count the label values of an array, unless the label has too many values."""
        counts = self._labels[name]
        if counts is None:
            return
        if is_nested(array.type) or pa.types.is_binary(array.type):
            self._labels[name] = None
            return
        if _has_many_values(array):
            self._labels[name] = None
            return
        for pair in pc.value_counts(array).to_pylist():
            if pair["values"] is not None:  # counted among the nulls
                value = format_label_value(pair["values"])
                counts[value] = counts.get(value, 0) + int(pair["counts"])
        if len(counts) > MAX_LABEL_VALUES:
            self._labels[name] = None


def _has_many_values(array: pa.Array) -> bool:
    first = pc.unique(array.slice(0, _SAMPLED_LABELS))
    max_values = MAX_LABEL_VALUES + 1  # one of them may be null
    return len(first) > max_values or len(pc.unique(array)) > max_values


def sort_equal_hashes(
    batches: Iterator[pa.RecordBatch], *, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Sort rows with equal hashes by canonical bytes, in batches that are sorted by hash.

    Rows with the last hash of a batch are buffered if the next batch begins with the same hash.
    """
    waiting: list[pa.RecordBatch] = []
    for batch, next_batch in _pair_with_next(batches):
        hashes = row_hashes(batch)
        # Equal hashes may continue in the next batch, and their order depends on all of these rows.
        if next_batch is None or row_hashes(next_batch)[0] != hashes[-1]:
            yield _concatenate_sorted([*waiting, batch], columns)
            waiting = []
            continue
        last = int(np.searchsorted(hashes, hashes[-1], side="left"))
        if last > 0:
            yield _concatenate_sorted([*waiting, batch.slice(0, last)], columns)
            waiting = []
        waiting.append(batch.slice(last))


def _pair_with_next(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
    """Yield each nonempty batch with the next one, or None for the last."""
    before: pa.RecordBatch | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if before is not None:
            yield before, batch
        before = batch
    if before is not None:
        yield before, None


def take_rows(
    batches: Iterator[pa.RecordBatch], *, skip: int, rows: int
) -> Iterator[pa.RecordBatch]:
    """Skip the first ``skip`` rows and yield the next ``rows`` rows."""
    for batch in batches:
        skipped = min(skip, batch.num_rows)
        skip -= skipped
        rows_batch = batch.slice(skipped, rows)
        rows -= rows_batch.num_rows
        if rows_batch.num_rows:
            yield rows_batch


def _concatenate_sorted(
    batches: Sequence[pa.RecordBatch], columns: Sequence[str]
) -> pa.RecordBatch:
    """Concatenate hash-sorted batches; sort rows with equal hashes by canonical bytes."""
    # A single batch, so that positions are indices of all rows.
    batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    hashes = row_hashes(batch)
    same = hashes[1:] == hashes[:-1]
    if not same.any():
        return batch
    # Rows with equal key hashes are rare, so canonical bytes are only computed for them.
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    ties = pa.table(
        {
            "hash": pa.array(hashes[tied]),
            "bytes": canonical_bytes(select_rows(batch, tied), columns=list(columns)),
        }
    )
    order = pc.sort_indices(ties, sort_keys=[("hash", "ascending"), ("bytes", "ascending")])
    index = np.arange(len(hashes))
    index[tied] = tied[order.to_numpy()]
    return select_rows(batch, index)


def assign_shards_for_records(
    rows: HashedRows, plan: ExportPlan, directory: str
) -> Relation | None:
    """Assign shards to rows that the engine writes; return None if the engine cannot write them.

    Shard numbers ascend with the hash.
    """
    engine = rows.engine
    if not rows.by_engine or rows.request.format.record_plan(plan.layout) is None:
        return None
    assigned = assign_shards_in_engine(rows, plan.assignment)
    if assigned is None or not engine.can_write_records(assigned.schema, directory):
        return None
    return assigned


def _write_records(
    rows: HashedRows,
    assigned: Relation,
    plan: ExportPlan,
    shards: Sequence[ShardPlan],
    *,
    directory: str,
) -> dict[int, ShardResult]:
    """Let the engine write the nonempty shards, and return its results."""
    request = rows.request
    records = request.format.record_plan(plan.layout)
    if records is None:
        raise TypeError("the format does not describe these records")
    task = RecordTask(
        directory=directory,
        plan=records,
        shards=shards,
        shard=SHARD,
        hash=HASH,
        columns=request.columns,
        labels=request.labels,
        max_labels=MAX_LABEL_VALUES,
    )
    written = rows.engine.write_records(assigned, task)
    return {number: (shard, None) for number, shard in written.items()}
