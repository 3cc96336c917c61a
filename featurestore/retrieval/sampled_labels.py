"""A sample of the labels of a retrieval, in memory, and the plan over them.

Used by checks of single labels: leaks and coverage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument
from featurestore.model.plan import ROW, FeaturePlan
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Relation
from featurestore.retrieval.execution import (
    Labels,
    run_query,
    schema_of_all,
    with_compiled_conditions,
)
from featurestore.retrieval.on_demand import compute_on_demand
from featurestore.session import Session

# The microseconds of a label without a time.
NEVER = np.iinfo(np.int64).min


def joins_something(plan: FeaturePlan) -> bool:
    """Return True if a plan, or one that feeds it, joins groups to labels."""
    return bool(plan.every_join) or (plan.left_plan is not None and joins_something(plan.left_plan))


def over_labels(plan: FeaturePlan, labels: pa.Schema) -> FeaturePlan:
    """Return the plan over labels in memory: every output, no filter, one row for each label."""
    schema = schema_of_all(plan, labels)
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
    """Return a sample of the left side of the first plan in the chain; only its columns are read."""
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
        relation = run_query(session, first.left_query)
    elif labels is not None:
        relation = labels()
    else:
        raise InvalidArgument("The frame has no labels any more.")
    return _reservoir(session, relation, sample=sample, seed=seed)


def _reservoir(session: Session, relation: Relation, *, sample: int, seed: int) -> pa.Table:
    """Return the rows with the smallest of seeded random numbers, in their order."""
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
        if len(priorities) > sample:
            smallest = np.sort(np.argpartition(priorities, sample)[:sample])
            sampled_rows, priorities = sampled_rows.take(pa.array(smallest)), priorities[smallest]
    if sampled_rows is None:
        sampled_rows = pa.Table.from_batches([], relation.schema)
    if ROW in sampled_rows.column_names:
        return sampled_rows.drop([ROW])
    return sampled_rows


def label_times(plan: FeaturePlan, labels: pa.Table) -> np.ndarray[Any, Any]:
    """Return the time of each label as microseconds since 1970, NEVER where it has none."""
    if plan.fixed_time is not None:
        return np.full(labels.num_rows, to_micros(plan.fixed_time))
    if plan.left_time is None:
        return np.full(labels.num_rows, NEVER)
    return micros_of(labels.column(plan.left_time))


def micros_of(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Return times as microseconds since 1970; NEVER for null."""
    if pat.is_date(column.type):
        column = column.cast(pa.timestamp("us", tz="UTC"))
    micros = column.cast(pa.int64()).combine_chunks()
    return np.asarray(micros.fill_null(NEVER))


def run_over(session: Session, plan: FeaturePlan, labels: pa.Table) -> pa.Table:
    """Return the rows of a plan over labels in memory, one for each label in its order."""
    numbered = labels.append_column(ROW, pa.array(np.arange(labels.num_rows), pa.int64()))
    engine = session.engine
    plan = with_compiled_conditions(plan, dialect=engine.dialect)
    label_relation = engine.from_arrow(numbered.to_reader())
    if plan.on_demand:
        plan, label_relation = compute_on_demand(engine, plan, label_relation)
    relation = engine.retrieve(plan, labels=label_relation)
    return engine.stream(relation).read_all()
