"""Runs a feature plan: the left side, the engine's joins, then the filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from featurestore import usersql
from featurestore.hashing import row_hash
from featurestore.model.plan import ROW, FeaturePlan, QuerySource, RowSample
from featurestore.plugins.engine import Engine, Relation
from featurestore.retrieval.on_demand import compute_on_demand
from featurestore.session import Session

Labels = Callable[[], Relation]
_SAMPLE_SEED = 0x53414D504C45


def run(session: Session, plan: FeaturePlan, *, labels: Labels | None = None) -> Relation:
    """Return the rows of a plan.

    Args:
        session: The connection whose engine runs the plan.
        plan: What to retrieve.
        labels: Returns the relation of the caller's labels, if the plan (or the plan that feeds
            it) has some; called once for each run, since a relation over a stream can be read once.
    """
    engine = session.engine
    labels_relation: Relation | None = None
    if plan.left_plan is not None:
        feeding = plan.left_plan
        if plan.keep_order or ROW in plan.left_columns:
            feeding = _with_row(feeding)
        labels_relation = run(session, feeding, labels=labels)
    elif plan.left_query is not None:
        labels_relation = run_query(session, plan.left_query)
    elif plan.left_source is None and labels is not None:
        labels_relation = labels()
    if plan.on_demand and labels_relation is not None:
        plan, labels_relation = compute_on_demand(engine, plan, labels_relation)
    plan = with_compiled_conditions(plan, dialect=engine.dialect)
    if not plan.cuts_rows:
        return engine.retrieve(plan, labels=labels_relation)
    relation = engine.retrieve(_without_filters(plan), labels=labels_relation)
    for text in plan.filters:
        condition = usersql.predicate(text, schema=relation.schema, dialect=engine.dialect)
        relation = engine.filter(relation, condition)
    for sample in plan.samples:
        relation = sample_rows(engine, relation, sample)
    return engine.select(relation, dict(zip(plan.columns, plan.columns, strict=True)))


def run_query(session: Session, query: QuerySource) -> Relation:
    """Return the rows of a user's query over the pinned versions of its groups.

    Raises:
        InvalidSql: The engine cannot run it.
    """
    engine = session.engine
    names = [name for name, _ in query.tables]
    text = usersql.query(query.sql, tables=names, dialect=engine.dialect)
    tables = {}
    for name, source in query.tables:
        schema = source.spec.schema
        columns = usersql.columns_read(query.sql, schema.names)
        tables[name] = engine.read_table(
            source.path, version=source.delta_version, schema=schema, columns=columns
        )
    return engine.user_sql(text, tables=tables, parameters={})


def sample_rows(engine: Engine, relation: Relation, sample: RowSample) -> Relation:
    """Return the rows of a sample, the same ones on every engine and at every reading."""
    return engine.map_batches(relation, _SampledRows(sample), schema=relation.schema)


@dataclass(frozen=True)
class _SampledRows:
    """Keeps the rows of a batch whose hash is low."""

    sample: RowSample

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Splits of training datasets use the same hash: with another seed a sample has rows of
        # every split.
        seed = self.sample.seed ^ _SAMPLE_SEED
        hashes = row_hash(batch, columns=self.sample.by, seed=seed)
        limit = int(self.sample.fraction * 2**64)
        if limit >= 2**64:
            return batch
        return batch.filter(pa.array(hashes < np.uint64(limit)))


def _without_filters(plan: FeaturePlan) -> FeaturePlan:
    """Return the plan with all columns and all rows.

    A filter may read columns that are not returned.
    """
    schema = schema_of_all(plan, plan.left_schema)
    return replace(plan, columns=tuple(schema.names), schema=schema, filters=(), samples=())


def schema_of_all(plan: FeaturePlan, labels: pa.Schema) -> pa.Schema:
    """Return the schema of all columns that a plan computes, also of those it does not return."""
    fields = [labels.field(plan.left_column(name)).with_name(name) for name in plan.left_columns]
    for join in plan.joins:
        group_schema = join.source.spec.schema
        for output in join.outputs:
            fields.append(group_schema.field(output.column).with_name(output.name))
    for window in plan.windows:
        for aggregate in window.outputs:
            fields.append(pa.field(aggregate.name, aggregate.kind))
    for computed_output in plan.on_demand:
        fields.append(pa.field(computed_output.name, computed_output.kind))
    return pa.schema(fields)


def with_compiled_conditions(plan: FeaturePlan, *, dialect: str) -> FeaturePlan:
    """Return a plan whose window conditions are in the SQL of an engine."""
    if not plan.windows:
        return plan
    windows = []
    for join in plan.windows:
        outputs = []
        for output in join.outputs:
            if output.where is not None:
                schema = join.source.spec.schema
                compiled = usersql.predicate(output.where, schema=schema, dialect=dialect)
                output = replace(output, where=compiled)
            outputs.append(output)
        windows.append(replace(join, outputs=tuple(outputs)))
    return replace(plan, windows=tuple(windows))


def _with_row(plan: FeaturePlan) -> FeaturePlan:
    """Return the plan that returns the labels' row numbers instead of sorting by them."""
    position = pa.field(ROW, pa.int64())
    return replace(
        plan,
        left_schema=plan.left_schema.append(position),
        left_columns=(*plan.left_columns, ROW),
        columns=(*plan.columns, ROW),
        schema=plan.schema.append(position),
        keep_order=False,
    )
