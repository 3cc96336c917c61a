"""benchmarks/RESULTS.md equals the rendering of the stored figures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STAMP = {"date": "2026-01-02", "commit": "abcdef0"}


@pytest.fixture(scope="module")
def report() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_report", BENCHMARKS / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def results(report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return tmp_path


def test_results_page_equals_rendered_figures(report: Any) -> None:
    page = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
    assert page == report.render(), "run `make results`"


def test_results_of_every_file_have_a_topic(report: Any) -> None:
    programs = {program for topic in report.TOPICS.values() for program in topic}
    assert {path.stem for path in report.RESULTS.glob("*.json")} <= programs
    assert [name for name in programs if not (BENCHMARKS / f"{name}.py").exists()] == []


def test_results_of_every_figure_have_date_and_commit(report: Any) -> None:
    for path in report.RESULTS.glob("*.json"):
        for rows in report.read_results(path)["tables"].values():
            for figures in rows.values():
                for figure in figures.values():
                    assert set(STAMP) <= set(figure)


def test_save_replaces_a_figure_and_keeps_the_others(report: Any, results: Path) -> None:
    figures = report.Report("durability", "A note.")
    figures.add("insert", "one file", "full", 2.0, "ms")
    figures.add("insert", "one file", "fast", 1.0, "ms")
    figures.save(stamp=STAMP)
    figures.add("insert", "one file", "fast", 1.5, "ms")
    path = figures.save(stamp=STAMP | {"date": "2026-03-04"})
    row = json.loads(path.read_text())["tables"]["insert"]["one file"]
    assert row["full"] == {"value": 2, "unit": "ms", **STAMP}
    assert row["fast"] == {"value": 1.5, "unit": "ms", **STAMP, "date": "2026-03-04"}


def test_save_of_a_quick_run_writes_to_the_local_folder(report: Any, results: Path) -> None:
    figures = report.Report("durability", "A note.")
    figures.compare("insert", 2.0, 1.0, "s")
    assert figures.save(quick=True, stamp=STAMP) == results / "local" / "durability.json"
    assert not (results / "durability.json").exists()


def test_save_stamps_figures_with_the_commit(report: Any, results: Path) -> None:
    figures = report.Report("durability", "A note.")
    figures.add("insert", "one file", "full", 2.0)
    row = json.loads(figures.save().read_text())["tables"]["insert"]["one file"]
    assert row["full"]["commit"].rstrip("+").isalnum()


def test_render_marks_figures_that_miss_their_limit(report: Any, results: Path) -> None:
    figures = report.Report("durability", "A note.")
    figures.compare("late", 3.0, 1.0, "s", processor=1.0, at_most=2.0)
    figures.compare("slow", 400_000, 1_000_000, "rows/s", at_least=0.5)
    figures.add(report.COMPARISONS, "stopped", "ours / peer", 12, is_lower_bound=True)
    figures.add(report.COMPARISONS, "runs", "ours / peer", [0.44, 0.7])
    figures.save(stamp=STAMP)
    lines = report.render(results).splitlines()
    assert "| late | 3 s | 1 s | **3** (1) | ≤ 2 | 2026-01-02 abcdef0 |" in lines
    row = "| slow | 400,000 rows/s | 1,000,000 rows/s | **0.4** | ≥ 0.5 | 2026-01-02 abcdef0 |"
    assert row in lines
    assert "| stopped |  |  | > 12 |  | 2026-01-02 abcdef0 |" in lines
    assert "| runs |  |  | 0.44 to 0.7 |  | 2026-01-02 abcdef0 |" in lines


def test_render_puts_a_shared_limit_into_the_header(report: Any, results: Path) -> None:
    figures = report.Report("durability", "A note.")
    for row in ("first", "second"):
        figures.add("insert", row, "ratio", 1.0, at_most=1.25)
    figures.save(stamp=STAMP)
    assert "| insert | ratio (≤ 1.25) | measured |" in report.render(results).splitlines()
