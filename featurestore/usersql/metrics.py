"""Aggregates of users over the rows of a window: SQL expressions, each a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from featurestore.errors import InvalidSql
from featurestore.usersql.queries import query
from featurestore.usersql.text import DIALECT, short

if TYPE_CHECKING:
    from sqlglot import exp


def metrics_query(metrics: Mapping[str, str], *, dialect: str) -> str:
    """Return the query over a table ``rows`` that gives each metric in a column of its name.

    >>> metrics_query({"late_share": "avg(late)"}, dialect="duckdb")
    'SELECT CAST(AVG(late) AS DOUBLE) AS "late_share" FROM rows'

    Args:
        metrics: ``{name: expression}``, expressions in DuckDB's SQL.
        dialect: The engine's.

    Raises:
        InvalidSql: An expression is none, aggregates nothing, or may not be used.
    """
    from sqlglot import exp

    columns = []
    for name, text in metrics.items():
        number = exp.cast(_expression(name, text), "double")
        columns.append(exp.alias_(number, name, quoted=True))
    built = exp.select(*columns).from_("rows").sql(dialect=DIALECT)
    return query(built, tables=["rows"], dialect=dialect)


def _expression(name: str, text: str) -> exp.Condition:
    from sqlglot import errors, exp, parse

    try:
        found = [each for each in parse(text, read=DIALECT) if each is not None]
    except (errors.ParseError, errors.TokenError) as error:
        raise _no_metric(name, text) from error
    if len(found) != 1 or not isinstance(found[0], exp.Condition):
        raise _no_metric(name, text)
    expression: exp.Condition = found[0]
    if expression.find(exp.Query) is not None:
        raise _no_metric(name, text)
    return expression


def _no_metric(name: str, text: str) -> InvalidSql:
    return InvalidSql(
        f"The metric {name!r} is {short(text)}, which is no expression over columns.",
        hint='metrics={"late_share": "avg(late)"}',
    )
