"""Column lineage of SQL queries, computed from their syntax trees.

sqlglot resolves the names of a query (``qualify``): stars, aliases, USING, unqualified and quoted
columns. Its ``lineage`` function only returns the columns that an output column reads, without the
type of the transformation and without the columns of joins, filters, groups and sort keys. Therefore
the resolved tree is traversed here, and a test compares the columns of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurestore.lineage.origins import (
    AGGREGATION,
    CONDITIONAL,
    FILTER,
    GROUP_BY,
    JOIN,
    NONE,
    SORT,
    TRANSFORMATION,
    UNNAMED,
    Dataset,
    ExpressionTracer,
    OriginColumn,
    Origins,
    RelationOrigins,
    SelectScope,
    is_aggregate,
    then,
    union,
)
from featurestore.usersql.text import DIALECT

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope

_ROW_CLAUSES = {
    "where": FILTER, "having": FILTER, "qualify": FILTER,
    "group": GROUP_BY, "distinct": GROUP_BY, "order": SORT,
}  # fmt: skip


@dataclass(frozen=True)
class QueryTable:
    """A table of a query; ``time`` is the column that limits its rows to a window."""

    dataset: Dataset
    columns: Sequence[str]
    time: str | None = None


def trace_query(sql: str, tables: Mapping[str, QueryTable]) -> RelationOrigins:
    """Return the origins of the columns and rows of a query.

    >>> trips = QueryTable(Dataset("trips", 1), ["zone", "Fare"])
    >>> query = trace_query("select max(fare) as top from trips group by zone", {"trips": trips})
    >>> [(origin.column, origin.subtype) for origin in query.column("top")]
    [('Fare', 'AGGREGATION')]
    >>> [(origin.column, origin.subtype) for origin in query.rows]
    [('zone', 'GROUP_BY')]

    Args:
        sql: The query, in DuckDB SQL.
        tables: The tables of the query by name; names are compared without case, as in SQL.
    """
    import sqlglot
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.optimizer.scope import build_scope
    from sqlglot.schema import MappingSchema

    schema: dict[str, object] = {
        name.lower(): {column.lower(): "unknown" for column in table.columns}
        for name, table in tables.items()
        if table.columns
    }
    tree = qualify(
        sqlglot.parse_one(sql, dialect=DIALECT),
        dialect=DIALECT,
        # Names with dots or spaces are not parsed again.
        schema=MappingSchema(schema, dialect=DIALECT, normalize=False),
        validate_qualify_columns=False,
        identify=False,
    )
    scope = build_scope(tree)
    if scope is None:
        raise ValueError("it is not a query")
    return _QueryTracer(tables).trace(scope)


class _QueryTracer(ExpressionTracer):
    """Computes the origins of a query from the scopes of its resolved tree."""

    def __init__(self, tables: Mapping[str, QueryTable]) -> None:
        self._tables = {name.lower(): table for name, table in tables.items()}
        self._results: dict[int, RelationOrigins] = {}
        # The results so far of recursive queries, by the id of their first query.
        self._recursive: dict[int, RelationOrigins] = {}

    def trace(self, scope: Scope) -> RelationOrigins:
        """Return the origins of a query, a subquery or a table function."""
        from sqlglot import exp

        key = id(scope)
        if key not in self._results:
            expression = scope.expression
            if isinstance(expression, exp.SetOperation):
                result = self._trace_set_operation(scope, expression)
            elif isinstance(expression, exp.Select):
                result = self._trace_select(scope, expression)
            else:
                result = self._trace_table_function(scope, expression)
            self._results[key] = result
        return self._results[key]

    def _trace_select(self, scope: Scope, select: exp.Select) -> RelationOrigins:
        from sqlglot import exp

        columns: dict[str, Origins] = {}
        context = SelectScope(scope)
        for projection in select.selects:
            name, origins = projection.alias_or_name, self.value(projection, context)
            # A star of a struct, or names that match a pattern.
            if projection.is_star or projection.find(exp.Columns):
                name, origins = UNNAMED, self._expanded(projection, context)
            # Set operations combine columns by position, so columns with equal names are separate.
            columns[name if name not in columns else f"{name} {len(columns)}"] = origins
        return RelationOrigins(
            columns, self._rows(SelectScope(scope, RelationOrigins(columns)), select)
        )

    def _expanded(self, projection: exp.Expr, context: SelectScope) -> Origins:
        """Return the origins of columns whose names depend on the types or on a pattern."""
        from sqlglot import exp

        origins = self.value(projection, context)
        if projection.find(exp.Star, exp.Columns):
            names = context.scope.selected_sources
            origins |= union(self.source(name, context.scope).all_columns for name in names)
        return then(origins, TRANSFORMATION)

    def _rows(self, context: SelectScope, select: exp.Select) -> Origins:
        """Return the origins of the rows of a SELECT."""
        from sqlglot import exp

        scope, outputs = context.scope, context.outputs
        names = {*scope.selected_sources, *scope.semi_or_anti_join_tables}
        names |= {pivot.alias_or_name for pivot in scope.pivots}
        rows = [self.source(name, scope).rows for name in names if name]
        clauses = [(join.args.get("on"), JOIN) for join in scope.find_all(exp.Join)]
        clauses += [(select.args.get(name), subtype) for name, subtype in _ROW_CLAUSES.items()]
        for clause, subtype in clauses:
            if isinstance(clause, exp.Expr):
                rows.append(then(self.value(clause, context), subtype))
        group, order = select.args.get("group"), select.args.get("order")
        if group is not None and group.args.get("all"):
            rows.append(then(self._group_keys(context, select), GROUP_BY))
        if order is not None and any(key.this.name == "ALL" for key in order.expressions):
            rows.append(then(outputs.all_columns, SORT))
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is None:
            rows.append(then(outputs.all_columns, GROUP_BY))
        # A row is returned for each element of an unnested list.
        for projection in select.selects:
            lists = projection.find_all(exp.Unnest, exp.Explode)
            rows += [then(self.value(node, context), JOIN) for node in lists]
        return union(rows)

    def _group_keys(self, context: SelectScope, select: exp.Select) -> Origins:
        """Return the origins of the keys of GROUP BY ALL: what is outside of aggregates."""
        from sqlglot import exp
        from sqlglot.optimizer.scope import walk_in_scope

        keys = []
        for projection in select.selects:
            nodes = list(walk_in_scope(projection, prune=is_aggregate))
            if any(map(is_aggregate, nodes)):
                nodes = [node for node in nodes if isinstance(node, exp.Column | exp.TableColumn)]
            else:
                nodes = [projection]
            keys += [self.value(node, context) for node in nodes]
        return union(keys)

    def _trace_set_operation(self, scope: Scope, expression: exp.SetOperation) -> RelationOrigins:
        from sqlglot import exp

        anchor_scope, second_scope = scope.set_operation_scopes
        anchor = self.trace(anchor_scope)
        clause = expression.find_ancestor(exp.With)
        if not scope.is_cte or clause is None or not clause.args.get("recursive"):
            return _combine(expression, anchor, self.trace(second_scope))
        key = id(expression.this.unnest())
        result, previous = anchor, None
        # A column of the recursive query may come from another column of the iteration before.
        while result != previous:
            previous = self._recursive[key] = result
            results = dict(self._results)
            result = _combine(expression, previous, self.trace(second_scope))
            self._results = results
        return result

    def _trace_table_function(self, scope: Scope, expression: exp.Expr) -> RelationOrigins:
        """Trace UNNEST, VALUES, LATERAL or a parenthesized query."""
        inner = [*scope.subquery_scopes, *scope.derived_table_scopes]
        if inner:
            return self.trace(inner[-1])
        context = SelectScope(scope)
        origins = union(self.value(child, context) for child in expression.iter_expressions())
        # The number of rows is the length of the list.
        return RelationOrigins({UNNAMED: then(origins, TRANSFORMATION)}, then(origins, JOIN))

    # -- sources ----------------------------------------------------------------------------------

    def source(self, name: str, scope: Scope) -> RelationOrigins:
        """Return the origins of a table, a common table expression or a derived table."""
        pivots = scope.pivots
        if pivots and pivots[-1].alias_or_name == name:
            return self._pivoted(scope, pivots)
        owner: Scope | None = scope
        while owner is not None and name not in owner.sources:
            owner = owner.parent  # a correlated subquery reads the tables of the outer query
        return RelationOrigins({}) if owner is None else self._relation(owner.sources[name])

    def _relation(self, source: exp.Table | Scope) -> RelationOrigins:
        from sqlglot import exp

        if not isinstance(source, exp.Table):
            return self._recursive.get(id(source.expression)) or self.trace(source)
        table = self._tables.get(source.name.lower())
        if table is None:
            return RelationOrigins({})
        columns = {
            name.lower(): frozenset({OriginColumn(table.dataset, name)}) for name in table.columns
        }
        rows = NONE
        if table.time is not None:
            rows = frozenset(
                {OriginColumn(table.dataset, table.time, FILTER, "rows of the window")}
            )
        return RelationOrigins(columns, rows, None if columns else table.dataset)

    def _pivoted(self, scope: Scope, pivots: Sequence[exp.Pivot]) -> RelationOrigins:
        """Return the origins of a pivoted or unpivoted table."""
        from sqlglot import exp

        node = pivots[0].parent
        assert isinstance(node, exp.Table | exp.Subquery)
        base = self._relation(scope.cte_sources.get(node.name) or scope.sources[node.alias_or_name])
        is_unpivot = all(pivot.args.get("unpivot") for pivot in pivots)
        subtypes = {"expressions": AGGREGATION, "fields": CONDITIONAL}
        if is_unpivot:
            subtypes = dict.fromkeys(subtypes, TRANSFORMATION)
        computed: dict[str, Origins] = {}
        for pivot in pivots:
            for clause, subtype in subtypes.items():
                for column in _find_columns(pivot, clause):
                    origins = then(base.column(column), subtype)
                    computed[column] = computed.get(column, NONE) | origins
        keys = {name: base.columns[name] for name in base.columns if name not in computed}
        group = {name for pivot in pivots for name in _find_columns(pivot, "group")}
        if group:
            keys = {name: origins for name, origins in keys.items() if name in group}
        rows = base.rows
        if not is_unpivot:
            rows |= then(union(keys.values()), GROUP_BY)
        return RelationOrigins({**keys, UNNAMED: union(computed.values())}, rows)


def _find_columns(pivot: exp.Pivot, clause: str) -> list[str]:
    """Return the names of the columns in a clause of PIVOT or UNPIVOT."""
    from sqlglot import exp

    nodes = pivot.args.get(clause) or []
    nodes = nodes if isinstance(nodes, list) else [nodes]
    return [column.name for node in nodes for column in node.find_all(exp.Column)]


def _combine(
    expression: exp.SetOperation, first: RelationOrigins, second: RelationOrigins
) -> RelationOrigins:
    """Return the origins of the result of UNION, EXCEPT or INTERSECT."""
    from sqlglot import exp

    names = dict.fromkeys(first.columns)
    by_position = dict(zip(first.columns, second.columns, strict=False))
    if expression.args.get("by_name"):
        names |= dict.fromkeys(second.columns)
        by_position = {name: name for name in names}
    rows = first.rows | second.rows
    columns = {name: first.columns.get(name, NONE) for name in names}
    is_union = isinstance(expression, exp.Union)
    if is_union:
        for name, second_name in by_position.items():
            columns[name] |= second.columns.get(second_name, NONE)
    else:
        rows |= then(second.all_columns, FILTER)
    # EXCEPT ALL and INTERSECT ALL count equal rows.
    if expression.args.get("distinct") or not is_union:
        rows |= then(union(columns.values()), GROUP_BY)
    return RelationOrigins(columns, rows)
