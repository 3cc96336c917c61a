"""The shard plan of an export: row counts of splits and shards, shard boundaries and layout.

Planning only counts rows and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, repeat
from typing import Any

import pyarrow as pa

from featurestore.arrow.values import rounds_to_infinity
from featurestore.errors import InvalidArgument, InvalidSplit
from featurestore.plugins.engine import Accumulator, BatchFunction, HashCounts
from featurestore.plugins.format import ColumnProfile, DatasetFormat, Layout
from featurestore.plugins.native import ShardPlan
from featurestore.training.export.assignment import (
    UNCOVERED,
    Assignment,
    ClassSplits,
    split_end_ranks,
)
from featurestore.training.export.boundaries import (
    GROUP,
    HASH,
    HASH_BITS,
    Boundary,
    BoundarySearch,
    HashRanges,
    HashSumAccumulator,
    HistogramAccumulator,
    RangeAccumulator,
    RangeCounts,
    RowsInRanges,
    equal_sizes,
    groups_and_hashes,
    to_sortable,
)
from featurestore.training.export.hashed_rows import (
    HashedRows,
    count_leading_bits,
    count_ranges_in_engine,
)
from featurestore.training.export.profiles import (
    ProfileAccumulator,
    mark_declared_lengths,
    profile_all_columns,
)
from featurestore.training.export.request import ExportRequest

# Maximum number of counts per pass. A count takes 16 bytes, so a pass returns at most 128 MiB.
MAX_COUNTS = 1 << 23
# The histogram of each class takes 8 KiB with 10 bits, which bounds the memory of all classes to 80
# MiB.
MAX_CLASSES = 10_000
# Fewer bits for histograms of classes, since there may be many classes.
_CLASS_BITS, _BITS = 10, 16
LAST_HASH = 2**64 - 1


@dataclass(frozen=True)
class ExportPlan:
    """The planned shards of each split, row counts and hash sums of the splits, and the layout."""

    rows: tuple[int, ...]
    hash_sums: tuple[int, ...]
    shards: tuple[tuple[ShardPlan, ...], ...]
    assignment: Assignment
    layout: Layout
    uncovered: int


@dataclass(frozen=True)
class CountingAccumulator(Accumulator[Any, HashCounts]):
    """An accumulator of hash histograms and hash sums by group, and of column profiles."""

    histograms: HistogramAccumulator
    sums: HashSumAccumulator
    profiles: ProfileAccumulator

    def start(self) -> Any:
        """Return the empty state of each accumulator."""
        return self.histograms.start(), self.sums.start(), self.profiles.start()

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        """Update each accumulator with a batch."""
        histograms, sums, profiles = state
        return (
            self.histograms.update(histograms, batch),
            self.sums.update(sums, batch),
            self.profiles.update(profiles, batch),
        )

    def merge(self, state: Any, other_state: Any) -> Any:
        """Merge the states of each accumulator."""
        return (
            self.histograms.merge(state[0], other_state[0]),
            self.sums.merge(state[1], other_state[1]),
            self.profiles.merge(state[2], other_state[2]),
        )

    def finish(self, state: Any) -> HashCounts:
        """Return the results of the accumulators."""
        histograms, sums, profiles = state
        return HashCounts(self.histograms.bits, histograms, sums, self.profiles.finish(profiles))


@dataclass(frozen=True)
class ClassToSplit:
    """A function that replaces the class of each row by its split."""

    classes: Mapping[int, ClassSplits]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the hash and split of each row."""
        groups, hashes = groups_and_hashes(batch)
        splits = Assignment((), (), self.classes).find_splits(groups, hashes)
        columns = [pa.array(to_sortable(hashes)), pa.array(splits)]
        return pa.RecordBatch.from_arrays(columns, names=[HASH, GROUP])


def plan_shards(
    rows: HashedRows,
    *,
    shard_counts: Sequence[int] | None = None,
    classes: Mapping[int, ClassSplits] | None = None,
) -> ExportPlan:
    """Count the hashed rows and plan shards, boundaries and layout.

    ``shard_counts`` sets the number of shards of each split, and ``classes`` the splits of each class
    of a rule with ``stratify``. Only columns whose values determine the layout are read.
    """
    request = rows.request
    counts = _count_rows(rows)
    uncovered = 0
    split_classes = None
    if request.rule.stratify:
        if classes is None:
            classes = _split_classes(rows, counts)
        split_classes = ClassToSplit(classes)
        # Splits of a class are only known after the classes are counted, so rows are counted again
        # by split.
        counts = _count_rows(rows, function=split_classes, profiles=counts.profiles)
    else:
        uncovered = counts.rows(UNCOVERED)
    # All splits of one export are counted in the same pass, with the split as the group.
    splits = range(len(request.rule.names))
    split_rows = tuple(counts.rows(split) for split in splits)
    layout, shard_counts = _plan_layout(request, counts.profiles, split_rows, shard_counts)
    shard_rows = [
        tuple(equal_sizes(total, shards))
        for total, shards in zip(split_rows, shard_counts, strict=True)
    ]
    boundaries = _find_shard_boundaries(rows, counts, shard_rows, split_classes)
    first_shard = accumulate(shard_counts[:-1], initial=0)
    return ExportPlan(
        rows=split_rows,
        hash_sums=tuple(counts.hash_sums.get(split, 0) for split in splits),
        shards=tuple(
            map(partial(_plan_split, request.format), request.rule.names, shard_rows, boundaries)
        ),
        assignment=Assignment(tuple(first_shard), boundaries, classes),
        layout=layout,
        uncovered=uncovered,
    )


def _plan_split(
    dataset_format: DatasetFormat, split: str, sizes: Sequence[int], boundaries: Sequence[Boundary]
) -> tuple[ShardPlan, ...]:
    """Return the path and rows of each shard of a split."""
    extension = f".{dataset_format.extension}" if dataset_format.extension else ""
    folder = f"{dataset_format.shard_folder}/" if dataset_format.shard_folder else ""
    prefix, suffix = f"{split}/{folder}{dataset_format.name}", f"of-{len(sizes):05d}{extension}"
    # No boundary precedes the empty shards at the end.
    skips = chain([0], (boundary.offset for boundary in boundaries), repeat(0))
    return tuple(
        ShardPlan(f"{prefix}-{index:05d}-{suffix}", rows, skip)
        for index, (rows, skip) in enumerate(zip(sizes, skips, strict=False))
    )


def _count_rows(
    rows: HashedRows,
    *,
    function: ClassToSplit | None = None,
    profiles: tuple[ColumnProfile, ...] | None = None,
) -> HashCounts:
    """Count rows by group.

    ``function`` is applied to the batches first, if any. If ``profiles`` is passed, no profiles are
    computed.
    """
    request = rows.request
    bits = _BITS
    if request.rule.stratify:
        bits = _CLASS_BITS
    columns: tuple[str, ...] = ()
    if profiles is None:
        columns = _columns_to_profile(request)
    counts = None
    if rows.by_engine:
        counts = rows.engine.count_hashes(rows.source, hashes=HASH, group=GROUP, columns=columns)
    if counts is None:
        accumulator = CountingAccumulator(
            HistogramAccumulator(bits), HashSumAccumulator(), ProfileAccumulator(columns)
        )
        counts = rows.aggregate(accumulator, columns=columns, function=function)
    counted_profiles = profiles or counts.profiles
    _check_weights(request, counted_profiles)
    total = sum(map(counts.rows, counts.histograms))
    all_profiles = profile_all_columns(request.columns, counted_profiles, rows=total)
    return HashCounts(
        counts.bits,
        counts.histograms,
        counts.hash_sums,
        mark_declared_lengths(all_profiles, request.max_lengths),
    )


def _columns_to_profile(request: ExportRequest) -> tuple[str, ...]:
    """Return the columns whose values determine the layout, or whose lengths must be checked."""
    profiled_names = {*request.format.columns_to_profile(request.schema), *request.max_lengths}
    profiled_names.update(name for name, role in request.roles.items() if role == "weight")
    return tuple(name for name in request.columns if name in profiled_names)


def _check_weights(request: ExportRequest, profiles: Sequence[ColumnProfile]) -> None:
    """Refuse weights that are infinite in float32, which readers yield in each framework."""
    for profile in profiles:
        is_weight = request.roles[profile.name] == "weight"
        if is_weight and profile.largest is not None and rounds_to_infinity(profile.largest):
            raise InvalidArgument(
                f"weight={profile.name!r} has the value {profile.largest!r}. Weights are float32 "
                "in training, in which this is infinity.",
                hint=f"divide the weights {profile.name!r} by their mean before the export",
            )


def _plan_layout(
    request: ExportRequest,
    profiles: Sequence[ColumnProfile],
    split_rows: Sequence[int],
    shard_counts: Sequence[int] | None,
) -> tuple[Layout, Sequence[int]]:
    """Choose the layout and the number of shards of each split."""
    layout = request.format.layout(
        request.schema, profiles, compression=request.compression, block_rows=request.block_rows
    )
    if shard_counts is None:
        bytes_per_row = request.format.bytes_per_row(layout, profiles)
        planned_counts = [
            request.choose_shard_count(rows, bytes_per_row=bytes_per_row) for rows in split_rows
        ]
        shard_counts = planned_counts
    # The largest split decides, because all splits share one layout.
    rows, shards = max(zip(split_rows, shard_counts, strict=True))
    return request.format.fitted(layout, rows=rows, shards=shards), shard_counts


def _split_classes(rows: HashedRows, counts: HashCounts) -> dict[int, ClassSplits]:
    """Find the first hash of each split of each class: the hash of the row with that rank."""
    rule = rows.request.rule
    if len(counts.histograms) > MAX_CLASSES:
        raise InvalidSplit(
            f"stratify={list(rule.stratify)!r} has {len(counts.histograms):,} classes; "
            f"the maximum is {MAX_CLASSES:,}.",
            hint="stratify by a column with few values, or omit stratify=",
        )
    ends: dict[int, list[int]] = {}
    inner: dict[int, list[int]] = {}
    for group in counts.histograms:
        total = counts.rows(group)
        ends[group] = split_end_ranks(total, rule)
        # Boundaries at the ends need no search: a split there is empty or complete.
        inner[group] = [end for end in ends[group] if 0 < end < total]
    search = BoundarySearch.from_histograms(counts.histograms, inner, bits=counts.bits)
    boundaries = find_boundaries(rows, search)
    splits_by_class = {}
    for group in counts.histograms:
        boundaries_by_rank = dict(zip(inner[group], boundaries.get(group, ()), strict=True))
        starts = [_find_split_start(end, boundaries_by_rank) for end in ends[group]]
        splits_by_class[group] = ClassSplits(tuple(starts))
    return splits_by_class


def _find_split_start(end: int, boundaries: Mapping[int, Boundary]) -> int:
    """Return the first hash of a split that begins after ``end`` rows.

    Rows with the boundary hash belong to the earlier split.
    """
    if end <= 0:
        return 0
    if end not in boundaries:
        return LAST_HASH
    boundary = boundaries[end]
    if boundary.offset == 0:
        return boundary.hash
    return min(boundary.hash + 1, LAST_HASH)


def _find_shard_boundaries(
    rows: HashedRows,
    counts: HashCounts,
    shard_rows: Sequence[Sequence[int]],
    split_classes: ClassToSplit | None,
) -> tuple[tuple[Boundary, ...], ...]:
    """Find the boundaries between the shards of every split.

    Empty shards at the end begin after the last hash.
    """
    inner: dict[int, list[int]] = {}
    for split, sizes in enumerate(shard_rows):
        ends = list(accumulate(sizes))
        inner[split] = [end for end in ends[:-1] if end < ends[-1]]
    search = BoundarySearch.from_histograms(counts.histograms, inner, bits=counts.bits)
    boundaries = find_boundaries(rows, search, function=split_classes)
    return tuple(tuple(boundaries.get(split, ())) for split in range(len(shard_rows)))


def find_boundaries(
    rows: HashedRows,
    search: BoundarySearch,
    *,
    function: BatchFunction | None = None,
) -> dict[int, list[Boundary]]:
    """Find the boundary at each rank of each group.

    ``function`` is applied to the batches of hashes and groups first.
    """
    while not search.is_complete:
        bits = search.next_bits(MAX_COUNTS)
        counts = _range_counts(rows, search.ranges, bits, function)
        search = search.narrow(counts, bits)
    return search.boundaries()


def _range_counts(
    rows: HashedRows,
    ranges: HashRanges,
    bits: int,
    function: BatchFunction | None,
) -> dict[int, RangeCounts]:
    """Count the rows in hash ranges by the leading bits of their hash."""
    inside = RowsInRanges(ranges, bits)
    counts = None
    if rows.by_engine:
        counts = count_ranges_in_engine(rows, ranges, bits)
    elif bits < HASH_BITS:
        # With an accumulator, each state would hold as many counts as the result.
        counts = count_leading_bits(rows.engine, rows.hashes(function, inside), bits)
    if counts is None:
        counts = rows.aggregate(RangeAccumulator(inside), function=function)
    return counts
