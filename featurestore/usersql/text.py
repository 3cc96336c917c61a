"""SQL text in and out: parsing DuckDB's dialect, quoting names, showing what was written."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from featurestore.errors import InvalidSql
from featurestore.model.time_limits import check_time

if TYPE_CHECKING:
    from sqlglot import exp

DIALECT = "duckdb"
# Calls with a syntax of their own; every other call is parsed as a name with arguments.
_SPECIAL_CALLS = ("CAST", "TRY_CAST", "EXTRACT")


def quote(name: str, *, dialect: str = DIALECT) -> str:
    """Return an identifier quoted for a dialect.

    >>> quote("a column")
    '"a column"'
    >>> quote("a`b", dialect="spark")
    '`a``b`'
    """
    from sqlglot import exp

    return exp.to_identifier(name, quoted=True).sql(dialect=dialect)


def parse_statement(text: str, *, what: str, calls_by_name: bool = False) -> exp.Expr:
    """Return the tree of the one statement or condition in a text.

    Args:
        text: DuckDB's SQL.
        what: What it should be, for the error.
        calls_by_name: Leave function calls as written: a name and its arguments, unknown or not.

    Raises:
        InvalidSql: It cannot be parsed, or there is not exactly one.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    check_time()
    dialect: Any = DIALECT
    if calls_by_name:
        dialect = _calls_by_name()
    try:
        parsed = sqlglot.parse(text, dialect=dialect)
    except (SqlglotError, RecursionError) as error:
        raise InvalidSql(
            f"{short(text)} cannot be parsed: {plain(error)}.", hint="the dialect is DuckDB's"
        ) from error
    statements = [tree for tree in parsed if tree is not None]
    if len(statements) != 1:
        raise InvalidSql(
            f"{short(text)} holds {len(statements)} statements; one {what} is expected."
        )
    return statements[0]


@lru_cache(maxsize=1)
def _calls_by_name() -> Any:
    """Return DuckDB's dialect without knowledge of functions."""
    from sqlglot.dialects.duckdb import DuckDB

    class CallsByName(DuckDB):
        class Parser(DuckDB.Parser):  # type: ignore[valid-type, misc]
            FUNCTIONS: ClassVar[dict[str, Any]] = {}
            FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
                name: DuckDB.Parser.FUNCTION_PARSERS[name] for name in _SPECIAL_CALLS
            }

    return CallsByName


def plain(error: Exception) -> str:
    """Return the first line of sqlglot's message without its terminal colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
    if not lines:
        return type(error).__name__
    return lines[0].rstrip(". ")


def short(text: str) -> str:
    """Return a text for messages, quoted, on one line and at most 80 characters long."""
    words = " ".join(text.split())
    if len(words) > 80:
        words = words[:77] + "..."
    return repr(words)
