"""Hold the limits of density: scripts/density.py FOLDER...

Counts conditional expressions for each 1,000 lines of code (without docstrings, comments and blank
lines), and lists conditional expressions inside others and statements with several comprehensions.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CONDITIONAL_LIMIT = 12.0
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Count:
    """What was found in some files."""

    conditionals: int = 0
    code_lines: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Add what was found elsewhere."""
        self.conditionals += other.conditionals
        self.code_lines += other.code_lines
        self.problems += other.problems

    def per_thousand(self, number: int) -> float:
        """Return how many there are for each 1,000 lines of code."""
        return 1000 * number / max(self.code_lines, 1)


def count(path: Path) -> Count:
    """Return what a file holds."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = Count(code_lines=code_lines(text, tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            found.conditionals += 1
            if any(isinstance(each, ast.IfExp) for each in descendants(node)):
                found.problems.append(f"{path}:{node.lineno}: a conditional expression in another")
        if isinstance(node, ast.stmt):
            several = sum(isinstance(each, COMPREHENSIONS) for each in expressions_of(node))
            if several > 1:
                found.problems.append(f"{path}:{node.lineno}: {several} comprehensions a statement")
    return found


def code_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines that are neither blank, comment nor docstring."""
    documentation: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            documentation |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        lines += bool(stripped) and not stripped.startswith("#") and number not in documentation
    return lines


def descendants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node."""
    for child in ast.iter_child_nodes(node):
        yield child
        yield from descendants(child)


def expressions_of(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement that belong to no statement inside it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from descendants(child)


def main() -> int:
    """Print a line a folder and every problem; return 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    passed = False
    for folder in parser.parse_args().folders:
        total = Count()
        for path in sorted(folder.rglob("*.py")):
            total.add(count(path))
        conditionals = total.per_thousand(total.conditionals)
        print(
            f"{folder}: {conditionals:.1f} conditional expressions ({CONDITIONAL_LIMIT:.0f}) "
            f"in 1,000 of {total.code_lines:,} lines"
        )
        for problem in total.problems:
            print(problem)
        passed |= conditionals > CONDITIONAL_LIMIT or bool(total.problems)
    return int(passed)


if __name__ == "__main__":
    sys.exit(main())
