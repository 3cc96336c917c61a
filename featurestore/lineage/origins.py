"""The origins of derived columns: source columns and OpenLineage's transformations.

DIRECT transformations compute the value of an output column. INDIRECT ones affect the values of one
output column, for example the condition of a CASE, or the rows of the result, for example a filter.
sqlglot has resolved the names of expressions: each column has the name of its table in the scope of
its query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from featurestore.usersql.queries import REPEATABLE, SUMS, VARYING
from featurestore.usersql.text import DIALECT, parse_statement

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope


# OpenLineage's subtypes (ColumnLineageDatasetFacet), direct and indirect.
IDENTITY, TRANSFORMATION, AGGREGATION = "IDENTITY", "TRANSFORMATION", "AGGREGATION"
JOIN, FILTER, GROUP_BY, SORT = "JOIN", "FILTER", "GROUP_BY", "SORT"
WINDOW, CONDITIONAL = "WINDOW", "CONDITIONAL"
# In ascending precedence: the aggregate of a transformed value is an aggregation.
_DIRECT = (IDENTITY, TRANSFORMATION, AGGREGATION)


class Dataset(NamedTuple):
    """A feature group version, the path of a table, or a registered source (``source:shop``).

    ``query`` is the table, path or query hash that is read from a registered source.
    """

    source: str
    version: int | None = None
    query: str = ""


@dataclass(frozen=True)
class OriginColumn:
    """A source column of a derived column, with the transformation.

    ``subtype`` is an OpenLineage subtype, ``text`` a description. With ``masking``, the source value
    cannot be recovered from the result.
    """

    dataset: Dataset
    column: str
    subtype: str = IDENTITY
    text: str = ""
    masking: bool = False

    @property
    def is_direct(self) -> bool:
        """Whether the value of the derived column is computed from this column."""
        return self.subtype in _DIRECT

    def then(self, subtype: str, *, masking: bool = False) -> OriginColumn:
        """Return the origin after a further transformation.

        >>> OriginColumn(Dataset("trips", 1), "fare", AGGREGATION).then(TRANSFORMATION).subtype
        'AGGREGATION'
        """
        if subtype not in _DIRECT:
            return replace(self, subtype=subtype)
        if not self.is_direct:
            return self
        combined = max(self.subtype, subtype, key=_DIRECT.index)
        return replace(self, subtype=combined, masking=self.masking or masking)


Origins = frozenset[OriginColumn]
NONE: Origins = frozenset()
# The key of the columns of a query whose names its text does not contain.
UNNAMED = "*"


def then(origins: Iterable[OriginColumn], subtype: str, *, masking: bool = False) -> Origins:
    """Return the origins after a further transformation."""
    return frozenset(origin.then(subtype, masking=masking) for origin in origins)


def union(origins: Iterable[Iterable[OriginColumn]]) -> Origins:
    """Return all origins."""
    return NONE.union(*origins)


@dataclass(frozen=True)
class RelationOrigins:
    """The origins of the columns of a table or query, by name in lower case, and of its rows.

    ``table`` is a table with unknown columns.
    """

    columns: Mapping[str, Origins]
    rows: Origins = NONE
    table: Dataset | None = None

    def column(self, name: str) -> Origins:
        """Return the origins of a column; the name is in lower case."""
        if self.table is not None:
            return frozenset({OriginColumn(self.table, name)})
        return self.columns.get(name, self.columns.get(UNNAMED, NONE))

    @property
    def all_columns(self) -> Origins:
        """The origins of all columns."""
        return union(self.columns.values())


def sort_origins(origins: Iterable[OriginColumn]) -> list[OriginColumn]:
    """Return the origins without duplicates in an order that does not depend on the process."""
    return sorted(
        set(origins),
        key=lambda origin: (
            not origin.is_direct, origin.dataset.source, origin.dataset.version or 0,
            origin.dataset.query, origin.column, origin.subtype, origin.masking, origin.text,
        ),
    )  # fmt: skip


# sqlglot's names: a value cannot be recovered from its hash, and a count does not contain it.
_MASKING_LISTED = """
    hash md5 md5_number md5_number_lower md5_number_upper sha sha2
    count count_if approx_distinct regr_count
"""
_MASKING = frozenset(_MASKING_LISTED.split())
# Functions without a class in sqlglot.
_AGGREGATES = REPEATABLE | SUMS | VARYING


def find_columns(condition: str) -> list[str]:
    """Return the names of the columns in a condition of one row, as written, without duplicates.

    >>> find_columns("fare > 3 and Zone in ('a', 'b')")
    ['fare', 'Zone']
    """
    from sqlglot import exp

    tree = parse_statement(condition, expected="condition", calls_by_name=True)
    return list(dict.fromkeys(column.name for column in tree.find_all(exp.Column)))


@dataclass(frozen=True)
class SelectScope:
    """The SELECT of an expression; clauses may also refer to its result columns, ``outputs``."""

    scope: Scope
    outputs: RelationOrigins = field(default_factory=lambda: RelationOrigins({}))


class ExpressionTracer(ABC):
    """Computes the origins of expressions; subclasses resolve tables and subqueries.

    The methods for syntax have the names of its classes in ``_VISITORS``.
    """

    @abstractmethod
    def trace(self, scope: Scope) -> RelationOrigins:
        """Return the origins of a query."""

    @abstractmethod
    def source(self, name: str, scope: Scope) -> RelationOrigins:
        """Return the origins of a table, a common table expression or a derived table."""

    def value(self, node: exp.Expr, context: SelectScope) -> Origins:
        """Return the origins of the value of an expression."""
        from sqlglot import exp

        for base in type(node).__mro__:
            if base.__name__ in _VISITORS:
                return _VISITORS[base.__name__](self, node, context)
        name = node.name if isinstance(node, exp.Anonymous) else ""
        if isinstance(node, exp.Func) and not name:
            name = node.sql_name()
        if name.lower().startswith(("arg_max", "arg_min")):
            return self.selected(node, context)
        subtype = AGGREGATION if is_aggregate(node) else TRANSFORMATION
        masking = name.lower() in _MASKING
        return then(self.identity(node, context), subtype, masking=masking)

    def identity(self, node: exp.Expr, context: SelectScope) -> Origins:
        """Return the origins of all children, whose values do not change."""
        return union(self.value(child, context) for child in node.iter_expressions())

    def column(self, node: exp.Column, context: SelectScope) -> Origins:
        """Return the origins of a column of a table or, in a clause, of the result."""
        from sqlglot import exp

        scope = context.scope
        if node.table:
            return self.source(node.table, scope).column(node.name)
        # An aggregate in HAVING does not refer to an aggregate of the result.
        is_result = node.name in context.outputs.columns
        if is_result and not node.find_ancestor(exp.Having, exp.Qualify):
            return context.outputs.columns[node.name]
        # sqlglot resolves neither columns of USING in HAVING, QUALIFY and ORDER BY, nor columns of
        # a table with unknown columns.
        tables = [name for name in scope.selected_sources if self._has(name, node.name, scope)]
        values = [self.source(name, scope).column(node.name) for name in _merge(tables, scope)]
        return union(values)

    def _has(self, table: str, column: str, scope: Scope) -> bool:
        relation = self.source(table, scope)
        return column in relation.columns or relation.table is not None

    def row(self, node: exp.TableColumn, context: SelectScope) -> Origins:
        """Return the origins of a table row as a struct, ``select t from t``."""
        return then(self.source(node.name, context.scope).all_columns, TRANSFORMATION)

    def subquery(self, node: exp.Expr, context: SelectScope) -> Origins:
        """Return the origins of a subquery in an expression."""
        result = self._find_subquery(node.unnest(), context)
        return result.all_columns | result.rows

    def exists(self, node: exp.Expr, context: SelectScope) -> Origins:
        """Return the origins of EXISTS: the rows of the subquery, not its columns."""
        return self._find_subquery(node.this.unnest(), context).rows

    def _find_subquery(self, query: exp.Expr, context: SelectScope) -> RelationOrigins:
        for scope in context.scope.subquery_scopes:
            if scope.expression is query:
                return self.trace(scope)
        raise ValueError(f"the subquery {query.sql(dialect=DIALECT)} has no scope")

    def case(self, node: exp.Expr, context: SelectScope) -> Origins:
        """Return the origins of CASE and IF: conditions, and values of branches."""
        branches = node.args.get("ifs") or [node]
        conditions = [branch.this for branch in branches]
        values = [branch.args.get(name) for branch in branches for name in ("true", "false")]
        if node.key == "case":
            conditions.append(node.this)
            values.append(node.args.get("default"))
        return then(self._values(conditions, context), CONDITIONAL) | then(
            self._values(values, context), TRANSFORMATION
        )

    def _values(self, nodes: Iterable[exp.Expr | None], context: SelectScope) -> Origins:
        return union(self.value(node, context) for node in nodes if node is not None)

    def coalesce(self, node: exp.Expr, context: SelectScope) -> Origins:
        """Return the origins of COALESCE and NULLIF, or of a column that USING merges."""
        columns = [node.this, *node.expressions]
        # sqlglot replaces a column of USING by COALESCE of columns without a position in the text.
        if node.key == "coalesce" and all(
            column.key == "column" and column.this.meta.get("start") is None for column in columns
        ):
            tables = _merge([column.table for column in columns], context.scope)
            return union(self.source(name, context.scope).column(node.this.name) for name in tables)
        origins = self.identity(node, context)
        value = self.value(node.this, context) if node.key == "nullif" else origins
        return then(origins, CONDITIONAL) | then(value, TRANSFORMATION)

    def selected(self, node: exp.Expr, context: SelectScope) -> Origins:
        """Return the origins of ``arg_max(value, key)`` and similar aggregates."""
        value, key, *_ = node.iter_expressions()
        return then(self.value(value, context), AGGREGATION) | then(self.value(key, context), SORT)

    def ordered(self, node: exp.Order, context: SelectScope) -> Origins:
        """Return the origins of the argument of an aggregate with ORDER BY, or of sort keys."""
        keys = union(self.value(key.this, context) for key in node.expressions)
        if node.this is None:
            return keys
        return self.value(node.this, context) | then(keys, SORT)

    def within_group(self, node: exp.WithinGroup, context: SelectScope) -> Origins:
        """Return the origins of ``quantile_cont(0.5) within group (order by x)``."""
        value, keys = self.value(node.this, context), self.value(node.expression, context)
        # The keys are the aggregated values if the aggregate has no argument.
        return value | then(keys, SORT if value else AGGREGATION)

    def filtered(self, node: exp.Filter, context: SelectScope) -> Origins:
        """Return the origins of an aggregate with FILTER."""
        condition = self.value(node.expression, context)
        return self.value(node.this, context) | then(condition, FILTER)

    def window(self, node: exp.Window, context: SelectScope) -> Origins:
        """Return the origins of a window function: of its argument, partition and order."""
        bounds = [*node.args.get("partition_by", ()), node.args.get("order"), node.args.get("spec")]
        origins = self._values(bounds, context)
        for definition in context.scope.expression.args.get("windows") or ():
            if definition.name == node.alias:
                origins |= self.window(definition, context)
        return self.value(node.this, context) | then(origins, WINDOW)


_Visitor = Callable[[ExpressionTracer, Any, SelectScope], Origins]
# By the names of sqlglot's classes, because the library is imported when the first event is sent.
_VISITORS: dict[str, _Visitor] = {
    "Alias": ExpressionTracer.identity,
    "Paren": ExpressionTracer.identity,
    "Distinct": ExpressionTracer.identity,
    "IgnoreNulls": ExpressionTracer.identity,
    "RespectNulls": ExpressionTracer.identity,
    "Column": ExpressionTracer.column,
    "TableColumn": ExpressionTracer.row,
    "Query": ExpressionTracer.subquery,
    "Exists": ExpressionTracer.exists,
    "Case": ExpressionTracer.case,
    "If": ExpressionTracer.case,
    "Coalesce": ExpressionTracer.coalesce,
    "Nullif": ExpressionTracer.coalesce,
    "Order": ExpressionTracer.ordered,
    "WithinGroup": ExpressionTracer.within_group,
    "Filter": ExpressionTracer.filtered,
    "Window": ExpressionTracer.window,
}


def is_aggregate(node: exp.Expr) -> bool:
    """Return whether a function computes one value from many rows."""
    from sqlglot import exp

    if isinstance(node, exp.Filter | exp.WithinGroup):
        return is_aggregate(node.this)
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _AGGREGATES
    # These return the value of one row.
    is_window = isinstance(node, exp.Lag | exp.Lead | exp.FirstValue | exp.LastValue | exp.NthValue)
    return isinstance(node, exp.AggFunc) and not is_window


def _merge(tables: Iterable[str], scope: Scope) -> list[str]:
    """Return the joined tables whose values a column in USING has: those of the outer side."""
    from sqlglot import exp

    sides = {join.alias_or_name: join.side for join in scope.find_all(exp.Join)}
    outer_tables: list[str] = []
    for name in tables:
        if sides.get(name) == "RIGHT":
            outer_tables.clear()
        if sides.get(name) in ("RIGHT", "FULL") or not outer_tables:
            outer_tables.append(name)
    return outer_tables
