"""A Griffe extension: show the examples in docstrings as code blocks on the reference pages.

Markdown would show lines that begin with ``>>>`` as quotations.
"""

from __future__ import annotations

from typing import Any

import griffe

FENCE = "```"


class DoctestFences(griffe.Extension):
    """Adds code fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Add code fences to the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with code fences around each example, from ``>>>`` to an empty line."""
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
