"""Bounds of the work that a condition causes for a row, which are checked before it runs.

Engines check for interrupts between batches of rows, but neither while they plan a query nor inside
a batch. A short condition must therefore not cause long work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Cost:
    """The evaluations of an expression for one row, and the length of its text."""

    evaluations: int
    text: int


def check_costs(sql: str, tree: exp.Expr) -> None:
    """Check the evaluations and the lengths of texts that a condition needs for one row.

    Args:
        sql: The condition, for the message.
        tree: Its syntax tree, whose calls are parsed by name.

    Raises:
        LimitExceeded: The condition exceeds a limit.
    """
    # By the identity of a node. Children follow their parents, and chains of OR are too deep for a
    # recursion.
    costs: dict[int, _Cost] = {}
    for node in reversed(list(tree.walk(bfs=False))):
        check_time()
        children = [costs.pop(id(child)) for child in node.iter_expressions()]
        costs[id(node)] = cost = _cost_of(node, children)
        if cost.text > _MAX_TEXT:
            raise LimitExceeded(
                f"{shorten_sql(sql)} computes texts of about {cost.text:,} characters; the limit "
                f"is {_MAX_TEXT:,}, if columns have texts of {_COLUMN_TEXT} characters.",
                hint="compute long texts before they are written",
            )
    evaluations = costs[id(tree)].evaluations
    if evaluations > _MAX_EVALUATIONS:
        raise LimitExceeded(
            f"{shorten_sql(sql)} needs {evaluations:,} evaluations for a row; the limit is "
            f"{_MAX_EVALUATIONS:,}.",
            hint="divisions, nullif and in (...) triple the evaluations of nested expressions: "
            "filter in several steps",
        )


def _cost_of(node: exp.Expr, children: Sequence[_Cost]) -> _Cost:
    """Return the cost of a node with the costs of its children."""
    from sqlglot import exp

    if isinstance(node, exp.Literal):
        return _Cost(1, len(node.name))
    if isinstance(node, exp.Column):
        return _Cost(1, _COLUMN_TEXT)
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    repeated = None
    if isinstance(node, exp.Div | exp.Mod) or name == "mod":
        repeated = 1
    elif name in ("nullif", "isinf", "isfinite") or (
        isinstance(node, exp.In) and len(children) > 2
    ):
        repeated = 0
    evaluations = 1
    for position, child in enumerate(children):
        evaluations += child.evaluations * (_REPEATED if position == repeated else 1)
    texts = [child.text for child in children] or [0]
    text = max(texts)
    if isinstance(node, exp.DPipe):
        text = sum(texts)
    elif name == "replace" and len(texts) == 3:
        # Each occurrence of the second argument, at most one for each of its characters, becomes
        # the third one.
        searched = texts[1] if isinstance(node.expressions[1], exp.Literal) else 1
        text = texts[0] * max(1, texts[2] // max(1, searched))
    return _Cost(evaluations, text)
