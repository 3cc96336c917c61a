"""Shard boundaries and assignment.

Exactly equal shards in one total order, whatever the ties and batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.hashing import canonical_bytes, row_hash
from featurestore.model.requests import FractionSplit
from featurestore.plugins.format import WrittenFile, WrittenShard
from featurestore.plugins.native import ShardPlan
from featurestore.training.export.assignment import SHARD, Assignment, SplitRule
from featurestore.training.export.boundaries import (
    HASH,
    HASH_COLUMNS,
    Boundary,
    BoundarySearch,
    HistogramAccumulator,
    RangeAccumulator,
    RowsInRanges,
    equal_sizes,
    to_sortable,
)
from featurestore.training.export.hashed_rows import HashRows
from featurestore.training.export.shards import ShardWriter

BITS = 4  # few bins, so that boundaries fall into full ones


class Keeps:
    """A format that stores rows in memory."""

    def __init__(self) -> None:
        self.tables: dict[str, pa.Table] = {}

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: object
    ) -> WrittenShard:
        got = list(batches)
        self.tables[path] = pa.Table.from_batches(got) if got else pa.table({})
        return WrittenShard(WrittenFile(path, 0, ""), self.tables[path].num_rows)


def accumulated(accumulator: Any, batches: Sequence[pa.RecordBatch]) -> Any:
    """Accumulate batches, with a separate state for every second one."""
    total = accumulator.start()
    for first in range(0, len(batches), 2):
        state = accumulator.start()
        for batch in batches[first : first + 2]:
            state = accumulator.update(state, batch)
        total = accumulator.merge(total, state)
    return accumulator.finish(total)


def boundaries_of(
    hashed: Sequence[pa.RecordBatch], ranks: Mapping[int, Sequence[int]], *, bits: int, most: int
) -> tuple[dict[int, list[Boundary]], list[int]]:
    """Return the boundaries, and the number of bits of each pass."""
    histograms = accumulated(HistogramAccumulator(bits), hashed)
    search = BoundarySearch.from_histograms(histograms, ranks, bits=bits)
    passes = [bits]
    while not search.is_complete:
        passes.append(search.next_bits(most))
        counts = accumulated(RangeAccumulator(RowsInRanges(search.ranges, passes[-1])), hashed)
        ranges = sum(map(len, search.ranges.starts.values()))
        assert sum(len(count.starts) for count in counts.values()) <= max(most, 2 * ranges)
        search = search.narrow(counts, passes[-1])
    return search.boundaries(), passes


def write(rows: pa.Table, *, key: tuple[str, ...], shards: int, batch_rows: int) -> list[pa.Table]:
    rule = SplitRule(FractionSplit((("train", 1.0),)))
    prepare = HashRows(rule, key, 0)
    staged = [prepare(batch) for batch in rows.to_batches(max_chunksize=batch_rows)]
    sizes = equal_sizes(rows.num_rows, shards)
    ends = np.cumsum(sizes)[:-1]
    ranks = {0: [int(end) for end in ends if end < rows.num_rows]}
    boundaries_by_group, _ = boundaries_of(staged, ranks, bits=BITS, most=3)
    boundaries = boundaries_by_group.get(0, [])
    assignment = Assignment((0,), (tuple(boundaries),))
    table = pa.Table.from_batches([assignment(batch) for batch in staged])
    tasks = []
    for number, size in enumerate(sizes):
        skip = 0
        if 0 < number <= len(boundaries):
            skip = boundaries[number - 1].offset
        tasks.append(ShardPlan(str(number), size, skip=skip))
    keeps = Keeps()
    writer = ShardWriter("", keeps, {}, tuple(tasks), tuple(rows.schema.names), ())  # type: ignore[arg-type]
    for number in range(shards):
        shard_rows = table.filter(pa.compute.equal(table[SHARD], number)).sort_by(HASH)
        _, ((shard, _), _) = writer(number, iter(shard_rows.to_batches(max_chunksize=batch_rows)))
        assert shard.rows == sizes[number]
    return [keeps.tables[str(number)] for number in range(shards)]


def total_order(rows: pa.Table, key: tuple[str, ...]) -> list[dict[str, object]]:
    hashes = row_hash(rows, columns=key, seed=0)
    texts = canonical_bytes(rows).to_pylist()
    order = sorted(range(rows.num_rows), key=lambda i: (int(hashes[i]), texts[i]))
    return rows.take(pa.array(order, type=pa.int64())).to_pylist()


@settings(max_examples=50, deadline=None)
@given(
    keys=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    shards=st.integers(1, 9),
    batch_rows=st.sampled_from([1, 3, 7, 100]),
    values=st.integers(1, 3),
)
def test_shards_split_total_order_equally_despite_ties(
    keys: list[int], shards: int, batch_rows: int, values: int
) -> None:
    rows = pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "v": pa.array([i % values for i in range(len(keys))], pa.int64()),
        }
    )
    tables = write(rows, key=("k",), shards=shards, batch_rows=batch_rows)
    assert [table.num_rows for table in tables] == equal_sizes(len(keys), shards)
    assert [row for table in tables for row in table.to_pylist()] == total_order(rows, ("k",))


def test_shards_of_many_rows_contain_every_row_once() -> None:
    rng = np.random.default_rng(1)
    rows = pa.table({"k": rng.integers(0, 50_000, 100_000), "v": rng.normal(size=100_000)})
    tables = write(rows, key=("k",), shards=7, batch_rows=9_999)
    assert [row for table in tables for row in table.to_pylist()] == total_order(rows, ("k",))


@settings(max_examples=60, deadline=None)
@given(
    hashes=st.lists(
        st.integers(0, 2**64 - 1) | st.integers(2**63 - 2, 2**63 + 2) | st.just(2**64 - 1),
        min_size=1,
        max_size=40,
    ),
    copies=st.integers(1, 4),
    groups=st.integers(1, 3),
    most=st.integers(1, 12),
    bits=st.integers(1, 5),
    shards=st.integers(1, 12),
    batch_rows=st.sampled_from([11, 200]),
)
def test_shard_boundaries_equal_sorted_hashes(
    hashes: list[int], copies: int, groups: int, most: int, bits: int, shards: int, batch_rows: int
) -> None:
    """Some groups have fewer rows than shards, and so empty shards."""
    given_hashes = np.repeat(np.array(hashes, dtype=np.uint64), copies)
    of_groups = np.arange(len(given_hashes)) ** 2 % groups
    table = pa.table([to_sortable(given_hashes), of_groups], schema=HASH_COLUMNS)
    ranks: dict[int, list[int]] = {}
    expected: dict[int, list[Boundary]] = {}
    for group in np.unique(of_groups).tolist():
        ordered = np.sort(given_hashes[of_groups == group]).tolist()
        ends = np.cumsum(equal_sizes(len(ordered), shards)).tolist()
        ranks[group] = [end for end in ends if end < len(ordered)]
        for rank in ranks[group]:
            boundary = Boundary(ordered[rank], rank - ordered.index(ordered[rank]))
            expected.setdefault(group, []).append(boundary)
    batches = table.to_batches(max_chunksize=batch_rows)
    actual, passes = boundaries_of(batches, ranks, bits=bits, most=most)
    assert actual == expected
    assert passes == sorted(set(passes))
    if len(given_hashes) <= most:
        assert len(passes) <= 2
    if expected:
        assert passes[-1] == 64


@pytest.mark.parametrize(("rows", "shards"), [(0, 1), (1, 1), (10, 4), (3, 8), (1_000_003, 64)])
def test_shard_sizes_differ_by_at_most_one(rows: int, shards: int) -> None:
    sizes = equal_sizes(rows, shards)
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
