"""Execution of feature plans: the left side, on-demand features, engine joins, then filters.

The planner infers the types of on-demand features, and the execution computes them. Checks of
individual labels (leaks, coverage) run the plan over a sample of labels in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore import usersql
from featurestore.errors import InvalidArgument, InvalidSql
from featurestore.hashing import row_hash
from featurestore.model.on_demand import OnDemandFeature, check_new_names
from featurestore.model.plan import ROW, FeaturePlan, OnDemandOutput, QuerySource, RowSample
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Engine, Relation
from featurestore.retrieval.computed_times import find_computed_times
from featurestore.session import Session

# The value in microseconds for a label without a time.
NEVER = np.iinfo(np.int64).min
_ROWS = "rows"
Labels = Callable[[], Relation]
_SAMPLE_SEED = 0x53414D504C45


def run(session: Session, plan: FeaturePlan, *, labels: Labels | None = None) -> Relation:
    """Return the rows of a plan.

    Args:
        session: The connection whose engine runs the plan.
        plan: The plan to run.
        labels: Returns the relation of the caller's labels, if the plan or a left plan has labels.
            It is called once per run, since a relation over a stream can be read only once.
    """
    engine = session.engine
    labels_relation: Relation | None = None
    if plan.left_plan is not None:
        feeding = plan.left_plan
        # Positions of labels must survive the left plan, whose own output order is arbitrary.
        if plan.keep_order or ROW in plan.left_columns:
            feeding = _return_row_numbers(feeding)
        labels_relation = run(session, feeding, labels=labels)
    elif plan.left_query is not None:
        labels_relation = run_query(session, plan.left_query)
    elif plan.left_source is None and labels is not None:
        labels_relation = labels()
    computed_times = find_computed_times(plan)
    if plan.on_demand and labels_relation is not None:
        plan, labels_relation = compute_on_demand(engine, plan, labels_relation)
    plan = compile_window_conditions(plan, dialect=engine.dialect)
    # Only the returned times are checked: a filter may drop those out of range.
    return computed_times.check(_retrieve(engine, plan, labels_relation), engine=engine)


def _retrieve(engine: Engine, plan: FeaturePlan, labels_relation: Relation | None) -> Relation:
    """Return the joined rows of a plan after its filters and samples."""
    if not plan.drops_rows:
        return engine.retrieve(plan, labels=labels_relation)
    # Compute all columns, since a filter may read columns that are not returned.
    schema = computed_schema(plan, plan.left_schema)
    every_row = replace(plan, columns=tuple(schema.names), schema=schema, filters=(), samples=())
    relation = engine.retrieve(every_row, labels=labels_relation)
    # Filters apply to the output, in the order of the calls, so they come after the joins.
    for filter_sql in plan.filters:
        condition = usersql.predicate(filter_sql, schema=relation.schema, dialect=engine.dialect)
        relation = engine.filter(relation, condition)
    for sample in plan.samples:
        relation = sample_rows(engine, relation, sample)
    return engine.select(relation, dict(zip(plan.columns, plan.columns, strict=True)))


def run_query(session: Session, query: QuerySource) -> Relation:
    """Run a user's query over the pinned versions of its groups.

    Raises:
        InvalidSql: The engine cannot run the query.
    """
    engine = session.engine
    names = [name for name, _ in query.tables]
    engine_sql = usersql.query(query.sql, tables=names, dialect=engine.dialect)
    tables = {}
    for name, source in query.tables:
        schema = source.spec.schema
        # Columns that the query does not name are not read.
        columns = usersql.find_columns(query.sql, schema.names)
        tables[name] = engine.read_table(
            source.path, version=source.delta_version, schema=schema, columns=columns
        )
    return engine.user_sql(engine_sql, tables=tables, parameters={})


def sample_rows(engine: Engine, relation: Relation, sample: RowSample) -> Relation:
    """Sample rows deterministically: all engines select the same rows in each read."""
    return engine.map_batches(relation, _RowSampler(sample), schema=relation.schema)


@dataclass(frozen=True)
class _RowSampler:
    """A function that selects the rows of a batch whose hash is below a threshold."""

    sample: RowSample

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Splits of training datasets use the same hash. With a different seed, a sample contains
        # rows of every split.
        seed = self.sample.seed ^ _SAMPLE_SEED
        hashes = row_hash(batch, columns=self.sample.by, seed=seed)
        limit = int(self.sample.fraction * 2**64)
        # A float of 1.0 times 2**64 does not fit uint64.
        if limit >= 2**64:
            return batch
        return batch.filter(pa.array(hashes < np.uint64(limit)))


def computed_schema(plan: FeaturePlan, labels: pa.Schema) -> pa.Schema:
    """Return the schema of all computed columns, including those that the plan does not return."""
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


def compile_window_conditions(plan: FeaturePlan, *, dialect: str) -> FeaturePlan:
    """Compile the window conditions of a plan to the SQL dialect of an engine."""
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


def _return_row_numbers(plan: FeaturePlan) -> FeaturePlan:
    """Return a plan that outputs the row numbers of the labels instead of sorting by them."""
    position = pa.field(ROW, pa.int64())
    return replace(
        plan,
        left_schema=plan.left_schema.append(position),
        left_columns=(*plan.left_columns, ROW),
        columns=(*plan.columns, ROW),
        schema=plan.schema.append(position),
        keep_order=False,
    )


def add_on_demand_features(
    features: Sequence[OnDemandFeature], *, stored_plan: FeaturePlan
) -> FeaturePlan:
    """Return a plan that adds on-demand features to the rows of another plan.

    Raises:
        ColumnConflict: A name exists already.
        InvalidSql: An expression is invalid or names an unknown column.
    """
    check_new_names(features, stored_plan.columns)
    outputs = infer_feature_types(features, schema=stored_plan.schema)
    fields = [*stored_plan.schema, *[pa.field(output.name, output.kind) for output in outputs]]
    output_names = None
    if stored_plan.requested_columns is not None:
        output_names = (*stored_plan.requested_columns, *[output.name for output in outputs])
    return FeaturePlan(
        left_source=None,
        left_schema=stored_plan.schema,
        left_columns=stored_plan.columns,
        left_time=stored_plan.left_time if stored_plan.left_time in stored_plan.columns else None,
        fixed_time=None,
        joins=(),
        columns=tuple(field.name for field in fields),
        schema=pa.schema(fields),
        keep_order=stored_plan.keep_order,
        left_plan=stored_plan,
        left_rows=stored_plan.rows,
        requested_columns=output_names,
        on_demand=outputs,
    )


def infer_feature_types(
    features: Sequence[OnDemandFeature], *, schema: pa.Schema
) -> tuple[OnDemandOutput, ...]:
    """Infer the types of on-demand features from the schema of their input rows."""
    outputs = []
    for feature in features:
        try:
            # Schemas are inferred in one dialect, so that types do not depend on the engine.
            _, kind = usersql.column_expression(feature.sql, schema=schema, dialect=usersql.DIALECT)
        except InvalidSql as error:
            raise InvalidSql(
                f"The on-demand feature {feature.name!r}: {error.message}",
                hint=_sibling_hint(error, features, schema=schema) or error.hint,
            ) from error
        outputs.append(OnDemandOutput(feature, kind))
    return tuple(outputs)


def _sibling_hint(
    error: InvalidSql, features: Sequence[OnDemandFeature], *, schema: pa.Schema
) -> str | None:
    """Return a hint if an expression refers to another on-demand feature, else None."""
    for sibling in features:
        is_absent = sibling.name not in schema.names
        if is_absent and f" the unknown column {sibling.name!r}. " in error.message:
            return (
                f"{sibling.name!r} is computed in the same call: write ({sibling.sql}) instead of "
                f"{sibling.name}, or request it in an earlier call and pass that frame as labels="
            )
    return None


def compute_on_demand(
    engine: Engine, plan: FeaturePlan, labels: Relation
) -> tuple[FeaturePlan, Relation]:
    """Add the on-demand features of a plan to labels; return the remaining plan and the labels."""
    dialect = engine.dialect
    columns = ["*"]
    fields = list(plan.left_schema)
    for output in plan.on_demand:
        feature_sql, _ = usersql.column_expression(
            output.feature.sql, schema=plan.left_schema, dialect=dialect
        )
        columns.append(f"{feature_sql} AS {usersql.quote(output.name, dialect=dialect)}")
        fields.append(pa.field(output.name, output.kind))
    query = f"SELECT {', '.join(columns)} FROM {_ROWS}"
    rows = engine.sql(query, tables={_ROWS: labels}, parameters={})
    names = [output.name for output in plan.on_demand]
    remaining_plan = replace(
        plan,
        left_schema=pa.schema(fields),
        left_columns=(*plan.left_columns, *names),
        on_demand=(),
    )
    return remaining_plan, rows


def has_joins(plan: FeaturePlan) -> bool:
    """Return whether a plan or one of its left plans joins groups to labels."""
    return bool(plan.all_joins) or (plan.left_plan is not None and has_joins(plan.left_plan))


def plan_over_labels(plan: FeaturePlan, labels: pa.Schema) -> FeaturePlan:
    """Return a plan over labels in memory with all outputs, no filters, and one row per label."""
    schema = computed_schema(plan, labels)
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
        relation = run_query(session, first.left_query)
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


def label_times(plan: FeaturePlan, labels: pa.Table) -> np.ndarray[Any, Any]:
    """Return the time of each label in microseconds since 1970, or NEVER if it has none."""
    if plan.fixed_time is not None:
        return np.full(labels.num_rows, to_micros(plan.fixed_time))
    if plan.left_time is None:
        return np.full(labels.num_rows, NEVER)
    return to_microseconds(labels.column(plan.left_time))


def to_microseconds(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
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
    plan = compile_window_conditions(plan, dialect=engine.dialect)
    label_relation = engine.from_arrow(numbered.to_reader())
    computed_times = find_computed_times(plan)
    if plan.on_demand:
        plan, label_relation = compute_on_demand(engine, plan, label_relation)
    relation = computed_times.check(engine.retrieve(plan, labels=label_relation), engine=engine)
    return engine.stream(relation).read_all()
