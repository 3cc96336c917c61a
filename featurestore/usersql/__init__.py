"""User SQL in DuckDB's dialect, validated against allow-lists and translated for an engine.

``conditions`` are predicates on rows (filters, deletes), ``queries`` read tables (SQL jobs). Syntax
and functions that are not on an allow-list are rejected.
"""

from __future__ import annotations

from featurestore.usersql.conditions import fix_clock, predicate
from featurestore.usersql.expressions import (
    MEAN_PARTS,
    Merge,
    check_column_expression,
    column_expression,
    merge_of,
    metrics_query,
    part_name,
)
from featurestore.usersql.queries import columns_read, parameters, query, tables_read, why_rows_vary
from featurestore.usersql.text import DIALECT, quote

__all__ = [
    "DIALECT", "MEAN_PARTS", "Merge", "check_column_expression", "column_expression",
    "columns_read", "fix_clock", "merge_of", "metrics_query", "parameters", "part_name",
    "predicate", "query", "quote", "tables_read", "why_rows_vary",
]  # fmt: skip
