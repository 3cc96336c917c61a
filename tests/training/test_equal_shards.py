"""Cuts and assignment, pure.

Exactly equal shards in one total order, whatever the ties and batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.hashing import canonical_bytes, row_hash
from featurestore.model.splits import FractionSplit
from featurestore.plugins.format import WrittenFile, WrittenShard
from featurestore.training.export.assignment import SHARD, Assignment
from featurestore.training.export.boundaries import (
    BinAccumulator,
    HistogramAccumulator,
    bins_of_ranks,
    boundaries_at_ranks,
    equal_sizes,
)
from featurestore.training.export.hash_columns import HASH
from featurestore.training.export.hashed_rows import HashRows
from featurestore.training.export.shard_writer import PlannedShard, ShardWriter
from featurestore.training.export.split_rules import SplitRule

BITS = 4  # few bins, so that boundaries fall into full ones


class Keeps:
    """A format that keeps the rows in memory."""

    def __init__(self) -> None:
        self.tables: dict[str, pa.Table] = {}

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: object
    ) -> WrittenShard:
        got = list(batches)
        self.tables[path] = pa.Table.from_batches(got) if got else pa.table({})
        return WrittenShard(WrittenFile(path, 0, ""), self.tables[path].num_rows)


def write(rows: pa.Table, *, key: tuple[str, ...], shards: int, batch_rows: int) -> list[pa.Table]:
    rule = SplitRule(FractionSplit((("train", 1.0),)))
    prepare = HashRows(rule, key, 0)
    staged = [prepare(batch) for batch in rows.to_batches(max_chunksize=batch_rows)]
    count = HistogramAccumulator(BITS)
    counts = count.start()
    for batch in staged:
        counts = count.merge(counts, count.update(count.start(), batch))
    sizes = equal_sizes(rows.num_rows, shards)
    ends = np.cumsum(sizes)[:-1]
    ranks = {0: [int(end) for end in ends if end < rows.num_rows]}
    bins = bins_of_ranks(counts, ranks)
    refine = BinAccumulator(BITS, bins)
    refined = refine.start()
    for batch in staged:
        refined = refine.merge(refined, refine.update(refine.start(), batch))
    assignment = Assignment(
        (0,), (tuple(boundaries_at_ranks(counts, refine.finish(refined), ranks)[0]),)
    )
    table = pa.Table.from_batches([assignment(batch) for batch in staged])
    boundaries = assignment.boundaries[0]
    tasks = tuple(
        PlannedShard(str(n), size, skip=boundaries[n - 1].offset if 0 < n <= len(boundaries) else 0)
        for n, size in enumerate(sizes)
    )
    keeps = Keeps()
    writer = ShardWriter("", keeps, {}, tasks, tuple(rows.schema.names), ())  # type: ignore[arg-type]
    for number in range(shards):
        mine = table.filter(pa.compute.equal(table[SHARD], number)).sort_by(HASH)
        _, summary = writer(number, iter(mine.to_batches(max_chunksize=batch_rows)))
        assert summary.written.rows == sizes[number]
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
def test_shards_are_the_total_order_cut_into_equal_parts_despite_ties(
    keys: list[int], shards: int, batch_rows: int, values: int
) -> None:
    rows = pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "v": pa.array([i % values for i in range(len(keys))], pa.int64()),
        }
    )
    parts = write(rows, key=("k",), shards=shards, batch_rows=batch_rows)
    assert [part.num_rows for part in parts] == equal_sizes(len(keys), shards)
    assert [row for part in parts for row in part.to_pylist()] == total_order(rows, ("k",))


def test_many_rows_keep_every_row_once() -> None:
    rng = np.random.default_rng(1)
    rows = pa.table({"k": rng.integers(0, 50_000, 100_000), "v": rng.normal(size=100_000)})
    parts = write(rows, key=("k",), shards=7, batch_rows=9_999)
    assert [row for part in parts for row in part.to_pylist()] == total_order(rows, ("k",))


@pytest.mark.parametrize(("rows", "shards"), [(0, 1), (1, 1), (10, 4), (3, 8), (1_000_003, 64)])
def test_shard_sizes_differ_by_at_most_one(rows: int, shards: int) -> None:
    sizes = equal_sizes(rows, shards)
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
