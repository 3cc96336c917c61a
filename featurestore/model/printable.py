"""Text from a store made fit for a terminal: control characters are shown, never obeyed.

A description, a tag or a cell may hold anything, also the sequences by which terminals change
colours, titles, the clipboard or the direction of writing. They are written as JSON escapes, so
that JSON stays valid and means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from featurestore.model.durations import format_duration

# C0 and C1 controls, delete, marks and overrides of the writing direction, line separators, lone
# surrogates.
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


def printable(text: str) -> str:
    r"""Return a text in which control characters but line ends and tabs are escaped.

    >>> print(printable("\x1b[31mred\nnext line"))
    \u001b[31mred
    next line
    """
    return text.translate(_ESCAPED_IN_LINES)


def printable_line(text: str) -> str:
    r"""Return a text as one line: line ends and tabs are escaped, too.

    >>> print(printable_line("a\nb"))
    a\u000ab
    """
    return text.translate(_ESCAPED)


def value_text(value: object) -> str:
    """Return a value of a record as people read it, on one line.

    >>> value_text(None), value_text(True), value_text(12345), value_text(0.1 + 0.2)
    ('-', 'yes', '12,345', '0.3')
    >>> value_text({"train": 800, "test": 200}), value_text(["origin", "day"])
    ('train=800, test=200', 'origin, day')
    """
    if value is None:
        return "-"
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
        value = [f"{value_text(key)}={value_text(each)}" for key, each in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "-"
    return printable_line(str(value))
