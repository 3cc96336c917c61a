"""On-demand features in a plan: checked and typed when it is made, computed when it is run."""

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


def plan_on_demand(features: Sequence[OnDemandFeature], *, left: FeaturePlan) -> FeaturePlan:
    """Return the plan that computes features of the rows of another plan.

    Raises:
        ColumnConflict: A name is taken.
        InvalidSql: An expression names what the rows do not have, or is none.
    """
    check_new_names(features, left.columns)
    outputs = typed(features, schema=left.schema)
    fields = [*left.schema, *[pa.field(output.name, output.kind) for output in outputs]]
    asked = None
    if left.asked is not None:
        asked = (*left.asked, *[output.name for output in outputs])
    return FeaturePlan(
        left_source=None,
        left_schema=left.schema,
        left_columns=left.columns,
        left_time=left.left_time if left.left_time in left.columns else None,
        fixed_time=None,
        joins=(),
        columns=tuple(field.name for field in fields),
        schema=pa.schema(fields),
        keep_order=left.keep_order,
        left_plan=left,
        left_rows=left.rows,
        asked=asked,
        on_demand=outputs,
    )


def typed(features: Sequence[OnDemandFeature], *, schema: pa.Schema) -> tuple[OnDemandOutput, ...]:
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
    """Return what to write for the name of another on-demand feature; None where there is none."""
    for other in features:
        is_absent = other.name not in schema.names
        if is_absent and error.message.endswith(f"a column that does not exist: {other.name!r}."):
            return (
                f"{other.name!r} is computed in the same call: write ({other.sql}) in place of "
                f"{other.name}, or ask for it first and pass that frame as labels="
            )
    return None


def computed(engine: Engine, plan: FeaturePlan, left: Relation) -> tuple[FeaturePlan, Relation]:
    """Return left rows with the on-demand features of a plan, and the plan that takes them so."""
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
    rows = engine.sql(query, tables={_ROWS: left}, parameters={})
    names = [output.name for output in plan.on_demand]
    given = replace(
        plan,
        left_schema=pa.schema(fields),
        left_columns=(*plan.left_columns, *names),
        on_demand=(),
    )
    return given, rows
