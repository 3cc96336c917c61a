"""The table of extras in the documentation is complete."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_platforms_page_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    section = (ROOT / "docs/platforms.md").read_text().partition("## Extras\n")[2]
    table = section.partition("\n| extra | 3.11 | 3.12 | 3.13 | 3.14 |\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]
    extras = project["optional-dependencies"].keys() - {"dev"}
    assert {row[0].strip("`") for row in rows} == extras | {"core"}
    assert {cell for row in rows for cell in row[1:]} <= {"yes", "no"}
    assert {len(row) for row in rows} == {5}
