"""How the rows of a Postgres table or query are cut into parts that belong to one snapshot each.

Every row meets one of the conditions, whatever is in the table: those before the first bound and
without a value, those between two bounds, those from the last bound on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow.types as pat

from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.plugins.source import SourceQuery
from featurestore_connectors.sources import sqltext
from featurestore_connectors.sources.typed_columns import SourceColumn

OPTIONS = ("partitions", "partition_column")
# The name under which what cuts the rows stands beside their columns.
PART = "part"
_MOST_PARTS = 10_000
_PAGES = """
    SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint
    FROM pg_catalog.pg_class c WHERE c.oid = {}::regclass AND c.relkind IN ('r', 'm')
"""


@dataclass(frozen=True)
class Parts:
    """``cut`` is the SQL of what cuts the rows, None where nothing does; conditions are over PART."""

    cut: str | None
    conditions: Sequence[str]


def parts_asked_for(options: Mapping[str, str]) -> int | None:
    """Return the number of parts that the options of a source ask for; None for one stream.

    Raises:
        InvalidArgument: An option is not known, or the number is none.
    """
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise InvalidArgument(
            f"A Postgres source has no options {listing(unknown)}; it has {listing(OPTIONS)}.",
            hint=did_you_mean(unknown[0], OPTIONS, write="options={{{!r}: ...}}"),
        )
    given = options.get("partitions")
    if given is None:
        if options:
            raise InvalidArgument(
                "partition_column says what cuts the rows, and not into how many parts.",
                hint="options={'partitions': '8', 'partition_column': 'id'}",
            )
        return None
    if not given.isdecimal() or not 0 < int(given) <= _MOST_PARTS:
        raise InvalidArgument(
            f"partitions={given!r} is no number from 1 to {_MOST_PARTS:,}.",
            hint="options={'partitions': '8'}",
        )
    return int(given)


def cut(
    query: SourceQuery,
    columns: Sequence[SourceColumn],
    *,
    parts: int,
    column: str | None,
    source: str,
    rows: Callable[[str], list[Any]],
) -> Parts:
    """Return how rows are cut: by a column, by the pages of a table, or not at all.

    Args:
        query: What is read.
        columns: All columns that it has.
        parts: How many parts are wanted; there may be fewer.
        column: The column of numbers or times that cuts the rows, where there is one of the name.
        source: The table or subquery, as SQL.
        rows: Runs a query in the snapshot.

    Raises:
        InvalidArgument: The column is no number and no time.
    """
    if parts == 1:
        return Parts(None, ["true"])
    for each in columns:
        if each.name == column:
            found = rows(_bounds(each, parts, source))[0]
            literals = []
            for bound in found:
                if bound is not None:
                    literals.append(f"{sqltext.text(bound)}::{each.native}")
            return Parts(sqltext.quote(each.name), _between(literals))
    if query.table is None:
        return Parts(None, ["true"])
    counted = rows(_PAGES.format(sqltext.text(sqltext.table_name(query.table))))
    if not counted:  # a view, a partitioned table, or one of another server
        return Parts(None, ["true"])
    pages = int(counted[0][0])
    first_pages = sorted({pages * number // parts for number in range(1, parts)} - {0})
    return Parts("ctid", _between([f"'({page},0)'::tid" for page in first_pages]))


def _bounds(column: SourceColumn, parts: int, source: str) -> str:
    """Return the query for the bounds between the parts of a column, at equal distances."""
    name, kind = sqltext.quote(column.name), column.kind
    least, most = f"min({name})", f"max({name})"
    step = "({most} - {least}) * {number} / {parts}"
    if kind is not None and (pat.is_integer(kind) or pat.is_decimal(kind)):
        least, most = f"{least}::numeric", f"{most}::numeric"
    elif kind is not None and (pat.is_floating(kind) or pat.is_timestamp(kind)):
        step = "({most} - {least}) * ({number} / {parts}::float8)"
    elif kind is None or not pat.is_date(kind):
        raise InvalidArgument(
            f"partition_column={column.name!r} is {column.native}, which is no number and no time.",
            hint="leave it out: the pages of a table cut its rows",
        )
    values = []
    for number in range(1, parts):
        part = step.format(least=least, most=most, number=number, parts=parts)
        values.append(f"({least} + {part})::{column.native}::text")
    return f"SELECT {', '.join(values)} FROM {source}"


def _between(literals: Sequence[str]) -> list[str]:
    """Return the conditions of the parts before, between and after some bounds in their order."""
    if not literals:
        return ["true"]
    found = [f"{PART} < {literals[0]} OR {PART} IS NULL"]
    for first, last in pairwise(literals):
        found.append(f"{PART} >= {first} AND {PART} < {last}")
    found.append(f"{PART} >= {literals[-1]}")
    return found
