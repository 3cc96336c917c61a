"""User SQL in DuckDB's dialect, validated against allow-lists and translated for an engine.

``conditions`` are predicates on rows (filters, deletes), ``queries`` read tables (SQL jobs). Syntax
and functions that are not on an allow-list are rejected.
"""

from __future__ import annotations

from featurestore.usersql.conditions import fix_clock, predicate
from featurestore.usersql.constants import number_literal
from featurestore.usersql.expressions import (
    MEAN_PARTS,
    Merge,
    check_column_expression,
    column_expression,
    expression_columns,
    mean_part_name,
    merge_method,
    metrics_query,
)
from featurestore.usersql.queries import (
    find_columns,
    find_nondeterminism,
    find_tables,
    parameters,
    query,
)
from featurestore.usersql.text import DIALECT, parse_statement, quote

__all__ = [
    "DIALECT", "MEAN_PARTS", "Merge", "check_column_expression", "column_expression",
    "expression_columns", "find_columns", "find_nondeterminism", "find_tables", "fix_clock", "mean_part_name",
    "merge_method", "metrics_query", "number_literal", "parameters", "parse_statement", "predicate", "query",
    "quote",
]  # fmt: skip
