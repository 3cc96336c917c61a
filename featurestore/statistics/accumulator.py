"""The accumulator of a table's statistics: counts and co-moments of all rows, and the sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.roles import Role
from featurestore.plugins.engine import Accumulator
from featurestore.statistics.counts import ColumnCounts, count_measured, count_values
from featurestore.statistics.kinds import CountedColumn, counted_columns, paired_columns
from featurestore.statistics.moments import CoMoments, batch_moments, co_moments
from featurestore.statistics.sample import (
    Sample,
    hashable_rows,
    sample_limit,
    sample_schema,
    sampled_rows,
)
from featurestore.statistics.sampling_hash import upper_halves, with_lower_halves, within_bound
from featurestore.statistics.value_counts import with_dictionaries
from featurestore.statistics.values import Values, measured_values

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

# On average this multiple of the sample size has hashes below the bound, so that random variation
# rarely leaves the sample short.
_MARGIN = 1.1


@dataclass
class StatisticsState:
    """The counts of all rows so far. Pickled in the compact format of ``codec``."""

    columns: tuple[CountedColumn, ...]
    seed: int
    sample: Sample
    rows: int = 0
    counts: dict[str, ColumnCounts] = field(default_factory=dict)
    co_moments: CoMoments = field(default_factory=lambda: CoMoments.empty(0))

    def __reduce__(self) -> tuple[Callable[[bytes], StatisticsState], tuple[bytes]]:
        from featurestore.statistics.codec import state_from_bytes, state_to_bytes

        return state_from_bytes, (state_to_bytes(self),)


@dataclass(frozen=True)
class StatisticsAccumulator(Accumulator[StatisticsState, StatisticsState]):
    """Accumulator of the statistics of a table.

    ``limit`` is the maximum number of distinct rows in the sample. Only rows with hashes up to
    ``bound`` are sampled, so that the states of all partitions together hold about one sample.
    """

    columns: tuple[CountedColumn, ...]
    seed: int
    limit: int
    bound: int | None = None

    def start(self) -> StatisticsState:
        """Return the state of no rows."""
        return empty_state(self.columns, seed=self.seed, limit=self.limit, bound=self.bound)

    def update(self, state: StatisticsState, batch: pa.RecordBatch) -> StatisticsState:
        """Count the rows of a batch in place."""
        if not batch.num_rows:
            return state
        state.rows += batch.num_rows
        repeating_texts = [each.name for each in self.columns if self._has_few_texts(state, each)]
        batch = with_dictionaries(batch, repeating_texts)
        # Squares of values near the limits of float64 overflow; statistics computed from them are
        # reported as missing.
        with np.errstate(over="ignore", invalid="ignore"):
            measured = self._count(state, batch)
        _add_to_sample(batch, measured, state.sample, self.seed)
        return state

    def _has_few_texts(self, state: StatisticsState, column: CountedColumn) -> bool:
        return column.kind == "text" and state.counts[column.name].values is not None

    def _count(self, state: StatisticsState, batch: pa.RecordBatch) -> dict[str, Values]:
        """Count each column and return the values of numeric, boolean and time columns."""
        measured, batch_counts = {}, {}
        for column in self.columns:
            name, values = column.name, batch.column(column.name)
            few_values = state.counts[name].values is not None
            if column.measured:
                measured[name] = measured_values(values)
                batch_counts[name] = count_measured(measured[name], few_values=few_values)
            else:
                batch_counts[name] = count_values(column, values, few_values=few_values)
        self._add_moments(state, measured, batch_counts)
        for name, counts in batch_counts.items():
            state.counts[name] = state.counts[name].merge(counts)
        return measured

    def _add_moments(
        self,
        state: StatisticsState,
        measured: Mapping[str, Values],
        batch_counts: Mapping[str, ColumnCounts],
    ) -> None:
        """Add the moments of each column and of each pair of columns."""
        pairwise = [column.name for column in paired_columns(self.columns)]
        for name, values in measured.items():
            if name not in pairwise:
                batch_counts[name].moments = batch_moments(values)
        if pairwise:
            pair_moments = co_moments([measured[name] for name in pairwise])
            for index, name in enumerate(pairwise):
                batch_counts[name].moments = pair_moments.column_moments(index)
            state.co_moments = state.co_moments.merge(pair_moments)

    def merge(self, left: StatisticsState, right: StatisticsState) -> StatisticsState:
        """Add the right state to the left one in place."""
        return merge(left, right)

    def finish(self, state: StatisticsState) -> StatisticsState:
        """Return the state with its sample compacted."""
        state.sample.compact()
        return state


def statistics_accumulator(
    table: FeatureGroupSpec | pa.Schema,
    *,
    seed: int = 0,
    limit: int | None = None,
    rows: int | None = None,
    roles: Mapping[str, Role] | None = None,
) -> StatisticsAccumulator:
    """Return the accumulator that counts a table, for ``Engine.aggregate``.

    Args:
        table: The spec of a feature group, whose keys and times are excluded from the correlations,
            or a schema of feature types.
        seed: Seed of the row hashes that choose the sample.
        limit: Distinct rows in the sample; 25,000, fewer above 128 columns, when None.
        rows: The number of rows, if known: each partition then samples its share only. The sample
            is smaller than ``limit`` if many rows are copies (``count_statistics`` counts again
            without a bound then).
        roles: The roles of a training dataset's columns; only inputs and labels are correlated.

    >>> accumulator = statistics_accumulator(pa.schema([("age", pa.int64())]))
    >>> batch = pa.RecordBatch.from_pydict({"age": [31, 45]})
    >>> state = accumulator.update(accumulator.start(), batch)
    >>> accumulator.finish(state).rows
    2
    """
    columns = counted_columns(table, roles=roles)
    if limit is None:
        limit = sample_limit(len(columns))
    bound = None
    if rows is not None and rows > limit * _MARGIN:
        bound = int(2**64 * limit * _MARGIN / rows)
    return StatisticsAccumulator(columns, seed, limit, bound)


def count_statistics(
    engine: Engine,
    relation: Relation,
    table: FeatureGroupSpec | pa.Schema,
    *,
    rows: int | None = None,
    seed: int = 0,
) -> StatisticsState:
    """Return the counted state of a relation.

    Args:
        engine: The engine that holds the relation.
        relation: The rows; a relation over a stream is read once, others twice if many rows are
            copies.
        table: As for ``statistics_accumulator``.
        rows: The number of rows, if known.
        seed: Seed of the row hashes that choose the sample.
    """
    if not relation.single_use:
        if rows is None:
            rows = engine.count(relation)
        accumulator = statistics_accumulator(table, seed=seed, rows=rows)
        state = engine.aggregate(relation, accumulator)
        if not is_sample_short(accumulator, state):
            return state
    return engine.aggregate(relation, statistics_accumulator(table, seed=seed))


def is_sample_short(accumulator: StatisticsAccumulator, state: StatisticsState) -> bool:
    """Return True if a bounded accumulator sampled too few rows because many are copies."""
    if accumulator.bound is None:
        return False
    state.sample.compact()
    return len(state.sample.weights()) < accumulator.limit


def empty_state(
    columns: tuple[CountedColumn, ...], *, seed: int, limit: int, bound: int | None = None
) -> StatisticsState:
    """Return the state of no rows."""
    sample = Sample(sample_schema(columns), limit)
    if bound is not None:
        sample = Sample(sample_schema(columns), limit, np.uint64(bound), is_truncated=True)
    return StatisticsState(
        columns,
        seed,
        sample,
        counts={each.name: ColumnCounts() for each in columns},
        co_moments=CoMoments.empty(len(paired_columns(columns))),
    )


def merge(left: StatisticsState, right: StatisticsState) -> StatisticsState:
    """Add the right state to the left one, in place, and return it.

    Both count the same columns with the same seed.
    """
    left.rows += right.rows
    with np.errstate(over="ignore", invalid="ignore"):
        for name, counts in right.counts.items():
            left.counts[name] = left.counts[name].merge(counts)
        left.co_moments = left.co_moments.merge(right.co_moments)
    left.sample.merge(right.sample)
    return left


def _add_to_sample(
    batch: pa.RecordBatch, measured: Mapping[str, Values], sample: Sample, seed: int
) -> None:
    """Add the rows of a batch whose hashes are within the bound to the sample."""
    if not sample.schema.names:
        sample.add(np.zeros(batch.num_rows, dtype=np.uint64), batch.select([]))
        return
    rows = hashable_rows(batch, sample.schema)
    hashes = upper_halves(rows, measured, seed=seed)
    if sample.is_truncated:
        is_candidate = within_bound(hashes, sample.bound)
        hashes, rows = hashes[is_candidate], rows.filter(pa.array(is_candidate))
    rows = sampled_rows(rows)
    sample.add(with_lower_halves(hashes, rows, seed=seed), rows)
