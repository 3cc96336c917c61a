"""Columns of DuckDB's relations whose Arrow form would hold other values.

DuckDB hands BIT over as its internal bytes, integers of 128 bits as decimals that overflow, and
times of day with a zone not at all. Such columns are refused by their types, or by their values
while the query runs; the latter refusal is the text of an error of DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from featurestore.arrow.column_lines import quoted
from featurestore.arrow.type_lines import nanoseconds_line
from featurestore.errors import UnsupportedType

_INT64_LIMIT = 2**63
# Leaves that Arrow cannot hold as they are, and the integers that it holds with luck.
_UNSUPPORTED_TYPES = {
    "bit",
    "bignum",
    "varint",
    "time",
    "time_ns",
    "time with time zone",
    "interval",
    "union",
    "variant",
    "geometry",
}
_INT128_CHECKS = {
    "hugeint": f"{{c}} BETWEEN -{_INT64_LIMIT} AND {_INT64_LIMIT - 1}",
    "uhugeint": f"{{c}} < {_INT64_LIMIT}",
}
_PREFIX = "cannot be stored: "
_MESSAGE = re.compile(rf"{_PREFIX}(?P<message>.*?)\nHint: (?P<hint>[^\n]*)", re.DOTALL)


def with_storable_types(frame: Any) -> Any:
    """Return a DuckDB relation that gives the same values through Arrow.

    Integers of 128 bits, as sums have them, become those of 64; a query in which one is too large
    fails with a text that ``parse_refusal`` reads.

    Raises:
        UnsupportedType: Lists all columns whose types cannot be stored, with the lines to paste.
    """
    unsupported, lines, columns = [], [], []
    is_changed = False
    for name, kind in zip(frame.columns, frame.types, strict=True):
        column = value = quoted(name)
        if kind.id in _INT128_CHECKS:
            value = _checked_int64(name, _INT128_CHECKS[kind.id])
        elif kind.id == "timestamp_ns":
            value = _checked_microseconds(name)
        elif kind.id == "map" or _is_unsupported(kind):
            unsupported.append(f"{name}: {kind}")
            lines.append(f"{_cast(kind, column)} AS {column}")
        columns.append(f"{value} AS {column}")
        is_changed = is_changed or value != column
    if unsupported:
        raise UnsupportedType(
            f"These columns have types that cannot be stored: {'; '.join(unsupported)}.",
            hint=f"rows = rows.select({f'* REPLACE ({chr(44).join(lines)})'!r})",
        )
    return frame.project(", ".join(columns)) if is_changed else frame


def parse_refusal(text: str) -> UnsupportedType | None:
    """Return the refusal that an error of DuckDB carries; None if it carries none.

    >>> parse_refusal("Binder Error: no such column") is None
    True
    """
    match = _MESSAGE.search(text)
    if match is None:
        return None
    return UnsupportedType(match["message"], hint=match["hint"])


@contextmanager
def query_refusals() -> Iterator[None]:
    """Raise what a query refuses by its values as the refusal."""
    try:
        yield
    except Exception as error:
        # Of which class it is depends on the releases of DuckDB and of pyarrow.
        refusal = parse_refusal(str(error))
        if refusal is None:
            raise
        raise refusal from error


def _is_unsupported(kind: Any, *, inside: bool = False) -> bool:
    if kind.id in _UNSUPPORTED_TYPES or (inside and kind.id in ("map", "uhugeint")):
        return True
    if kind.id not in ("list", "array", "struct"):
        return False
    children = [child for name, child in kind.children if name != "size" or kind.id != "array"]
    return any(_is_unsupported(child, inside=True) for child in children)


def _cast(kind: Any, value: str) -> str:
    """Return the expression that keeps the values of a column that is refused."""
    if kind.id == "map":
        return f"map_entries({value})"
    return f"CAST({value} AS {_type_with_strings(kind)})"


def _type_with_strings(kind: Any) -> str:
    """Return a type of DuckDB with texts where it has what cannot be stored."""
    if kind.id in ("list", "array"):
        children = dict(kind.children)
        size = children.get("size", "") if kind.id == "array" else ""
        return f"{_type_with_strings(children['child'])}[{size}]"
    if kind.id == "struct":
        fields = [f"{quoted(name)} {_type_with_strings(child)}" for name, child in kind.children]
        return f"STRUCT({', '.join(fields)})"
    return "VARCHAR" if _is_unsupported(kind, inside=True) else str(kind)


def _checked_int64(name: str, condition: str) -> str:
    column = quoted(name)
    hint = f"rows = rows.select('* REPLACE (CAST({column} AS VARCHAR) AS {column})')"
    return (
        f"CASE WHEN {column} IS NULL OR {condition.format(c=column)} THEN CAST({column} AS BIGINT) "
        f"ELSE {_error_call(f'Column {name!r} has integers of more than 64 bits.', hint)} END"
    )


def _checked_microseconds(name: str) -> str:
    column = quoted(name)
    problem = f"Column {name!r} has times finer than a microsecond."
    return (
        f"CASE WHEN epoch_ns({column}) % 1000 <> 0 "
        f"THEN {_error_call(problem, nanoseconds_line('duckdb', name))} "
        f"ELSE make_timestamp(epoch_ns({column}) // 1000) END"
    )


def _error_call(problem: str, hint: str) -> str:
    text = f"{_PREFIX}{problem}\nHint: {hint}".replace("'", "''")
    return f"error('{text}')"
