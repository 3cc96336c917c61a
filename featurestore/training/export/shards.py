"""Which shard a row goes to, and the function that writes one shard where its rows are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.hashing import canonical_bytes
from featurestore.model.arrow_rows import rows_at
from featurestore.model.types import is_nested
from featurestore.plugins.format import DatasetFormat, Layout, WrittenShard
from featurestore.training.export.boundaries import (
    GROUP,
    HASH,
    SHARD,
    Cut,
    columns_of,
    from_sortable,
)

MAX_LABEL_VALUES = 1000


@dataclass(frozen=True)
class SplitOfClass:
    """The hashes of a class at which its second and later splits begin; rows of one hash stay together."""

    starts: tuple[int, ...]


@dataclass(frozen=True)
class Assignment:
    """Maps staged rows to shards, numbered over all splits.

    A row's split is its group, or with classes the place of its hash among ``classes[group]``. ``cuts[s]`` are the
    cuts between the shards of split s, whose first shard has the number ``first_shard[s]``. Rows of one hash that lie
    on a cut go to every shard that may hold some of them: the shard's writer knows which are its own.
    """

    first_shard: tuple[int, ...]
    cuts: tuple[tuple[Cut, ...], ...]
    classes: Mapping[int, SplitOfClass] | None = None

    def split_of(
        self, groups: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        """Return the split of each row, -1 for uncovered ones."""
        if self.classes is None:
            return groups
        result = np.full(len(groups), -1, dtype=np.int64)
        for group in np.unique(groups):
            mine = groups == group
            starts = np.array(self.classes[int(group)].starts, dtype=np.uint64)
            result[mine] = np.searchsorted(starts, hashes[mine], side="right")
        return result

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with their shard number instead of the group; uncovered rows are left out."""
        groups, hashes = columns_of(batch)
        splits = self.split_of(groups, hashes)
        numbers = np.full(len(hashes), -1, dtype=np.int32)
        shared: list[npt.NDArray[np.int64]] = []
        shared_numbers: list[npt.NDArray[np.int64]] = []
        for split, cuts in enumerate(self.cuts):
            mine = np.flatnonzero(splits == split)
            first, last = _shard_span(hashes[mine], cuts)
            numbers[mine] = self.first_shard[split] + first
            for extra in range(1, int((last - first).max(initial=0)) + 1):
                wider = first + extra <= last
                shared.append(mine[wider])
                shared_numbers.append(self.first_shard[split] + first[wider] + extra)
        plain = batch.select([name for name in batch.schema.names if name != GROUP])
        if not shared and (numbers >= 0).all():
            return _with_shard(plain, numbers)
        covered = np.flatnonzero(numbers >= 0)
        rows = np.concatenate([covered, *shared])
        return _with_shard(
            plain.take(pa.array(rows)), np.concatenate([numbers[covered], *shared_numbers])
        )


def _with_shard(batch: pa.RecordBatch, numbers: npt.NDArray[Any]) -> pa.RecordBatch:
    schema = batch.schema.append(pa.field(SHARD, pa.int32()))
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(numbers.astype(np.int32))], schema=schema
    )


def _shard_span(hashes: npt.NDArray[np.uint64], cuts: Sequence[Cut]) -> tuple[Any, Any]:
    """Return the first and last shard (within the split) that may hold each hash."""
    places = np.array([cut.hash for cut in cuts], dtype=np.uint64)
    last = np.searchsorted(places, hashes, side="right")
    before = np.searchsorted(places, hashes, side="left")
    if not len(cuts):
        return before, last
    begins_at_cut = np.array([cut.offset == 0 for cut in cuts])
    on_cut = before < last
    skips = np.zeros(len(hashes), dtype=np.int64)
    skips[on_cut] = begins_at_cut[before[on_cut]]
    return before + skips, last


@dataclass(frozen=True)
class ShardTask:
    """What the writer of one shard must know; ``skip`` are rows of its first hash that belong to the shard before."""

    path: str
    rows: int
    skip: int = 0


@dataclass(frozen=True)
class ShardSummary:
    """What was written, with null and label counts and a fingerprint of the row hashes."""

    written: WrittenShard
    nulls: Mapping[str, int]
    labels: Mapping[str, Mapping[str, int] | None]
    hash_sum: int
    first_hash: int | None
    last_hash: int | None


@dataclass(frozen=True)
class ShardWriter:
    """Writes shards with a format; picklable, runs where the rows are."""

    directory: str
    format: DatasetFormat
    layout: Layout
    tasks: tuple[ShardTask, ...]
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    counting: bool = field(default=True)

    def __call__(self, number: int, batches: Iterator[pa.RecordBatch]) -> ShardSummary:
        """Write shard ``number`` from batches sorted by hash."""
        task = self.tasks[number]
        tally = Tally(self.labels)
        rows = take_rows(
            in_total_order(batches, columns=self.columns), skip=task.skip, rows=task.rows
        )
        written = self.format.write_shard(
            self.directory, task.path, tally.watch(rows, columns=self.columns), layout=self.layout
        )
        return tally.summary(written)


class Tally:
    """Counts nulls, label values and hashes of batches as they pass."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels: dict[str, dict[str, int] | None] = {name: {} for name in labels}
        self._nulls: dict[str, int] = {}
        self._sum = 0
        self._first: int | None = None
        self._last: int | None = None

    def watch(
        self, batches: Iterator[pa.RecordBatch], *, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches without internal columns and count them."""
        for batch in batches:
            hashes = hashes_of(batch)
            if len(hashes) == 0:
                continue
            self._first = int(hashes[0]) if self._first is None else self._first
            self._last = int(hashes[-1])
            with np.errstate(over="ignore"):
                self._sum = (self._sum + int(hashes.sum(dtype=np.uint64))) % 2**64
            plain = batch.select(list(columns))
            for name, array in zip(columns, plain.columns, strict=True):
                if array.null_count:
                    self._nulls[name] = self._nulls.get(name, 0) + array.null_count
            for name in self._labels:
                self._count_label(name, plain.column(columns.index(name)))
            yield plain

    def summary(self, written: WrittenShard) -> ShardSummary:
        """Return the counts beside what was written."""
        return ShardSummary(written, self._nulls, self._labels, self._sum, self._first, self._last)

    def _count_label(self, name: str, array: Any) -> None:
        known = self._labels[name]
        if known is None:
            return
        if is_nested(array.type) or pa.types.is_binary(array.type):
            self._labels[name] = None
            return
        for pair in pc.value_counts(array).to_pylist():
            value = label_text(pair["values"])
            known[value] = known.get(value, 0) + int(pair["counts"])
        if len(known) > MAX_LABEL_VALUES:
            self._labels[name] = None


def label_text(value: object) -> str:
    """Return the text under which a label value is counted.

    >>> label_text(None), label_text(True), label_text(3)
    ('null', 'true', '3')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def in_total_order(
    batches: Iterator[pa.RecordBatch], *, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches sorted by hash in the total order: rows of one hash by their canonical bytes."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows == 0:
            continue
        hashes = hashes_of(batch)
        if held and hashes[0] != hashes_of(held[-1])[-1]:
            yield _ordered(held, columns)
            held = []
        last = int(np.searchsorted(hashes, hashes[-1], side="left"))
        if last > 0:
            yield _ordered([*held, batch.slice(0, last)], columns)
            held = []
        held.append(batch.slice(last))
    if held:
        yield _ordered(held, columns)


def take_rows(
    batches: Iterator[pa.RecordBatch], *, skip: int, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` rows after the first ``skip``."""
    for batch in batches:
        dropped = min(skip, batch.num_rows)
        skip -= dropped
        kept = batch.slice(dropped, rows)
        rows -= kept.num_rows
        if kept.num_rows:
            yield kept


def hashes_of(batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Return the row hashes of a staged batch."""
    column = batch.column(batch.schema.get_field_index(HASH))
    return from_sortable(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)))


def _ordered(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    batch = table.to_batches()[0]
    hashes = hashes_of(batch)
    same = hashes[1:] == hashes[:-1]
    if not same.any():
        return batch
    tied = np.flatnonzero(np.r_[same, False] | np.r_[False, same])
    subset = rows_at(batch, tied)
    ties = pa.table(
        {"hash": pa.array(hashes[tied]), "bytes": canonical_bytes(subset, columns=list(columns))}
    )
    order = pc.sort_indices(
        ties, sort_keys=[("hash", "ascending"), ("bytes", "ascending")]
    ).to_numpy()
    index = np.arange(len(hashes))
    index[tied] = tied[order]
    return rows_at(batch, index)
