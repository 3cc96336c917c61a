"""Modules that the command line imports; a count is the same on slow and on fast machines."""

from __future__ import annotations

import subprocess
import sys

import pytest

import featurestore
from featurestore.store import FeatureStore

COUNT = """
import sys
before = set(sys.modules)
from featurestore.cli import main
sys.argv = ["featurestore", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
names = set(sys.modules) - before
print(len(names), *names, file=sys.stderr)
"""


def count_imports(*arguments: str) -> tuple[int, set[str]]:
    """Return the number of modules that a command imports, and the modules with their packages."""
    command = [sys.executable, "-c", COUNT, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    count, *modules = process.stderr.splitlines()[-1].split()
    return int(count), {*modules, *(module.split(".")[0] for module in modules)}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_help_imports_no_library(arguments: tuple[str, ...]) -> None:
    count, modules = count_imports(*arguments)
    assert not modules & {"numpy", "pyarrow", "sqlalchemy", "sqlglot", "duckdb", "rich"}
    assert count <= 220


def test_package_runs_as_program() -> None:
    command = [sys.executable, "-m", "featurestore", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == f"featurestore {featurestore.__version__}\n"


def test_group_list_imports_only_what_it_shows(flights_copy: FeatureStore) -> None:
    count, modules = count_imports("--location", flights_copy.location, "fg", "list")
    unused = {"sqlglot", "pandas", "deltalake", "polars", "tensorflow", "great_expectations"}
    assert not modules & {*unused, "duckdb", "featurestore_connectors", "alembic"}
    # These read values of rows and definitions of views and models, which a list does not show.
    assert not modules & {"pyarrow.compute", "pyarrow.parquet", "featurestore.model.feature_view"}
    assert count <= 660


def test_dataset_handle_imports_neither_readers_nor_transformations() -> None:
    command = [sys.executable, "-c", "import sys, featurestore.training; print(*sys.modules)"]
    modules = set(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    )
    assert "featurestore.training.dataset" in modules
    assert not modules & {"featurestore.readers", "featurestore.statistics"}
    assert not modules & {"featurestore.transform.fit", "featurestore.training.transformations"}


def test_every_command_group_loads_its_module() -> None:
    import typer

    from featurestore.cli import app

    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert not hasattr(command, "commands") or command.commands, name
