"""Static check whether a query returns the same rows at each run over the same tables.

Engines read tables with several threads. Results that depend on the order of rows (the first of
several rows, a limit between equal rows, the last bits of a sum of floats) may differ between runs.
Only functions that are listed as independent of the order are repeatable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from featurestore.usersql.text import parse_statement

if TYPE_CHECKING:
    from sqlglot import exp

# DuckDB's aggregates and window functions (a test compares them with DuckDB's list): independent of
# the order, independent of it for integers and decimals, and all others.
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
    "Limit": "a limit may cut between equal rows",
    "Offset": "an offset may cut between equal rows",
    "TableSample": "a sample takes other rows each time",
}
# Nodes allowed in the argument of a sum: they keep integers and decimals exact.
_EXACT_LISTED = """
    Column Identifier Literal Boolean Null Add Sub Mul Neg Paren Distinct Case If And Or Not Is In
    EQ NEQ LT LTE GT GTE Between
"""
_EXACT = frozenset(_EXACT_LISTED.split())


def why_rows_vary(text: str, schemas: Iterable[pa.Schema]) -> str | None:
    """Return why the rows of a query may differ between runs; None if they cannot.

    >>> trips = pa.schema([("zone", pa.string()), ("fare", pa.float64())])
    >>> why_rows_vary("select zone, count(*) as n from trips group by zone", [trips])
    >>> why_rows_vary("select zone, sum(fare) as fares from trips group by zone", [trips])
    'the last bits of sum depend on the order in which rows are read'

    Args:
        text: A checked query.
        schemas: The columns of the tables that it reads.
    """
    from sqlglot import exp

    types = _column_types(schemas)
    tree = parse_statement(text, what="query", calls_by_name=True)
    for node in tree.walk():
        clause = _CLAUSES.get(type(node).__name__)
        if clause is not None:
            return clause
        if isinstance(node, exp.Distinct) and node.args.get("on") is not None:
            return "distinct on takes one of several rows"
        if isinstance(node, exp.Anonymous):
            name = node.name.lower()
            if name in VARYING:
                return f"{name} depends on the order in which rows are read"
            if name in SUMS and not _is_exact_sum(node, types):
                return f"the last bits of {name} depend on the order in which rows are read"
    return None


def _column_types(schemas: Iterable[pa.Schema]) -> dict[str, list[pa.DataType]]:
    """Return the types of the columns of each name in all tables."""
    types: dict[str, list[pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            types.setdefault(field.name.lower(), []).append(field.type)
    return types


def _is_exact_sum(call: exp.Anonymous, types: Mapping[str, list[pa.DataType]]) -> bool:
    """Return True if a sum is over integers and decimals only."""
    from sqlglot import exp

    for argument in call.expressions:
        for node in argument.walk():
            if type(node).__name__ not in _EXACT:
                return False
            if isinstance(node, exp.Literal) and "e" in node.name.lower():
                return False
            if isinstance(node, exp.Column) and not _have_exact_sums(
                types.get(node.name.lower(), [])
            ):
                return False
    return True


def _have_exact_sums(types: list[pa.DataType]) -> bool:
    """Return True if sums of all columns of a name are exact."""
    return bool(types) and all(pat.is_integer(each) or pat.is_decimal(each) for each in types)
