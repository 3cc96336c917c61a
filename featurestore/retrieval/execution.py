"""Execution of feature plans: the left side, on-demand features, engine joins, then filters.

The planner infers the types of on-demand features, and the execution computes them. Computed times
have the limits of written ones: an interval may lead out of the years 1 to 9999, which Python, pandas
and the export formats cannot represent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore import usersql
from featurestore.arrow.bounds import (
    OUT_OF_RANGE_HINT,
    contains_times,
    find_out_of_range,
    out_of_range_error,
)
from featurestore.arrow.casts import cast_array
from featurestore.arrow.types import TIMESTAMP, is_nested
from featurestore.errors import InvalidSql
from featurestore.hashing import row_hash
from featurestore.model.on_demand import OnDemandFeature, check_new_names
from featurestore.model.plan import ROW, FeaturePlan, OnDemandOutput, QuerySource, RowSample
from featurestore.plugins.engine import Engine, Relation
from featurestore.session import Session
from featurestore.usersql import quote
from featurestore.usersql.text import parse_statement

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
            _, data_type = usersql.column_expression(
                feature.sql, schema=schema, dialect=usersql.DIALECT
            )
        except InvalidSql as error:
            raise InvalidSql(
                f"The on-demand feature {feature.name!r}: {error.message}",
                hint=_sibling_hint(error, features, schema=schema) or error.hint,
            ) from error
        outputs.append(OnDemandOutput(feature, data_type))
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


@dataclass(frozen=True)
class ComputedTimes:
    """A function that checks computed times in a batch, and returns the batch.

    ``columns`` has the names of the columns, and the hint of each.
    """

    columns: tuple[tuple[str, str], ...]

    def check(self, relation: Relation, *, engine: Engine) -> Relation:
        """Return a relation whose rows are checked when they are read."""
        if not self.columns:
            return relation
        return engine.map_batches(relation, self, schema=relation.schema)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch.

        Raises:
            OutOfRange: A time is outside of the years 1 to 9999; names its column.
        """
        for name, hint in self.columns:
            _check_times(batch.column(name), name, hint)
        return batch


def find_computed_times(plan: FeaturePlan) -> ComputedTimes:
    """Return the check of the times that a plan computes and returns."""
    hints = {}
    if plan.left_query is not None and computes_values(plan.left_query.sql):
        for field in plan.left_schema:
            if contains_times(field.type):
                hints[field.name] = _query_hint(plan.left_query, plan.left_schema, field)
    for output in plan.on_demand:
        if contains_times(output.kind):
            hints[output.name] = _feature_hint(output.feature, output.kind)
    columns = [(name, hints.get(plan.left_column(name))) for name in plan.columns]
    return ComputedTimes(tuple([(name, hint) for name, hint in columns if hint is not None]))


def micros_to_times(micros: Sequence[int | None], output: OnDemandOutput) -> list[Any]:
    """Convert computed microseconds since 1970 to the Python values of a time column.

    Raises:
        OutOfRange: A time is outside of the years 1 to 9999; names the column.
    """
    times = cast_array(cast_array(pa.array(micros), TIMESTAMP), output.kind)
    _check_times(times, output.name, _feature_hint(output.feature, output.kind))
    values: list[Any] = times.to_pylist()
    return values


@lru_cache(maxsize=256)
def computes_values(sql: str) -> bool:
    """Return whether a query may return values that no column of its tables has.

    >>> computes_values("select at as t from weather where temp > 3")
    False
    >>> computes_values("select at + interval 1 day as t from weather")
    True
    """
    from sqlglot import exp

    tree = parse_statement(sql, expected="query")
    for select in tree.find_all(exp.Select):
        for projection in select.expressions:
            for node in projection.walk():
                if not isinstance(node, exp.Alias | exp.Column | exp.Identifier | exp.Star):
                    return True
    # Constants and functions in the place of tables.
    if tree.find(exp.Values, exp.Unnest, exp.Pivot, exp.Lateral) is not None:
        return True
    return not all(isinstance(table.this, exp.Identifier) for table in tree.find_all(exp.Table))


def _check_times(times: pa.Array, name: str, hint: str) -> None:
    row = find_out_of_range(times)
    if row is not None:
        raise out_of_range_error(times, row, column=name, shown="A row", hint=hint)


def _feature_hint(feature: OnDemandFeature, data_type: pa.DataType) -> str:
    """Return the feature that is null where a time is out of range."""
    # A comment in the expression ends with its line.
    end = "\n)" if "--" in feature.sql else ")"
    in_range = _null_outside(f"({feature.sql}{end}", data_type)
    return f"for null instead of such times: featurestore.feature({feature.name!r}, {in_range!r})"


def _query_hint(query: QuerySource, schema: pa.Schema, field: pa.Field) -> str:
    """Return the query that is null where a time of a column is out of range."""
    if is_nested(field.type):
        return OUT_OF_RANGE_HINT
    columns = []
    for name in map(quote, schema.names):
        if name == quote(field.name):
            name = f"{_null_outside(name, field.type)} as {name}"
        columns.append(name)
    sql = f"select {', '.join(columns)} from ({query.sql})"
    return f"for null instead of such times: featurestore.sql({sql!r})"


def _null_outside(sql: str, data_type: pa.DataType) -> str:
    last = "9999-12-31" if pat.is_date(data_type) else "9999-12-31 23:59:59.999999"
    return f"case when {sql} between '0001-01-01' and '{last}' then {sql} end"
