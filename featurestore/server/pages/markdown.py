"""Descriptions as people write them: a small part of Markdown, and nothing else of HTML."""

from __future__ import annotations

from functools import cache

from markdown_it import MarkdownIt
from markupsafe import Markup

from featurestore.model.printable import printable_line

# No HTML, no pictures, no headings: those of the page are its own.
_RULES = ["backticks", "code", "emphasis", "escape", "fence", "link", "list", "newline"]


def markdown(text: str) -> Markup:
    """Return a description as HTML: paragraphs, lists, code, emphasis and links; all else is text.

    >>> markdown("as *of* `t` <b>").strip()
    Markup('<p>as <em>of</em> <code>t</code> &lt;b&gt;</p>')
    """
    lines = [printable_line(line) for line in text.splitlines()]
    return Markup(_parser().render("\n".join(lines)))


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("zero", {"html": False, "linkify": False}).enable(_RULES)
