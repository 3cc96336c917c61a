"""Hints for rows with duplicate keys: first the definition that stores every row.

Dropping all rows of a key but the last one loses events, and in a frame with several times of a key it
gives earlier labels later values. So a line that drops rows comes first only if the dropped rows equal
the remaining ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import pyarrow.types as pat

from featurestore.arrow.types import can_be_key

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.plugins.engine import Engine, Relation

# The columns and pairs of columns that are tested, since each test groups all rows.
_MAX_COLUMNS = 32
_MAX_PAIRS = 12


@dataclass(frozen=True)
class DuplicateRows:
    """Rows with duplicate keys, and the definition of the table that they were written to.

    ``key`` is the primary key followed by the declared times; a new group has the name None.
    """

    relation: Relation
    schema: pa.Schema
    key: tuple[str, ...]
    event_time: str | None = None
    name: str | None = None

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The key without the declared times."""
        if self.event_time not in self.key:
            return self.key
        return self.key[: self.key.index(self.event_time)]

    def is_time(self, column: str) -> bool:
        """Return whether a column has timestamps or dates."""
        dtype = self.schema.field(column).type
        return pat.is_timestamp(dtype) or pat.is_date(dtype)


def duplicate_keys_hint(rows: DuplicateRows, *, engine: Engine) -> str:
    """Return the hint for duplicate keys.

    Args:
        rows: The rows and the definition.
        engine: The engine of the rows, which must be readable more than once.
    """
    dropping_line = "on_duplicates='last' keeps the last row of each key"
    if rows.name is None:  # creation has no such argument
        dropping_line = (
            f"pass one row of each key, as df.drop_duplicates({list(rows.key)!r}) of pandas does"
        )
    row_values = _count_distinct(rows, rows.schema.names, engine=engine)
    if row_values == _count_distinct(rows, rows.key, engine=engine):
        return f"{dropping_line}; all rows of a key are equal"
    arguments = _find_unique_definition(rows, engine=engine)
    if arguments is None:
        lines = [f"{dropping_line} and drops the others, which have other values"]
        if rows.name is None:
            lines.insert(0, "omit primary_key= to store every row")
        return ", or ".join(lines)
    if rows.name is None:
        return f"{arguments} stores every row"
    return (
        f"create_featuregroup(df, {rows.name!r}, {arguments}) creates a version that stores every "
        f"row; {dropping_line} and drops the others, which have other values"
    )


def _find_unique_definition(rows: DuplicateRows, *, engine: Engine) -> str | None:
    """Return the arguments of a definition whose keys are unique, or None."""
    candidates = [
        field.name for field in rows.schema if field.name not in rows.key and can_be_key(field.type)
    ]
    candidates.sort(key=lambda name: not pat.is_timestamp(rows.schema.field(name).type))
    candidates = candidates[:_MAX_COLUMNS]
    present, unique = _test_columns(rows, candidates, engine=engine)
    # Times come first: the rows of a key at several times are a history.
    if unique:
        return _format_definition(rows, sorted(unique, key=lambda name: not rows.is_time(name))[:1])
    pairs = sorted(
        combinations(present, 2),
        key=lambda pair: not (rows.is_time(pair[0]) or rows.is_time(pair[1])),
    )
    for pair in pairs[:_MAX_PAIRS]:
        if engine.duplicates(rows.relation, [*rows.key, *pair], limit=1)[0] == 0:
            return _format_definition(rows, pair)
    return None


def _format_definition(rows: DuplicateRows, columns: Sequence[str]) -> str:
    """Return the arguments of the definition that adds columns to the key."""
    event_time = rows.event_time
    primary_key = list(rows.primary_key)
    for column in columns:
        if event_time is None and rows.is_time(column):
            event_time = column
        else:
            primary_key.append(column)
    time_argument = "" if event_time is None else f"event_time={event_time!r}"
    created_times = rows.key[len(rows.primary_key) + 1 :]
    if created_times and rows.name is not None:
        time_argument += f", created_time={created_times[0]!r}"
    if rows.name is None and tuple(primary_key) == rows.primary_key:
        return time_argument
    key_argument = f"primary_key={primary_key!r}"
    return f"{key_argument}, {time_argument}" if time_argument else key_argument


def _test_columns(
    rows: DuplicateRows, candidates: Sequence[str], *, engine: Engine
) -> tuple[list[str], list[str]]:
    """Return the columns without nulls, and the columns that make the key unique."""
    if not candidates:
        return [], []
    counts, results = ["count(*) AS n"], []
    for number in range(len(candidates)):
        column = f"column_{number}"
        counts.append(f"count({column}) AS c{number}, count(DISTINCT {column}) AS d{number}")
        results.append(f"min(CASE WHEN c{number} = n THEN 1 ELSE 0 END) AS p{number}")
        results.append(f"min(CASE WHEN d{number} = n THEN 1 ELSE 0 END) AS u{number}")
    key_aliases = [f"key_{number}" for number in range(len(rows.key))]
    column_aliases = [f"column_{number}" for number in range(len(candidates))]
    aliases = dict(zip(key_aliases, rows.key, strict=True))
    aliases |= dict(zip(column_aliases, candidates, strict=True))
    query = (
        f"SELECT {', '.join(results)} FROM (SELECT {', '.join(counts)} FROM fs_rows "
        f"GROUP BY {', '.join(key_aliases)}) AS fs_keys"
    )
    relation = engine.select(rows.relation, aliases)
    tested = engine.sql(query, tables={"fs_rows": relation}, parameters={})
    (flags,) = engine.stream(tested).read_all().to_pylist()
    present, unique = [], []
    for number, name in enumerate(candidates):
        if flags[f"p{number}"]:
            present.append(name)
        if flags[f"u{number}"]:
            unique.append(name)
    return present, unique


def _count_distinct(rows: DuplicateRows, columns: Sequence[str], *, engine: Engine) -> int:
    aliases = {f"column_{number}": name for number, name in enumerate(columns)}
    query = (
        f"SELECT count(*) AS n FROM (SELECT DISTINCT {', '.join(aliases)} FROM fs_rows) AS fs_keys"
    )
    relation = engine.select(rows.relation, aliases)
    key_count = engine.sql(query, tables={"fs_rows": relation}, parameters={})
    count: int = engine.stream(key_count).read_all()["n"][0].as_py()
    return count
