"""HTML for notebooks: tables of texts and records. Every text is escaped here, and only here."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from featurestore.model.printable import printable_line, value_text

_MAX_ROWS = 50
_MAX_CELL_LENGTH = 300
_ALIGN_LEFT = "text-align: left"


class Summarized(Protocol):
    """An object that can be a row of a table."""

    def _summary(self) -> Mapping[str, object]: ...


T = TypeVar("T", bound=Summarized)


class Listing(list[T]):
    """A list that notebooks show as a table.

    >>> class Group:
    ...     def _summary(self):
    ...         return {"name": "<b>"}
    >>> "&lt;b&gt;" in Listing([Group()])._repr_html_()
    True
    """

    def _repr_html_(self) -> str:
        rows = [each._summary() for each in self[:_MAX_ROWS]]
        caption = ""
        if len(self) > len(rows):
            caption = f"the first {len(rows)} of {len(self):,}"
        return records_table(rows, caption=caption)


def records_table(rows: Sequence[Mapping[str, object]], *, caption: str = "") -> str:
    """Return records of the same keys as a table; without any: the caption, or "nothing there".

    >>> "<th" in records_table([{"rows": 1_000}]), records_table([])
    (True, '<p>nothing there</p>')
    """
    if not rows:
        return paragraph(caption or "nothing there")
    names = list(rows[0])
    texts = []
    for row in rows:
        texts.append([value_text(row.get(name)) for name in names])
    return table([(name.replace("_", " "), "") for name in names], texts, caption=caption)


def properties_table(values: Mapping[str, object], *, caption: str = "") -> str:
    """Return names and their values as a table of two columns."""
    lines = [_table_start(caption), "<tbody>"]
    for name, value in values.items():
        head = html.escape(name.replace("_", " "))
        lines.append(f'<tr><th style="{_ALIGN_LEFT}">{head}</th>{_cell(value_text(value))}</tr>')
    lines.append("</tbody></table>")
    return "".join(lines)


def table(
    head: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], *, caption: str = ""
) -> str:
    """Return a table of texts; ``head``: the name of each column, and a small text below it."""
    lines = [_table_start(caption), "<thead><tr>"]
    for name, below in head:
        lines.append(f'<th style="{_ALIGN_LEFT}">{html.escape(printable_line(name))}')
        if below:
            lines.append(f"<br><small>{html.escape(below)}</small>")
        lines.append("</th>")
    lines.append("</tr></thead><tbody>")
    for row in rows:
        lines.append(f"<tr>{''.join(map(_cell, row))}</tr>")
    lines.append("</tbody></table>")
    return "".join(lines)


def paragraph(text: str) -> str:
    """Return a text as a paragraph."""
    return f"<p>{html.escape(printable_line(text))}</p>"


def preformatted(text: str) -> str:
    """Return preformatted text.

    >>> preformatted("a < b")
    '<pre>a &lt; b</pre>'
    """
    return f"<pre>{html.escape(text)}</pre>"


def _table_start(caption: str) -> str:
    if not caption:
        return "<table>"
    return f'<table><caption style="{_ALIGN_LEFT}">{html.escape(printable_line(caption))}</caption>'


def _cell(text: str) -> str:
    if len(text) > _MAX_CELL_LENGTH:
        text = text[:_MAX_CELL_LENGTH] + "..."
    return f'<td style="{_ALIGN_LEFT}">{html.escape(printable_line(text))}</td>'
