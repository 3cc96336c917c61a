"""Measure the readability of the code: scripts/house.py prints a line per package, worst first.

Columns, per 1,000 lines of code unless a unit is stated:

- fillers: names that do not describe their values (found, given, told, piece, kept, ...)
- dialect: phrases in docstrings, comments and messages that are not standard English
- once: private module-level functions with exactly one use
- loops: an empty list or dict, then a loop that only fills it
- small: share of modules under 100 lines, in percent
- single: modules that exactly one other module imports (count)
- is_uri: branches on the kind of location (count)
- generic: names that are only `kind` or `each`
- replace: calls of ``dataclasses.replace``
- any: uses of ``Any``
- imports: lines of import statements, in percent of the lines of code

``--check`` compares with ``scripts/house.json``. It fails if a package got worse, if more names of
classes exist twice, or if a package of ``tests`` or ``benchmarks`` has too many fillers. ``--write``
stores the current figures.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "scripts" / "house.json"
TOPS = ("featurestore", "connectors/featurestore_connectors")
# Here only names count: at most so many fillers per 1,000 lines in each package.
NAMED_TOPS = ("tests", "benchmarks")
MOST_FILLERS = 10
RATES = ("fillers", "dialect", "once", "loops", "generic", "replace", "any")
COUNTS = ("single", "is_uri")
NEW_PACKAGES, REPEATED_CLASSES = "new packages", "repeated classes"
GENERIC_NAMES = ("kind", "each")
# The limits of packages without stored figures.
AIMS = {
    "fillers": 40,
    "dialect": 4,
    "once": 7,
    "loops": 0.6,
    "generic": 4,
    "replace": 0.6,
    "any": 18,
    "imports": 9,
    "single": 2,
    "is_uri": 0,
}
FILLERS = frozenset(
    re.findall(
        r"\w+",
        """
    told found given made asked taken kept done held said known wanted meant left rest whole looked
    seen gone begun sent chosen named opened written stored counted answered answer answers part
    parts piece pieces thing things at by of one two other others own mine its theirs what which
    where how who whose here there beside aside ahead apart together behind place places moment
    moments reach told_apart
        """,
    )
)
DIALECT = re.compile(
    r"\b(tells?|told|says?|said|asks?|asked|holds? back|is held|are held|lies?|stands?|nobody"
    r"|somebody|whoever|whatever|goes on|go on|gone on|went on|beside|aside|apart from|of it\b"
    r"|of them\b|that are it|is no\b|are no\b|is none|puts? aside|set aside|what it is"
    r"|what they are|as they come|as it comes|in the way|looked at|looks at|looks for|whole or not"
    r"|is meant|are meant|is wanted|are wanted|answers? (?:with|for|as)|cut (?:off|into|to)"
    r"|a piece of)\b",
    re.IGNORECASE,
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Measure:
    """The counts of one package."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.nested_conditionals: list[str] = []
        self.classes: Counter[str] = Counter()

    def add_module(self, path: Path) -> None:
        """Count one module."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        docstring_lines: set[int] = set()
        imported = _imported_names(tree)  # chosen by others, like hypothesis' given
        for node in ast.walk(tree):
            names = [name for name in _names_of(node) if name not in imported]
            self.counts["fillers"] += sum(map(_is_filler, names))
            self.counts["generic"] += sum(_plain_name(name) in GENERIC_NAMES for name in names)
            self._count_statement(node)
            self.counts["loops"] += _count_filling_loops(node)
            self.counts["dialect"] += sum(
                len(DIALECT.findall(message)) for message in _messages_of(node)
            )
            if isinstance(node, DOCUMENTED):
                docstring = ast.get_docstring(node, clean=False)
                if docstring is not None:
                    first = node.body[0]
                    docstring_lines |= set(range(first.lineno, (first.end_lineno or 0) + 1))
                    self.counts["dialect"] += len(DIALECT.findall(docstring))
            if isinstance(node, ast.IfExp) and _contains_conditional(node):
                self.nested_conditionals.append(f"{path.relative_to(ROOT)}:{node.lineno}")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                self.counts["dialect"] += len(DIALECT.findall(token.string))
        lines = text.splitlines()
        self.counts["code"] += sum(
            bool(line.strip())
            and not line.strip().startswith("#")
            and number not in docstring_lines
            for number, line in enumerate(lines, 1)
        )
        self.counts["once"] += sum(
            len(re.findall(rf"\b{node.name}\b", text)) == 2
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and re.match("_(?!_)", node.name)
        )
        self.counts["modules"] += 1
        self.counts["small"] += len(lines) < 100
        self.counts["is_uri"] += len(re.findall(r"\bis_uri\(", text))

    def _count_statement(self, node: ast.AST) -> None:
        """Count imports, classes, uses of ``Any`` and calls of ``dataclasses.replace``."""
        match node:
            case ast.Import() | ast.ImportFrom():
                self.counts["import lines"] += (node.end_lineno or 0) - node.lineno + 1
            case ast.ClassDef():
                self.classes[node.name] += 1
            case ast.Name(id="Any"):
                self.counts["any"] += 1
            case ast.Call(func=ast.Name(id="replace"), keywords=[_, *_]):
                self.counts["replace"] += 1

    def add(self, other: Measure) -> None:
        """Add the counts of another package."""
        self.counts += other.counts
        self.classes += other.classes
        self.nested_conditionals += other.nested_conditionals

    def figures(self) -> dict[str, float]:
        """Return rates per 1,000 lines of code, the percentage of imports, and counts."""
        code = max(self.counts["code"], 1)
        rates = {key: round(1000 * self.counts[key] / code, 2) for key in RATES}
        rates["imports"] = round(100 * self.counts["import lines"] / code, 2)
        return rates | {key: self.counts[key] for key in COUNTS}


def measure_packages(tops: Sequence[str] = TOPS) -> dict[str, Measure]:
    """Return the counts of each package below some folders, without migrations."""
    modules: dict[str, list[Path]] = defaultdict(list)
    for top in tops:
        for path in sorted((ROOT / top).rglob("*.py")):
            if "migrations/versions" not in path.as_posix():
                inside = path.relative_to(ROOT / top).parts
                modules[f"{top}/{inside[0]}" if len(inside) > 1 else top].append(path)
    importers = _importers(path for paths in modules.values() for path in paths)
    measures = {}
    for package, paths in modules.items():
        measure = measures[package] = Measure()
        for path in paths:
            measure.add_module(path)
            measure.counts["single"] += len(importers[_dotted(path)] - {path}) == 1
    return measures


def _dotted(path: Path) -> str:
    inside = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(inside[1:] if inside[0] == "connectors" else inside)


def _importers(paths: Iterable[Path]) -> dict[str, set[Path]]:
    """Return the modules that import each module."""
    importers: dict[str, set[Path]] = defaultdict(set)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                importers[node.module].add(path)
                for alias in node.names:
                    importers[f"{node.module}.{alias.name}"].add(path)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importers[alias.name].add(path)
    return importers


def _names_of(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name():
            return (node.id,)
        case ast.arg():
            return (node.arg,)
        case ast.Attribute():
            return (node.attr,)
        case ast.FunctionDef() | ast.ClassDef():
            return (node.name,)
    return ()


def _imported_names(tree: ast.Module) -> set[str]:
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports for alias in node.names}


def _plain_name(name: str) -> str:
    return name.strip("_").lower()


def _is_filler(name: str) -> bool:
    return _plain_name(name) in FILLERS


def _messages_of(node: ast.AST) -> list[str]:
    """Return the string constants of a raised error."""
    if not isinstance(node, ast.Raise) or node.exc is None:
        return []
    constants = [child for child in ast.walk(node.exc) if isinstance(child, ast.Constant)]
    return [constant.value for constant in constants if isinstance(constant.value, str)]


def _contains_conditional(node: ast.IfExp) -> bool:
    return any(isinstance(child, ast.IfExp) and child is not node for child in ast.walk(node))


def _count_filling_loops(node: ast.AST) -> int:
    blocks = [getattr(node, field, None) for field in ("body", "orelse", "finalbody")]
    pairs = [pair for block in blocks if isinstance(block, list) for pair in pairwise(block)]
    return sum(_is_filling_loop(first, second) for first, second in pairs)


def _is_filling_loop(first: ast.stmt, second: ast.stmt) -> bool:
    """Return True for an empty list or dict followed by a loop that only fills it."""
    if not isinstance(second, ast.For) or second.orelse or len(second.body) != 1:
        return False
    match first:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.List() | ast.Dict()):
            pass
        case ast.AnnAssign(target=ast.Name(id=target), value=ast.List() | ast.Dict()):
            pass
        case _:
            return False
    body = second.body[0]
    if isinstance(body, ast.If) and not body.orelse and len(body.body) == 1:
        body = body.body[0]
    match body:
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="append" | "add"))
        ):
            return owner == target
    return False


def print_table(measures: dict[str, Measure]) -> None:
    """Print one line for each package, the most fillers first, the total, and repeated classes."""
    total = sum_measures(measures)
    rows = sorted(measures.items(), key=lambda row: -row[1].figures()["fillers"])
    columns = ("code", "modules", "small%", *COUNTS, *RATES, "imports")
    print(f"{'package':52}" + "".join(f"{name:>9}" for name in columns))
    for package, measure in [*rows, ("total", total)]:
        figures = measure.figures()
        counts = measure.counts
        small = 100 * counts["small"] / max(counts["modules"], 1)
        cells = [counts["code"], counts["modules"], f"{small:.0f}"]
        cells += [figures[key] for key in (*COUNTS, *RATES, "imports")]
        print(f"{package:52}" + "".join(f"{cell:>9}" for cell in cells))
    print(f"classes that exist twice: {', '.join(repeated_classes(total)) or 'none'}")


def sum_measures(measures: dict[str, Measure]) -> Measure:
    """Return the counts of all packages together."""
    total = Measure()
    for measure in measures.values():
        total.add(measure)
    return total


def repeated_classes(total: Measure) -> list[str]:
    """Return the names that several classes have."""
    return sorted(name for name, count in total.classes.items() if count > 1)


def too_many_fillers(measures: dict[str, Measure]) -> list[str]:
    """Return a line for each package of tests and benchmarks whose names do not describe."""
    rates = {package: measure.figures()["fillers"] for package, measure in measures.items()}
    return [
        f"{package}: fillers {rate}, at most {MOST_FILLERS}"
        for package, rate in rates.items()
        if rate > MOST_FILLERS
    ]


def worse_than_before(measures: dict[str, Measure]) -> list[str]:
    """Return a line for each figure that is worse than the stored one."""
    stored = json.loads(FIGURES.read_text(encoding="utf-8"))
    problems = []
    names = repeated_classes(sum_measures(measures))
    if len(names) > stored[REPEATED_CLASSES]:
        problems.append(
            f"{len(names)} names of classes exist twice, were {stored[REPEATED_CLASSES]}: "
            f"{', '.join(names)}"
        )
    for package, measure in measures.items():
        limits = stored.get(package, stored[NEW_PACKAGES])
        for key, figure in measure.figures().items():
            if figure > limits[key]:
                problems.append(f"{package}: {key} {figure}, was {limits[key]}")
        problems += [
            f"{position}: a conditional expression inside another"
            for position in measure.nested_conditionals
        ]
    return problems


def main() -> int:
    """Print the table, check the figures or store them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a package got worse")
    parser.add_argument("--write", action="store_true", help="store the current figures")
    options = parser.parse_args()
    measures = measure_packages()
    if options.write:
        figures = {package: measure.figures() for package, measure in sorted(measures.items())}
        repeated = len(repeated_classes(sum_measures(measures)))
        content = {NEW_PACKAGES: AIMS, REPEATED_CLASSES: repeated, **figures}
        FIGURES.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if options.check:
        problems = worse_than_before(measures) + too_many_fillers(measure_packages(NAMED_TOPS))
        print("\n".join(problems) or "house: no package is worse than its stored figures")
        return int(bool(problems))
    print_table(measures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
