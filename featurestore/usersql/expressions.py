"""SQL expressions: features computed from one row, and metrics aggregated over a window.

An expression has the same value on every engine. A metric is a numeric aggregate; a mean is
computed together with its components (rows, total, squares), so that windows can be merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from featurestore.arrow.column_names import RESERVED_PREFIX
from featurestore.errors import InvalidSql
from featurestore.usersql.conditions import expression, fix_clock
from featurestore.usersql.queries import query
from featurestore.usersql.text import DIALECT, parse_statement, shorten_sql

if TYPE_CHECKING:
    from sqlglot import exp

# The feature type of each column kind, and its SQL type in each dialect.
_TYPES: dict[str, tuple[pa.DataType, str, str]] = {
    "boolean": (pa.bool_(), "BOOLEAN", "BOOLEAN"),
    "integer": (pa.int64(), "BIGINT", "BIGINT"),
    "float": (pa.float64(), "DOUBLE", "DOUBLE"),
    "number": (pa.float64(), "DOUBLE", "DOUBLE"),
    "decimal": (pa.float64(), "DOUBLE", "DOUBLE"),
    "string": (pa.string(), "VARCHAR", "STRING"),
    "binary": (pa.binary(), "BLOB", "BINARY"),
    "date": (pa.date32(), "DATE", "DATE"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "TIMESTAMPTZ", "TIMESTAMP"),
}
# Any constant serves: the result is only compared with the SQL to detect clock functions.
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)

Merge = Literal["mean", "sum", "min", "max"]
# The variance of a union of windows follows from these sums; it does not follow from variances
# alone.
MEAN_PARTS = ("rows", "total", "squares")


def column_expression(sql: str, *, schema: pa.Schema, dialect: str) -> tuple[str, pa.DataType]:
    """Translate an expression of row columns to the SQL of an engine; return the SQL and its type.

    Integers are int64, other numbers float64, and times microseconds in UTC.

    >>> schema = pa.schema([("distance", pa.int64()), ("seats", pa.int64())])
    >>> column_expression("distance > seats", schema=schema, dialect="duckdb")
    ('CAST(("distance" > "seats") AS BOOLEAN)', DataType(bool))

    Raises:
        InvalidSql: The SQL is not an expression, uses unknown columns, reads the clock, or uses
            functions that differ between engines; the hint suggests an alternative.
    """
    check_column_expression(sql)
    typed = expression(sql, schema=schema, dialect=dialect)
    if typed.value_type not in _TYPES:
        raise InvalidSql(
            f"The type of {shorten_sql(sql)} is {typed.value_type}, which cannot be a feature.",
            hint="supported types: numbers, strings, binary values, dates, times and booleans",
        )
    dtype, duckdb, spark = _TYPES[typed.value_type]
    # The cast gives both engines the same column type, for example for decimals and narrow
    # integers.
    return f"CAST({typed.sql} AS {spark if dialect == 'spark' else duckdb})", dtype


def check_column_expression(sql: str) -> None:
    """Raise InvalidSql for expressions that are invalid regardless of the columns."""
    parse_statement(sql, expected="expression", calls_by_name=True)
    if fix_clock(sql, now=_ANY_TIME) != sql:
        raise InvalidSql(
            f"{shorten_sql(sql)} reads the clock, so that training and scoring would differ.",
            hint="use the time column of the labels instead",
        )


def expression_columns(sql: str) -> list[str]:
    """Return the columns that an expression reads, as it writes them.

    >>> expression_columns("distance / Seats + place.x")
    ['distance', 'Seats', 'place']
    """
    from sqlglot import exp

    tree = parse_statement(sql, expected="expression", calls_by_name=True)
    # The first part of ``a.b`` is the column, and the second a field of the struct.
    names = [column.parts[0].name for column in tree.find_all(exp.Column, bfs=False)]
    return list(dict.fromkeys(names))


def metrics_query(metrics: Mapping[str, str], *, dialect: str) -> str:
    """Return the query over a table ``rows`` that computes each metric as a column.

    >>> metrics_query({"most": "max(late)"}, dialect="duckdb")
    'SELECT CAST(MAX(late) AS DOUBLE) AS "most" FROM rows'

    Args:
        metrics: Expressions in DuckDB SQL by metric name.
        dialect: The dialect of the engine.

    Raises:
        InvalidSql: An expression is invalid, not an aggregate, or not allowed.
    """
    return _build_query(tuple(metrics.items()), dialect)


def mean_part_name(metric: str, part: str) -> str:
    """Return the column name of a metric component in ``MEAN_PARTS``."""
    return f"{RESERVED_PREFIX}{part}_of_{metric}"


@lru_cache(maxsize=256)
def merge_method(name: str, sql: str) -> Merge | None:
    """Return how a metric is merged across windows: "mean", "sum", "min" or "max".

    Returns None if the metric cannot be computed from the metrics of the windows.

    >>> merge_method("late", "avg(late)"), merge_method("n", "count(*)"), merge_method("x", "median(late)")
    ('mean', 'sum', None)
    """
    from sqlglot import exp

    expression = _parse_metric(name, sql)
    # Windows may share distinct values, so their counts and sums cannot be added.
    if isinstance(expression.this, exp.Distinct):
        return None
    merges: Mapping[type, Merge]
    merges = {exp.Avg: "mean", exp.Sum: "sum", exp.Count: "sum", exp.Min: "min", exp.Max: "max"}
    merge = merges.get(type(expression))
    if merge in ("min", "max") and expression.expressions:
        return None  # min(x, 3) is a list of the smallest values
    return merge


@lru_cache(maxsize=64)
def _build_query(metrics: tuple[tuple[str, str], ...], dialect: str) -> str:
    """Build the query that ``metrics_query`` returns."""
    from sqlglot import exp

    columns = []
    for name, metric_sql in metrics:
        expression = _parse_metric(name, metric_sql)
        columns.append(exp.alias_(exp.cast(expression, "double"), name, quoted=True))
        if merge_method(name, metric_sql) == "mean":
            # A node can have one parent only, so each use of the argument is a copy.
            value = exp.cast(expression.this.copy(), "double")
            square = exp.Mul(this=value.copy(), expression=value.copy())
            aggregates = (exp.Count(this=value.copy()), exp.Sum(this=value), exp.Sum(this=square))
            for part, aggregate in zip(MEAN_PARTS, aggregates, strict=True):
                number = exp.cast(aggregate, "double")
                columns.append(exp.alias_(number, mean_part_name(name, part), quoted=True))
    statement = exp.select(*columns).from_("rows").sql(dialect=DIALECT)
    return query(statement, tables=["rows"], dialect=dialect)


def _parse_metric(name: str, sql: str) -> exp.Condition:
    """Parse the expression of a metric."""
    from sqlglot import errors, exp, parse

    try:
        trees = [tree for tree in parse(sql, read=DIALECT) if tree is not None]
    except (errors.ParseError, errors.TokenError) as error:
        raise _invalid_metric(name, sql) from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Condition):
        raise _invalid_metric(name, sql)
    if name.startswith(RESERVED_PREFIX):
        raise InvalidSql(
            f"{name!r}: names that begin with {RESERVED_PREFIX!r} are reserved.",
            hint=f"use the name {name.removeprefix(RESERVED_PREFIX)!r}",
        )
    expression: exp.Condition = trees[0]
    # A subquery would read tables other than the rows of the window.
    if expression.find(exp.Query) is not None:
        raise _invalid_metric(name, sql)
    return expression


def _invalid_metric(name: str, sql: str) -> InvalidSql:
    return InvalidSql(
        f"The metric {name!r} is {shorten_sql(sql)}, not an expression over columns.",
        hint='metrics={"late_share": "avg(late)"}',
    )
