"""The shape of an export: rows of splits and shards, the cuts between them, the layout. Counting passes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa

from featurestore.errors import InvalidSplit
from featurestore.plugins.engine import Accumulator, Engine
from featurestore.plugins.format import ColumnProfile, Layout, NarrowProfile, ShardFitting
from featurestore.training.export.boundaries import (
    GROUP,
    HASH,
    CountAccumulator,
    Counts,
    Cut,
    HashCounts,
    RefineAccumulator,
    SumAccumulator,
    Sums,
    bins_of_ranks,
    columns_of,
    cuts_at_ranks,
    equal_sizes,
    to_sortable,
)
from featurestore.training.export.hashed_rows import Prepared
from featurestore.training.export.profiles import Extremes, ProfileAccumulator, every_profile
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.shards import Assignment, SplitOfClass
from featurestore.training.export.split_rules import UNCOVERED, class_ends

MAX_CLASSES = 10_000


GroupState = tuple[Counts, Sums]
CountState = tuple[GroupState, list[Extremes]]


@dataclass(frozen=True)
class GroupAccumulator(Accumulator[GroupState, GroupState]):
    """Histogram and sum of the hashes of each group."""

    counts: CountAccumulator
    sums: SumAccumulator = field(default_factory=SumAccumulator)

    def start(self) -> GroupState:
        """Return both empty states."""
        return self.counts.start(), self.sums.start()

    def update(self, state: GroupState, batch: pa.RecordBatch) -> GroupState:
        """Add a batch to both."""
        return self.counts.update(state[0], batch), self.sums.update(state[1], batch)

    def merge(self, left: GroupState, right: GroupState) -> GroupState:
        """Merge both."""
        return self.counts.merge(left[0], right[0]), self.sums.merge(left[1], right[1])

    def finish(self, state: GroupState) -> GroupState:
        """Return counts and sums."""
        return state


@dataclass(frozen=True)
class CountingAccumulator(Accumulator[CountState, tuple[GroupState, tuple[ColumnProfile, ...]]]):
    """The counting pass: hashes of each group and profile of the columns."""

    groups: GroupAccumulator
    profile: ProfileAccumulator

    def start(self) -> CountState:
        """Return both empty states."""
        return self.groups.start(), self.profile.start()

    def update(self, state: CountState, batch: pa.RecordBatch) -> CountState:
        """Add a batch to both."""
        return self.groups.update(state[0], batch), self.profile.update(state[1], batch)

    def merge(self, left: CountState, right: CountState) -> CountState:
        """Merge both."""
        return self.groups.merge(left[0], right[0]), self.profile.merge(left[1], right[1])

    def finish(self, state: CountState) -> tuple[GroupState, tuple[ColumnProfile, ...]]:
        """Return counts and sums of the groups, and the profiles."""
        return state[0], self.profile.finish(state[1])


@dataclass(frozen=True)
class Shape:
    """The shards to write: rows of each split with the sum of their hashes, its cuts, rows per shard, the layout."""

    rows: tuple[int, ...]
    hash_sums: tuple[int, ...]
    shard_rows: tuple[tuple[int, ...], ...]
    assignment: Assignment
    layout: Layout
    uncovered: int


def plan_shape(
    engine: Engine,
    prepared: Prepared,
    request: ExportRequest,
    *,
    shard_counts: Sequence[int] | None = None,
) -> Shape:
    """Count the prepared rows and decide shards, cuts and layout.

    ``shard_counts`` fixes the shards of each split. Columns are looked at only where the layout depends on their
    values.
    """
    bits = 10 if request.rule.stratify else 16
    groups = GroupAccumulator(CountAccumulator(bits))
    looked_at = _looked_at(request)
    accumulator = CountingAccumulator(groups, ProfileAccumulator(looked_at))
    (counts, sums), found = prepared.aggregate(engine, accumulator, columns=looked_at)
    profiles = every_profile(request.columns, found, rows=_rows(counts))
    layout = _layout(request, profiles)
    bytes_per_row = request.format.bytes_per_row(layout, profiles)
    uncovered = (
        int(counts.pop(UNCOVERED).sum()) if UNCOVERED in counts and not request.rule.stratify else 0
    )
    classes = _class_splits(engine, prepared, counts, bits) if request.rule.stratify else None
    splits = None if classes is None else SplitGroups(classes)
    if splits is not None:
        counts, sums = prepared.aggregate(engine, groups, then=splits)
    totals = tuple(
        int(counts[split].sum()) if split in counts else 0
        for split in range(len(request.rule.names))
    )
    shards = shard_counts or [request.shards_of(n, bytes_per_row=bytes_per_row) for n in totals]
    layout = _fitted(request, layout, totals, shards)
    shard_rows = tuple(
        tuple(equal_sizes(n, count)) for n, count in zip(totals, shards, strict=True)
    )
    cuts = _shard_cuts(engine, prepared, counts, shard_rows, splits, bits)
    firsts = tuple(accumulate((len(sizes) for sizes in shard_rows[:-1]), initial=0))
    hash_sums = tuple(sums.get(split, 0) for split in range(len(totals)))
    return Shape(
        totals, hash_sums, shard_rows, Assignment(firsts, cuts, classes), layout, uncovered
    )


def _fitted(
    request: ExportRequest, layout: Layout, totals: Sequence[int], shards: Sequence[int]
) -> Layout:
    if not isinstance(request.format, ShardFitting):
        return layout
    rows, count = max(zip(totals, shards, strict=True))
    return request.format.fitted(layout, rows=rows, shards=count)


def _looked_at(request: ExportRequest) -> tuple[str, ...]:
    chosen = request.format
    if not isinstance(chosen, NarrowProfile):
        return request.columns
    return tuple(chosen.profiled(request.schema))


def _rows(counts: Counts) -> int:
    return sum(int(bins.sum()) for bins in counts.values())


def _layout(request: ExportRequest, profiles: Sequence[ColumnProfile]) -> Layout:
    return request.format.layout(
        request.schema, profiles, compression=request.compression, block_rows=request.block_rows
    )


def _class_splits(
    engine: Engine, prepared: Prepared, counts: Counts, bits: int
) -> dict[int, SplitOfClass]:
    """Return where the splits of each class begin: at the hash of the row of that rank."""
    request = prepared.request
    if len(counts) > MAX_CLASSES:
        raise InvalidSplit(
            f"stratify={list(request.rule.stratify)!r} has {len(counts):,} classes; at most {MAX_CLASSES:,} work.",
            hint="stratify by a column with few values, or leave stratify= out",
        )
    ends = {group: class_ends(int(bins.sum()), request.rule) for group, bins in counts.items()}
    inner = {
        group: [end for end in ranks if 0 < end < counts[group].sum()]
        for group, ranks in ends.items()
    }
    cuts = _cuts(engine, prepared, counts, inner, bits)
    result = {}
    for group, ranks in ends.items():
        found = iter(cuts[group])
        starts = [
            0 if end <= 0 else 2**64 - 1 if end >= counts[group].sum() else _whole(next(found))
            for end in ranks
        ]
        result[group] = SplitOfClass(tuple(starts))
    return result


def _whole(cut: Cut) -> int:
    """Return the hash at which the next split begins: rows of one hash stay in the earlier split."""
    return cut.hash if cut.offset == 0 else min(cut.hash + 1, 2**64 - 1)


@dataclass(frozen=True)
class SplitGroups:
    """Replaces the class of each row by its split."""

    classes: Mapping[int, SplitOfClass]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return hash and split of each row."""
        groups, hashes = columns_of(batch)
        splits = Assignment((), (), self.classes).split_of(groups, hashes)
        return pa.RecordBatch.from_arrays(
            [pa.array(to_sortable(hashes)), pa.array(splits)], names=[HASH, GROUP]
        )


def _shard_cuts(
    engine: Engine,
    prepared: Prepared,
    counts: Counts,
    shard_rows: Sequence[Sequence[int]],
    splits: SplitGroups | None,
    bits: int,
) -> tuple[tuple[Cut, ...], ...]:
    """Return the cuts between the shards of every split; empty shards at the end begin after the last hash."""
    ends = {split: list(accumulate(sizes))[:-1] for split, sizes in enumerate(shard_rows)}
    totals = {split: sum(sizes) for split, sizes in enumerate(shard_rows)}
    inner = {split: [end for end in ranks if end < totals[split]] for split, ranks in ends.items()}
    found = _cuts(engine, prepared, counts, inner, bits, splits=splits)
    return tuple(tuple(found[split]) for split in range(len(shard_rows)))


def _cuts(
    engine: Engine,
    prepared: Prepared,
    counts: Counts,
    ranks: Mapping[int, Sequence[int]],
    bits: int,
    *,
    splits: SplitGroups | None = None,
) -> dict[int, list[Cut]]:
    bins = bins_of_ranks(counts, ranks)
    refined: dict[tuple[int, int], HashCounts] = {}
    if bins:
        refined = prepared.aggregate(engine, RefineAccumulator(bits, bins), then=splits)
    return cuts_at_ranks(counts, refined, ranks)
