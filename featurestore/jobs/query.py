"""The query of an SQL job, and the tables and columns of its syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from featurestore import usersql
from featurestore.arrow.column_names import RESERVED_PREFIX
from featurestore.errors import FeatureStoreError
from featurestore.model.job import SqlWork
from featurestore.model.names import parse_group_reference
from featurestore.model.times import Window, utc_now
from featurestore.plugins import observers
from featurestore.plugins.engine import Engine, Relation
from featurestore.retrieval.resolve import Specs, find_spec
from featurestore.usersql.queries import REPEATABLE, SUMS, VARYING
from featurestore.usersql.typed_values import has_refused_form

if TYPE_CHECKING:
    from sqlglot import exp

_START, _END = "window_start", "window_end"
# The columns with the bounds of the window of an input row.
WINDOW_COLUMNS = tuple(RESERVED_PREFIX + name for name in (_START, _END))

# Syntax that computes a row from one row or one group. Subqueries, windows, limits and other
# syntax may combine rows of different windows.
_ROW_NODE_NAMES = """
    Select From Join Where Group Having Order Ordered Distinct Table TableAlias Tuple Column
    Identifier Star Alias Paren Literal Boolean Null Var Placeholder Parameter And Or Not
    EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ Is In Between Like ILike RegexpLike Glob SimilarTo
    Escape Add Sub Mul Div IntDiv Mod Pow Neg DPipe BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
    BitwiseLeftShift BitwiseRightShift Case If Cast TryCast DataType DataTypeParam Extract Interval
    AtTimeZone Collate Anonymous StartsWith Filter WithinGroup Dot Bracket Slice Array Struct
    PropertyEQ JSONExtract JSONExtractScalar
"""
_ROW_NODES = frozenset(_ROW_NODE_NAMES.split())
_CLAUSES = frozenset({"expressions", "from_", "joins", "where", "group", "having", "order"})
_JOIN_CLAUSES = frozenset({"this", "side", "kind", "on", "using", "method"})
# Aggregates whose result depends on the order of rows by its last bits at most; of the others that
# vary, it depends on the order of rows.
_ROUNDED_NAMES = """
    corr covar_pop covar_samp favg fsum kahan_sum kurtosis kurtosis_pop product regr_avgx regr_avgy
    regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop
    stddev_samp sumkahan var_pop var_samp variance
"""
_ORDER_DEPENDENT = VARYING - frozenset(_ROUNDED_NAMES.split())
_AGGREGATES = REPEATABLE | SUMS | VARYING
_OUTER, _INNER = ("", "OUTER"), ("", "INNER", "CROSS")


@dataclass(frozen=True)
class JobQuery:
    """A job query, transpiled for an engine."""

    code: str
    engine: Engine

    def check(self, inputs: Mapping[str, str], specs: Specs) -> None:
        """Raise InvalidSql for a query that the engine cannot parse, or with a refused form.

        Some forms are refused for some types only, which are known if all inputs are existing
        groups. Unknown columns and wrong types are allowed: a group may change before the first
        window.
        """
        query = _transpile(self.code, tuple(inputs), self.engine.dialect)
        self.engine.check_syntax(query)
        tables = {}
        try:
            for name, source in inputs.items():
                reference, version = parse_group_reference(source)
                schema = find_spec(reference, version=version, specs=specs).schema
                tables[name] = self.engine.from_arrow(schema.empty_table().to_reader())
            now = utc_now()
            self.run(tables, Window(now - timedelta(hours=1), now))
        except FeatureStoreError as error:
            # The first window reports other errors, such as an input that is missing then.
            if has_refused_form(error):
                raise
        finally:
            for relation in tables.values():
                self.engine.release(relation)

    def run(self, inputs: Mapping[str, Relation], window: Window) -> Relation:
        """Compute the rows of a window from filtered inputs."""
        query = _transpile(self.code, tuple(inputs), self.engine.dialect)
        tables = {}
        for name, relation in inputs.items():
            # Only the columns that the query names are read.
            columns = usersql.find_columns(self.code, relation.schema.names)
            columns_by_name = dict(zip(columns, columns, strict=True))
            tables[name] = self.engine.select(relation, columns_by_name)
        work = observers.current()
        if work is not None:
            # The bounds of windows are not columns of the input.
            work.input_columns = {
                name: tuple(
                    column
                    for column in relation.schema.names
                    if not column.startswith(RESERVED_PREFIX)
                )
                for name, relation in tables.items()
            }
        parameter_names = set(re.findall(r"\$([A-Za-z_][A-Za-z0-9_]*)", self.code))
        # DuckDB rejects values for parameters that the query does not contain.
        parameters = {}
        if _START in parameter_names:
            parameters[_START] = window.start
        if _END in parameter_names:
            parameters[_END] = window.end
        return self.engine.user_sql(query, tables=tables, parameters=parameters)


@lru_cache(maxsize=256)
def _transpile(code: str, tables: tuple[str, ...], dialect: str) -> str:
    return usersql.query(code, tables=tables, dialect=dialect)


class Unproven(Exception):
    """A query is not proven; the message is the reason."""


@lru_cache(maxsize=256)
def parse_query(code: str) -> exp.Expr:
    """Return the syntax tree of a query. The tree is cached: callers must not modify it."""
    return usersql.parse_statement(code, expected="query", calls_by_name=True)


@dataclass(frozen=True)
class WindowedQuery:
    """A query whose result rows each depend on the input rows of one window, and static tables.

    Attributes:
        work: The work of the job.
        select: The syntax tree.
        columns: The column names of each table, in lower case, by the alias of the table.
        position: The position of the only table that is filtered by time; 0 is the table after FROM.
        alias: Its alias, in lower case.
        input: The name of its input.
        time: Its time column, in lower case.
    """

    work: SqlWork
    select: exp.Select
    columns: Mapping[str, list[str]]
    position: int
    alias: str
    input: str
    time: str

    @classmethod
    def resolve(
        cls, work: SqlWork, *, schemas: Mapping[str, pa.Schema], times: Mapping[str, str]
    ) -> WindowedQuery:
        """Resolve the tables of a query.

        Raises:
            Unproven: Result rows may depend on the input rows of several windows.
        """
        if work.lookback:
            raise Unproven("with lookback=, an input row belongs to several windows")
        select = cls._check_syntax(parse_query(work.code))
        names = {name.lower(): name for name in schemas}
        columns: dict[str, list[str]] = {}
        windowed = []
        tables = [select.args["from_"].this, *(join.this for join in select.args.get("joins", ()))]
        for position, table in enumerate(tables):
            name = names[cls._check_table(table).lower()]
            alias = table.alias_or_name.lower()
            columns[alias] = [column.lower() for column in schemas[name].names]
            if name in times:
                windowed.append((position, alias, name, times[name].lower()))
                cls._check_time_type(schemas[name].field(times[name]))
        if len(windowed) != 1:
            raise Unproven(f"the query reads inputs with a time {len(windowed)} times, not once")
        for number, join in enumerate(select.args.get("joins", ()), 1):
            cls._check_join(join, number, windowed=windowed[0][0])
        return cls(work, select, columns, *windowed[0])

    def is_time(self, node: exp.Expr | None) -> bool:
        """Return whether an expression is the time column of the windowed table."""
        from sqlglot import exp

        if not isinstance(node, exp.Column) or node.name.lower() != self.time:
            return False
        if not node.table:  # an unqualified name, which must belong to no other table
            names = [name for table_names in self.columns.values() for name in table_names]
        else:
            names = self.columns[self.alias]
            if node.args.get("db") is not None or node.table.lower() != self.alias:
                return False
            # ``a.b`` is also the field ``b`` of a struct ``a``.
            if any(self.alias in table_names for table_names in self.columns.values()):
                return False
        return names.count(self.time) == 1

    def event_time(self) -> exp.Expr | None:
        """Return the expression of the event time in the result; None if the result has none.

        Raises:
            Unproven: Several columns have this name.
        """
        name = str(self.work.options.event_time)
        outputs = [
            (output_name, node)
            for output_name, node in self.outputs()
            if output_name.lower() == name.lower()
        ]
        if not outputs:
            return None
        if [output_name for output_name, _ in outputs] != [name]:
            raise Unproven(f"the event time {name!r} is not the name of exactly one column")
        return outputs[0][1]

    def outputs(self) -> Iterator[tuple[str, exp.Expr]]:
        """Yield the names and expressions of the result columns."""
        from sqlglot import exp

        for node in self.select.expressions:
            if not node.is_star:
                yield node.alias_or_name, node.unalias()
                continue
            star = node.this if isinstance(node, exp.Column) else node
            if not isinstance(star, exp.Star) or any(star.args.values()):
                raise Unproven(f"the columns of {quote_sql(node)} are not known")
            aliases = list(self.columns) if star is node else [node.table.lower()]
            for alias in aliases:
                for name in self.columns.get(alias, ()):
                    yield name, exp.column(name, table=alias)

    def with_window_columns(self) -> str:
        """Return the query with ``WINDOW_COLUMNS`` of the input instead of parameters.

        Rows are also grouped by these columns. If the result has no event time, the end of the
        window is added.

        Raises:
            Unproven: The query cannot be written in this way.
        """
        from sqlglot import exp

        self._check_columns()
        select = self.select.copy()
        bounds = [exp.column(name, table=self.alias, quoted=True) for name in WINDOW_COLUMNS]
        group_by = select.args.get("group")
        if group_by is not None and group_by.args.get("all"):
            self._check_constant_parameters(select)
        elif group_by is not None:
            group_by.set("expressions", [*group_by.expressions, *bounds])
        for node in find_parameters(select):
            node.replace(bounds[(_START, _END).index(node.name)].copy())
        if self.event_time() is None:
            stamp = exp.alias_(bounds[1].copy(), str(self.work.options.event_time), quoted=True)
            select.set("expressions", [*select.expressions, stamp])
        code = select.sql(dialect=usersql.DIALECT)
        if parse_query(code) != select:
            raise Unproven("the query is not the same after it is parsed and written")
        return code

    def _check_columns(self) -> None:
        """Check that ``WINDOW_COLUMNS`` are visible wherever parameters are, but not in ``*``."""
        if any(node.is_star for node in self.select.expressions):
            raise Unproven("* would return the bounds of the window")
        for names in self.columns.values():
            if not {self.alias, *WINDOW_COLUMNS}.isdisjoint(names):
                raise Unproven(f"a column has the name {self.alias!r} of its table")
        earlier_joins = self.select.args.get("joins", ())[: max(self.position - 1, 0)]
        if any(find_parameters(join) for join in earlier_joins):
            raise Unproven("a join does not see the bounds of the window")

    @staticmethod
    def _check_syntax(tree: exp.Expr) -> exp.Select:
        """Return a tree whose result rows each depend on one joined input row or one group."""
        from sqlglot import exp

        if not isinstance(tree, exp.Select) or tree.args.get("from_") is None:
            raise Unproven("the query is not a SELECT from a table")
        for node in tree.walk():
            is_subquery = isinstance(node, exp.Select) and node is not tree
            if is_subquery or type(node).__name__ not in _ROW_NODES:
                raise Unproven(f"{quote_sql(node)} may combine rows of different windows")
            if isinstance(node, exp.Anonymous):
                WindowedQuery._check_function(node, is_grouped=tree.args.get("group") is not None)
        _check_clauses(tree, _CLAUSES | {"distinct"})
        for node in tree.find_all(exp.Distinct):
            _check_clauses(node, frozenset({"expressions"}))  # DISTINCT ON selects any one row
        group_by = tree.args.get("group")
        if group_by is not None:
            _check_clauses(group_by, frozenset({"expressions", "all"}))
        elif tree.args.get("having") is not None:
            raise Unproven("without GROUP BY, the result has one row for all windows")
        return tree

    @staticmethod
    def _check_function(call: exp.Anonymous, *, is_grouped: bool) -> None:
        """Check that the result of a function depends on its row or its group only."""
        name = call.name.lower()
        if name in _ORDER_DEPENDENT or name == "columns":
            raise Unproven(f"{quote_sql(call)} depends on the order in which rows are read")
        if name in _AGGREGATES and not is_grouped:
            raise Unproven("without GROUP BY, the result has one row for all windows")

    @staticmethod
    def _check_table(table: exp.Expr) -> str:
        """Return the name of a table; raise Unproven if it is not an input as it is."""
        from sqlglot import exp

        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            raise Unproven(f"{quote_sql(table)} is not an input")
        _check_clauses(table, frozenset({"this", "alias"}))
        if table.args.get("alias") is not None:
            _check_clauses(table.args["alias"], frozenset({"this"}))
        return table.name

    @staticmethod
    def _check_time_type(field: pa.Field) -> None:
        is_exact = pat.is_timestamp(field.type) and field.type.unit != "ns"
        if not is_exact and not pat.is_date(field.type):
            raise Unproven(f"the time {field.name!r} has type {field.type}")

    @staticmethod
    def _check_join(join: exp.Join, number: int, *, windowed: int) -> None:
        """Check that a join adds no rows without a row of the windowed table.

        Args:
            join: The join.
            number: The position of its table in the query; 0 is the table after FROM.
            windowed: The position of the windowed table.
        """
        _check_clauses(join, _JOIN_CLAUSES)
        method, side, join_kind = (
            str(join.args.get(name) or "") for name in ("method", "side", "kind")
        )
        is_inner = side == "" and join_kind in _INNER
        keeps_left = side in ("", "LEFT") and join_kind in ("SEMI", "ANTI")
        keeps_left = keeps_left or (side == "LEFT" and join_kind in _OUTER)
        keeps_right = side == "RIGHT" and join_kind in _OUTER
        if number > windowed:
            is_allowed = is_inner or keeps_left
        elif number == windowed:
            is_allowed = is_inner or keeps_right
        else:
            is_allowed = is_inner or keeps_left or keeps_right
        if not is_allowed or method not in ("", "NATURAL"):
            raise Unproven(f"{quote_sql(join)} may add rows without a row of the window")

    @staticmethod
    def _check_constant_parameters(select: exp.Select) -> None:
        """Check that GROUP BY ALL would not group by columns that replace the parameters."""
        from sqlglot import exp

        clauses = [node for node in (*select.expressions, select.args.get("having")) if node]
        for node in clauses:
            calls = node.find_all(exp.Anonymous)
            has_aggregate = any(call.name.lower() in _AGGREGATES for call in calls)
            if find_parameters(node) and (has_aggregate or isinstance(node, exp.Having)):
                raise Unproven(
                    f"GROUP BY ALL does not group by the parameters of {quote_sql(node)}"
                )


def _check_clauses(node: exp.Expr, allowed: frozenset[str]) -> None:
    clauses = {name for name, value in node.args.items() if value}
    if not clauses <= allowed:
        raise Unproven(f"{quote_sql(node)} may combine rows of different windows")


def find_parameters(node: exp.Expr) -> list[exp.Expr]:
    """Return the parameters of an expression, without the names inside them."""
    from sqlglot import exp

    parameters = node.find_all(exp.Parameter, exp.Placeholder)
    return [
        parameter for parameter in parameters if not isinstance(parameter.parent, exp.Parameter)
    ]


def quote_sql(node: exp.Expr) -> str:
    """Return an expression in quotes, shortened."""
    text = " ".join(node.sql(dialect=usersql.DIALECT).split())
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
