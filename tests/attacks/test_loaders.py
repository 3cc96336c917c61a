"""Loaders of stored data refuse files that run code, read other files or name functions."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import featurestore
from featurestore.arrow import schemas
from featurestore.errors import (
    FeatureStoreError,
    InvalidJob,
    ModelDamaged,
    StorageError,
    UntrustedModel,
)
from featurestore.experiments import functions, run_files
from featurestore.experiments.models import loading
from featurestore.readers.checkpoint import ReaderCheckpoint, newest_checkpoint
from featurestore.statistics import state
from tests.attacks.test_arrow_bodies import read, stream

PACKAGES = ("featurestore", "connectors/featurestore_connectors")
ROOT = Path(featurestore.__file__).parent.parent
# Calls that may execute their arguments, by the files that may contain them, with the reason.
LOADERS = {
    "featurestore/experiments/worker.py": "the function that the launcher sends to standard input",
    "featurestore/experiments/models/loading.py": "models, where the caller trusts them",
    "featurestore/jobs/registration.py": "job files whose hash was registered on this machine",
    "featurestore/testing/format_conformance.py": "what the test has pickled itself",
    "featurestore/testing/online_conformance.py": "what the test has pickled itself",
    "connectors/featurestore_connectors/spark_delta/tasks.py": "results of tasks of this session",
    "connectors/featurestore_connectors/spark_delta/streams.py": "results of tasks of this session",
    "connectors/featurestore_connectors/spark_delta/shards.py": "results of tasks of this session",
    "connectors/featurestore_connectors/duckdb_delta/session.py": "see its comment",
}
UNSAFE = {
    "pickle": {"load", "loads", "Unpickler"},
    "cloudpickle": {"load", "loads"},
    "dill": {"load", "loads"},
    "joblib": {"load"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "torch": {"load"},
    "skops": {"load", "loads"},
    "yaml": {"load", "unsafe_load", "full_load"},
    "jsonpickle": {"decode"},
    "builtins": {"eval", "exec"},
}

WORDS = re.compile("|".join([*UNSAFE, "eval", "exec", "allow_pickle"]))


class Payload:
    """Create a directory when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A directory that exists once a payload has run."""
    return tmp_path / "payload-ran"


def unsafe_calls(tree: ast.AST) -> list[str]:
    """Return the calls of a module that could execute their arguments."""
    calls = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        module, _, function = name.rpartition(".")
        if function in UNSAFE.get(module or "builtins", set()):
            calls.append(name)
        if any(
            keyword.arg == "allow_pickle" and not is_false(keyword.value)
            for keyword in node.keywords
        ):
            calls.append(name)
    return calls


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_unsafe_loader_calls_are_listed() -> None:
    paths = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            if WORDS.search(text) and unsafe_calls(ast.parse(text)):
                paths.add(str(path.relative_to(ROOT)))
    assert paths <= set(LOADERS)
    assert "featurestore/experiments/models/loading.py" in paths
    assert unsafe_calls(ast.parse("torch.load(f); np.load(f, allow_pickle=True); eval(x)"))


@pytest.mark.parametrize("name", ["m.pkl", "m.pickle", "m.joblib", "saved", "pipeline", "m.keras"])
def test_models_of_unsafe_formats_need_trust(tmp_path: Path, marker: Path, name: str) -> None:
    path = tmp_path / name
    if name in ("saved", "pipeline"):
        folder = path if name == "saved" else path / "metadata"
        folder.mkdir(parents=True)
        (path / "stages").mkdir()
        (folder / "saved_model.pb").write_bytes(pickle.dumps(Payload(marker)))
        pipeline = {"class": "org.apache.spark.ml.PipelineModel", "uid": "p", "paramMap": {}}
        (folder / "part-00000").write_text(json.dumps(pipeline))
    else:
        path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises((UntrustedModel, ModelDamaged)):
        loading.check_trusted(
            str(path), loading.detect_flavor(str(path)), trust=False, description="it"
        )
    assert not marker.exists()


@pytest.mark.tensorflow
@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
def test_a_pickle_registered_as_keras_is_refused(tmp_path: Path, marker: Path, flavor: str) -> None:
    path = tmp_path / "m.keras"
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ModelDamaged):
        loading.check_trusted(str(path), flavor, trust=False, description="it")
    assert not marker.exists()


def extension_schema(marker: Path, name: str) -> pa.Schema:
    """Return a schema with an extension type whose metadata is a payload."""
    metadata = {
        "ARROW:extension:name": name,
        "ARROW:extension:metadata": pickle.dumps(Payload(marker)),
    }
    return pa.schema([pa.field("x", pa.int64(), metadata=metadata), pa.field("k", pa.int64())])


@pytest.mark.filterwarnings("ignore:pickle-based deserialization:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:pyarrow.PyExtensionType:FutureWarning")
@pytest.mark.parametrize("name", ["arrow.py_extension_type", "arrow.fixed_shape_tensor", "other"])
def test_arrow_extension_types_run_no_code(tmp_path: Path, marker: Path, name: str) -> None:
    schema = extension_schema(marker, name)
    arrays = [pa.array([1, 2]), pa.array([1, 2])]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with featurestore.connect(tmp_path / "store") as store:
        try:
            table = read(stream([batch]))
            store.create_featuregroup(table, "uploaded", primary_key="k")
        except FeatureStoreError:
            pass
        source = tmp_path / "source"
        source.mkdir()
        parquet.write_table(pa.Table.from_batches([batch]), source / "a.parquet")
        try:
            pa_table = parquet.read_table(source / "a.parquet")
            store.create_featuregroup(pa_table, "from_parquet", primary_key="k")
        except (FeatureStoreError, pa.ArrowException):
            pass
    assert not marker.exists()


@pytest.mark.parametrize("depth", [100, 10_000, 1_000_000])
def test_schemas_of_avro_nested_deeply_are_refused(depth: int) -> None:
    for text in (
        "[" * depth,
        '{"type":"record","fields":' * depth,
        '{"type":' * depth + '"int"' + "}" * depth,
    ):
        with pytest.raises(InvalidJob):
            schemas.schema_from_avro(text)


NAMES = [
    "shutil:rmtree",
    "os:system",
    "os:removedirs",
    "subprocess:run",
    "subprocess:call",
    "pickle:loads",
    "pytest:exit",
    "numpy:save",
    "featurestore.storage.removal:remove_below",
    "featurestore:connect",
    "tests.attacks.test_loaders:rmtree",
    "builtins:exec",
    ":",
    "",
    "os:",
    pytest.param("a" * 100_000, id="long"),
]


@pytest.mark.parametrize("name", NAMES)
def test_record_functions_of_libraries_are_refused(name: str) -> None:
    assert functions.find_loaded_function(name) is None


def train_here(x: float) -> float:
    return x


def test_record_functions_of_loaded_modules_are_accepted() -> None:
    assert functions.find_loaded_function(f"{__name__}:train_here") is train_here


from shutil import rmtree  # noqa: E402, F401 - a name that a record could choose


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run with a model artifact, and a file elsewhere that must not be read."""
    directory = tmp_path / "run"
    (directory / "artifacts" / "folder").mkdir(parents=True)
    (directory / "artifacts" / "folder" / "saved_model.pb").write_bytes(b"model")
    (tmp_path / "secret").write_text("secret")
    return directory


@pytest.mark.parametrize(
    "link_path", ["artifacts/link.pkl", "artifacts/folder/link", "artifacts/folder/in"]
)
def test_symbolic_links_in_artifacts_are_not_followed(
    run: Path, tmp_path: Path, link_path: str
) -> None:
    target = tmp_path if link_path.endswith("in") else tmp_path / "secret"
    (run / link_path).symlink_to(target)
    sums = run_files.checksums_below(str(run), "artifacts")
    assert list(sums) == ["artifacts/folder/saved_model.pb"]
    assert run_files.checksums_below(str(run), link_path) == {}
    if link_path.endswith("link.pkl"):
        with pytest.raises(StorageError, match="symbolic link"):
            run_files.check_own_files(str(run), link_path)
    if link_path.endswith("folder/link"):
        with pytest.raises(StorageError, match="symbolic link"):
            run_files.check_own_files(str(run), "artifacts/folder")


class Steps:
    """A stand-in for a reader whose state a checkpoint stores."""

    def state(self, epoch: int, step: int) -> dict[str, int]:
        return {"epoch": epoch, "step": step}


def test_symbolic_links_in_checkpoints_are_ignored(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    np.savez(outside / "arrays.npz", w=np.full(2, 666.0))
    (outside / "state.json").write_text('{"epoch": 9, "step": 0}')
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    for name in ("step-000000-000000001", "step-000009-000000000"):
        (directory / name).symlink_to(outside)
    weights = np.zeros(2)
    reader: Any = Steps()
    checkpoint = ReaderCheckpoint(str(directory), reader, {"w": weights}, position=(0, 1))
    assert checkpoint.latest() is None
    for step in range(2, 6):
        checkpoint.save(0, step)
    assert newest_checkpoint(str(directory)) == "step-000000-000000005"
    assert sorted(path.name for path in outside.iterdir()) == ["arrays.npz", "state.json"]


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "artifacts/../../secret", "", ".", "a\x00b"]
)
def test_paths_in_records_stay_in_the_run(run: Path, path: str) -> None:
    with pytest.raises(FeatureStoreError):
        run_files.check_own_files(str(run), path)


def test_tensorboard_does_not_serve_files_named_by_runs(run: Path) -> None:
    run_files.check_tensorboard(str(run))
    (run / "tensorboard").mkdir()
    configuration = 'embeddings { tensor_name: "a" metadata_path: "/etc/passwd" }'
    (run / "tensorboard" / "projector_config.pbtxt").write_text(configuration)
    with pytest.raises(UntrustedModel, match="projector_config"):
        run_files.check_tensorboard(str(run))


def test_arrays_with_objects_are_not_unpickled(marker: Path) -> None:
    buffer = io.BytesIO()
    objects = np.array([Payload(marker)], dtype=object)
    np.savez(buffer, n=objects, mean=objects, square=objects, product=objects)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        state._parse_co_moments(buffer.getvalue())
    assert not marker.exists()
