"""Code blocks of pages, and how each kind is run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<text>.*?)^ *```$", re.S | re.M
)
FILE = re.compile(r'^# ([\w/]+\.\w+)$|title="([^"]+)"', re.M)
# Shell commands of other programs, which are tested elsewhere:
# `make` by its targets, pip by `make test-wheel`, spark-submit by tests/cluster.
FOREIGN = {"cd", "pip", "spark-submit", "export", "python"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and its first line number."""

    page: Path
    language: str
    options: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """Return the file name of the block, from ``# jobs.py`` or a title."""
        first = self.text.split("\n", 1)[0]
        matches = FILE.search(f"{self.options}\n{first}")
        if matches is None:
            return None
        return matches[1] or matches[2]

    @property
    def location(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return the README and every documentation page with code."""
    result = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))):
        if any(block.language in RUNNERS for block in blocks(page)):
            result.append(page)
    return result


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    result = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        body = re.sub(f"^{indent}", "", match["text"], flags=re.M)
        line = text.count("\n", 0, match.start("text")) + 1
        result.append(Block(page, match["language"], match["options"], body, line))
    return result


def run_page(page: Path) -> None:
    """Run the blocks of a page in order in one namespace, in the current folder.

    What they set in the environment is gone afterwards, and with it the lineage that they asked for.
    """
    from featurestore.lineage import emitter as lineage

    namespace: dict[str, Any] = {"__name__": "__main__"}
    before = dict(os.environ)
    try:
        for block in blocks(page):
            if block.language in RUNNERS:
                RUNNERS[block.language](block, namespace)
    finally:
        os.environ.clear()
        os.environ.update(before)
        lineage.stop()


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    """Run Python code, or write it to the file that the block names."""
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    if block.file is not None:
        Path(block.file).parent.mkdir(parents=True, exist_ok=True)
        Path(block.file).write_text(block.text, encoding="utf-8")
        return
    exec(code, namespace)


def run_shell(block: Block, namespace: dict[str, Any]) -> None:
    """Run the lines that call this package; make targets only have to exist."""
    del namespace
    for words in shell_lines(block):
        if words[0] == "featurestore":
            run_command(words[1:], block)
        elif words[0] == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert f"\n{words[1]}:" in makefile, block.location
        else:
            is_foreign = words[0] in FOREIGN or words[0].startswith("$SPARK/")
            assert is_foreign, f"{block.location}: {words[0]} is not known"


def shell_lines(block: Block) -> Iterator[list[str]]:
    """Yield the words of each line without prompts, comments and variable assignments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if re.match(r"[A-Z_]+=\$\(", line):
            continue  # a variable made by another program
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while len(words) > 1 and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            yield words


def run_command(words: list[str], block: Block) -> None:
    """Run a command of the package in this process; exit code 1 (differences) is allowed."""
    from featurestore.cli.main import main

    if "scheduler" in words and "start" in words:
        words = [*words, "--help"]  # it would run forever
    before = sys.argv
    sys.argv = ["featurestore", *words]
    actual = io.StringIO()
    try:
        with contextlib.redirect_stderr(actual):
            main()
    except SystemExit as ended:
        wrong = ended.code not in {0, 1} or (ended.code == 1 and actual.getvalue())
        assert not wrong, f"{block.location}: featurestore {' '.join(words)}\n{actual.getvalue()}"
    finally:
        sys.argv = before


RUNNERS = {"python": run_python, "bash": run_shell, "console": run_shell}


if __name__ == "__main__":  # a page whose libraries need their own process
    run_page(Path(sys.argv[1]))
