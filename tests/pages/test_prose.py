"""`make docs` reports words, sentences, terms and links that break the rules.

The install page has the pinned versions.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABSENT = "not run"
PROSE = runpy.run_path(str(ROOT / "scripts" / "prose.py"))


def problems(page: Path, text: str) -> list[str]:
    page.write_text(text, encoding="utf-8")
    return PROSE["check"](page)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# Title\n\nThe call tells the user.\n", "3: 'tells': write"),
        ("A run in the the folder.\n", "1: 'the the'"),
        (
            "One\n" + " ".join(f"word{number}" for number in range(50)) + "\n",
            "1: a sentence of 51 words",
        ),
        ("The window is stale.\n", "1: 'stale': link it to glossary.md#stale"),
    ],
)
def test_check_invalid_prose_reports_line(tmp_path: Path, text: str, problem: str) -> None:
    (actual,) = problems(tmp_path / "page.md", text)
    assert actual.startswith(problem)


@pytest.mark.parametrize(
    "text",
    [
        "```python\ntells = 'the the'\n```\n",
        "The option `tells` and <https://example.com/tells>.\n",
        "A [stale](glossary.md#stale) window.\n",
    ],
)
def test_check_code_and_links_reports_nothing(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path / "page.md", text) == []


def test_broken_links_missing_files_and_headings_are_reported(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# Two words\n")
    page = tmp_path / "README.md"
    page.write_text("[a](there.md#two-words) [b](there.md#three) [c](gone.md) [d](https://x.org)\n")
    actual = list(PROSE["broken_links"](page, page.read_text()))
    assert actual == [(1, "there.md has no heading #three"), (1, "gone.md does not exist")]


def test_install_page_has_pinned_versions() -> None:
    lines = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").splitlines()
    header = next(
        line for line in lines if "`constraints.txt` |" in line and line.startswith("| |")
    )
    files = re.findall(r"`(constraints[\w-]*\.txt)`", header)
    pins = {}
    for file in files:
        pinned = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(), re.M)
        pins[file] = {name.lower(): version for name, version in pinned}
    checked = 0
    names = {"pytorch": "torch"}
    for line in lines[lines.index(header) + 3 :]:
        if not line:
            break
        libraries, *versions = (cell.strip() for cell in line.strip("|").split("|"))
        for file, cell in zip(files, versions, strict=True):
            expected = [
                pins[file].get(names.get(name.lower(), name.lower()), ABSENT)
                for name in libraries.split(", ")
            ]
            assert cell == (", ".join(expected) if ABSENT not in expected else ABSENT), (
                libraries,
                file,
            )
            checked += 1
    assert checked >= 30


def test_install_page_and_readme_list_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev"}
    for page in ("docs/install.md", "README.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert {name for name in extras if f"`{name}`" not in text} == set(), page
