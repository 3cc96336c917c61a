"""Rows as text and as HTML, for people."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from featurestore.model.printable import printable_line


def as_text(table: pa.Table, *, limit: int, width: int = 20, more: bool = False) -> str:
    """Return a table as Spark's ``show`` draws it: right-aligned, long cells cut to ``width``.

    Args:
        table: The rows to draw.
        limit: How many rows were asked for; only named in the last line.
        width: Longest cell; longer ones end in "...".
        more: Whether the table has rows beyond ``limit``.

    >>> print(as_text(pa.table({"a": [1, None]}), limit=2), end="")
    +----+
    |   a|
    +----+
    |   1|
    |NULL|
    +----+
    """
    rows = [[_cut(cell(value), width) for value in row] for row in _rows(table)]
    names = table.column_names
    widths = [
        max(3, len(name), *(len(row[index]) for row in rows)) for index, name in enumerate(names)
    ]
    rule = "+" + "+".join("-" * each for each in widths) + "+"
    lines = [rule, _line(names, widths), rule, *(_line(row, widths) for row in rows), rule]
    if more:
        lines.append(f"only showing top {limit} row{'' if limit == 1 else 's'}")
    return "\n".join(lines) + "\n"


def as_html(table: pa.Table, *, caption: str) -> str:
    """Return a table as HTML for notebooks; every cell is escaped."""
    head = "".join(
        f"<th>{html.escape(field.name)}<br><small>{html.escape(str(field.type))}</small></th>"
        for field in table.schema
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(_cut(cell(value), 60))}</td>" for value in row)
        + "</tr>"
        for row in _rows(table)
    )
    return f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def cell(value: object) -> str:
    """Return one value as people read it: NULL, lower-case booleans, times without needless zeros.

    >>> cell(None), cell(True), cell([1, None])
    ('NULL', 'true', '[1, NULL]')
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S")
        return f"{text}.{value.microsecond:06d}".rstrip("0") if value.microsecond else text
    if isinstance(value, bytes):
        return f"[{value.hex(' ')}]"
    if isinstance(value, list):
        return "[" + ", ".join(map(cell, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(cell(each) for each in value.values()) + "}"
    return printable_line(str(value))


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return (
        "|" + "|".join(text.rjust(width) for text, width in zip(cells, widths, strict=True)) + "|"
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
