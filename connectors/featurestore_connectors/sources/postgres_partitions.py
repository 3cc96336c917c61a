"""Partition the rows of a Postgres table or query for parallel reads in one snapshot.

Every row meets exactly one condition: rows before the first bound or
without a value, rows between two bounds, and rows from the last bound on.
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
# The name of the column with the partition key in the query.
PARTITION_KEY = "part"
_MAX_PARTITIONS = 10_000
_PAGES = """
    SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint
    FROM pg_catalog.pg_class c WHERE c.oid = {}::regclass AND c.relkind IN ('r', 'm')
"""


@dataclass(frozen=True)
class Partitions:
    """``cut`` is the SQL of what cuts the rows, None where nothing does; conditions are over PART."""

    key: str | None
    conditions: Sequence[str]


def parse_partition_count(options: Mapping[str, str]) -> int | None:
    """Return the number of partitions from the options of a source; None for one stream.

    Raises:
        InvalidArgument: An option is unknown, or the number is invalid.
    """
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise InvalidArgument(
            f"A Postgres source has no options {listing(unknown)}; it has {listing(OPTIONS)}.",
            hint=did_you_mean(unknown[0], OPTIONS, write="options={{{!r}: ...}}"),
        )
    text = options.get("partitions")
    if text is None:
        if options:
            raise InvalidArgument(
                "partition_column needs partitions, the number of partitions.",
                hint="options={'partitions': '8', 'partition_column': 'id'}",
            )
        return None
    if not text.isdecimal() or not 0 < int(text) <= _MAX_PARTITIONS:
        raise InvalidArgument(
            f"partitions={text!r} is not a number from 1 to {_MAX_PARTITIONS:,}.",
            hint="options={'partitions': '8'}",
        )
    return int(text)


def partition_rows(
    query: SourceQuery,
    columns: Sequence[SourceColumn],
    *,
    partition_count: int,
    column: str | None,
    source: str,
    rows: Callable[[str], list[Any]],
) -> Partitions:
    """Partition rows by a column, by the pages of a table, or not at all.

    Args:
        query: What is read.
        columns: All columns that it has.
        partition_count: The requested number of partitions; there may be fewer.
        column: The column of numbers or times that cuts the rows, where there is one of the name.
        source: The table or subquery, as SQL.
        rows: Runs a query in the snapshot.

    Raises:
        InvalidArgument: The column is not numeric and not a time.
    """
    if partition_count == 1:
        return Partitions(None, ["true"])
    for each in columns:
        if each.name == column:
            bounds = rows(_bounds(each, partition_count, source))[0]
            literals = [
                f"{sqltext.text(bound)}::{each.native}" for bound in bounds if bound is not None
            ]
            return Partitions(sqltext.quote(each.name), _between(literals))
    if query.table is None:
        return Partitions(None, ["true"])
    page_counts = rows(_PAGES.format(sqltext.text(sqltext.table_name(query.table))))
    if not page_counts:  # a view, a partitioned table, or one of another server
        return Partitions(None, ["true"])
    pages = int(page_counts[0][0])
    first_pages = sorted(
        {pages * number // partition_count for number in range(1, partition_count)} - {0}
    )
    return Partitions("ctid", _between([f"'({page},0)'::tid" for page in first_pages]))


def _bounds(column: SourceColumn, partition_count: int, source: str) -> str:
    """Return the query for the bounds between the parts of a column, at equal distances."""
    name, kind = sqltext.quote(column.name), column.kind
    minimum, maximum = f"min({name})", f"max({name})"
    step = "({most} - {least}) * {number} / {parts}"
    if kind is not None and (pat.is_integer(kind) or pat.is_decimal(kind)):
        minimum, maximum = f"{minimum}::numeric", f"{maximum}::numeric"
    elif kind is not None and (pat.is_floating(kind) or pat.is_timestamp(kind)):
        step = "({most} - {least}) * ({number} / {parts}::float8)"
    elif kind is None or not pat.is_date(kind):
        raise InvalidArgument(
            f"partition_column={column.name!r} is {column.native}, which is neither a number nor a time.",
            hint="omit it: the pages of a table partition its rows",
        )
    values = []
    for number in range(1, partition_count):
        distance = step.format(least=minimum, most=maximum, number=number, parts=partition_count)
        values.append(f"({minimum} + {distance})::{column.native}::text")
    return f"SELECT {', '.join(values)} FROM {source}"


def _between(literals: Sequence[str]) -> list[str]:
    """Return the conditions of the parts before, between and after some bounds in their order."""
    if not literals:
        return ["true"]
    conditions = [f"{PARTITION_KEY} < {literals[0]} OR {PARTITION_KEY} IS NULL"]
    for first, last in pairwise(literals):
        conditions.append(f"{PARTITION_KEY} >= {first} AND {PARTITION_KEY} < {last}")
    conditions.append(f"{PARTITION_KEY} >= {literals[-1]}")
    return conditions
