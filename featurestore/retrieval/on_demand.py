"""On-demand features in a plan: typed by the planner, computed by the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from featurestore import usersql
from featurestore.errors import InvalidSql
from featurestore.model.on_demand import OnDemandFeature, check_new_names
from featurestore.model.plan import FeaturePlan, OnDemandOutput
from featurestore.plugins.engine import Engine, Relation

_ROWS = "rows"


def plan_on_demand(features: Sequence[OnDemandFeature], *, stored_plan: FeaturePlan) -> FeaturePlan:
    """Return the plan that computes features from the rows of another plan.

    Raises:
        ColumnConflict: A name exists already.
        InvalidSql: An expression is invalid or names an unknown column.
    """
    check_new_names(features, stored_plan.columns)
    outputs = type_features(features, schema=stored_plan.schema)
    fields = [*stored_plan.schema, *[pa.field(output.name, output.kind) for output in outputs]]
    requested_names = None
    if stored_plan.asked is not None:
        requested_names = (*stored_plan.asked, *[output.name for output in outputs])
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
        asked=requested_names,
        on_demand=outputs,
    )


def type_features(
    features: Sequence[OnDemandFeature], *, schema: pa.Schema
) -> tuple[OnDemandOutput, ...]:
    """Return features with the types that they have over the rows of a schema."""
    outputs = []
    for each in features:
        try:
            _, kind = usersql.column_expression(each.sql, schema=schema, dialect=usersql.DIALECT)
        except InvalidSql as error:
            raise InvalidSql(
                f"The on-demand feature {each.name!r}: {error.message}",
                hint=_sibling_hint(error, features, schema=schema) or error.hint,
            ) from error
        outputs.append(OnDemandOutput(each, kind))
    return tuple(outputs)


def _sibling_hint(
    error: InvalidSql, features: Sequence[OnDemandFeature], *, schema: pa.Schema
) -> str | None:
    """Return the hint for an expression that names another on-demand feature; else None."""
    for sibling in features:
        is_absent = sibling.name not in schema.names
        if is_absent and error.message.endswith(f"a column that does not exist: {sibling.name!r}."):
            return (
                f"{sibling.name!r} is computed in the same call: write ({sibling.sql}) in place of "
                f"{sibling.name}, or ask for it first and pass that frame as labels="
            )
    return None


def compute_on_demand(
    engine: Engine, plan: FeaturePlan, labels: Relation
) -> tuple[FeaturePlan, Relation]:
    """Return labels with the on-demand features of a plan, and the plan without these."""
    dialect = engine.dialect
    columns = ["*"]
    fields = list(plan.left_schema)
    for output in plan.on_demand:
        text, _ = usersql.column_expression(
            output.feature.sql, schema=plan.left_schema, dialect=dialect
        )
        columns.append(f"{text} AS {usersql.quote(output.name, dialect=dialect)}")
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
