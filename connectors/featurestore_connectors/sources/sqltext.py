"""SQL text for source databases: quoted identifiers, literals and SELECT statements."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from featurestore.errors import InvalidArgument
from featurestore.plugins.engine import TimeRange


def quote(name: str, *, mark: str = '"') -> str:
    """Quote an identifier. All identifiers in SQL are quoted by this function.

    >>> quote('odd"name'), quote("name", mark="`")
    ('"odd""name"', '`name`')
    """
    if "\0" in name:
        raise InvalidArgument(f"{name!r} is not a name: it contains a NUL.")
    if mark != '"' and (mark in name or "\\" in name):
        # BigQuery escapes by backslashes, and allows neither character in names.
        raise InvalidArgument(f"{name!r} is not a name: it contains {mark} or a backslash.")
    return mark + name.replace(mark, mark + mark) + mark


def text(value: str) -> str:
    """Return a string literal."""
    return "'" + value.replace("'", "''") + "'"


def file_list(paths: Sequence[str]) -> str:
    """Return a list of files for ``read_parquet`` of DuckDB, which reads *, ? and [ as wildcards.

    >>> file_list(["/lake/a[1].parquet"])
    "['/lake/a[[]1].parquet']"
    """
    literals = [
        text(path.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")) for path in paths
    ]
    return f"[{', '.join(literals)}]"


def table_name(name: str, table_names: Sequence[str] = ()) -> str:
    """Return a quoted table name, optionally with a schema: ``orders``, or ``sales.orders``.

    >>> table_name("sales.orders"), table_name("a.b", ["a.b"])
    ('"sales"."orders"', '"a.b"')
    """
    if name in table_names:
        return quote(name)
    return ".".join(map(quote, name.split(".", 1)))


def utc_text(value: datetime) -> str:
    """Format a time as ISO 8601 in UTC, to the microsecond."""
    return value.astimezone(UTC).isoformat(sep=" ", timespec="microseconds")


def within(window: TimeRange, *, column: str, start: str, end: str) -> str:
    """Return the condition that a column is in a window, for literals of its start and end."""
    if window.closed == "right":
        return f"{column} > {start} AND {column} <= {end}"
    return f"{column} >= {start} AND {column} < {end}"


def select(expressions: Sequence[str], *, source: str, condition: str | None) -> str:
    """Return a SELECT of expressions from a table or subquery."""
    where_clause = "" if condition is None else f" WHERE {condition}"
    return f"SELECT {', '.join(expressions)} FROM {source}{where_clause}"
