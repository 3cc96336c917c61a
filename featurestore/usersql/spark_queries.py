"""Queries over typed tables, written as Spark SQL that returns the same rows as DuckDB.

The query is read in DuckDB's dialect. Names are resolved here, by DuckDB's rules, and every column
and table gets a name of its own in the Spark SQL. Therefore nothing depends on how Spark resolves
aliases, converts types or sorts nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from featurestore.errors import InvalidSql
from featurestore.usersql import spark_clauses
from featurestore.usersql.spark_expressions import ExpressionWriter
from featurestore.usersql.spark_scopes import (
    Columns,
    Scope,
    ScopeTable,
    column_name,
    output_columns,
    rename_columns,
)
from featurestore.usersql.text import DIALECT, parse_statement, quote, shorten_sql
from featurestore.usersql.typed_values import (
    DifferentForm,
    DuckDBOnly,
    DuckDBTypes,
    TypedValue,
    convert,
)

if TYPE_CHECKING:
    from sqlglot import exp

# Tables by lower-case name: the name on Spark, and the columns with their DuckDB types.
Tables = Mapping[str, tuple[str, Sequence[tuple[str, str]]]]
# Arguments of a join other than a comma, and of a subquery that sorts or limits its rows.
_JOIN_WORDS = ("kind", "side", "method", "on", "using")
_MODIFIERS = ("order", "limit", "offset")
_FILTER = "`is_selected`"
_ON_BOTH = "every function and type on both engines: docs/reference/sql.md"


def to_spark_sql(
    sql: str, *, tables: Tables, parameters: Mapping[str, str], types: DuckDBTypes
) -> str:
    """Return the Spark SQL of a validated query; its columns are named ``c0``, ``c1`` and so on.

    Args:
        sql: The query in DuckDB SQL.
        tables: The tables by lower-case name.
        parameters: The DuckDB type of each parameter.
        types: DuckDB's types.

    Raises:
        InvalidSql: A part of the query is not equal on both engines, or is invalid.
    """
    try:
        return _translate(sql, tables, parameters, types)
    except DuckDBOnly as error:
        reason = (
            "differs between engines"
            if isinstance(error, DifferentForm)
            else ("was not verified to be equal on spark")
        )
        raise InvalidSql(
            f"{shorten_sql(sql)}: {error.form} {reason}.", hint=error.hint or _ON_BOTH
        ) from error
    except InvalidSql as error:
        raise InvalidSql(f"{shorten_sql(sql)}: {error.message}", hint=error.hint) from error


def check_forms(
    sql: str, *, tables: Tables, parameters: Mapping[str, str], types: DuckDBTypes
) -> None:
    """Raise InvalidSql for a query with a form that differs between engines.

    A query with forms that only DuckDB has is accepted: it is refused on Spark by name.
    """
    try:
        _translate(sql, tables, parameters, types)
    except DifferentForm as error:
        raise InvalidSql(
            f"{shorten_sql(sql)}: {error.form} differs between engines.", hint=error.hint
        ) from error
    except (DuckDBOnly, InvalidSql):
        # DuckDB itself reports names and types that are invalid.
        return


def _translate(sql: str, tables: Tables, parameters: Mapping[str, str], types: DuckDBTypes) -> str:
    tree = parse_statement(sql, expected="query", calls_by_name=True)
    try:
        text, _ = _QueryWriter(tables, parameters, types).write(tree, None, {})
    except RecursionError as error:
        raise InvalidSql("the query is nested too deeply.") from error
    return text


class _QueryWriter:
    """Writes SELECT statements, set operations and VALUES."""

    def __init__(self, tables: Tables, parameters: Mapping[str, str], types: DuckDBTypes) -> None:
        self._tables = tables
        self._parameters = parameters
        self._types = types
        self._numbers = count()

    def write(
        self, node: exp.Expr, parent: Scope | None, visible: Mapping[str, tuple[str, Columns]]
    ) -> tuple[str, Columns]:
        """Return the Spark SQL and the columns of a query.

        Args:
            node: The query.
            parent: The scope of the query that contains it.
            visible: The common table expressions by lower-case name.
        """
        from sqlglot import exp

        clause = spark_clauses.argument_of(node, "with")
        definitions = ""
        if clause is not None:
            definitions, visible = self._write_definitions(clause, parent, visible)
        if isinstance(node, exp.Select):
            sql, columns = self._write_select(node, parent, visible)
        elif isinstance(node, exp.SetOperation):
            sql, columns = self._write_set_operation(node, parent, visible)
        elif isinstance(node, exp.Subquery):
            sql, columns = self.write(node.this, parent, visible)
            sql = self._write_modifiers(node, sql, columns)
        elif isinstance(node, exp.Values):
            sql, columns = self._write_values(node, parent)
        else:
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        return definitions + sql, columns

    def _write_definitions(
        self, clause: exp.Expr, parent: Scope | None, visible: Mapping[str, tuple[str, Columns]]
    ) -> tuple[str, dict[str, tuple[str, Columns]]]:
        """Write a WITH clause; return the common table expressions that are visible after it."""
        if clause.args.get("recursive"):
            raise DuckDBOnly("with recursive")
        inside, definitions = dict(visible), []
        for expression in clause.expressions:
            sql, columns = self.write(expression.this, parent, inside)
            name = quote(f"cte_{next(self._numbers)}", dialect="spark")
            renamed = rename_columns(columns, expression.args["alias"])
            inside[expression.alias_or_name.lower()] = (name, renamed)
            definitions.append(f"{name} AS ({sql})")
        return f"WITH {', '.join(definitions)} ", inside

    # -- SELECT -------------------------------------------------------------------------------

    def _write_select(
        self, node: exp.Expr, parent: Scope | None, visible: Mapping[str, tuple[str, Columns]]
    ) -> tuple[str, Columns]:
        from sqlglot import exp

        distinct = node.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            raise DuckDBOnly("distinct on", "qualify row_number() over (partition by a) = 1")
        spark_clauses.refuse_arguments(
            node, ("laterals", "pivots", "sample", "kind", "hint", "match", "into")
        )
        scope = Scope(parent=parent)
        star: list[tuple[str, str, TypedValue]] = []
        source_sql = self._write_from(node, scope, star, visible)
        windows = {window.name.lower(): window for window in node.args.get("windows") or ()}
        writer = ExpressionWriter(
            scope,
            self._types,
            self._parameters,
            lambda query, outer: self.write(query, outer, visible),
            windows,
        )
        items = list(spark_clauses.write_items(node.expressions, writer, star))
        condition = node.args.get("where")
        clauses = ""
        if condition is not None:
            clauses = f" WHERE {writer.write_condition(condition.this).sql}"
        clauses += spark_clauses.write_groups(node, writer, items)
        having = node.args.get("having")
        if having is not None:
            clauses += f" HAVING {writer.write_condition(having.this).sql}"
        selected = [
            f"{value.sql} AS {column_name(index)}" for index, (_, value) in enumerate(items)
        ]
        columns = output_columns(items)
        qualify = node.args.get("qualify")
        if qualify is not None:
            selected.append(f"{writer.write_condition(qualify.this).sql} AS {_FILTER}")
        words = "SELECT DISTINCT" if distinct is not None and qualify is None else "SELECT"
        sql = f"{words} {', '.join(selected)}{source_sql}{clauses}"
        if qualify is not None:
            names = ", ".join(value.sql for _, value in columns)
            words = "SELECT DISTINCT" if distinct is not None else "SELECT"
            sql = f"{words} {names} FROM ({sql}) WHERE {_FILTER}"
            return self._write_modifiers(node, sql, columns), columns
        scope.has_alias_first = True
        scope.aliases = {name.lower(): value for name, value in reversed(columns)}
        order = node.args.get("order")
        if order is not None:
            sql += spark_clauses.write_order(order, writer, columns)
        if any(isinstance(item, exp.Star) for item in node.expressions) and not items:
            raise InvalidSql("the query has no columns.")
        return sql + spark_clauses.write_limit(node), columns

    def _write_modifiers(self, node: exp.Expr, sql: str, columns: Columns) -> str:
        """Return a query with the ORDER BY and LIMIT of a node over its columns."""
        order, limit = node.args.get("order"), spark_clauses.write_limit(node)
        if order is None and not limit:
            return sql
        scope = Scope(sources=[ScopeTable("", columns)])
        writer = ExpressionWriter(scope, self._types, self._parameters, _refuse_query, {})
        terms = "" if order is None else spark_clauses.write_order(order, writer, columns)
        return f"SELECT * FROM ({sql}){terms}{limit}"

    # -- FROM ---------------------------------------------------------------------------------

    def _write_from(
        self,
        node: exp.Expr,
        scope: Scope,
        star: list[tuple[str, str, TypedValue]],
        visible: Mapping[str, tuple[str, Columns]],
    ) -> str:
        """Write the FROM clause; add its tables to a scope, and its columns to ``star``."""
        clause = spark_clauses.argument_of(node, "from")
        if clause is None:
            return ""
        sql, source = self._write_source(clause.this, scope.parent, visible)
        scope.sources.append(source)
        star += [(source.name, name, value) for name, value in source.columns]
        joins = node.args.get("joins") or ()
        is_comma = False
        for join in joins:
            is_comma = is_comma or not any(map(join.args.get, _JOIN_WORDS))
            if is_comma and join.side in ("RIGHT", "FULL"):
                raise DuckDBOnly(f"{join.side.lower()} join after a comma", "cross join")
            sql += self._write_join(join, scope, star, visible)
        return f" FROM {sql}"

    def _write_source(
        self, node: exp.Expr, parent: Scope | None, visible: Mapping[str, tuple[str, Columns]]
    ) -> tuple[str, ScopeTable]:
        from sqlglot import exp

        spark_clauses.refuse_arguments(
            node, ("joins", "laterals", "pivots", "sample", "version", "when")
        )
        alias = quote(f"t{next(self._numbers)}", dialect="spark")
        columns: Sequence[tuple[str, TypedValue]]
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            name = node.name.lower()
            if name in visible:
                sql, columns = visible[name]
            else:
                if name not in self._tables:
                    raise InvalidSql(f"unknown table {node.name!r}.")
                table, typed = self._tables[name]
                sql = quote(table, dialect="spark")
                columns = [
                    (column, TypedValue(quote(column, dialect="spark"), t)) for column, t in typed
                ]
        elif isinstance(node, exp.Subquery | exp.Values):
            query = node
            if isinstance(node, exp.Subquery) and not any(map(node.args.get, _MODIFIERS)):
                query = node.this
            text, columns = self.write(query, parent, visible)
            sql = f"({text})"
        else:
            raise DuckDBOnly(node.sql(dialect=DIALECT))
        renamed = rename_columns(columns, node.args.get("alias"))
        qualified = [(name, value.with_sql(f"{alias}.{value.sql}")) for name, value in renamed]
        return f"{sql} AS {alias}", ScopeTable(node.alias_or_name, tuple(qualified))

    def _write_join(
        self,
        join: exp.Join,
        scope: Scope,
        star: list[tuple[str, str, TypedValue]],
        visible: Mapping[str, tuple[str, Columns]],
    ) -> str:
        """Write a join; add its table to a scope, and its columns to ``star``."""
        side, method = join.side, join.method
        joined = join.kind if join.kind in ("SEMI", "ANTI") else ""
        if method not in ("", "NATURAL") or (joined and side not in ("", "LEFT")):
            raise DuckDBOnly(f"{method or side} join".lower())
        sql, source = self._write_source(join.this, scope.parent, visible)
        names = [identifier.name for identifier in join.args.get("using") or ()]
        if method == "NATURAL":
            names = [name for name, _ in source.columns if scope.find(name) is not None]
        conditions = [
            self._merge_column(name, scope, source, side=side, star=star) for name in names
        ]
        scope.sources.append(source)
        if not joined:
            merged = {name.lower() for name in names}
            star += [
                (source.name, name, value)
                for name, value in source.columns
                if name.lower() not in merged
            ]
        on = join.args.get("on")
        if on is not None:
            writer = ExpressionWriter(
                scope,
                self._types,
                self._parameters,
                lambda query, outer: self.write(query, outer, visible),
                {},
            )
            conditions.append(writer.write_condition(on).sql)
        if joined:
            scope.sources.remove(source)
        words = side or ("INNER" if conditions else "CROSS")
        if joined:
            words = f"LEFT {joined}"
        condition = f" ON {' AND '.join(conditions)}" if conditions else ""
        return f" {words} JOIN {sql}{condition}"

    def _merge_column(
        self,
        name: str,
        scope: Scope,
        source: ScopeTable,
        *,
        side: str,
        star: list[tuple[str, str, TypedValue]],
    ) -> str:
        """Merge a column of USING; return the condition that its values are equal."""
        first, second = scope.find(name), source.find(name)
        if first is None or second is None:
            raise InvalidSql(f"unknown column {name!r} in USING.")
        common = self._types.common_type([first, second])
        equal = [convert(value, common, self._types) for value in (first, second)]
        merged = {"RIGHT": second, "FULL": TypedValue(f"coalesce({', '.join(equal)})", common)}.get(
            side, first
        )
        scope.merged[name.lower()] = merged
        for index, (table, column, value) in enumerate(star):
            if column.lower() == name.lower() and value == first:
                star[index] = (table, column, merged)
        return f"({' = '.join(equal)})"

    # -- set operations and VALUES --------------------------------------------------------------

    def _write_set_operation(
        self, node: exp.Expr, parent: Scope | None, visible: Mapping[str, tuple[str, Columns]]
    ) -> tuple[str, Columns]:
        spark_clauses.refuse_arguments(node, ("by_name", "side", "kind", "on"))
        queries = [self.write(side, parent, visible) for side in (node.this, node.expression)]
        (_, first), (_, second) = queries
        if len(first) != len(second):
            raise InvalidSql("the queries of a set operation have different numbers of columns.")
        common = [
            self._types.common_type([a.without_constant(), b.without_constant()])
            for (_, a), (_, b) in zip(first, second, strict=True)
        ]
        texts = []
        for sql, columns in queries:
            selected = [
                f"{convert(value, dtype, self._types)} AS {column_name(index)}"
                for index, ((_, value), dtype) in enumerate(zip(columns, common, strict=True))
            ]
            texts.append(f"(SELECT {', '.join(selected)} FROM ({sql}))")
        word = type(node).__name__.upper()
        if not node.args.get("distinct"):
            word += " ALL"
        typed = [
            (name, value.with_sql(value.sql, t))
            for (name, value), t in zip(first, common, strict=True)
        ]
        result = output_columns(typed)
        return self._write_modifiers(node, f" {word} ".join(texts), result), result

    def _write_values(self, node: exp.Expr, parent: Scope | None) -> tuple[str, Columns]:
        """Write VALUES as a union of rows of one type."""
        scope = Scope(parent=parent)
        writer = ExpressionWriter(scope, self._types, self._parameters, _refuse_query, {})
        rows = [[writer.write(cell) for cell in row.expressions] for row in node.expressions]
        common = [self._types.common_type(list(cells)) for cells in zip(*rows, strict=True)]
        texts = []
        for row in rows:
            cells = [
                f"{convert(cell, dtype, self._types)} AS {column_name(index)}"
                for index, (cell, dtype) in enumerate(zip(row, common, strict=True))
            ]
            texts.append(f"SELECT {', '.join(cells)}")
        columns = output_columns(
            [(f"col{i}", TypedValue("", dtype)) for i, dtype in enumerate(common)]
        )
        return " UNION ALL ".join(texts), columns


def _refuse_query(node: exp.Expr, scope: Scope) -> tuple[str, Columns]:
    raise DuckDBOnly(node.sql(dialect=DIALECT))
