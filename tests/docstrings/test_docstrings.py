"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import featurestore
from tests.docstrings import weather

ROOT = Path(__file__).parents[2]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
HEAVY = {"tensorflow", "tf_keras", "pyspark", "petastorm", "great_expectations", "torch"}


def modules_with_examples() -> Iterator[Any]:
    """Yield the modules that have examples, those that import heavy libraries marked as such."""
    for root in (ROOT, ROOT / "connectors"):
        for file in sorted(root.glob("featurestore*/**/*.py")):
            text = file.read_text(encoding="utf-8")
            if ">>> " not in text:
                continue
            name = ".".join(file.relative_to(root).with_suffix("").parts)
            heavy = imported_at_the_top(text) & HEAVY
            yield pytest.param(
                name.removesuffix(".__init__"),
                marks=[getattr(pytest.mark, each) for each in heavy if each == "tensorflow"],
                id=name,
            )


def imported_at_the_top(text: str) -> set[str]:
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("docstrings") / "store"
    with featurestore.connect(place) as store:
        weather.fill(store)
    return place


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_the_examples_of_a_module_are_true(
    name: str, filled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(name)
    examples = [
        each for each in doctest.DocTestFinder(exclude_empty=True).find(module) if each.examples
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.delenv("FEATURESTORE_LOCATION", raising=False)
    source = "".join(example.source for each in examples for example in each.examples)
    names: dict[str, Any] = {}
    if "store" in source:
        shutil.copytree(filled_store, tmp_path / "featurestore-data")
        names["store"] = featurestore.connect(tmp_path / "featurestore-data")
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for each in examples:
        each.globs.update(names)
        each.globs.update(featurestore=featurestore, hour=weather.hour)
        runner.run(each, out=told.append, clear_globs=False)
    if names:
        names["store"].close()
    assert runner.failures == 0, "".join(told)
    assert os.getcwd() == str(tmp_path)
