"""Samples of labels in memory, and the rows of a group that each label may use.

Checks of individual labels (leaks, coverage) run a plan over a sample of labels. The leak check also
searches the rows that a join as of a time matches, independently of the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument
from featurestore.hashing import tie_hash
from featurestore.model.plan import ROW, FeaturePlan, Join, WindowJoin
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Relation
from featurestore.retrieval import execution
from featurestore.retrieval.execution import Labels
from featurestore.session import Session

Ints: TypeAlias = npt.NDArray[np.int64]
# The values of a key, by key column.
KeyValues: TypeAlias = tuple[object, ...]
# The value in microseconds for a label without a time.
NEVER = np.iinfo(np.int64).min


def has_joins(plan: FeaturePlan) -> bool:
    """Return whether a plan or one of its left plans joins groups to labels."""
    return bool(plan.all_joins) or (plan.left_plan is not None and has_joins(plan.left_plan))


def plan_over_labels(plan: FeaturePlan, labels: pa.Schema) -> FeaturePlan:
    """Return a plan over labels in memory with all outputs, no filters, and one row per label."""
    schema = execution.computed_schema(plan, labels)
    return replace(
        plan,
        left_source=None,
        left_plan=None,
        left_query=None,
        left_schema=labels,
        how="left",
        filters=(),
        samples=(),
        keep_order=True,
        columns=tuple(schema.names),
        schema=schema,
    )


def sampled_labels(
    session: Session, plan: FeaturePlan, labels: Labels | None, *, sample: int, seed: int
) -> pa.Table:
    """Sample the labels, which are the left side of the first plan; read only needed columns."""
    first = plan
    while first.left_plan is not None:
        first = first.left_plan
    engine = session.engine
    if first.left_source is not None:
        source = first.left_source
        relation = engine.read_table(
            source.path, version=source.delta_version, schema=source.spec.schema
        )
    elif first.left_query is not None:
        relation = execution.run_query(session, first.left_query)
    elif labels is not None:
        relation = labels()
    else:
        raise InvalidArgument("The frame no longer has its labels.")
    return sample_by_priority(session, relation, sample=sample, seed=seed)


def sample_by_priority(session: Session, relation: Relation, *, sample: int, seed: int) -> pa.Table:
    """Sample the rows with the smallest seeded random numbers, preserving the row order."""
    random = np.random.default_rng(seed)
    sampled_rows: pa.Table | None = None
    priorities = np.zeros(0)
    for batch in session.engine.stream(relation):
        batch_priorities = random.random(batch.num_rows)
        table = pa.Table.from_batches([batch])
        if sampled_rows is None:
            sampled_rows = table
        else:
            sampled_rows = pa.concat_tables([sampled_rows, table])
        priorities = np.concatenate([priorities, batch_priorities])
        # After each batch only the rows with the smallest priorities remain, so memory is bounded
        # by the sample and a batch.
        if len(priorities) > sample:
            # argpartition returns positions in any order; sorting restores the row order.
            smallest = np.sort(np.argpartition(priorities, sample)[:sample])
            sampled_rows, priorities = sampled_rows.take(pa.array(smallest)), priorities[smallest]
    if sampled_rows is None:
        sampled_rows = pa.Table.from_batches([], relation.schema)
    if ROW in sampled_rows.column_names:
        return sampled_rows.drop([ROW])
    return sampled_rows


def label_times(plan: FeaturePlan, labels: pa.Table) -> Ints:
    """Return the time of each label in microseconds since 1970, or NEVER if it has none."""
    if plan.fixed_time is not None:
        return np.full(labels.num_rows, to_micros(plan.fixed_time))
    if plan.left_time is None:
        return np.full(labels.num_rows, NEVER)
    return to_microseconds(labels.column(plan.left_time))


def to_microseconds(column: pa.ChunkedArray) -> Ints:
    """Convert times to microseconds since 1970, and nulls to NEVER."""
    # Dates have no cast to int64 microseconds.
    if pat.is_date(column.type):
        column = column.cast(pa.timestamp("us", tz="UTC"))
    micros = column.cast(pa.int64()).combine_chunks()
    return np.asarray(micros.fill_null(NEVER))


def run_over_labels(session: Session, plan: FeaturePlan, labels: pa.Table) -> pa.Table:
    """Run a plan over labels in memory; return one row per label, in the order of the labels."""
    numbered = labels.append_column(ROW, pa.array(np.arange(labels.num_rows), pa.int64()))
    engine = session.engine
    plan = execution.compile_window_conditions(plan, dialect=engine.dialect)
    label_relation = engine.from_arrow(numbered.to_reader())
    computed_times = execution.find_computed_times(plan)
    if plan.on_demand:
        plan, label_relation = execution.compute_on_demand(engine, plan, label_relation)
    relation = computed_times.check(engine.retrieve(plan, labels=label_relation), engine=engine)
    return engine.stream(relation).read_all()


class EligibleRows:
    """The rows of a group, sorted by key and rank, to search for each label."""

    def __init__(self, join: Join, rows: pa.Table) -> None:
        self._join = join
        keys = key_tuples(rows, [key for _, key in join.on])
        times, ranks = [], []
        for name in (join.event_time, join.created_time):
            if name is not None:
                times.append(name)
                ranks.append(to_microseconds(rows.column(name)))
        ties = np.zeros(0, np.uint64)
        if rows.num_rows:
            ties = tie_hash(rows)
        # The last key of lexsort is the primary one: event time, then created time, then tie hash.
        order = np.lexsort((ties, *reversed(ranks)))
        self._table = rows.take(pa.array(order))
        # A group without declared times is limited by all its time columns, the strictest
        # assumption.
        limiting_times = [
            to_microseconds(rows.column(name))[order] for name in (times or time_columns(join))
        ]
        self._eligible_from = np.full(len(order), NEVER + 1)
        self._has_times = np.ones(len(order), bool)
        if limiting_times:
            self._eligible_from = np.max(limiting_times, axis=0)
        if times:
            # A row without a declared time is never known. Nulls in other time columns have no
            # meaning.
            self._has_times = np.min(limiting_times, axis=0) != NEVER
        self._event: Ints | None = None
        if times:
            self._event = ranks[0][order]
        positions: dict[KeyValues, list[int]] = {}
        for position, index in enumerate(order.tolist()):
            if None not in keys[index]:
                positions.setdefault(keys[index], []).append(position)
        # Converted once, since several labels may have the key.
        self._positions = {key: np.array(numbers) for key, numbers in positions.items()}

    def find_values(self, keys: Sequence[KeyValues], times: Ints) -> dict[str, pa.Array]:
        """Find the value of each output for each label, by output name."""
        row_numbers = [
            self._find_best_row(key, int(time)) for key, time in zip(keys, times, strict=True)
        ]
        row_indices = pa.array(row_numbers, pa.int64())
        values = {}
        for output in self._join.outputs:
            column = self._table.column(output.column).combine_chunks()
            if len(column):
                values[output.name] = column.take(row_indices)
            else:
                values[output.name] = pa.nulls(len(row_numbers), column.type)
        return values

    def _find_best_row(self, key: KeyValues, time: int) -> int | None:
        """Return the row with the highest rank that is eligible at a time, or None."""
        positions = self._positions.get(key, np.zeros(0, np.int64))
        if time == NEVER:  # a label without time meets only rows that need none
            if self._event is not None:
                positions = positions[:0]
        else:
            positions = positions[
                self._has_times[positions] & (self._eligible_from[positions] <= time)
            ]
        if not len(positions):
            return None
        # Rows are sorted by rank, so the last eligible one is the maximum.
        last = int(positions[-1])
        if self._join.ttl is not None and self._event is not None:
            age = time - int(self._event[last])
            if age > self._join.ttl.total_seconds() * 1e6:
                return None
        return last


def time_columns(join: Join | WindowJoin) -> list[str]:
    """Return the time columns of the group that a join reads."""
    schema = join.source.spec.schema
    return [
        field.name for field in schema if pat.is_timestamp(field.type) or pat.is_date(field.type)
    ]


def key_tuples(table: pa.Table, columns: Sequence[str]) -> list[KeyValues]:
    """Return the values of key columns, as one tuple per row."""
    values = [table.column(name).to_pylist() for name in columns]
    return list(zip(*values, strict=True))
