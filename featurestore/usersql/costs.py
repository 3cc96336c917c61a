"""Bounds of the work that a condition causes for a row, which are checked before it runs.

Engines check for interrupts between batches of rows, but neither while they plan a query nor inside
a batch. A short condition must therefore not cause long work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.errors import LimitExceeded
from featurestore.model.runtime import check_time
from featurestore.usersql.text import shorten_sql

if TYPE_CHECKING:
    from sqlglot import exp

# The evaluations of an operator or function for one row.
_MAX_EVALUATIONS = 30_000
# The characters of a text that replace or || computes, if columns have texts of 100 characters.
_MAX_TEXT = 10_000
_COLUMN_TEXT = 100
# DuckDB's planner writes these arguments two or three times: nullif is a CASE, and so are the
# divisor of / and %, which are null for zero, and the value that a list of several values tests.
_REPEATED = 3


def check_costs(sql: str, tree: exp.Expr) -> None:
    """Check the evaluations and the lengths of texts that a condition needs for one row.

    Args:
        sql: The condition, for the message.
        tree: Its syntax tree, whose calls are parsed by name.

    Raises:
        LimitExceeded: The condition exceeds a limit.
    """
    evaluations, _ = _measure(sql, tree)
    if evaluations > _MAX_EVALUATIONS:
        raise LimitExceeded(
            f"{shorten_sql(sql)} needs {evaluations:,} evaluations for a row; the limit is "
            f"{_MAX_EVALUATIONS:,}.",
            hint="divisions, nullif and in (...) triple the evaluations of nested expressions: "
            "filter in several steps",
        )


def _measure(sql: str, node: exp.Expr) -> tuple[int, int]:
    """Return the evaluations of a node, and the length of its text."""
    from sqlglot import exp

    check_time()
    if isinstance(node, exp.Literal):
        return 1, len(node.name)
    if isinstance(node, exp.Column):
        return 1, _COLUMN_TEXT
    measures = [_measure(sql, child) for child in node.iter_expressions()]
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    evaluations = 1
    for position, (child_evaluations, _) in enumerate(measures):
        is_repeated = (
            (isinstance(node, exp.Div | exp.Mod) and position == 1)
            or (name == "mod" and position == 1)
            or (name in ("nullif", "isinf", "isfinite") and position == 0)
            or (isinstance(node, exp.In) and position == 0 and len(measures) > 2)
        )
        evaluations += child_evaluations * (_REPEATED if is_repeated else 1)
    lengths = [length for _, length in measures] or [0]
    length = max(lengths)
    if isinstance(node, exp.DPipe):
        length = sum(lengths)
    elif name == "replace" and len(lengths) == 3:
        # Each occurrence of the second argument, at most one for each of its characters, becomes
        # the third one.
        searched = node.expressions[1]
        shortest = lengths[1] if isinstance(searched, exp.Literal) else 1
        length = lengths[0] * max(1, lengths[2] // max(1, shortest))
    if length > _MAX_TEXT and length > max(lengths):
        raise LimitExceeded(
            f"{shorten_sql(sql)} computes texts of about {length:,} characters; the limit is "
            f"{_MAX_TEXT:,}, if columns have texts of {_COLUMN_TEXT} characters.",
            hint="compute long texts before they are written",
        )
    return evaluations, length
