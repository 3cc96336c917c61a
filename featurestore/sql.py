"""User SQL: DuckDB's dialect in, checked, and out in the dialect of the engine.

Only one boolean expression (``predicate``) or one SELECT (``query``) passes; whatever sqlglot cannot
express in the target dialect is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from featurestore.errors import InvalidSql, listing

if TYPE_CHECKING:
    from sqlglot import exp

DIALECT = "duckdb"


def quote(name: str, *, dialect: str = DIALECT) -> str:
    """Return an identifier quoted for a dialect.

    >>> quote("a column")
    '"a column"'
    >>> quote("a`b", dialect="spark")
    '`a``b`'
    """
    from sqlglot import exp

    return exp.to_identifier(name, quoted=True).sql(dialect=dialect)


def predicate(text: str, *, columns: Iterable[str], dialect: str) -> str:
    """Return a condition over columns, transpiled.

    >>> predicate("speed >= 10 and zone = 'A'", columns=["speed", "zone"], dialect="spark")
    "`speed` >= 10 AND `zone` = 'A'"

    Raises:
        InvalidSql: It is no single expression, names unknown columns, or has no form in the dialect.
    """
    from sqlglot import exp

    tree = _parse_one(text, as_condition=True)
    refused = (
        exp.Query,
        exp.Command,
        exp.AggFunc,
        exp.Window,
        exp.Alias,
        exp.Star,
        exp.Placeholder,
        exp.Parameter,
    )
    for node in tree.walk():
        if isinstance(node, refused) or not isinstance(tree, exp.Condition):
            raise InvalidSql(
                f"{text!r} is not a condition on one row: it holds {node.sql(dialect=DIALECT)!r}.",
                hint="for example \"zone = 'A' and speed > 10\"",
            )
    known = {name.lower(): name for name in columns}
    _resolve_columns(tree, known, text)
    _check_boolean(tree, text)
    return _generate(tree, text, dialect)


def query(text: str, *, tables: Mapping[str, Iterable[str]] | Iterable[str], dialect: str) -> str:
    """Return a SELECT over named tables, transpiled; ``$name`` parameters stay parameters.

    >>> query("select zone, count(*) as n from trips group by zone", tables=["trips"], dialect="duckdb")
    'select zone, count(*) as n from trips group by zone'

    Args:
        text: The query.
        tables: The names that it may read.
        dialect: The engine's.

    Raises:
        InvalidSql: It is no single SELECT, reads other tables or files, or has no form in the dialect.
    """
    from sqlglot import exp

    tree = _parse_one(text, as_condition=False)
    if not isinstance(tree, exp.Query):
        raise InvalidSql(
            f"{_short(text)} is not a SELECT.", hint="a query reads tables and changes nothing"
        )
    for node in tree.walk():
        if isinstance(node, exp.DML | exp.DDL | exp.Command) and not isinstance(node, exp.Query):
            raise InvalidSql(f"{_short(text)} does more than read: {node.sql(dialect=DIALECT)!r}.")
    _check_tables(tree, tables, text)
    # DuckDB knows its own dialect best: what it can read goes to it untouched.
    return (
        text.strip().rstrip(";").rstrip() if dialect == DIALECT else _generate(tree, text, dialect)
    )


def parameters(text: str) -> tuple[str, ...]:
    """Return the names of the parameters of a query, each once, in order.

    >>> parameters("select * from trips where t >= $window_start and t < $window_end")
    ('window_start', 'window_end')
    """
    from sqlglot import exp

    tree = _parse_one(text, as_condition=False)
    found = (node for node in tree.walk() if isinstance(node, exp.Parameter | exp.Placeholder))
    return tuple(dict.fromkeys(node.name for node in found))


def _parse_one(text: str, *, as_condition: bool) -> exp.Expr:
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        found = sqlglot.parse(text, dialect=DIALECT)
    except SqlglotError as error:
        raise InvalidSql(
            f"{_short(text)} cannot be parsed: {_plain(error)}.", hint="the dialect is DuckDB's"
        ) from error
    statements = [tree for tree in found if tree is not None]
    if len(statements) != 1:
        what = "condition" if as_condition else "statement"
        raise InvalidSql(
            f"{_short(text)} holds {len(statements)} statements; one {what} is expected."
        )
    return statements[0]


def _resolve_columns(tree: exp.Expr, known: Mapping[str, str], text: str) -> None:
    from sqlglot import exp

    unknown = []
    for column in tree.find_all(exp.Column):
        # ``a.b`` is either a column of a table, which a condition has none of, or a field of a struct.
        first = column.parts[0]
        if first.name.lower() not in known:
            unknown.append(first.name)
            continue
        first.replace(exp.to_identifier(known[first.name.lower()], quoted=True))
    if unknown:
        raise InvalidSql(
            f"{_short(text)} names columns that do not exist: {listing(dict.fromkeys(unknown))}.",
            hint=f"the columns are {listing(known.values(), limit=50)}; text goes in single quotes",
        )


def _check_boolean(tree: exp.Expr, text: str) -> None:
    from sqlglot import exp

    bare = tree.unnest()
    if isinstance(bare, exp.Literal | exp.Binary) and not isinstance(
        bare, exp.Predicate | exp.Connector | exp.Dot
    ):
        raise InvalidSql(
            f"{_short(text)} is no condition: it is neither true nor false.",
            hint="compare it with something",
        )


def _check_tables(
    tree: exp.Query, tables: Mapping[str, Iterable[str]] | Iterable[str], text: str
) -> None:
    from sqlglot import exp

    known = {name.lower() for name in tables}
    own = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or table.db:
            if isinstance(table.this, exp.Func) and _makes_rows(table.this):
                continue
            raise InvalidSql(
                f"{_short(text)} reads {table.sql(dialect=DIALECT)!r}, which is not one of its tables.",
                hint=f"the tables are {listing(tables)}",
            )
        if table.name.lower() not in known | own:
            raise InvalidSql(
                f"{_short(text)} reads the unknown table {table.name!r}.",
                hint=f"the tables are {listing(tables)}",
            )


def _makes_rows(function: exp.Func) -> bool:
    """Tell whether a table function computes its rows; the others read files."""
    from sqlglot import exp

    name = function.name if isinstance(function, exp.Anonymous) else function.sql_name()
    return name.lower() in {"range", "generate_series", "unnest", "explode", "generateseries"}


def _generate(tree: exp.Expr, text: str, dialect: str) -> str:
    from sqlglot import exp
    from sqlglot.errors import ErrorLevel, SqlglotError

    if dialect != DIALECT and any(True for _ in tree.find_all(exp.UnixToTime)):
        # DuckDB's epoch_ms goes both ways, by the type of its argument, which is not known here.
        raise InvalidSql(
            f"{_short(text)} uses epoch_ms, whose meaning depends on types.",
            hint="use epoch(...) or make_timestamp",
        )
    try:
        return tree.sql(dialect=dialect, unsupported_level=ErrorLevel.RAISE, comments=False)
    except SqlglotError as error:
        raise InvalidSql(
            f"{_short(text)} has no equal in the SQL of {dialect}: {_plain(error)}.",
            hint="use functions that both have",
        ) from error


def _plain(error: Exception) -> str:
    """Return the first line of sqlglot's message without its terminal colours."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()[0].rstrip(". ")


def _short(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= 80 else words[:77] + "...")
