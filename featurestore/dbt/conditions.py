"""The SQL of a dbt test's ``where`` as the row condition of an expectation.

Only comparisons of columns with constants or other columns are converted. In SQL a comparison with
null is neither true nor false. In a row condition ``!=``, ``not in`` and a negation are true for
null, so negations are moved to the comparisons, which then require values.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidSql
from featurestore.usersql.text import parse_statement

if TYPE_CHECKING:
    from sqlglot import exp

    from featurestore.dbt.expectations import Columns

_SIGNS = {"EQ": "==", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class UnsupportedCondition(ValueError):
    """A condition has no equivalent; the message is the part that has none."""


def to_row_condition(sql: str, columns: Columns) -> str:
    """Convert a condition in SQL, which selects the same rows.

    Raises:
        UnsupportedCondition: The condition is not a comparison of columns with constants.
    """
    try:
        tree = parse_statement(sql, expected="condition")
    except InvalidSql as error:
        raise UnsupportedCondition(sql) from error
    return _Converter(columns).convert(tree, negated=False)


class _Converter:
    """Converts a syntax tree; ``negated`` returns the condition for rows where it is false."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def convert(self, node: exp.Expr, *, negated: bool) -> str:
        from sqlglot import exp

        if isinstance(node, exp.Paren):
            return self.convert(node.this, negated=negated)
        if isinstance(node, exp.Not):
            return self.convert(node.this, negated=not negated)
        if isinstance(node, exp.And | exp.Or):
            word = "and" if isinstance(node, exp.And) != negated else "or"
            parts = [self.convert(each, negated=negated) for each in (node.left, node.right)]
            return f"({parts[0]} {word} {parts[1]})"
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            test = "is not null" if negated else "is null"
            return f"({self._column(node.this)[0]} {test})"
        if isinstance(node, exp.Between):
            low = exp.GTE(this=node.this, expression=node.args["low"])
            high = exp.LTE(this=node.this, expression=node.args["high"])
            return self.convert(exp.And(this=low, expression=high), negated=negated)
        if isinstance(node, exp.In):
            return self._convert_membership(node, negated=negated)
        if isinstance(node, exp.Column):
            name, kind = self._column(node)
            if pat.is_boolean(kind):
                return f"({name} == {'false' if negated else 'true'})"
        if type(node).__name__ in _SIGNS:
            return self._convert_comparison(node, negated=negated)
        raise UnsupportedCondition(node.sql())

    def _convert_comparison(self, node: Any, *, negated: bool) -> str:
        from sqlglot import exp

        left, right, sign = node.this, node.expression, _SIGNS[type(node).__name__]
        if not isinstance(left, exp.Column):
            left, right = right, left
            sign = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
        name, kind = self._column(left)
        if negated:
            sign = _OPPOSITES[sign]
        compared = [name]
        if isinstance(right, exp.Column):
            operand, right_kind = self._column(right)
            if right_kind != kind:
                raise UnsupportedCondition(node.sql())
            compared.append(operand)
        else:
            operand = self._literal(right, kind)
        test = f"{name} {sign} {operand}"
        if sign == "!=":
            return f"({test} and {' and '.join(f'{each} is not null' for each in compared)})"
        return f"({test})"

    def _convert_membership(self, node: Any, *, negated: bool) -> str:
        name, kind = self._column(node.this)
        values = node.expressions
        if not values or any(node.args.get(part) for part in ("query", "unnest", "field")):
            raise UnsupportedCondition(node.sql())
        listed = ", ".join(self._literal(each, kind) for each in values)
        if negated:
            return f"({name} not in [{listed}] and {name} is not null)"
        return f"({name} in [{listed}])"

    def _column(self, node: Any) -> tuple[str, pa.DataType]:
        """Return a column in the notation of row conditions, with its type."""
        from sqlglot import exp

        name = self._columns.find(node.name) if isinstance(node, exp.Column) else None
        if name is None or node.table or "`" in name:
            raise UnsupportedCondition(node.sql())
        return f"`{name}`", self._columns.schema.field(name).type

    def _literal(self, node: Any, kind: pa.DataType) -> str:
        """Return a constant of the type of the column that it is compared with."""
        from sqlglot import exp

        sign, value = "", node
        if isinstance(node, exp.Neg):
            sign, value = "-", node.this
        is_number = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind)
        if isinstance(value, exp.Literal) and not value.is_string and is_number:
            return f"{sign}{value.this}"
        if isinstance(node, exp.Boolean) and pat.is_boolean(kind):
            return "true" if node.this else "false"
        is_text = isinstance(node, exp.Literal) and node.is_string
        if is_text and (pat.is_string(kind) or (pat.is_timestamp(kind) and _is_time(node.this))):
            escaped = node.this.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        raise UnsupportedCondition(node.sql())


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
