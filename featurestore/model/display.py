"""Rendering of values as text and HTML for terminals and notebooks; the only module that escapes.

Stored strings may contain control characters: they are displayed, never sent to a terminal.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar, runtime_checkable

from featurestore.model.times import format_duration

# C0 and C1 controls, delete, bidirectional marks and overrides, line separators, lone surrogates.
_RANGES = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0x061C, 0x061C),
    (0x200E, 0x200F),
    (0x2028, 0x202E),
    (0x2066, 0x2069),
    (0xD800, 0xDFFF),
)
_ESCAPED = {code: f"\\u{code:04x}" for first, last in _RANGES for code in range(first, last + 1)}
_ESCAPED_IN_LINES = {code: text for code, text in _ESCAPED.items() if chr(code) not in "\n\t"}

_MAX_ROWS = 50
_MAX_CELL_LENGTH = 300
_LINE_WIDTH = 100
_MIN_CELL_WIDTH = 6
# Notebooks align the cells of a table to the right.
_ALIGN_LEFT = "text-align: left"


def escape_controls(text: str) -> str:
    r"""Escape control characters in a string, except newlines and tabs.

    >>> print(escape_controls("\x1b[31mred\nnext line"))
    \u001b[31mred
    next line
    """
    return text.translate(_ESCAPED_IN_LINES)


def escape_line(text: str) -> str:
    r"""Escape control characters in a string, including newlines and tabs.

    >>> print(escape_line("a\nb"))
    a\u000ab
    """
    return text.translate(_ESCAPED)


def value_text(value: object) -> str:
    """Format a record value for display, on one line.

    >>> value_text(None), value_text(True), value_text(12345), value_text(0.1 + 0.2)
    ('-', 'yes', '12,345', '0.3')
    >>> value_text({"train": 800, "test": 200}), value_text(["origin", "day"])
    ('train=800, test=200', 'origin, day')
    """
    if value is None:
        return "-"
    # Booleans are also integers.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Mapping):
        value = [f"{value_text(key)}={value_text(item)}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "-"
    return escape_line(str(value))


@runtime_checkable
class Summarized(Protocol):
    """An object that can be displayed as a table row."""

    def _summary(self) -> Mapping[str, object]: ...


T = TypeVar("T")


class Listing(list[T]):
    """A list that terminals and notebooks display as a table.

    >>> class Group:
    ...     def _summary(self):
    ...         return {"name": "<b>", "rows": 1_000}
    >>> Listing([Group()])
    name  rows
    ----  -----
    <b>   1,000
    >>> "&lt;b&gt;" in Listing([Group()])._repr_html_()
    True
    """

    def __repr__(self) -> str:
        rows = [_summarize(record) for record in self[:_MAX_ROWS]]
        text = text_table(rows)
        if len(self) > len(rows):
            text += f"\n... {len(self) - len(rows):,} more"
        return text

    def _repr_html_(self) -> str:
        rows = [_summarize(record) for record in self[:_MAX_ROWS]]
        caption = ""
        if len(self) > len(rows):
            caption = f"the first {len(rows)} of {len(self):,}"
        return records_table(rows, caption=caption)


def _summarize(record: object) -> Mapping[str, object]:
    """Return the table row of a record: its summary, else the fields of its representation."""
    if isinstance(record, Summarized):
        return record._summary()
    shown_fields = [field for field in dataclasses.fields(record) if field.repr]  # type: ignore[arg-type]
    return {field.name: getattr(record, field.name) for field in shown_fields}


def text_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return records with the same keys as a table of at most 100 columns; "[]" if empty.

    The widest columns are shortened.
    """
    if not rows:
        return "[]"
    names = list(rows[0])
    cells = [[name.replace("_", " ") for name in names]]
    cells += [[value_text(row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > _LINE_WIDTH and max(widths) > _MIN_CELL_WIDTH:
        widths[widths.index(max(widths))] -= 1
    cells.insert(1, ["-" * width for width in widths])
    lines = []
    for row in cells:
        texts = [
            _shorten(text, width).ljust(width) for text, width in zip(row, widths, strict=True)
        ]
        lines.append("  ".join(texts)[:_LINE_WIDTH].rstrip())
    return "\n".join(lines)


def record_repr(record: object) -> str:
    r"""Return the fields of a dataclass in lines of at most 100 columns.

    A short record has the one line that dataclasses have by default. Otherwise each field has a
    line, without fields that have their default, and long values are shortened.

    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: object
    ...     y: int
    >>> record_repr(Point(1, 2)), record_repr(Point("north" * 20, 2)).count("\n")
    ('Point(x=1, y=2)', 3)
    """
    shown_fields = [field for field in dataclasses.fields(record) if field.repr]  # type: ignore[arg-type]
    values = [(field, getattr(record, field.name)) for field in shown_fields]
    name = type(record).__qualname__
    texts = [f"{field.name}={value!r}" for field, value in values]
    line = f"{name}({', '.join(texts)})"
    if len(line) <= _LINE_WIDTH and "\n" not in line:
        return line
    lines = [
        f"  {field.name}={_shorten(escape_line(repr(value)), _LINE_WIDTH - len(field.name) - 4)},"
        for field, value in values
        if not _is_default(field, value)
    ]
    return "\n".join([f"{name}(", *lines, ")"])


def _is_default(field: dataclasses.Field[object], value: object) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value is field.default or value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."


def records_table(rows: Sequence[Mapping[str, object]], *, caption: str = "") -> str:
    """Return records with the same keys as a table; if empty, the caption or "no entries".

    >>> "<th" in records_table([{"rows": 1_000}]), records_table([])
    (True, '<p>no entries</p>')
    """
    if not rows:
        return paragraph(caption or "no entries")
    names = list(rows[0])
    # All records have the same keys: those of the first one are the columns.
    texts = [[value_text(row.get(name)) for name in names] for row in rows]
    return table([(name.replace("_", " "), "") for name in names], texts, caption=caption)


def properties_table(values: Mapping[str, object], *, caption: str = "") -> str:
    """Return names and values as a two-column table."""
    lines = [_table_start(caption), "<tbody>"]
    for name, value in values.items():
        head = html.escape(name.replace("_", " "))
        lines.append(f'<tr><th style="{_ALIGN_LEFT}">{head}</th>{_cell(value_text(value))}</tr>')
    lines.append("</tbody></table>")
    return "".join(lines)


def table(
    head: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], *, caption: str = ""
) -> str:
    """Return a table of strings; ``head`` has the name and the subtitle of each column."""
    lines = [_table_start(caption), "<thead><tr>"]
    for name, below in head:
        lines.append(f'<th style="{_ALIGN_LEFT}">{html.escape(escape_line(name))}')
        if below:
            lines.append(f"<br><small>{html.escape(below)}</small>")
        lines.append("</th>")
    lines.append("</tr></thead><tbody>")
    for row in rows:
        lines.append(f"<tr>{''.join(map(_cell, row))}</tr>")
    lines.append("</tbody></table>")
    return "".join(lines)


def paragraph(text: str) -> str:
    """Return a string as an HTML paragraph."""
    return f"<p>{html.escape(escape_line(text))}</p>"


def preformatted(text: str) -> str:
    """Return a string as preformatted HTML.

    >>> preformatted("a < b")
    '<pre>a &lt; b</pre>'
    """
    return f"<pre>{html.escape(text)}</pre>"


def _table_start(caption: str) -> str:
    if not caption:
        return "<table>"
    return f'<table><caption style="{_ALIGN_LEFT}">{html.escape(escape_line(caption))}</caption>'


def _cell(text: str) -> str:
    if len(text) > _MAX_CELL_LENGTH:
        text = text[:_MAX_CELL_LENGTH] + "..."
    return f'<td style="{_ALIGN_LEFT}">{html.escape(escape_line(text))}</td>'
