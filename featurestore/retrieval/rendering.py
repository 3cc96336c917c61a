"""Rows as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from featurestore.arrow.types import describe
from featurestore.model import html
from featurestore.model.printable import printable_line


def as_text(table: pa.Table, *, limit: int, width: int = 20, more: bool = False) -> str:
    """Return a table in the layout of Spark's ``show``: right-aligned, truncated to ``width``.

    Args:
        table: The rows to draw.
        limit: The maximum number of rows, for the last line.
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
    names = table.column_names
    widths = [max(3, len(name)) for name in names]
    rows = []
    for values in _rows(table):
        texts = []
        for index, value in enumerate(values):
            text = _truncate(cell(value), width)
            widths[index] = max(widths[index], len(text))
            texts.append(text)
        rows.append(texts)
    rule = "+" + "+".join("-" * each for each in widths) + "+"
    body = [_line(texts, widths) for texts in rows]
    lines = [rule, _line(names, widths), rule, *body, rule]
    if more:
        unit = "row"
        if limit != 1:
            unit = "rows"
        lines.append(f"only showing top {limit} {unit}")
    return "\n".join(lines) + "\n"


def as_html(table: pa.Table, *, caption: str) -> str:
    """Return a table as HTML for notebooks; every cell is escaped.

    >>> as_html(pa.table({"a": ["<b>"]}), caption="1 row")[-35:]
    '&lt;b&gt;</td></tr></tbody></table>'
    """
    head = [(field.name, describe(field.type)) for field in table.schema]
    rows = [[_truncate(cell(value), 60) for value in values] for values in _rows(table)]
    return html.table(head, rows, caption=caption)


def cell(value: object) -> str:
    """Format one value: NULL, lower-case booleans, times without trailing zeros.

    >>> cell(None), cell(True), cell([1, None])
    ('NULL', 'true', '[1, NULL]')
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S")
        if value.microsecond:
            text = f"{text}.{value.microsecond:06d}".rstrip("0")
        return text
    if isinstance(value, bytes):
        return f"[{value.hex(' ')}]"
    if isinstance(value, list):
        return "[" + ", ".join(map(cell, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(map(cell, value.values())) + "}"
    return printable_line(str(value))


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [text.rjust(width) for text, width in zip(cells, widths, strict=True)]
    return f"|{'|'.join(padded)}|"


def _truncate(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: width - 3] + "..."
