"""Comparisons with features of other groups: whether each value of a column exists there.

The engine joins the checked rows with the distinct values of the feature, and adds the result as a
boolean column. Row-level expectations on this column then have conditions, a minimum fraction and
failing rows like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import is_nested
from featurestore.errors import InvalidExpectation
from featurestore.model.validation import FeatureComparison

if TYPE_CHECKING:
    from sqlglot import exp

    from featurestore.plugins.engine import Engine, Relation

# Returns the values of a feature as relations with one column. The second argument has the rows
# that are checked, which are also values if the feature is a column of the same group.
OpenFeature = Callable[[FeatureComparison, "Relation"], "Sequence[Relation]"]


def mark_existing_values(
    relation: Relation,
    comparisons: Sequence[FeatureComparison],
    *,
    engine: Engine,
    open_feature: OpenFeature | None,
) -> tuple[Relation, dict[FeatureComparison, InvalidExpectation]]:
    """Add a boolean column for each comparison, named ``FeatureComparison.marker``.

    Returns the relation, and the errors of comparisons without a column: no features can be opened,
    the feature does not exist, or its type differs from that of the column.
    """
    from sqlglot import exp

    errors: dict[FeatureComparison, InvalidExpectation] = {}
    tables = {"rows": relation}
    query = exp.select(exp.Column(this=exp.Star(), table=exp.to_identifier("rows", quoted=True)))
    query = query.from_(exp.to_table("rows", quoted=True))
    for number, comparison in enumerate(comparisons):
        table, column_type = f"feature{number}", relation.schema.field(comparison.column).type
        value_tables, value_types = {}, [column_type]
        try:
            if open_feature is None:
                raise InvalidExpectation(
                    f"Column {comparison.column!r} cannot be compared with the feature "
                    f"{comparison.feature!r} without a feature store."
                )
            for position, values in enumerate(open_feature(comparison, relation)):
                (value_field,) = values.schema
                check_types(comparison, column_type, value_field.type)
                value_types.append(value_field.type)
                column_values = engine.select(values, {"value": value_field.name})
                value_tables[f"{table}_{position}"] = column_values
        except InvalidExpectation as error:
            errors[comparison] = error
            continue
        tables |= value_tables
        value = exp.column("value", table=table, quoted=True)
        column = exp.column(comparison.column, table="rows", quoted=True)
        is_found = value.copy().is_(exp.null()).not_()
        marker = exp.case().when(column.is_(exp.null()), exp.null()).else_(is_found)
        query = query.select(exp.alias_(marker, comparison.marker, quoted=True)).join(
            _distinct_values(table, list(value_tables)),
            on=_is_equal(column.copy(), value.copy(), value_types),
            join_type="left",
        )
    if len(tables) == 1:
        return relation, errors
    marked = engine.sql(query.sql(dialect=engine.dialect), tables=tables, parameters={})
    return marked, errors


def _is_equal(
    column: exp.Expression, value: exp.Expression, types: Sequence[pa.DataType]
) -> exp.Expression:
    """Return the condition that two numbers are equal.

    An engine compares an integer with a float as doubles, in which 2**53 + 1 equals 2**53.
    """
    from sqlglot import exp

    condition: exp.Expression = exp.EQ(this=column, expression=value)
    if not (any(map(pat.is_integer, types)) and any(map(pat.is_floating, types))):
        return condition
    if not pat.is_integer(types[0]):
        column, value = value, column
    # The integers of fractions are rounded, but fractions differ as doubles.
    lower = exp.EQ(this=column.copy(), expression=_to_bigint(value))
    half = exp.Literal.number(2**63)
    upper: exp.Expression = exp.false()  # Spark casts 2**63 to 2**63 - 1
    if any(map(pat.is_uint64, types)):
        # The difference of two doubles in the upper half of the range is exact.
        number = exp.Sub(this=exp.cast(column, "decimal(20, 0)"), expression=half)
        difference = exp.Sub(this=value.copy(), expression=exp.cast(half, "double"))
        upper = exp.EQ(this=number, expression=_to_bigint(difference))
    is_upper = exp.GTE(this=value.copy(), expression=exp.cast(half, "double"))
    equal_integers = exp.case().when(is_upper, upper).else_(lower)
    return exp.And(this=condition, expression=equal_integers)


def _to_bigint(value: exp.Expression) -> exp.Expression:
    from sqlglot import exp

    # Spark has TRY_CAST for "safe" casts only.
    return exp.TryCast(this=value.copy(), to=exp.DataType.build("bigint"), safe=True)


def check_types(
    comparison: FeatureComparison, column_type: pa.DataType, feature_type: pa.DataType
) -> None:
    """Raise InvalidExpectation if values of two types are never equal."""
    is_comparable = column_type == feature_type and not is_nested(column_type)
    if is_comparable or (_is_number(column_type) and _is_number(feature_type)):
        return
    raise InvalidExpectation(
        f"Column {comparison.column!r} ({column_type}) cannot be compared with the feature "
        f"{comparison.feature!r} ({feature_type}).",
        hint="convert one of the columns",
    )


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal(dtype))


def _distinct_values(alias: str, tables: Sequence[str]) -> exp.Subquery:
    """Return the query of the distinct values of a feature, so that no row is joined twice."""
    from sqlglot import exp

    value = exp.column("value", quoted=True)
    queries = [exp.select(value.copy()).from_(exp.to_table(name, quoted=True)) for name in tables]
    values: exp.Query = queries[0]
    if len(queries) > 1:
        values = exp.union(*queries, distinct=False)
    distinct = exp.select(value.copy()).distinct().from_(values.subquery("parts"))
    return distinct.subquery(alias)
