"""The passes over hashed rows that find the boundaries of shards."""

from __future__ import annotations

from featurestore.plugins.engine import BatchFunction, Engine
from featurestore.plugins.row_hashes import HashesRows
from featurestore.training.export.boundaries import Boundary, BoundarySearch
from featurestore.training.export.engine_hashes import engine_range_counts, leading_bit_counts
from featurestore.training.export.hash_ranges import (
    HASH_BITS,
    HashRanges,
    RangeAccumulator,
    RangeCounts,
    RowsInRanges,
)
from featurestore.training.export.hashed_rows import HashedRows

# A count takes 16 bytes, so a pass returns at most 128 MiB.
MAX_COUNTS = 1 << 23


def find_boundaries(
    engine: Engine,
    rows: HashedRows,
    search: BoundarySearch,
    *,
    function: BatchFunction | None = None,
) -> dict[int, list[Boundary]]:
    """Return the boundary at each rank, for each group with ranks.

    ``function`` is applied to the batches of hashes and groups first.
    """
    while not search.is_over:
        bits = search.next_bits(MAX_COUNTS)
        counts = _range_counts(engine, rows, search.ranges, bits, function)
        search = search.narrowed(counts, bits)
    return search.boundaries()


def _range_counts(
    engine: Engine,
    rows: HashedRows,
    ranges: HashRanges,
    bits: int,
    function: BatchFunction | None,
) -> dict[int, RangeCounts]:
    """Count the rows in hash ranges by the leading bits of their hash."""
    inside = RowsInRanges(ranges, bits)
    counts = None
    if rows.by_engine:
        counts = engine_range_counts(engine, rows.source, ranges, bits)
    elif bits < HASH_BITS and isinstance(engine, HashesRows):
        # Each state of an accumulator would hold as many counts as the result.
        counts = leading_bit_counts(engine, rows.hashes(engine, function, inside), bits)
    if counts is None:
        counts = rows.aggregate(engine, RangeAccumulator(inside), function=function)
    return counts
