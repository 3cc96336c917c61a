"""User SQL: DuckDB's dialect in, checked against lists of what is allowed, and out for the engine.

``conditions`` are over one row (filters, deletes), ``queries`` over tables (SQL jobs). Nothing that
is not on a list of what is allowed comes through.
"""

from __future__ import annotations

from featurestore.sql.conditions import fix_clock, predicate
from featurestore.sql.queries import columns_read, parameters, query
from featurestore.sql.text import DIALECT, quote

__all__ = ["DIALECT", "columns_read", "fix_clock", "parameters", "predicate", "query", "quote"]
