"""Rows as text and as HTML, for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from featurestore.model import html
from featurestore.model.printable import printable_line
from featurestore.model.shapes import describe


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
    names = table.column_names
    widths = []
    for name in names:
        widths.append(max(3, len(name)))
    rows = []
    for values in _rows(table):
        texts = []
        for index, value in enumerate(values):
            text = _cut(cell(value), width)
            widths[index] = max(widths[index], len(text))
            texts.append(text)
        rows.append(texts)
    rule = "+" + "+".join("-" * each for each in widths) + "+"
    lines = [rule, _line(names, widths), rule]
    for texts in rows:
        lines.append(_line(texts, widths))
    lines.append(rule)
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
    rows = []
    for values in _rows(table):
        rows.append([_cut(cell(value), 60) for value in values])
    return html.table(head, rows, caption=caption)


def cell(value: object) -> str:
    """Return one value as people read it: NULL, lower-case booleans, times without needless zeros.

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
    padded = []
    for text, width in zip(cells, widths, strict=True):
        padded.append(text.rjust(width))
    return f"|{'|'.join(padded)}|"


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: width - 3] + "..."
