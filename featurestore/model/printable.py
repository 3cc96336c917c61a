"""Text from a store made fit for a terminal: control characters are shown, never obeyed.

A description, a tag or a cell may hold anything, also the sequences by which terminals change
colours, titles, the clipboard or the direction of writing. They are written as JSON escapes, so
that JSON stays valid and means the same.
"""

from __future__ import annotations

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
