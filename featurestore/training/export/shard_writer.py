"""The function that writes one shard inside the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.batches import select_rows
from featurestore.arrow.types import is_nested
from featurestore.hashing import canonical_bytes
from featurestore.plugins.format import DatasetFormat, Layout, WrittenShard
from featurestore.statistics import StatisticsState
from featurestore.training.export.boundaries import row_hashes
from featurestore.training.export.split_statistics import ShardCounting

MAX_LABEL_VALUES = 1000
# Labels with many values usually exceed the limit in these first rows.
_SAMPLED_LABELS = 8 * MAX_LABEL_VALUES


@dataclass(frozen=True)
class PlannedShard:
    """The path and rows of a shard; ``skip`` rows of its first hash belong to the previous shard."""

    path: str
    rows: int
    skip: int = 0


@dataclass(frozen=True)
class ShardSummary:
    """A written shard, with null and label counts and a fingerprint of the row hashes.

    ``state`` is the statistics of the rows if the writer's process does not collect them itself.
    """

    shard: WrittenShard
    nulls: Mapping[str, int]
    labels: Mapping[str, Mapping[str, int] | None]
    hash_sum: int
    first_hash: int | None
    last_hash: int | None
    state: StatisticsState | None = None


@dataclass(frozen=True)
class ShardWriter:
    """Writes shards in a format; picklable, so it runs on executors.

    ``counting`` computes statistics of the rows. ``collect`` receives them if the writer runs in
    the calling process; otherwise the summary carries them.
    """

    directory: str
    format: DatasetFormat
    layout: Layout
    shards: tuple[PlannedShard, ...]
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    counting: ShardCounting | None = None
    collect: Callable[[int, StatisticsState], None] | None = None

    def __call__(self, number: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, ShardSummary]:
        """Write a shard from batches sorted by hash; return its number and summary."""
        shard = self.shards[number]
        counts = ShardCounts(self.columns, self.labels)
        ordered = in_total_order(batches, columns=self.columns)
        rows = counts.count_batches(take_rows(ordered, skip=shard.skip, rows=shard.rows))
        states: list[StatisticsState] = []
        if self.counting is not None:
            rows = self.counting.count_batches(number, rows, states.append)
        written_shard = self.format.write_shard(
            self.directory, shard.path, rows, layout=self.layout
        )
        summary = counts.summary(written_shard)
        for state in states:
            if self.collect is not None:
                self.collect(number, state)
            else:
                summary = replace(summary, state=state)
        return number, summary


class ShardCounts:
    """Counts nulls, label values and hashes of batches as they pass."""

    def __init__(self, columns: Sequence[str], labels: Sequence[str]) -> None:
        self._columns = list(columns)
        self._labels: dict[str, dict[str, int] | None] = {name: {} for name in labels}
        self._nulls: dict[str, int] = {}
        self._hash_sum = 0
        self._first_hash: int | None = None
        self._last_hash: int | None = None

    def count_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches without internal columns and count them."""
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

    def summary(self, shard: WrittenShard) -> ShardSummary:
        """Return the summary of a written shard with the counts."""
        return ShardSummary(
            shard, self._nulls, self._labels, self._hash_sum, self._first_hash, self._last_hash
        )

    def _count_hashes(self, batch: pa.RecordBatch) -> None:
        hashes = row_hashes(batch)
        if self._first_hash is None:
            self._first_hash = int(hashes[0])
        self._last_hash = int(hashes[-1])
        self._hash_sum = (self._hash_sum + int(hashes.sum(dtype=np.uint64))) % 2**64

    def _count_label(self, name: str, array: Any) -> None:
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
            value = label_text(pair["values"])
            counts[value] = counts.get(value, 0) + int(pair["counts"])
        if len(counts) > MAX_LABEL_VALUES:
            self._labels[name] = None


def _has_many_values(array: Any) -> bool:
    first = pc.unique(array.slice(0, _SAMPLED_LABELS))
    max_values = MAX_LABEL_VALUES + 1  # one of them may be null
    return len(first) > max_values or len(pc.unique(array)) > max_values


def label_text(value: object) -> str:
    """Return the string form of a label value, the key of its count.

    >>> label_text(None), label_text(True), label_text(3)
    ('null', 'true', '3')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def in_total_order(
    batches: Iterator[pa.RecordBatch], *, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches that are sorted by hash in total order: equal hashes by canonical bytes.

    If the next batch begins with the last hash of a batch, the rows of that hash are buffered.
    """
    waiting: list[pa.RecordBatch] = []
    for batch, following in _with_following(batches):
        hashes = row_hashes(batch)
        if following is None or row_hashes(following)[0] != hashes[-1]:
            yield _ordered([*waiting, batch], columns)
            waiting = []
            continue
        last = int(np.searchsorted(hashes, hashes[-1], side="left"))
        if last > 0:
            yield _ordered([*waiting, batch.slice(0, last)], columns)
            waiting = []
        waiting.append(batch.slice(last))


def _with_following(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
    """Yield the nonempty batches, each with its successor."""
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
    """Yield ``rows`` rows after the first ``skip``."""
    for batch in batches:
        skipped = min(skip, batch.num_rows)
        skip -= skipped
        rows_batch = batch.slice(skipped, rows)
        rows -= rows_batch.num_rows
        if rows_batch.num_rows:
            yield rows_batch


def _ordered(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> pa.RecordBatch:
    """Concatenate batches sorted by hash; order rows of equal hashes by canonical bytes."""
    batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    hashes = row_hashes(batch)
    same = hashes[1:] == hashes[:-1]
    if not same.any():
        return batch
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
