"""The clauses of a SELECT as Spark SQL: its columns, GROUP BY, ORDER BY and LIMIT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from featurestore.errors import InvalidSql
from featurestore.usersql.spark_expressions import ExpressionWriter
from featurestore.usersql.spark_scopes import Columns
from featurestore.usersql.text import DIALECT
from featurestore.usersql.typed_values import DuckDBOnly, Value

if TYPE_CHECKING:
    from sqlglot import exp


def write_items(
    nodes: Sequence[exp.Expr], writer: ExpressionWriter, star: Sequence[tuple[str, str, Value]]
) -> Iterator[tuple[str, Value]]:
    """Yield the names and values of a SELECT list; a later item may use an earlier alias."""
    from sqlglot import exp

    generators = 0
    for node in nodes:
        if isinstance(node, exp.Star):
            yield from _expand_star(node, star, writer)
            continue
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            table = node.table.lower()
            columns = [entry for entry in star if entry[0].lower() == table]
            source = writer.scope.find_source(node.table)
            if source is not None:
                columns = [(source.name, name, value) for name, value in source.columns]
            yield from _expand_star(node.this, columns, writer)
            continue
        value = writer.write(node.unalias())
        generators += value.has_rows
        is_whole = isinstance(node.unalias(), exp.Anonymous)
        if value.has_rows and (not is_whole or generators > 1):
            raise DuckDBOnly("unnest within an expression", "select unnest(list) as x")
        name = node.alias_or_name
        if name and isinstance(node, exp.Alias):
            writer.scope.aliases.setdefault(name.lower(), value)
        yield name, value


def _expand_star(
    node: exp.Expr, columns: Sequence[tuple[str, str, Value]], writer: ExpressionWriter
) -> Iterator[tuple[str, Value]]:
    """Yield the columns of a star with its EXCLUDE, REPLACE and RENAME."""
    excluded = {column.name.lower() for column in argument_of(node, "except") or ()}
    replaced = {
        column.alias.lower(): writer.write(column.this) for column in node.args.get("replace") or ()
    }
    renamed = {column.this.name.lower(): column.alias for column in node.args.get("rename") or ()}
    for _, name, value in columns:
        if name.lower() not in excluded:
            yield renamed.get(name.lower(), name), replaced.get(name.lower(), value)


def write_groups(
    node: exp.Expr, writer: ExpressionWriter, items: Sequence[tuple[str, Value]]
) -> str:
    """Return the GROUP BY clause; its keys are then the columns that HAVING may use."""
    from sqlglot import exp

    group = node.args.get("group")
    if group is None:
        return ""
    refuse_arguments(group, ("rollup", "cube", "grouping_sets", "totals"))
    keys = []
    if group.args.get("all"):
        keys = [value.sql for _, value in items if not (value.has_aggregate or value.has_window)]
    for key in group.expressions:
        if isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
            raise DuckDBOnly(key.sql(dialect=DIALECT), "group by a, b")
        position = _position(key, items)
        keys.append(writer.write(key).sql if position is None else items[position][1].sql)
    writer.scope.keys = frozenset(keys)
    return f" GROUP BY {', '.join(keys)}" if keys else ""


def write_order(order: exp.Expr, writer: ExpressionWriter, columns: Columns) -> str:
    """Return the ORDER BY clause over the columns of a query."""
    from sqlglot import exp

    terms = []
    for term in order.expressions:
        if isinstance(term.this, exp.Var) and term.this.name.upper() == "ALL":
            terms += [writer.write_order(value, term) for _, value in columns]
            continue
        position = _position(term.this, columns)
        value = writer.write(term.this) if position is None else columns[position][1]
        terms.append(writer.write_order(value, term))
    return f" ORDER BY {', '.join(terms)}"


def write_limit(node: exp.Expr) -> str:
    """Return the LIMIT and OFFSET clauses with constant numbers of rows."""
    text = ""
    for name in ("limit", "offset"):
        clause = node.args.get(name)
        if clause is None:
            continue
        number = clause.expression
        if clause.args.get("limit_options") or not number.name.isdigit() or not number.is_int:
            raise DuckDBOnly(clause.sql(dialect=DIALECT), f"{name} 10")
        text += f" {name.upper()} {number.name}"
    return text


def _position(node: exp.Expr, items: Sequence[tuple[str, Value]]) -> int | None:
    """Return the index of the column that a number in ORDER BY or GROUP BY names."""
    from sqlglot import exp

    if not isinstance(node, exp.Literal) or not node.is_int:
        return None
    position = int(node.name) - 1
    if position not in range(len(items)):
        raise InvalidSql(f"the query has {len(items)} columns, not {node.name}.")
    return position


def argument_of(node: exp.Expr, name: str) -> exp.Expr | None:
    """Return an argument whose name is a word of Python; older sqlglot has no underscore."""
    value: exp.Expr | None = node.args.get(f"{name}_") or node.args.get(name)
    return value


def refuse_arguments(node: exp.Expr, names: Sequence[str]) -> None:
    """Raise DuckDBOnly if a node has one of some arguments."""
    for name in names:
        if node.args.get(name):
            raise DuckDBOnly(f"{name.replace('_', ' ')} in {node.sql(dialect=DIALECT)[:60]!r}")
