"""Tables of the docs that tests generate, between two comments with the name of the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace the tables of a page by their names."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        pattern = rf"(<!-- {name}: [^>]*-->\n\n).*?(\n\n<!-- end of {name} -->)"
        before, begin, end, after = re.split(pattern, text, flags=re.DOTALL)
        text = before + begin + table + end + after
    page.write_text(text, encoding="utf-8")
