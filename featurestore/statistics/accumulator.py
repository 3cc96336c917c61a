"""The accumulator of table statistics, and the rows that it adds to the sample."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.roles import Role
from featurestore.plugins.engine import Accumulator
from featurestore.statistics.counts import (
    ColumnCounts,
    count_measured,
    count_values,
    dictionary_encode,
)
from featurestore.statistics.moments import CoMoments, batch_moments, co_moments
from featurestore.statistics.row_hashes import add_lower_halves, is_within_bound, upper_halves
from featurestore.statistics.state import (
    CountedColumn,
    StatisticsState,
    TableSample,
    counted_columns,
    merge,
    paired_columns,
    sample_schema,
)
from featurestore.statistics.values import Values, measured_values, text_prefix, value_lengths

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

# The expected number of rows with hashes below the bound, relative to the sample size. With this
# margin, random variation rarely makes the sample too small.
_SAMPLE_MARGIN = 1.1
MAX_ROWS = 25_000
# Samples of wide tables have fewer rows, because every value of the sample is sorted.
_MAX_CELLS = 3_200_000
_MIN_ROWS = 10_000
# Longer strings are stored as a prefix and a hash, which suffices to count and display them.
MAX_TEXT_BYTES = 256
_TEXT_PREFIX = 200


@dataclass(frozen=True)
class StatisticsAccumulator(Accumulator[StatisticsState, StatisticsState]):
    """Accumulator of table statistics.

    ``limit`` is the maximum number of distinct rows in the sample. Only rows with hashes up to
    ``bound`` are sampled, so that the states of all partitions together contain only slightly more
    rows than one sample.
    """

    columns: tuple[CountedColumn, ...]
    seed: int
    limit: int
    bound: int | None = None

    def start(self) -> StatisticsState:
        """Return an empty state."""
        sample = TableSample(sample_schema(self.columns), self.limit)
        # Rows above the bound are never added, so the sample counts as truncated from the start.
        if self.bound is not None:
            sample.bound, sample.is_truncated = np.uint64(self.bound), True
        return StatisticsState(
            self.columns,
            self.seed,
            sample,
            counts={column.name: ColumnCounts() for column in self.columns},
            co_moments=CoMoments.empty(len(paired_columns(self.columns))),
        )

    def update(self, state: StatisticsState, batch: pa.RecordBatch) -> StatisticsState:
        """Add the rows of a batch to the state in place."""
        if not batch.num_rows:
            return state
        state.rows += batch.num_rows
        # Columns with too many distinct strings are not probed again in later batches.
        repeating_names = [
            column.name
            for column in self.columns
            if column.value_kind == "text" and state.counts[column.name].values is not None
        ]
        batch = dictionary_encode(batch, repeating_names)
        # Squares of values near the limits of float64 overflow; statistics computed from them are
        # reported as missing.
        with np.errstate(over="ignore", invalid="ignore"):
            measured = self._update_counts(state, batch)
        _add_to_sample(batch, measured, state.sample, self.seed)
        return state

    def _update_counts(self, state: StatisticsState, batch: pa.RecordBatch) -> dict[str, Values]:
        """Update the counts of all columns, and return the values of the measured columns."""
        measured, batch_counts = {}, {}
        for column in self.columns:
            name, values = column.name, batch.column(column.name)
            few_values = state.counts[name].values is not None
            if column.measured:
                measured[name] = measured_values(values)
                batch_counts[name] = count_measured(measured[name], counts_distinct=few_values)
            else:
                batch_counts[name] = count_values(
                    values, column.value_kind, counts_distinct=few_values
                )
        # Moments are added after all columns are measured, because co-moments need the columns of a
        # batch together.
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
        """Add the moments of measured columns and the co-moments of column pairs."""
        pairwise = [column.name for column in paired_columns(self.columns)]
        for name, values in measured.items():
            if name not in pairwise:
                batch_counts[name].moments = batch_moments(values)
        if pairwise:
            # The diagonal of the co-moments has the moments of each column, so they are not
            # computed twice.
            pair_moments = co_moments([measured[name] for name in pairwise])
            for index, name in enumerate(pairwise):
                batch_counts[name].moments = pair_moments.column_moments(index)
            state.co_moments = state.co_moments.merge(pair_moments)

    def merge(self, first: StatisticsState, second: StatisticsState) -> StatisticsState:
        """Merge the second state into the first state in place."""
        return merge(first, second)

    def finish(self, state: StatisticsState) -> StatisticsState:
        """Compact the sample and return the state."""
        state.sample.compact()
        return state


def sample_limit(columns: int) -> int:
    """Return the maximum number of distinct rows in a sample, by the number of columns.

    >>> sample_limit(20), sample_limit(640)
    (25000, 10000)
    """
    return min(MAX_ROWS, max(_MIN_ROWS, _MAX_CELLS // max(columns, 1)))


def statistics_accumulator(
    table: FeatureGroupSpec | pa.Schema,
    *,
    seed: int = 0,
    limit: int | None = None,
    rows: int | None = None,
    roles: Mapping[str, Role] | None = None,
) -> StatisticsAccumulator:
    """Return an accumulator of table statistics, for ``Engine.aggregate``.

    Args:
        table: The spec of a feature group, or a schema of feature types. Keys and times of a group
            are excluded from the correlations.
        seed: The seed of the row hashes that select the sample.
        limit: The maximum number of distinct rows in the sample; None for 25,000, or fewer if the
            table has more than 128 columns.
        rows: The number of rows, if known, so that each partition samples only its share. If many
            rows are duplicates, the sample is smaller than ``limit``; ``count_statistics`` then
            repeats the aggregation without a bound.
        roles: The column roles of a training dataset; only inputs and labels are correlated.

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
    if rows is not None and rows > limit * _SAMPLE_MARGIN:
        bound = int(2**64 * limit * _SAMPLE_MARGIN / rows)
    return StatisticsAccumulator(columns, seed, limit, bound)


def count_statistics(
    engine: Engine,
    relation: Relation,
    table: FeatureGroupSpec | pa.Schema,
    *,
    rows: int | None = None,
    seed: int = 0,
) -> StatisticsState:
    """Aggregate the statistics of a relation and return the state.

    Args:
        engine: The engine of the relation.
        relation: The rows. They are read a second time if many rows are duplicates, except for a
            single-use relation.
        table: The same argument as for ``statistics_accumulator``.
        rows: The number of rows, if known.
        seed: The seed of the row hashes that select the sample.
    """
    # A single-use relation can neither be counted first nor be read again if the sample is too
    # small, so its sample has no bound.
    if not relation.single_use:
        if rows is None:
            rows = engine.count(relation)
        accumulator = statistics_accumulator(table, seed=seed, rows=rows)
        state = engine.aggregate(relation, accumulator)
        if not is_sample_short(accumulator, state):
            return state
    return engine.aggregate(relation, statistics_accumulator(table, seed=seed))


def is_sample_short(accumulator: StatisticsAccumulator, state: StatisticsState) -> bool:
    """Return True if a bounded sample is too small because many rows are duplicates."""
    if accumulator.bound is None:
        return False
    state.sample.compact()
    return len(state.sample.weights()) < accumulator.limit


def _add_to_sample(
    batch: pa.RecordBatch, measured: Mapping[str, Values], sample: TableSample, seed: int
) -> None:
    """Add those rows of a batch to the sample whose hashes are within the bound."""
    # A table that contains only structs has no sampled columns. All of its rows have the same hash
    # and count as copies of one empty row.
    if not sample.schema.names:
        sample.add(np.zeros(batch.num_rows, dtype=np.uint64), batch.select([]))
        return
    rows = to_hashable_rows(batch, sample.schema)
    hashes = upper_halves(rows, measured, seed=seed)
    # Rows are filtered before their strings are shortened and their lower halves are computed,
    # which is expensive.
    if sample.is_truncated:
        is_candidate = is_within_bound(hashes, sample.bound)
        hashes, rows = hashes[is_candidate], rows.filter(pa.array(is_candidate))
    rows = to_sampled_rows(rows)
    sample.add(add_lower_halves(hashes, rows, seed=seed), rows)


def to_hashable_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns to hash, with lengths instead of binaries and lists."""
    columns = []
    for name, dtype in zip(schema.names, schema.types, strict=True):
        column = batch.column(name)
        if column.type != dtype and not pat.is_dictionary(column.type):
            column = _value_lengths(column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def to_sampled_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows for the sample: decode dictionaries and shorten long strings."""
    columns = []
    for column in rows.columns:
        if pat.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pat.is_string(column.type) and column.nbytes > MAX_TEXT_BYTES * len(column) // 8:
            column = _shorten_strings(column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _value_lengths(column: pa.Array) -> pa.Array:
    """Return the length of each value, null for null values."""
    if not column.null_count:
        return pa.array(value_lengths(column))
    lengths = np.zeros(len(column), dtype=np.int64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    lengths[valid] = value_lengths(column)
    return pa.array(lengths, mask=~valid)


def _shorten_strings(column: pa.Array) -> pa.Array:
    """Replace long strings by a prefix and a digest of the complete string."""
    too_long = pc.fill_null(pc.greater(pc.binary_length(column), MAX_TEXT_BYTES), False)
    if not pc.any(too_long).as_py():
        return column
    shortened = []
    for row in np.flatnonzero(too_long):
        text = column[int(row)]
        digest = hashlib.sha256(text.as_buffer()).hexdigest()[:16]
        shortened.append(f"{text_prefix(text, _TEXT_PREFIX)}…{digest}")
    return pc.replace_with_mask(column, too_long, pa.array(shortened, column.type))
