"""The ``where`` of a dbt test as the row condition of an expectation, which is SQL as well.

Only comparisons of columns with constants or other columns are converted: other expressions differ
between databases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.errors import InvalidSql
from featurestore.usersql import DIALECT, parse_statement, predicate

if TYPE_CHECKING:
    from sqlglot import exp

    from featurestore.dbt.expectations import Columns

# The nodes of conditions that databases evaluate equally; Null only in ``is null``.
_NODES = frozenset(
    {
        "And", "Between", "Boolean", "Column", "EQ", "GT", "GTE", "Identifier", "In", "Is", "LT",
        "LTE", "Literal", "NEQ", "Neg", "Not", "Or", "Paren",
    }
)  # fmt: skip


class UnsupportedCondition(ValueError):
    """A condition has no equivalent; the message is the part that has none."""


def to_row_condition(sql: str, columns: Columns) -> str:
    """Return a condition with the column names of the table.

    Raises:
        UnsupportedCondition: The condition is not a comparison of columns with constants.
    """
    from sqlglot import exp

    def rename_column(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        name = columns.find(node.name)
        if name is None or len(node.parts) > 1:
            raise UnsupportedCondition(node.sql(dialect=DIALECT))
        return exp.column(name, quoted=True)

    try:
        tree = parse_statement(sql, expected="condition")
        for node in tree.walk():
            is_null_test = isinstance(node, exp.Null) and isinstance(node.parent, exp.Is)
            if type(node).__name__ not in _NODES and not is_null_test:
                raise UnsupportedCondition(node.sql(dialect=DIALECT))
        condition = str(tree.transform(rename_column).sql(dialect=DIALECT))
        # The engine refuses comparisons between types.
        predicate(condition, schema=columns.schema, dialect=DIALECT)
    except (InvalidSql, RecursionError) as error:
        raise UnsupportedCondition(sql) from error
    return condition
