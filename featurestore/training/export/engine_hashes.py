"""Export steps that run inside an engine with hash functions of its own.

The row hash and the group of each row, their counts, and the shard if it depends on the hash alone.
The remaining steps, and all steps on other engines, are functions over Arrow batches with the same
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from featurestore.model.splits import FractionSplit
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.row_hashes import HashCounts, HashesRows
from featurestore.training.export.assignment import SHARD, Assignment
from featurestore.training.export.hash_columns import GROUP, HASH, from_sortable, to_sortable
from featurestore.training.export.hash_ranges import HASH_BITS, HashRanges, RangeCounts
from featurestore.training.export.request import ExportRequest
from featurestore.training.export.split_rules import SplitRule, thresholds

_SPLIT_HASH = "__fs_split_hash"
_INSIDE = "__fs_chosen"


class Ranges(NamedTuple):
    """Ranges of sortable hashes: the starts of the second and later ones, and the number of each."""

    starts: list[int]
    numbers: list[int]


def engine_hashed_rows(
    engine: Engine, relation: Relation, request: ExportRequest
) -> Relation | None:
    """Return the rows with hash and group from the engine's own functions; None without them."""
    rule = request.rule
    if not isinstance(engine, HashesRows) or relation.single_use:
        return None
    if not isinstance(rule.rule, FractionSplit) or rule.stratify:
        return None
    if not relation.schema.equals(request.schema):  # the Python path casts the batches
        return None
    ranges = _split_ranges(rule.rule)
    if ranges is None:
        return None
    hashed = engine.with_row_hash(relation, request.key, seed=request.seed, name=HASH)
    if hashed is None:
        return None
    if not rule.split_columns:
        return _numbered(engine, hashed, HASH, ranges, name=GROUP)
    split = engine.with_row_hash(hashed, rule.split_columns, seed=request.seed, name=_SPLIT_HASH)
    if split is None:
        return None
    grouped = _numbered(engine, split, _SPLIT_HASH, ranges, name=GROUP)
    return _without(engine, grouped, _SPLIT_HASH)


def engine_counts(engine: Engine, hashed: Relation, columns: Sequence[str]) -> HashCounts | None:
    """Return the counts of hashed rows; None if Arrow batches have to be counted."""
    if not isinstance(engine, HashesRows) or hashed.single_use:
        return None
    return engine.count_hashes(hashed, hashes=HASH, group=GROUP, columns=columns)


def engine_range_counts(
    engine: Engine, hashed: Relation, ranges: HashRanges, bits: int
) -> dict[int, RangeCounts] | None:
    """Count the rows in the ranges of any group; None if Arrow batches have to be read."""
    if not isinstance(engine, HashesRows) or hashed.single_use:
        return None
    numbered = _numbered(engine, hashed, HASH, _inside(ranges), name=_INSIDE)
    inside = engine.select(engine.filter(numbered, f"{_INSIDE} = 1"), {HASH: HASH, GROUP: GROUP})
    return leading_bit_counts(engine, inside, bits)


def leading_bit_counts(engine: HashesRows, hashed: Relation, bits: int) -> dict[int, RangeCounts]:
    """Count the rows of each group by the leading bits of their hash."""
    counts = {}
    counts_by_group = engine.hashes_of_groups(hashed, hashes=HASH, group=GROUP, bits=bits)
    for group, (starts, rows) in counts_by_group.items():
        counts[group] = RangeCounts(from_sortable(starts), rows)
    return counts


def engine_assigned_rows(
    engine: Engine, hashed: Relation, rule: SplitRule, assignment: Assignment
) -> Relation | None:
    """Return the rows with their shard instead of the group; the shard ascends with the hash.

    None if the shard depends on more than the hash: ``split_by`` or ``stratify`` decide the split,
    or a boundary divides the rows of one hash.
    """
    if not isinstance(engine, HashesRows) or hashed.single_use:
        return None
    if not isinstance(rule.rule, FractionSplit) or rule.split_columns or rule.stratify:
        return None
    ranges = _shard_ranges(rule.rule, assignment)
    if ranges is None:
        return None
    return _without(engine, _numbered(engine, hashed, HASH, ranges, name=SHARD), GROUP)


def _inside(ranges: HashRanges) -> Ranges:
    """Return ranges with number 1 for the hashes in ranges of any group, 0 between them."""
    size = 1 << (HASH_BITS - ranges.bits)
    starts = set(ranges.all_starts.tolist())
    edges = starts ^ {start + size for start in starts}  # one range may begin where another ends
    inside = int(0 in edges)
    inner = sorted(edges - {0, 1 << HASH_BITS})
    numbers = [(inside + index) % 2 for index in range(len(inner) + 1)]
    return Ranges(_sortable(inner), numbers)


def _split_ranges(rule: FractionSplit) -> Ranges | None:
    starts = _sortable(thresholds(rule).tolist())
    return _valid(Ranges(starts, list(range(len(starts) + 1))))


def _shard_ranges(rule: FractionSplit, assignment: Assignment) -> Ranges | None:
    """Return the hash range of each shard; None if a boundary divides the rows of one hash."""
    starts: list[int] = []
    numbers: list[int] = []
    first_hashes = [0, *thresholds(rule).tolist()]
    for split, boundaries in enumerate(assignment.boundaries):
        if any(boundary.offset for boundary in boundaries):
            return None
        starts += [first_hashes[split], *(boundary.hash for boundary in boundaries)]
        first = assignment.first_shard[split]
        numbers += range(first, first + 1 + len(boundaries))
    return _valid(Ranges(_sortable(starts[1:]), numbers))


def _sortable(hashes: Sequence[int]) -> list[int]:
    numbers: list[int] = to_sortable(np.array(hashes, dtype=np.uint64)).tolist()
    return numbers


def _valid(ranges: Ranges) -> Ranges | None:
    """Return the ranges; None if one is empty."""
    for start, following in pairwise(ranges.starts):
        if start >= following:
            return None
    return ranges


def _numbered(
    engine: HashesRows, relation: Relation, column: str, ranges: Ranges, *, name: str
) -> Relation:
    return engine.with_range_number(
        relation, column, starts=ranges.starts, numbers=ranges.numbers, name=name
    )


def _without(engine: Engine, relation: Relation, column: str) -> Relation:
    names = [name for name in relation.schema.names if name != column]
    return engine.select(relation, dict(zip(names, names, strict=True)))
