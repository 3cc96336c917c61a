"""An extension of Griffe: examples in docstrings become blocks of code on the reference pages.

Lines that begin with ``>>>`` would be quotations in Markdown.
"""

from __future__ import annotations

from typing import Any

import griffe

FENCE = "```"


class DoctestFences(griffe.Extension):
    """Puts fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with fences around each run of lines from ``>>>`` to an empty line."""
    lines: list[str] = []
    indent: str | None = None
    for line in text.splitlines():
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}{FENCE}pycon")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}{FENCE}")
            indent = None
        lines.append(line)
    if indent is not None:
        lines.append(f"{indent}{FENCE}")
    return "\n".join(lines)
