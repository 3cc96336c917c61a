"""The time limits of computed columns: of on-demand features and of the results of queries.

Computed times have the limits of written ones. An interval may lead out of the years 1 to 9999,
which Python, pandas and the export formats cannot represent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.bounds import (
    OUT_OF_RANGE_HINT,
    contains_times,
    find_out_of_range,
    out_of_range_error,
)
from featurestore.arrow.casts import cast_array
from featurestore.arrow.types import TIMESTAMP, is_nested
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.plan import FeaturePlan, OnDemandOutput, QuerySource
from featurestore.plugins.engine import Engine, Relation
from featurestore.usersql import quote
from featurestore.usersql.text import parse_statement


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


def _feature_hint(feature: OnDemandFeature, kind: pa.DataType) -> str:
    """Return the feature that is null where a time is out of range."""
    # A comment in the expression ends with its line.
    end = "\n)" if "--" in feature.sql else ")"
    in_range = _null_outside(f"({feature.sql}{end}", kind)
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


def _null_outside(sql: str, kind: pa.DataType) -> str:
    last = "9999-12-31" if pat.is_date(kind) else "9999-12-31 23:59:59.999999"
    return f"case when {sql} between '0001-01-01' and '{last}' then {sql} end"
