"""Parsing, quoting and formatting of SQL in DuckDB's dialect."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from featurestore.errors import InvalidSql
from featurestore.model.runtime import check_time

if TYPE_CHECKING:
    from sqlglot import exp

DIALECT = "duckdb"
# Calls with special syntax; other calls are parsed as a name with arguments.
_SPECIAL_CALLS = ("CAST", "TRY_CAST", "EXTRACT")


def quote(name: str, *, dialect: str = DIALECT) -> str:
    """Quote an identifier for a dialect.

    >>> quote("a column")
    '"a column"'
    >>> quote("a`b", dialect="spark")
    '`a``b`'
    """
    from sqlglot import exp

    return exp.to_identifier(name, quoted=True).sql(dialect=dialect)


def parse_statement(sql: str, *, expected: str, calls_by_name: bool = False) -> exp.Expr:
    """Parse a single statement or condition.

    Args:
        sql: DuckDB SQL.
        expected: The expected kind of statement, for error messages.
        calls_by_name: Whether all function calls are parsed as a name and its arguments.

    Raises:
        InvalidSql: The SQL cannot be parsed, or does not contain exactly one statement.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    check_time()
    dialect: Any = DIALECT
    if calls_by_name:
        dialect = _calls_by_name()
    try:
        parsed = sqlglot.parse(sql, dialect=dialect)
    except (SqlglotError, RecursionError) as error:
        # The parser recurses for each nesting level, so a deep statement can exhaust Python's
        # stack.
        raise InvalidSql(
            f"{shorten_sql(sql)} cannot be parsed: {clean_error_message(error)}.",
            hint="write it in DuckDB's SQL dialect",
        ) from error
    statements = [tree for tree in parsed if tree is not None]
    if len(statements) != 1:
        raise InvalidSql(
            f"{shorten_sql(sql)} contains {len(statements)} statements; one {expected} is expected."
        )
    return statements[0]


@lru_cache(maxsize=1)
def _calls_by_name() -> Any:
    """Return a DuckDB dialect without function definitions."""
    from sqlglot.dialects.duckdb import DuckDB

    # sqlglot maps several function names to one node class. The allow-lists need the name that the
    # user wrote.
    class CallsByName(DuckDB):
        class Parser(DuckDB.Parser):  # type: ignore[valid-type, misc]
            FUNCTIONS: ClassVar[dict[str, Any]] = {}
            # CAST and EXTRACT have no argument list that could be parsed as a call by name.
            FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
                name: DuckDB.Parser.FUNCTION_PARSERS[name] for name in _SPECIAL_CALLS
            }

    return CallsByName


def clean_error_message(error: Exception) -> str:
    """Return the first line of a sqlglot error message, without terminal colors."""
    # sqlglot marks the position of an error with terminal escape codes.
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
    if not lines:
        return type(error).__name__
    return lines[0].rstrip(". ")


def shorten_sql(sql: str) -> str:
    """Format SQL for error messages: quoted, on one line, truncated to 80 characters."""
    words = " ".join(sql.split())
    if len(words) > 80:
        words = words[:77] + "..."
    return repr(words)
