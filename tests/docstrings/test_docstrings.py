"""Docstring examples run and print the documented output."""

from __future__ import annotations

import doctest
import importlib
import inspect
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

import featurestore
from featurestore.featuregroups import FeatureGroup
from featurestore.model.drift import DriftReport
from featurestore.model.statistics import Statistics
from featurestore.training import TrainingDataset
from tests.docstrings import weather
from tests.store_copies import grant_sources

ROOT = Path(__file__).parents[2]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


# By strings in their examples.
HEAVY = {
    "tensorflow": ("tf_",),
    "petastorm": ("petastorm_reader",),
    "torch": ("torch_",),
}


def modules_with_examples() -> list[str]:
    """Return the names of the modules with examples."""
    result = []
    for root in (ROOT, ROOT / "connectors"):
        for file in sorted(root.glob("featurestore*/**/*.py")):
            if ">>> " in file.read_text(encoding="utf-8"):
                name = ".".join(file.relative_to(root).with_suffix("").parts)
                result.append(name.removesuffix(".__init__"))
    return result


def examples_of(name: str, library: str | None = None) -> list[doctest.DocTest]:
    """Return the examples of a module that import a heavy library, or the others."""
    result = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    return [test for test in result if test.examples and library_of(test) == library]


def library_of(example: doctest.DocTest) -> str | None:
    """Return the heavy library that an example imports."""
    for library, words in HEAVY.items():
        if any(mentions(example, word) for word in words):
            return library
    return None


def mentions(example: doctest.DocTest, text: str) -> bool:
    return any(text in line.source for line in example.examples)


@pytest.fixture(scope="module")
def example_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a filled ``store``, and the ``files`` that examples read."""
    folder = tmp_path_factory.mktemp("docstrings")
    with featurestore.connect(folder / "store") as store:
        weather.fill(store)
    files = folder / "files"
    (files / "features").mkdir(parents=True)
    (files / "features" / "groups.py").write_text(weather.DEFINITIONS)
    (files / "jobs.py").write_text(weather.JOBS)
    (files / "monitors.py").write_text(weather.MONITORS)
    weather.dbt_project(files)
    weather.iceberg_catalog(files)
    return folder


def run(examples: list[doctest.DocTest], inputs: Path, folder: Path) -> None:
    """Run examples in a new folder with the files, each with its own store if it needs one."""
    actual: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    with chdir(shutil.copytree(inputs / "files", folder)):
        for number, test in enumerate(examples):
            test.globs.update(featurestore=featurestore, hour=weather.hour)
            if not mentions(test, "store."):
                runner.run(test, out=actual.append)
                continue
            location = shutil.copytree(inputs / "store", folder / f"store{number}")
            with featurestore.connect(location) as store:
                grant_sources(store)
                test.globs["store"] = store
                runner.run(test, out=actual.append)
    assert runner.failures == 0, "".join(actual)


@pytest.fixture(autouse=True)
def example_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let examples plot without a display, and use no store of the environment."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.delenv("FEATURESTORE_LOCATION", raising=False)


def package_of(name: str) -> str:
    """Return the package of a module: its first two names."""
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize("package", sorted(set(map(package_of, modules_with_examples()))))
def test_module_docstring_examples_run(
    package: str, example_inputs: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in modules_with_examples():
        if package_of(name) != package:
            continue
        with subtests.test(name):
            if name.startswith("featurestore.experiments."):
                for library in ("optuna", "tensorboard"):
                    pytest.importorskip(library)
            run(examples_of(name), example_inputs, tmp_path / name)


@pytest.mark.tensorflow
def test_tensorflow_docstring_examples_run(
    example_inputs: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in modules_with_examples():
        with subtests.test(name):
            if examples := examples_of(name, "tensorflow"):
                run(examples, example_inputs, tmp_path / name)


@pytest.mark.petastorm
@pytest.mark.filterwarnings("ignore")  # petastorm uses what pyarrow has deprecated
def test_petastorm_docstring_examples_run(
    example_inputs: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    pytest.importorskip("petastorm")
    for name in modules_with_examples():
        with subtests.test(name):
            if examples := examples_of(name, "petastorm"):
                run(examples, example_inputs, tmp_path / name)


def test_pytorch_docstring_examples_run(example_inputs: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(examples_of("featurestore.readers.reader", "torch"), example_inputs, tmp_path / "files")


def test_every_public_method_has_an_example(subtests: pytest.Subtests) -> None:
    without = {"close", "scheduler"}
    for public in (featurestore.FeatureStore, featurestore.TrainingDataset):
        with subtests.test(public.__name__):
            missing = []
            for name, method in inspect.getmembers(public, callable):
                if (
                    not name.startswith("_")
                    and name not in without
                    and ">>> " not in (method.__doc__ or "")
                ):
                    missing.append(name)
            assert missing == []


def test_every_public_function_has_an_example() -> None:
    functions = [name for name in featurestore.__all__ if name in dir(featurestore)]
    missing = []
    for name in functions:
        actual = getattr(featurestore, name)
        if inspect.isfunction(actual) and ">>> " not in (actual.__doc__ or ""):
            missing.append(name)
    assert missing == []


def test_every_method_of_a_feature_group_has_an_example() -> None:
    methods = inspect.getmembers(FeatureGroup, inspect.isfunction)
    public = {name: method.__doc__ for name, method in methods if not name.startswith("_")}
    assert [name for name, text in public.items() if ">>> " not in (text or "")] == []


def test_every_method_of_a_result_has_an_example(subtests: pytest.Subtests) -> None:
    for owner in (TrainingDataset, Statistics, DriftReport):
        with subtests.test(owner.__name__):
            missing = []
            for name, method in inspect.getmembers(owner, inspect.isroutine):
                is_own = name in vars(owner) and not name.startswith("_")
                if is_own and name != "to_json" and ">>> " not in (method.__doc__ or ""):
                    missing.append(name)
            assert missing == []
