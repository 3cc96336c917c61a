"""Rendering of descriptions: a subset of Markdown without HTML."""

from __future__ import annotations

from functools import cache

from markdown_it import MarkdownIt
from markupsafe import Markup

from featurestore.model.printable import printable_line

# Excludes HTML, images and headings.
_RULES = ["backticks", "code", "emphasis", "escape", "fence", "link", "list", "newline"]


def markdown(text: str) -> Markup:
    """Render a description as HTML with paragraphs, lists, code, emphasis and links.

    >>> markdown("as *of* `t` <b>").strip()
    Markup('<p>as <em>of</em> <code>t</code> &lt;b&gt;</p>')
    """
    lines = [printable_line(line) for line in text.splitlines()]
    return Markup(_parser().render("\n".join(lines)))


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("zero", {"html": False, "linkify": False}).enable(_RULES)
