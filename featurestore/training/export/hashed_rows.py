"""Rows with a hash and a group, for repeated passes that read only the columns they need.

An engine that implements the row hash computes the hash, the group and their counts. It also
computes the shard if this depends only on the hash. The remaining steps, and all steps on other
engines, are functions of Arrow batches with the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from featurestore.arrow.casts import cast_batch
from featurestore.hashing import row_hash
from featurestore.model.manifest import DROP
from featurestore.model.plan import FeaturePlan
from featurestore.model.requests import FractionSplit
from featurestore.plugins.engine import Accumulator, BatchFunction, Engine, Relation
from featurestore.training.export.assignment import (
    SHARD,
    Assignment,
    SplitRule,
    assign_groups,
    split_thresholds,
)
from featurestore.training.export.boundaries import (
    GROUP,
    HASH,
    HASH_BITS,
    HASH_COLUMNS,
    HashRanges,
    RangeCounts,
    from_sortable,
    to_sortable,
)
from featurestore.training.export.request import ExportRequest
from featurestore.usersql.text import quote

_SPLIT_HASH = "__fs_split_hash"
_INSIDE = "__fs_chosen"
State = TypeVar("State")
Result = TypeVar("Result")
_COUNTING_THREADS = 2


@dataclass(frozen=True)
class HashRows:
    """A function that appends the columns ``HASH`` and ``GROUP`` to record batches.

    Without ``with_columns``, it returns only these two columns.
    """

    rule: SplitRule
    key: tuple[str, ...]
    seed: int
    with_columns: bool = True

    @classmethod
    def of(cls, request: ExportRequest, *, with_columns: bool = True) -> HashRows:
        """Return the function for the rows of an export."""
        return cls(request.rule, request.key, request.training.seed, with_columns)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the hashed batch."""
        hashes = row_hash(batch, columns=self.key, seed=self.seed)
        groups = assign_groups(batch, rule=self.rule, hashes=hashes, seed=self.seed)
        arrays, names = [pa.array(to_sortable(hashes)), pa.array(groups)], [HASH, GROUP]
        if self.with_columns:
            arrays, names = [*batch.columns, *arrays], [*batch.schema.names, *names]
        return pa.RecordBatch.from_arrays(arrays, names=names)


@dataclass(frozen=True)
class FunctionChain:
    """A composition of batch functions, so that rows leave the engine only once."""

    functions: tuple[BatchFunction, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the functions to a batch in order."""
        for function in self.functions:
            batch = function(batch)
        return batch


@dataclass(frozen=True)
class MappedAccumulator(Accumulator[Any, Any]):
    """An accumulator that aggregates the output of a batch function."""

    function: BatchFunction
    accumulator: Accumulator[Any, Any]
    threads: int = _COUNTING_THREADS

    def start(self) -> Any:
        """Return the accumulator's empty state."""
        return self.accumulator.start()

    def update(self, state: Any, batch: pa.RecordBatch) -> Any:
        """Update the accumulator with the function's output for a batch."""
        return self.accumulator.update(state, self.function(batch))

    def merge(self, state: Any, other_state: Any) -> Any:
        """Merge two states of the accumulator."""
        return self.accumulator.merge(state, other_state)

    def finish(self, state: Any) -> Any:
        """Return the result of the accumulator."""
        return self.accumulator.finish(state)


@dataclass(frozen=True)
class HashedRows:
    """The rows of an export with a hash and a group.

    Attributes:
        function: Adds hash and group to batches of ``source``; None if ``source`` contains them.
        by_engine: Whether the engine computes the hashes. If so, later steps may also use the
            engine's hash functions.
        unhashed: The original rows if the engine would hash them again in each pass. Passes in
            Python read these rows and hash them in Python.
    """

    engine: Engine
    request: ExportRequest
    source: Relation
    function: HashRows | None = None
    by_engine: bool = False
    unhashed: Relation | None = None

    @property
    def relation(self) -> Relation:
        """All columns, hash and group included."""
        if self.function is None:
            return self.source
        schema = pa.schema([*self.request.schema, *HASH_COLUMNS])
        return self.engine.map_batches(self.source, self.function, schema=schema)

    def aggregate(
        self,
        accumulator: Accumulator[State, Result],
        *,
        columns: Sequence[str] = (),
        function: BatchFunction | None = None,
        threads: int = _COUNTING_THREADS,
    ) -> Result:
        """Aggregate hash, group and ``columns`` after applying ``function`` to each batch."""
        rows = self
        if self.unhashed is not None:
            rows = HashedRows(self.engine, self.request, self.unhashed, HashRows.of(self.request))
        narrow = rows._select_columns(columns)
        functions: list[BatchFunction] = []
        if rows.function is not None:
            functions.append(HashRows.of(self.request, with_columns=bool(columns)))
            if columns:
                # Batches of an engine may have other physical types than the request.
                fields = [self.request.schema.field(name) for name in narrow.schema.names]
                functions.append(partial(cast_batch, schema=pa.schema([*fields, *HASH_COLUMNS])))
        if function is not None:
            functions.append(function)
        mapped = MappedAccumulator(FunctionChain(tuple(functions)), accumulator, threads)
        result: Result = self.engine.aggregate(narrow, mapped)
        return result

    def hashes(self, *functions: BatchFunction | None) -> Relation:
        """Apply functions to the columns hash and group; they must return the same two columns."""
        chained = [function for function in functions if function is not None]
        if self.function is not None:
            chained.insert(0, HashRows.of(self.request, with_columns=False))
        rows = self._select_columns(())
        return self.engine.map_batches(rows, FunctionChain(tuple(chained)), schema=HASH_COLUMNS)

    def map_rows(self, function: BatchFunction, *, schema: pa.Schema) -> Relation:
        """Apply a function to all columns, hash and group included."""
        if self.function is not None:
            function = FunctionChain((self.function, function))
        return self.engine.map_batches(self.source, function, schema=schema)

    def _select_columns(self, columns: Iterable[str]) -> Relation:
        """Select the source columns that a pass needs."""
        needed = {HASH, GROUP, *columns}
        if self.function is not None:
            needed = {*self.request.key, *self.request.rule.columns, *columns}
        names = [name for name in self.source.schema.names if name in needed]
        if names == self.source.schema.names:
            return self.source
        return self.engine.select(self.source, dict(zip(names, names, strict=True)))


def hash_rows(
    engine: Engine,
    relation: Relation,
    request: ExportRequest,
    *,
    plan: FeaturePlan | None,
    directory: str,
) -> HashedRows:
    """Add hash and group to rows, which several passes can then read.

    If the engine supports it, it keeps the rows in memory. Otherwise, computed rows are staged as
    Parquet in ``directory``. If the rows come from a single pinned group, each pass reads them
    again, which is cheaper than staging.
    """
    # A pinned group is immutable, so each pass reads the same rows.
    is_pinned_group = plan is not None and plan.left_source is not None and not plan.joins
    engine_rows = hash_rows_in_engine(engine, relation, request)
    if engine_rows is not None:
        if is_pinned_group:
            return HashedRows(engine, request, engine_rows, by_engine=True, unhashed=relation)
        return HashedRows(engine, request, engine.stage(engine_rows, directory), by_engine=True)
    hashed = HashedRows(engine, request, relation, HashRows.of(request))
    hashed_relation = hashed.relation
    rows = engine.hold(hashed_relation)
    if rows is not hashed_relation and not rows.single_use:
        return HashedRows(engine, request, rows)
    # A stream would be consumed by the first pass.
    if is_pinned_group and not relation.single_use:
        return hashed
    return HashedRows(engine, request, engine.stage(rows, directory))


def handle_missing_labels(rows: HashedRows) -> tuple[HashedRows, int]:
    """Drop the rows without label if the policy is "drop"; return the rows and the dropped number."""
    if rows.request.training.missing_labels != DROP:
        return rows, 0
    engine = rows.engine
    missing = missing_labels_predicate(engine, rows.request.labels)
    dropped = engine.count(engine.filter(rows.source, missing))
    if not dropped:
        return rows, 0
    labeled = engine.filter(rows.source, f"NOT ({missing})")
    unhashed = rows.unhashed
    if unhashed is not None:
        unhashed = engine.filter(unhashed, f"NOT ({missing})")
    labeled_rows = HashedRows(
        engine, rows.request, labeled, rows.function, rows.by_engine, unhashed
    )
    return labeled_rows, dropped


def missing_labels_predicate(engine: Engine, labels: Sequence[str]) -> str:
    """Return the SQL condition of rows that lack any of the labels."""
    names = [quote(name, dialect=engine.dialect) for name in labels]
    return " OR ".join(f"{name} IS NULL" for name in names)


class Ranges(NamedTuple):
    """Numbered ranges of sortable hashes: all starts but the first, and all numbers."""

    starts: list[int]
    numbers: list[int]


def hash_rows_in_engine(
    engine: Engine, relation: Relation, request: ExportRequest
) -> Relation | None:
    """Add hash and group to rows by engine functions; return None if the engine cannot."""
    rule, seed = request.rule, request.training.seed
    if relation.single_use:
        return None
    # Time ranges and classes are assigned by Python functions only.
    if not isinstance(rule.rule, FractionSplit) or rule.stratify:
        return None
    if not relation.schema.equals(request.schema):  # the Python path casts the batches
        return None
    starts = _to_sortable_list(split_thresholds(rule.rule).tolist())
    # Two equal thresholds enclose an empty range, which range numbers cannot express.
    ranges = _none_if_empty(Ranges(starts, list(range(len(starts) + 1))))
    if ranges is None:
        return None
    hashed = engine.with_row_hash(relation, request.key, seed=seed, name=HASH)
    if hashed is None:
        return None
    # The group is the split here, which a separate hash determines if there is split_by.
    if not rule.split_columns:
        return _add_range_numbers(engine, hashed, HASH, ranges, name=GROUP)
    split = engine.with_row_hash(hashed, rule.split_columns, seed=seed, name=_SPLIT_HASH)
    if split is None:
        return None
    grouped = _add_range_numbers(engine, split, _SPLIT_HASH, ranges, name=GROUP)
    return _drop_column(engine, grouped, _SPLIT_HASH)


def count_ranges_in_engine(
    rows: HashedRows, ranges: HashRanges, bits: int
) -> dict[int, RangeCounts] | None:
    """Count the rows in the ranges of any group in the engine.

    None if the engine cannot count them and the caller must count Arrow batches.
    """
    engine = rows.engine
    numbered = _add_range_numbers(engine, rows.source, HASH, _number_ranges(ranges), name=_INSIDE)
    inside = engine.select(engine.filter(numbered, f"{_INSIDE} = 1"), {HASH: HASH, GROUP: GROUP})
    return count_leading_bits(engine, inside, bits)


def count_leading_bits(
    engine: Engine, hashed: Relation, bits: int
) -> dict[int, RangeCounts] | None:
    """Count the rows of each group by the leading bits of their hash, None if an engine cannot."""
    counts_by_group = engine.hashes_of_groups(hashed, hashes=HASH, group=GROUP, bits=bits)
    if counts_by_group is None:
        return None
    return {
        group: RangeCounts(from_sortable(starts), rows)
        for group, (starts, rows) in counts_by_group.items()
    }


def assign_shards_in_engine(rows: HashedRows, assignment: Assignment) -> Relation | None:
    """Replace the group of each row by its shard in the engine; shards ascend with the hash.

    None if the shard does not depend only on the hash: if ``split_by`` or ``stratify`` determines
    the split, or if a boundary divides rows with the same hash.
    """
    engine, rule = rows.engine, rows.request.rule
    if not isinstance(rule.rule, FractionSplit) or rule.split_columns or rule.stratify:
        return None
    ranges = _shard_ranges(rule.rule, assignment)
    if ranges is None:
        return None
    numbered = _add_range_numbers(engine, rows.source, HASH, ranges, name=SHARD)
    return _drop_column(engine, numbered, GROUP)


def _number_ranges(ranges: HashRanges) -> Ranges:
    """Assign the number 1 to hashes in a range of any group, and 0 to all other hashes."""
    size = 1 << (HASH_BITS - ranges.bits)
    starts = set(ranges.all_starts.tolist())
    edges = starts ^ {start + size for start in starts}  # one range may begin where another ends
    inside = int(0 in edges)
    inner = sorted(edges - {0, 1 << HASH_BITS})
    numbers = [(inside + index) % 2 for index in range(len(inner) + 1)]
    return Ranges(_to_sortable_list(inner), numbers)


def _shard_ranges(rule: FractionSplit, assignment: Assignment) -> Ranges | None:
    """Return the hash range of each shard; None if a boundary divides rows with the same hash."""
    starts: list[int] = []
    numbers: list[int] = []
    first_hashes = [0, *split_thresholds(rule).tolist()]
    for split, boundaries in enumerate(assignment.boundaries):
        # A shard that begins inside a hash needs the skip logic of the writer.
        if any(boundary.offset for boundary in boundaries):
            return None
        starts += [first_hashes[split], *(boundary.hash for boundary in boundaries)]
        first = assignment.first_shard[split]
        numbers += range(first, first + 1 + len(boundaries))
    return _none_if_empty(Ranges(_to_sortable_list(starts[1:]), numbers))


def _to_sortable_list(hashes: Sequence[int]) -> list[int]:
    numbers: list[int] = to_sortable(np.array(hashes, dtype=np.uint64)).tolist()
    return numbers


def _none_if_empty(ranges: Ranges) -> Ranges | None:
    """Return the ranges, or None if any range is empty."""
    for start, next_start in pairwise(ranges.starts):
        if start >= next_start:
            return None
    return ranges


def _add_range_numbers(
    engine: Engine, relation: Relation, column: str, ranges: Ranges, *, name: str
) -> Relation:
    return engine.with_range_number(
        relation, column, starts=ranges.starts, numbers=ranges.numbers, name=name
    )


def _drop_column(engine: Engine, relation: Relation, column: str) -> Relation:
    names = [name for name in relation.schema.names if name != column]
    return engine.select(relation, dict(zip(names, names, strict=True)))
