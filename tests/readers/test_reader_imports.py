"""A worker imports the manifest, numpy and the format, but nothing of the store."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.readers.conftest import Example

pytestmark = pytest.mark.slow

HEAVY = (
    "sqlalchemy",
    "duckdb",
    "deltalake",
    "pyspark",
    "tensorflow",
    "petastorm",
    "featurestore.session",
)


def test_reader_worker_imports_neither_registry_nor_engine(example: Example) -> None:
    program = (
        "import sys\n"
        "from featurestore.training.dataset import TrainingDataset\n"
        "dataset = TrainingDataset.open(sys.argv[1])\n"
        "columns = ['row_id', 'ratio', 'label']\n"
        "reader = dataset.reader('train', global_batch_size=12, columns=columns)\n"
        "assert next(reader.batches())['row_id'].shape == (12,)\n"
        f"print(sorted(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, example.path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.strip() == "[]"


@pytest.mark.tensorflow
@pytest.mark.slow
def test_tensorflow_worker_imports_neither_registry_nor_engine(tfrecord: Example) -> None:
    pytest.importorskip("tensorflow")
    program = (
        "import sys\n"
        "from featurestore.training import TrainingDataset\n"
        "dataset = TrainingDataset.open(sys.argv[1])\n"
        "columns = ['row_id', 'ratio', 'label']\n"
        "reader = dataset.reader('train', global_batch_size=12, columns=columns)\n"
        "assert next(iter(reader.tf_dataset()))[0]['row_id'].shape == (12,)\n"
        "reader.checkpoint('unused', objects={}).heartbeat()\n"
        f"print(sorted(name for name in {HEAVY!r} if name in sys.modules and name != 'tensorflow'))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, tfrecord.path],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ended.stdout.strip() == "[]"


def test_readers_import_does_not_import_pandas() -> None:
    program = (
        "import sys\n"
        "import featurestore.readers\n"
        f"print(sorted(name for name in {(*HEAVY, 'pandas')!r} if name in sys.modules))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "[]"
