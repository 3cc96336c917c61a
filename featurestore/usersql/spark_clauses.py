"""The calls, windows and clauses of a SELECT as Spark SQL."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from featurestore.errors import InvalidSql
from featurestore.usersql import spark_functions, typed_values
from featurestore.usersql.functions import ALIASES
from featurestore.usersql.spark_scopes import Columns, Scope
from featurestore.usersql.text import DIALECT
from featurestore.usersql.typed_values import DifferentForm, DuckDBOnly, DuckDBTypes, TypedValue

if TYPE_CHECKING:
    from sqlglot import exp

# Fields of extract() that are also functions.
_FIELDS = ("year", "quarter", "month", "week", "day", "dayofyear", "dayofweek", "isodow", "hour",
           "minute", "second", "epoch")  # fmt: skip
_FRAME = re.compile(r"UNBOUNDED|CURRENT ROW|\d{1,9}")


class CallWriter(ABC):
    """Writes calls; a subclass writes all other expressions.

    Args:
        scope: The names that the expressions may use.
        types: DuckDB's types.
        windows: The windows of the WINDOW clause by lower-case name.
    """

    def __init__(self, scope: Scope, types: DuckDBTypes, windows: Mapping[str, exp.Expr]) -> None:
        self.scope = scope
        self._types = types
        self._windows = windows

    @abstractmethod
    def write(self, node: exp.Expr) -> TypedValue:
        """Return the Spark SQL and the type of an expression."""

    @abstractmethod
    def write_condition(self, node: exp.Expr) -> TypedValue:
        """Return an expression as a boolean."""

    def write_field(self, name: str, time: exp.Expr) -> TypedValue:
        function = ALIASES.get(name.lower(), name.lower())
        if function not in _FIELDS:
            raise DuckDBOnly(f"extract({name.lower()} from ...)", f"fields: {', '.join(_FIELDS)}")
        return self._call(function, [self.write(time)])

    def write_call(self, node: exp.Expr, over: str | None = None) -> TypedValue:
        """Write a call, perhaps of an aggregate with a filter, perhaps over a window."""
        from sqlglot import exp

        condition = None
        if isinstance(node, exp.Filter):
            condition = self.write_condition(node.expression.this)
            node = node.this
        if not isinstance(node, exp.Anonymous):
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        name = node.name.lower()
        name = spark_functions.QUERY_ALIASES.get(name, name)
        if name in spark_functions.AGGREGATES:
            return self._aggregate(name, node, condition, over)
        if (name in spark_functions.WINDOW_FUNCTIONS) != (
            over is not None
        ) or condition is not None:
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        if name == "date_part" and len(node.expressions) == 2:
            return self.write_field(node.expressions[0].name, node.expressions[1])
        arguments = list(map(self.write, node.expressions))
        if name in ("lag", "lead"):
            return self._neighbor(name, arguments, str(over))
        return self._call(name, arguments, over or "")

    def _call(self, name: str, arguments: Sequence[TypedValue], over: str = "") -> TypedValue:
        if name not in spark_functions.FORMS and name not in (
            *spark_functions.CHOICES,
            "date_trunc",
        ):
            raise DuckDBOnly(name)
        stand_ins = ", ".join(argument.stand_in for argument in arguments)
        window = " OVER ()" if over else ""
        dtype = self._types.type_of(f"{name}({stand_ins}){window}")
        if name in spark_functions.CHOICES:
            sql = spark_functions.write_choice(name, arguments, dtype, self._types)
        elif name == "date_trunc":
            sql = spark_functions.write_truncation(arguments[0], arguments[1], dtype, self._types)
        else:
            sql = spark_functions.write_function(name, arguments, result=dtype, over=over)
        value = TypedValue(sql, dtype, has_window=bool(over), has_rows=name == "unnest")
        return typed_values.with_flags(value, arguments)

    def _aggregate(
        self, name: str, node: exp.Expr, condition: TypedValue | None, over: str | None
    ) -> TypedValue:
        from sqlglot import exp

        arguments = node.expressions or [exp.Star()]
        distinct = isinstance(arguments[0], exp.Distinct)
        if distinct:
            arguments = arguments[0].expressions
        argument_node = arguments[0] if len(arguments) == 1 else None
        if (
            argument_node is None
            or isinstance(argument_node, exp.Order)
            or (distinct and over is not None)
        ):
            window = "" if over is None else " over a window"
            raise DuckDBOnly(f"{node.sql(dialect=DIALECT)}{window}")
        if isinstance(argument_node, exp.Star):
            argument = TypedValue("1", "INTEGER", constant="1")
        else:
            argument = self.write(argument_node)
        dtype = self._types.type_of(f"{name}({argument.stand_in})")
        flags = [argument]
        if condition is not None:
            # Spark has no filter of an aggregate over a window; these aggregates skip nulls.
            flags.append(condition)
            filtered = f"CASE WHEN {condition.sql} THEN {argument.sql} END"
            argument = argument.without_constant().with_sql(filtered)
        if argument.type == typed_values.NULL and name != "count":
            raise DuckDBOnly(f"{name}(null)", f"{name}(null::double)")
        word = "DISTINCT " if distinct else ""
        sql = spark_functions.write_function(
            name, [argument], result=dtype, distinct=word, over=over or ""
        )
        value = TypedValue(sql, dtype, has_aggregate=over is None, has_window=over is not None)
        return typed_values.with_flags(value, flags)

    def _neighbor(self, name: str, arguments: Sequence[TypedValue], over: str) -> TypedValue:
        """Return lag or lead: of a value, a constant number of rows, and a default."""
        stand_ins = ", ".join(argument.stand_in for argument in arguments)
        dtype = self._types.type_of(f"{name}({stand_ins}) OVER ()")
        value, offset = arguments[0], "1"
        if len(arguments) > 1:
            offset = str(arguments[1].constant)
            if not offset.isdigit():
                raise DuckDBOnly(f"{name} by {offset} rows", f"{name}(x, 2)")
        default = ""
        if len(arguments) > 2:
            default = f", {typed_values.convert(arguments[2], dtype, self._types)}"
        sql = f"{name}({typed_values.convert(value, dtype, self._types)}, {offset}{default}){over}"
        return replace(typed_values.with_flags(TypedValue(sql, dtype), arguments), has_window=True)

    # -- windows ------------------------------------------------------------------------------

    def write_window(self, node: exp.Expr) -> TypedValue:
        return self.write_call(node.this, f" OVER ({self._write_frame(node)})")

    def _write_frame(self, node: exp.Expr) -> str:
        """Return the text between the parentheses of a window."""
        alias = node.args.get("alias")
        if alias is not None:
            definition = self._windows.get(alias.name.lower())
            if definition is None or node.args.get("partition_by") or node.args.get("order"):
                raise DuckDBOnly(node.sql(dialect=DIALECT))
            return self._write_frame(definition)
        clauses = []
        keys = [self.write(key).sql for key in node.args.get("partition_by") or ()]
        if keys:
            clauses.append(f"PARTITION BY {', '.join(keys)}")
        order = node.args.get("order")
        if order is not None:
            terms = [self.write_order(self.write(term.this), term) for term in order.expressions]
            clauses.append(f"ORDER BY {', '.join(terms)}")
        spec = node.args.get("spec")
        if spec is not None:
            clauses.append(write_rows(spec))
        return " ".join(clauses)

    def write_order(self, value: TypedValue, term: exp.Expr) -> str:
        """Return a term of ORDER BY for a value; DuckDB sorts nulls last by default."""
        if spark_functions.family_is_nested([value]):
            hint = spark_functions.ordered_hint(value).format(term.this.sql(dialect=DIALECT))
            raise DifferentForm(
                f"the order of {typed_values.type_name(value.type)}", f"order by {hint}"
            )
        direction = "DESC" if term.args.get("desc") else "ASC"
        nulls = "FIRST" if term.args.get("nulls_first") else "LAST"
        return f"{value.sql} {direction} NULLS {nulls}"


def write_rows(spec: exp.Expr) -> str:
    """Return the frame of a window in rows."""
    bounds = []
    for name in ("start", "end"):
        bound = spec.args.get(name)
        text = getattr(bound, "name", bound)
        if not isinstance(text, str) or not _FRAME.fullmatch(text):
            raise DuckDBOnly(spec.sql(dialect=DIALECT), "rows between 2 preceding and current row")
        side = spec.args.get(f"{name}_side")
        bounds.append(text if side is None else f"{text} {str(side).upper()}")
    is_default = bounds == ["UNBOUNDED PRECEDING", "CURRENT ROW"]
    words = str(spec.args.get("kind")).upper()
    if spec.args.get("exclude") or (words != "ROWS" and not (words == "RANGE" and is_default)):
        raise DuckDBOnly(spec.sql(dialect=DIALECT), "rows between 2 preceding and current row")
    return f"{words} BETWEEN {bounds[0]} AND {bounds[1]}"


def write_items(
    nodes: Sequence[exp.Expr], writer: CallWriter, star: Sequence[tuple[str, str, TypedValue]]
) -> Iterator[tuple[str, TypedValue]]:
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
    node: exp.Expr, columns: Sequence[tuple[str, str, TypedValue]], writer: CallWriter
) -> Iterator[tuple[str, TypedValue]]:
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
    node: exp.Expr, writer: CallWriter, items: Sequence[tuple[str, TypedValue]]
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


def write_order(order: exp.Expr, writer: CallWriter, columns: Columns) -> str:
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


def _position(node: exp.Expr, items: Sequence[tuple[str, TypedValue]]) -> int | None:
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
