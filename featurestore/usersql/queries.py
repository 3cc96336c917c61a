"""User queries: one SELECT over named tables, validated against allow-lists.

Three checks isolate a query. Its syntax tree may only contain listed nodes, and every table name is
resolved in its scope: it is a table of the query, or of a visible WITH clause. Its functions are
listed: for DuckDB, functions that only depend on their arguments; for Spark, functions that were
compared with DuckDB (``spark_functions``). In addition, DuckDB runs the query in a separate database
without access to files, network or settings (``Engine.user_sql``).

A fourth check decides whether a query returns the same rows in every run over the same tables.
Engines read tables with several threads, so results that depend on row order (the first of several
rows, a limit between equal rows, the last bits of a sum of floats) may differ. Only functions that
are listed as order-independent are repeatable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidSql, did_you_mean, listing
from featurestore.usersql.functions import CLOCK, REPLACEMENTS, duckdb_functions
from featurestore.usersql.spark_functions import query_functions
from featurestore.usersql.text import DIALECT, parse_statement, quote_keywords, shorten_sql

if TYPE_CHECKING:
    from sqlglot import exp

# DuckDB's aggregate and window functions (a test compares them with DuckDB's list):
# order-independent, order-independent only for integers and decimals, and all others.
_REPEATABLE_LISTED = """
    bit_and bit_or bit_xor bitstring_agg bool_and bool_or count count_if count_star countif
    dense_rank cume_dist mad max median min percent_rank quantile quantile_cont quantile_disc
    rank regr_count
"""
_SUMS_LISTED = "avg mean sum sum_no_overflow"
_VARYING_LISTED = """
    any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null
    arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg corr
    covar_pop covar_samp decimal_average entropy favg fill first first_value fsum group_concat
    histogram histogram_exact kahan_sum kurtosis kurtosis_pop lag last last_value lead list
    listagg lttb max_by min_by mode nth_value ntile product regr_avgx regr_avgy regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy row_number sem skewness stddev stddev_pop
    stddev_samp string_agg sumkahan var_pop var_samp variance
"""
REPEATABLE = frozenset(_REPEATABLE_LISTED.split())
SUMS = frozenset(_SUMS_LISTED.split())
VARYING = frozenset(_VARYING_LISTED.split())
_CLAUSES = {
    "Limit": "a limit may separate rows with equal sort keys",
    "Offset": "an offset may separate rows with equal sort keys",
    "TableSample": "a sample returns different rows in every run",
}
# Nodes allowed in the argument of a sum, which keep integers and decimals exact.
_EXACT_LISTED = """
    Column Identifier Literal Boolean Null Add Sub Mul Neg Paren Distinct Case If And Or Not Is In
    EQ NEQ LT LTE GT GTE Between
"""
_EXACT = frozenset(_EXACT_LISTED.split())

# Allowed nodes of a query, by sqlglot class name.
_NODE_NAMES = """
    Select From Join Where Group Having Qualify Order Ordered Limit Offset Distinct Union Except
    Intersect Subquery CTE With Table TableAlias Values Tuple Lateral Unnest Cube Rollup
    GroupingSets Column Identifier Star Alias Aliases Dot Paren Literal Boolean Null Var
    Placeholder Parameter And Or Xor Not EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ
    Is In Between Like ILike RegexpLike
    Glob SimilarTo Escape Exists Any All Add Sub Mul Div IntDiv Mod Pow Neg DPipe BitwiseAnd
    BitwiseOr BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift Case If Cast TryCast DataType
    DataTypeParam ColumnDef Extract Interval AtTimeZone Collate Anonymous StartsWith Lambda Filter
    Window WindowSpec NamedWindow WithinGroup Bracket Slice Array Struct PropertyEQ ToMap
    Comprehension JSONExtract JSONExtractScalar Pivot PivotAlias TableSample IgnoreNulls
    RespectNulls
"""
_NODES = frozenset(_NODE_NAMES.split())
# Nodes that were not verified to be equal on Spark.
_NOT_ON_SPARK_LISTED = """
    Lateral Unnest Cube Rollup GroupingSets ILike RegexpLike Glob SimilarTo Escape Any All IntDiv
    Pow Xor TryCast
    BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift AtTimeZone Collate
    StartsWith Lambda Bracket Slice Array Struct PropertyEQ ToMap Comprehension JSONExtract
    JSONExtractScalar Pivot PivotAlias TableSample IgnoreNulls RespectNulls WithinGroup
"""
_NOT_ON_SPARK = frozenset(_NOT_ON_SPARK_LISTED.split())
# Table functions that compute their rows; all others read files or the database.
_TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
_IN_PYTHON = "use Spark DataFrames: frame.to_spark(), or a job in Python"


def query(sql: str, *, tables: Iterable[str], dialect: str) -> str:
    """Return a validated SELECT over named tables, in DuckDB SQL, for ``Engine.user_sql``.

    ``$name`` parameters are preserved. Columns whose names are words of SQL are quoted. An engine
    with another dialect translates the query when the types of the tables are known.

    >>> query("select max(fare) as fare from trips", tables=["trips"], dialect="duckdb")
    'select max(fare) as fare from trips'

    Args:
        sql: The query, in DuckDB SQL.
        tables: The tables that the query may read.
        dialect: The dialect of the engine that runs the query.

    Raises:
        InvalidSql: The SQL is not a single SELECT, reads other tables or files, uses the clock or
            random numbers, or uses syntax or functions that were not verified to be equal in the
            dialect.
    """
    from sqlglot import exp

    tree = parse_statement(sql, expected="query", calls_by_name=True)
    if not isinstance(tree, exp.Query | exp.Values):
        raise InvalidSql(
            f"{shorten_sql(sql)} is not a SELECT.",
            hint="a query is one SELECT; it cannot change tables",
        )
    _check_nodes(tree, sql)
    if dialect != DIALECT:
        _check_portable(tree, sql, dialect)
    _check_functions(tree, sql, dialect)
    scopes = _Scopes(sql)
    scopes.check(tree, frozenset())
    scopes.check_read(tables)
    # DuckDB parses its own dialect best, so the validated query is returned, not a translation.
    return quote_keywords(sql, tree).strip().rstrip(";").rstrip()


def find_tables(sql: str) -> tuple[str, ...]:
    """Return the tables that a query reads, without duplicates, in order; they may not exist.

    >>> find_tables("with late as (from trips) select * from late join zones using (zone)")
    ('trips', 'zones')

    Raises:
        InvalidSql: The SQL is not a query, or reads anything other than tables.
    """
    tree = parse_statement(sql, expected="query", calls_by_name=True)
    _check_nodes(tree, sql)
    scopes = _Scopes(sql)
    scopes.check(tree, frozenset())
    return tuple(scopes.read)


def find_columns(sql: str, columns: Sequence[str]) -> list[str]:
    """Return the table columns that a query may read, at least one.

    Returns all columns if the query does not list its columns.

    >>> find_columns("select zone, count(*) from trips group by zone", ["id", "zone", "fare"])
    ['zone']
    >>> find_columns("select * from trips", ["id", "zone"])
    ['id', 'zone']
    """
    from sqlglot import exp

    tree = parse_statement(sql, expected="query", calls_by_name=True)
    tables = set()
    for table in tree.find_all(exp.Table):
        tables |= {table.name.lower(), table.alias.lower()}
    for node in tree.walk():
        is_count = isinstance(node.parent, exp.Anonymous) and node.parent.name.lower() == "count"
        # DuckDB returns the entire row for ``select t from t``, and COLUMNS('...') selects by a
        # pattern.
        is_row = isinstance(node, exp.Column) and node.name.lower() in tables
        is_pattern = isinstance(node, exp.Anonymous) and node.name.lower() == "columns"
        # A NATURAL join compares all columns that both tables have.
        is_natural = (
            isinstance(node, exp.Join) and str(node.args.get("method")).upper() == "NATURAL"
        )
        if is_row or is_pattern or is_natural or (isinstance(node, exp.Star) and not is_count):
            return list(columns)
    # Every identifier counts, aliases and functions too: a column too many costs time only.
    identifiers = {identifier.name.lower() for identifier in tree.find_all(exp.Identifier)}
    read_columns = [column for column in columns if column.lower() in identifiers]
    # ``count(*)`` reads no column, but needs the number of rows.
    return read_columns or list(columns[:1])


def parameters(sql: str) -> tuple[str, ...]:
    """Return the parameter names of a query, without duplicates, in order.

    >>> parameters("select * from trips where t >= $window_start and t < $window_end")
    ('window_start', 'window_end')
    """
    from sqlglot import exp

    tree = parse_statement(sql, expected="query")
    names: dict[str, None] = {}
    for node in tree.walk():
        if isinstance(node, exp.Parameter | exp.Placeholder):
            names[node.name] = None
    return tuple(names)


def find_nondeterminism(sql: str, schemas: Iterable[pa.Schema]) -> str | None:
    """Return why the rows of a query may differ between runs, or None if they cannot.

    >>> trips = pa.schema([("zone", pa.string()), ("fare", pa.float64())])
    >>> find_nondeterminism("select zone, count(*) as n from trips group by zone", [trips])
    >>> find_nondeterminism("select zone, sum(fare) as fares from trips group by zone", [trips])
    'the last bits of sum depend on the order in which rows are read'

    Args:
        sql: A validated query.
        schemas: The schemas of the tables that the query reads.
    """
    from sqlglot import exp

    types = _column_types(schemas)
    tree = parse_statement(sql, expected="query", calls_by_name=True)
    for node in tree.walk():
        clause = _CLAUSES.get(type(node).__name__)
        if clause is not None:
            return clause
        if isinstance(node, exp.Distinct) and node.args.get("on") is not None:
            return "distinct on returns any one of several rows"
        if isinstance(node, exp.Anonymous):
            name = node.name.lower()
            if name in VARYING:
                return f"{name} depends on the order in which rows are read"
            if name in SUMS and not _is_exact_sum(node, types):
                return f"the last bits of {name} depend on the order in which rows are read"
    return None


def _check_nodes(tree: exp.Expr, sql: str) -> None:
    """Reject syntax that is not on the list of allowed nodes."""
    for node in tree.walk():
        name = type(node).__name__
        # Keywords such as CURRENT_DATE are parsed to nodes without a call.
        if name.startswith(("Current", "Localtime", "Session")):
            raise _function_error(name.lower(), sql)
        if name not in _NODES:
            raise InvalidSql(
                f"{shorten_sql(sql)} contains {shorten_sql(node.sql(dialect=DIALECT))}, which is not "
                "allowed in a query.",
                hint="a query is one SELECT over its tables",
            )


def _function_error(name: str, sql: str, dialect: str = DIALECT) -> InvalidSql:
    if name in CLOCK or name.startswith(("current", "localtime")):
        return InvalidSql(
            f"{shorten_sql(sql)} reads the clock: {name} returns a different value in every run.",
            hint="write the time as a constant; in a job, $window_end is the end of its window",
        )
    if dialect == DIALECT:
        reason = "which is unknown, or whose result does not depend on its arguments alone"
        hint = REPLACEMENTS.get(name) or did_you_mean(name, duckdb_functions(), write="{}()")
    else:
        reason = f"which was not verified to be equal on {dialect}"
        functions = listing(sorted(query_functions()), limit=60)
        hint = f"supported functions: {functions}; or {_IN_PYTHON}"
    return InvalidSql(f"{shorten_sql(sql)} uses {name}, {reason}.", hint=hint)


def _check_portable(tree: exp.Expr, sql: str, dialect: str) -> None:
    """Reject nodes that were not verified to be equal on another engine."""
    from sqlglot import exp

    for node in tree.walk():
        calls_table = isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous)
        if calls_table or type(node).__name__ in _NOT_ON_SPARK:
            raise InvalidSql(
                f"{shorten_sql(sql)} contains {shorten_sql(node.sql(dialect=DIALECT))}, which was not "
                f"verified to be equal on {dialect}.",
                hint=_IN_PYTHON,
            )


def _check_functions(tree: exp.Expr, sql: str, dialect: str) -> None:
    """Reject functions that are not on the list of the dialect."""
    from sqlglot import exp

    allowed = duckdb_functions() if dialect == DIALECT else query_functions()
    for node in tree.find_all(exp.Anonymous):
        name = node.name.lower()
        if isinstance(node.parent, exp.Table | exp.Lateral):
            continue  # table functions are checked with their scopes
        if name not in allowed:
            raise _function_error(name, sql, dialect)


class _Scopes:
    """Resolves table names: a name that is not a visible WITH clause is a table that is read."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self.read: dict[str, None] = {}

    def check(self, node: exp.Expr, visible: frozenset[str]) -> None:
        """Check a subtree in which the names in ``visible`` are WITH clauses."""
        from sqlglot import exp

        clause = node.args.get("with_") or node.args.get("with")
        if clause is not None:
            for cte in clause.expressions:
                name = cte.alias_or_name.lower()
                # A common table expression sees the ones before it. Only a recursive one sees
                # itself: otherwise its name is a table inside its body.
                visible_inside = visible
                visible = visible | {name}
                if clause.args.get("recursive"):
                    visible_inside = visible
                self.check(cte.this, visible_inside)
        if isinstance(node, exp.Table):
            self._check_table(node, visible)
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Anonymous):
            self._check_table_function(node.this)
        for child in node.iter_expressions():
            if child is not clause:
                self.check(child, visible)

    def check_read(self, tables: Iterable[str]) -> None:
        """Raise InvalidSql if the query reads a table that is not in ``tables``."""
        table_names = list(tables)
        allowed = {name.lower() for name in table_names}
        for name in self.read:
            if name.lower() not in allowed:
                raise self._unknown_table(name, table_names)

    def _check_table(self, table: exp.Table, visible: frozenset[str]) -> None:
        from sqlglot import exp

        if isinstance(table.this, exp.Anonymous):
            self._check_table_function(table.this)
        # A schema or database qualifies tables that are not inputs, and a string names a file.
        elif not isinstance(table.this, exp.Identifier) or table.db or table.catalog:
            raise self._unknown_table(table.sql(dialect=DIALECT), ())
        elif table.name.lower() not in visible:
            self.read[table.name] = None

    def _check_table_function(self, function: exp.Anonymous) -> None:
        if function.name.lower() not in _TABLE_FUNCTIONS:
            raise InvalidSql(
                f"{shorten_sql(self._sql)} reads the unsupported table function "
                f"{function.name.lower()!r}. Available: {listing(sorted(_TABLE_FUNCTIONS))}.",
                hint="select * from range(10)",
            )

    def _unknown_table(self, name: str, table_names: Sequence[str]) -> InvalidSql:
        available = f" Available: {listing(table_names)}." if table_names else ""
        return InvalidSql(
            f"{shorten_sql(self._sql)} reads the unknown table {name!r}.{available}",
            hint=did_you_mean(name, table_names)
            or "a query names its tables without schema, database or file",
        )


def _column_types(schemas: Iterable[pa.Schema]) -> dict[str, list[pa.DataType]]:
    """Return the column types in all tables by column name."""
    types: dict[str, list[pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            types.setdefault(field.name.lower(), []).append(field.type)
    return types


def _is_exact_sum(call: exp.Anonymous, types: Mapping[str, list[pa.DataType]]) -> bool:
    """Return whether a sum is over integers and decimals only."""
    from sqlglot import exp

    for argument in call.expressions:
        for node in argument.walk():
            if type(node).__name__ not in _EXACT:
                return False
            # 1e3 is a double.
            if isinstance(node, exp.Literal) and "e" in node.name.lower():
                return False
            if isinstance(node, exp.Column):
                # A column that no table has is computed in a subquery, and its type is unknown.
                column_types = types.get(node.name.lower(), [])
                are_exact = [
                    pat.is_integer(dtype) or pat.is_decimal(dtype) for dtype in column_types
                ]
                if not are_exact or not all(are_exact):
                    return False
    return True
