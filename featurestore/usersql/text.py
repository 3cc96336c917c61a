"""Parsing, quoting and formatting of SQL in DuckDB's dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from featurestore.errors import InvalidSql
from featurestore.model.runtime import check_time

if TYPE_CHECKING:
    from sqlglot import exp

DIALECT = "duckdb"
Statement = Literal["query", "condition", "expression"]
# Calls with special syntax; other calls are parsed as a name with arguments.
_SPECIAL_CALLS = ("CAST", "TRY_CAST", "EXTRACT")
# Each spelling of a statement is parsed, and the server limits the duration of a request.
_MAX_SPELLINGS = 40
_MAX_SPELLED_CHARACTERS = 4_000


@lru_cache(maxsize=4096)
def quote(name: str, *, dialect: str = DIALECT) -> str:
    """Quote an identifier for a dialect.

    >>> quote("a column")
    '"a column"'
    >>> quote("a`b", dialect="spark")
    '`a``b`'
    """
    from sqlglot import exp

    return exp.to_identifier(name, quoted=True).sql(dialect=dialect)


@lru_cache(maxsize=1)
def _keywords() -> frozenset[str]:
    """Return the words that DuckDB reads as a column name only in quotes.

    A test compares the list with DuckDB.
    """
    text = files("featurestore.usersql").joinpath("duckdb_keywords.txt").read_text("utf-8")
    return frozenset(text.split())


def quote_keywords(sql: str, tree: exp.Expr) -> str:
    """Quote the names in a statement that DuckDB would read as words of its grammar.

    sqlglot reads more words as names than DuckDB.

    >>> sql = "select end, t.at from t order by end"
    >>> quote_keywords(sql, parse_statement(sql, expected="query"))
    'select "end", t.at from t order by "end"'

    Args:
        sql: DuckDB SQL.
        tree: Its syntax tree.
    """
    from sqlglot import exp

    starts = set()
    for identifier in tree.find_all(exp.Identifier):
        start = identifier.meta.get("start")
        if identifier.args.get("quoted") or start is None:
            continue
        name = identifier.name
        is_keyword = name.lower() in _keywords() and sql[start : start + len(name)] == name
        # sqlglot reads the word after a column "interval" as a number of days.
        is_unit = isinstance(identifier.parent.parent, exp.Interval) if identifier.parent else False
        # DuckDB accepts every word after a point and after AS.
        if is_keyword and not is_unit and not re.search(r"(?i)(\.|\bas)\s*$", sql[:start]):
            starts.add((start, name))
    return _quote_words(sql, starts)


def parse_statement(sql: str, *, expected: Statement, calls_by_name: bool = False) -> exp.Expr:
    """Parse a single query, or a single condition or expression of one row.

    Args:
        sql: DuckDB SQL.
        expected: What the SQL is.
        calls_by_name: Whether all function calls are parsed as a name and its arguments.

    Raises:
        InvalidSql: The SQL cannot be parsed, or does not contain exactly one statement. The hint
            has the SQL with a quoted column, if it can be parsed.
    """
    from sqlglot.errors import SqlglotError

    check_time()
    try:
        statements = _parse(sql, expected=expected, calls_by_name=calls_by_name)
    except (SqlglotError, RecursionError) as error:
        # The parser recurses for each nesting level, so a deep statement can exhaust Python's
        # stack.
        raise InvalidSql(
            f"{shorten_sql(sql)} cannot be parsed: {clean_error_message(error)}.",
            hint=_quoting_hint(sql, expected) or "write it in DuckDB's SQL dialect",
        ) from error
    if len(statements) != 1:
        raise InvalidSql(
            f"{shorten_sql(sql)} contains {len(statements)} statements; one {expected} is expected.",
            hint=_quoting_hint(sql, expected),
        )
    return statements[0]


def _parse(sql: str, *, expected: Statement, calls_by_name: bool = True) -> list[exp.Expr]:
    """Parse SQL with sqlglot; return its statements."""
    import sqlglot
    from sqlglot import exp

    dialect = _calls_by_name() if calls_by_name else sqlglot.Dialect.get_or_raise(DIALECT)
    if expected == "query":
        trees = dialect.parse(sql)
    else:
        # A statement may begin with other words than a condition: a column can be named "set".
        trees = dialect.parse_into(exp.Condition, sql)
    return [tree for tree in trees if tree is not None]


def _quoting_hint(sql: str, expected: Statement) -> str | None:
    """Return the hint for SQL that can be parsed if a column is quoted, else None."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    def is_parsed(quoted_sql: str, names: set[str]) -> bool:
        try:
            trees = _parse(quoted_sql, expected=expected)
        except (SqlglotError, RecursionError):
            return False
        if len(trees) != 1:
            return False
        # The names of columns and of their tables and fields.
        column_names = {
            identifier.name
            for column in trees[0].find_all(exp.Column)
            for identifier in column.args.values()
            if isinstance(identifier, exp.Expr)
        }
        return names <= column_names

    return quoting_hint(sql, is_valid=is_parsed, skip_first=expected == "query")


def quoting_hint(
    sql: str,
    *,
    is_valid: Callable[[str, set[str]], bool],
    columns: Collection[str] | None = None,
    skip_first: bool = False,
) -> str | None:
    """Return the hint for invalid SQL that is valid if a column is quoted, else None.

    Args:
        sql: DuckDB SQL.
        is_valid: Whether SQL is valid in which these words are quoted.
        columns: The columns that the SQL may read; None if they are unknown.
        skip_first: Whether the first word is never a column.
    """
    if len(sql) > _MAX_SPELLED_CHARACTERS:
        return None
    words = _unquoted_words(sql)[skip_first:]
    if columns is not None:
        names = {name.lower() for name in columns}
        words = [(start, word) for start, word in words if word.lower() in names]
    # A column may occur several times, and only one occurrence of a word may be a column.
    spellings = []
    for name in dict.fromkeys(word.lower() for _, word in words):
        occurrences = [(start, word) for start, word in words if word.lower() == name]
        spellings += [occurrences, occurrences[1:]]
    spellings += [[word] for word in words]
    for spelling in spellings[:_MAX_SPELLINGS]:
        check_time()
        quoted_sql = _quote_words(sql, spelling)
        if spelling and is_valid(quoted_sql, {word for _, word in spelling}):
            return f"quote a column whose name is a word of SQL: {quoted_sql}"
    return None


def _quote_words(sql: str, words: Iterable[tuple[int, str]]) -> str:
    """Quote words of SQL, which have their starts."""
    for start, word in sorted(words, reverse=True):
        sql = f"{sql[:start]}{quote(word)}{sql[start + len(word) :]}"
    return sql


def _unquoted_words(sql: str) -> list[tuple[int, str]]:
    """Return the words of SQL that sqlglot does not read as names or constants, with their starts."""
    from sqlglot import tokenize
    from sqlglot.errors import SqlglotError
    from sqlglot.tokenizer_core import TokenType

    try:
        tokens = tokenize(sql, dialect=DIALECT)
    except SqlglotError:
        return []
    words = []
    for token in tokens:
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            continue
        # A token may have several words, such as GROUP BY.
        for match in re.finditer(r"[^\W\d]\w*", sql[token.start : token.end + 1]):
            # Most names are VAR tokens; sqlglot also reads some words in them.
            is_name = token.token_type == TokenType.VAR
            if not is_name or match.group().lower() in _keywords() | {"if"}:
                words.append((token.start + match.start(), match.group()))
    return words


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

    return CallsByName()


def clean_error_message(error: Exception) -> str:
    """Return the first line of a sqlglot error message, without terminal colors."""
    for detail in getattr(error, "errors", ()):
        return f"{detail['description']}. Line {detail['line']}, Col: {detail['col']}"
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
