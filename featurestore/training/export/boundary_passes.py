"""The passes over hashed rows that find boundaries; few counts come back from each."""

from __future__ import annotations

from featurestore.plugins.engine import BatchFunction, Engine
from featurestore.plugins.row_hashes import HashesRows
from featurestore.training.export.boundaries import Boundary, BoundarySearch
from featurestore.training.export.engine_hashes import range_counts_by_engine, range_counts_of
from featurestore.training.export.hash_ranges import (
    HASH_BITS,
    HashRanges,
    RangeAccumulator,
    RangeCounts,
    RowsInRanges,
)
from featurestore.training.export.hashed_rows import HashedRows

# Of 16 bytes each.
MOST_COUNTS = 1 << 23


def find_boundaries(
    engine: Engine,
    rows: HashedRows,
    search: BoundarySearch,
    *,
    function: BatchFunction | None = None,
) -> dict[int, list[Boundary]]:
    """Return the boundary before the row of each rank, per group that has ranks.

    ``function`` changes the batches of hashes and groups first.
    """
    while not search.is_over:
        bits = search.next_bits(MOST_COUNTS)
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
    """Return the rows in some ranges by the leading bits of their hash."""
    inside = RowsInRanges(ranges, bits)
    counts = None
    if rows.by_engine:
        counts = range_counts_by_engine(engine, rows.source, ranges, bits)
    elif bits < HASH_BITS and isinstance(engine, HashesRows):
        # Each state of an accumulator would have as many counts as come here.
        counts = range_counts_of(engine, rows.hashes(engine, function, inside), bits)
    if counts is None:
        counts = rows.aggregate(engine, RangeAccumulator(inside), function=function)
    return counts
