"""Importing the package is fast and needs no extra."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from featurestore._imports import import_uninterrupted, uninterrupted

HEAVY = ("pandas", "pyarrow", "numpy", "sqlalchemy", "duckdb", "deltalake", "pyspark", "tensorflow")
EXTRAS = (
    "cloudpickle",
    "cronsim",
    "delta",
    "great_expectations",
    "keras",
    "lightgbm",
    "matplotlib",
    "mlflow",
    "fsspec",
    "narwhals",
    "obstore",
    "optuna",
    "pandas",
    "petastorm",
    "polars",
    "psycopg",
    "pyspark",
    "redis",
    "scipy",
    "seaborn",
    "sklearn",
    "tensorboard",
    "tensorflow",
    "tf_keras",
    "xgboost",
)
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def python(code: str, *arguments: str, cwd: Path | None = None) -> str:
    """Run code in a new interpreter with warnings as errors, and return its output."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return process.stdout


def test_import_featurestore_loads_no_heavy_library() -> None:
    report = json.loads(
        python(
            """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import featurestore
seconds = time.perf_counter() - start
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(json.dumps({"seconds": seconds, "loaded": sorted(new & set(sys.argv[1:]))}))
""",
            *HEAVY,
        )
    )
    print(f"import featurestore: {report['seconds'] * 1000:.1f} ms")
    assert report["loaded"] == []


BLOCKED_IMPORT = """
import importlib, pkgutil, sys

class Absent:
    blocked = set(sys.argv[2:])
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
root = importlib.import_module(sys.argv[1])
failed = {}
for found in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
    if found.name.endswith("__main__") or ".migrations" in found.name:
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        failed[found.name] = str(error)
print("\\n".join(f"{name}: {why}" for name, why in failed.items()))
"""


def test_core_modules_import_without_extras() -> None:
    assert python(BLOCKED_IMPORT, "featurestore", *EXTRAS).strip() == ""


def test_connectors_import_without_extras() -> None:
    """Finding an engine by name must raise the pip command, not a missing-module traceback."""
    assert python(BLOCKED_IMPORT, "featurestore_connectors", *EXTRAS).strip() == ""


def test_code_folders_are_not_packages() -> None:
    for folder in ("connectors", "schemas"):
        assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("name", ["connectors", "schemas"])
def test_import_with_user_folder_of_same_name_succeeds(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the user owns this')")
    python("import featurestore, featurestore_connectors, featurestore_schemas", cwd=tmp_path)


def test_entry_points_load_existing_classes() -> None:
    output = python(
        """
from importlib.metadata import entry_points
for group in ("featurestore.engines", "featurestore.formats", "featurestore.validators"):
    for entry_point in entry_points(group=group):
        if entry_point.dist is not None and entry_point.dist.name == "featurestore":
            print(group, entry_point.name, entry_point.load().__name__)
"""
    )
    assert {line.split()[1] for line in output.splitlines()} == {
        "csv",
        "duckdb",
        "great_expectations",
        "huggingface",
        "lance",
        "parquet",
        "petastorm",
        "spark",
        "tfrecord",
        "webdataset",
    }


def test_plugins_of_other_distributions_are_added_and_replace_none(tmp_path: Path) -> None:
    information = tmp_path / "other-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[featurestore.engines]\nduckdb = other:Engine\nother = other:Engine\n"
    )
    output = python(
        """
from featurestore.plugins import find_plugin, plugin_names
for name in ("duckdb", "other"):
    print(name, find_plugin("engines", name).value)
print(find_plugin("engines", "unknown"), plugin_names("engines"))
""",
        cwd=tmp_path,
    )
    assert output.splitlines() == [
        "duckdb featurestore_connectors.duckdb_delta:DuckDBEngine",
        "other other:Engine",
        "None ['duckdb', 'other', 'spark']",
    ]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_uninterrupted_import_pauses_garbage_collection(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with uninterrupted():
            assert not gc.isenabled()
            with uninterrupted():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is is_enabled
        with pytest.raises(ModuleNotFoundError):
            import_uninterrupted("featurestore.no_such_module")
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_every_source_entry_point_loads_its_class() -> None:
    output = python(
        """
from importlib.metadata import entry_points
for entry_point in entry_points(group="featurestore.sources"):
    if entry_point.dist is not None and entry_point.dist.name == "featurestore":
        print(entry_point.name, entry_point.load().__name__)
"""
    )
    names = {line.split()[0] for line in output.splitlines()}
    assert {"delta", "duckdb", "file", "iceberg", "postgresql", "sqlalchemy", "sqlite"} <= names


def test_sqlite_source_loads_no_other_database() -> None:
    output = python(
        """
import sys
from featurestore_connectors.sources import SQLiteSource
print(SQLiteSource.__name__, sorted({"duckdb", "polars", "pyiceberg", "sqlalchemy"} & set(sys.modules)))
"""
    )
    assert output == "SQLiteSource []\n"


# Imports inside functions that close a circle, by importer and imported module. Each one joins two
# modules of one subject, or a handle and what it opens.
LAZY_CIRCLES = {
    ("featurestore.model.plan", "featurestore.model.plan_text"),
    ("featurestore.model.statistics", "featurestore.model.statistics_text"),
    ("featurestore.readers.checkpoint", "featurestore.readers.opening"),
}


# Imports for annotations that close a circle. A function takes the data that it uses, not the handle
# above it, so none may be added.
TYPE_CIRCLES = {
    ("featurestore.dbt.snapshots", "featurestore.dbt.expectations"),
    ("featurestore.experiments.models.scoring", "featurestore.experiments.models.catalog"),
    (
        "featurestore.experiments.models.training_inputs",
        "featurestore.experiments.models.registering",
    ),
    ("featurestore.experiments.record_api", "featurestore.store"),
    ("featurestore.experiments.strategies", "featurestore.experiments.context"),
    ("featurestore.plugins.format", "featurestore.plugins.native"),
    ("featurestore.readers.checkpoint", "featurestore.readers.reader"),
    ("featurestore.training.comparison", "featurestore.training.dataset"),
    ("featurestore.training.export.split_statistics", "featurestore.training.dataset"),
    ("featurestore.training.model_inputs", "featurestore.training.dataset"),
    ("featurestore.training.reading", "featurestore.training.dataset"),
    ("featurestore.training.transformations", "featurestore.training.dataset"),
    ("featurestore.transform.apply", "featurestore.transform.fitted"),
    (
        "featurestore_connectors.duckdb_delta.late_materialization",
        "featurestore_connectors.duckdb_delta.engine",
    ),
    (
        "featurestore_connectors.duckdb_delta.sorted_merge",
        "featurestore_connectors.duckdb_delta.engine",
    ),
    ("featurestore_connectors.duckdb_delta.windows", "featurestore_connectors.duckdb_delta.engine"),
}
# This module holds the current store for all packages, and imports its type only.
CURRENT_STORE = "featurestore._current"


def build_imports(*, with_types: bool) -> dict[str, set[str]]:
    graph = grimp.build_graph(
        "featurestore",
        "featurestore_connectors",
        exclude_type_checking_imports=not with_types,
        cache_dir=None,
    )
    return {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }


def test_modules_have_no_import_circles() -> None:
    imports = build_imports(with_types=False)
    for importer, imported in LAZY_CIRCLES:
        imports[importer].remove(imported)
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_annotations_add_no_import_circles() -> None:
    plain_imports = build_imports(with_types=False)
    imports = build_imports(with_types=True)
    imports[CURRENT_STORE] = plain_imports[CURRENT_STORE]
    for importer, imported in LAZY_CIRCLES | TYPE_CIRCLES:
        imports[importer].discard(imported)
    for package, modules in imports.items():
        # A package that imports its names lazily lists them for type checkers.
        own = {module for module in modules if module.startswith(f"{package}.")}
        imports[package] = modules - (own - plain_imports[package])
    TopologicalSorter(imports).prepare()
