"""The figures of the code: a package that got worse, or a call that enters more, is refused."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
MODULE = """
from dataclasses import dataclass, replace
from typing import Any


@dataclass
class Given:
    kind: Any


def rename(value: Given) -> Given:
    return replace(value, kind=[each for each in value.kind])
"""


@pytest.fixture(scope="module")
def house() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "house.py"))


@pytest.mark.parametrize(("functions", "lines"), [(9, 0), (13, 0), (14, 1)])
def test_calls_with_larger_counts_are_listed(functions: int, lines: int) -> None:
    larger_counts = runpy.run_path(str(SCRIPTS / "calls.py"))["larger_counts"]
    limits = {"create": {"files": 5, "functions": 10}}
    figures = {"create": {"files": 5, "functions": functions}}
    assert len(larger_counts(figures, limits)) == lines


def test_limits_of_calls_have_both_counts() -> None:
    limits = json.loads((SCRIPTS / "calls.json").read_text())
    assert {tuple(counts) for counts in limits.values()} == {("files", "functions")}
    assert {"create", "insert", "export", "job", "publish"} <= limits.keys()


def test_measure_counts_names_types_and_imports(house: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    measure = house["Measure"]()
    measure.add_module(path)
    counts = {key: measure.counts[key] for key in ("generic", "any", "replace", "import lines")}
    assert counts == {"generic": 4, "any": 1, "replace": 1, "import lines": 2}
    measure.add(measure)
    assert house["repeated_classes"](measure) == ["Given"]
