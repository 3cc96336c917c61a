"""Spark SQL text and expressions: identifiers, times, parameters. User text is only bound."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from featurestore.model.times import to_micros
from featurestore.plugins.engine import TimeRange

_QUOTED_OR_PARAMETER = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\$(?P<name>[A-Za-z_]\w*)"
)


def quote(name: str) -> str:
    """Return an identifier.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Any:
    """Return a column by its exact name, including dots and backticks."""
    from pyspark.sql import functions as sf

    return sf.col(quote(name))


def timestamp(time: datetime) -> Any:
    """Return an aware datetime as a constant.

    It avoids java.sql, which uses another calendar for old dates.
    """
    from pyspark.sql import functions as sf

    return sf.timestamp_micros(sf.lit(to_micros(time)))


def range_condition(window: TimeRange) -> str:
    """Return the SQL condition that a time is in a range.

    >>> from datetime import UTC
    >>> start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)
    >>> for half in range_condition(TimeRange("t", start, end)).split(" AND "):
    ...     print(half)
    `t` >= TIMESTAMP '2024-01-01T00:00:00.000000+00:00'
    `t` < TIMESTAMP '2024-01-02T00:00:00.000000+00:00'
    """
    time = quote(window.column)
    start = f"TIMESTAMP '{window.start.isoformat(timespec='microseconds')}'"
    end = f"TIMESTAMP '{window.end.isoformat(timespec='microseconds')}'"
    if window.closed == "left":
        return f"{time} >= {start} AND {time} < {end}"
    return f"{time} > {start} AND {time} <= {end}"


def with_colons(query: str) -> str:
    """Convert ``$name`` parameters of a query to Spark's syntax.

    >>> with_colons("select '$a' where t < $end")
    "select '$a' where t < :end"
    """

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]  # a text in quotes
        return f":{name}"

    return _QUOTED_OR_PARAMETER.sub(replace, query)
