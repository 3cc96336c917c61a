"""Petastorm's reader, balanced over workers, compared with ours on the same files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from featurestore.errors import InvalidArgument, ReaderConfigError
from featurestore.training.dataset import TrainingDataset
from tests.readers.conftest import ROWS, Example, make_example

pytest.importorskip("petastorm", exc_type=ImportError)
pytestmark = [pytest.mark.petastorm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return make_example(tmp_path_factory.mktemp("petastorm"), "petastorm")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_petastorm_reader_shares_rows_equally_between_workers(
    dataset: Example, workers: int
) -> None:
    shares = []
    for worker in range(workers):
        training_dataset = TrainingDataset.open(dataset.path)
        with training_dataset.petastorm_reader(
            "train", worker=worker, workers=workers, shuffle_row_groups=False
        ) as reader:
            shares.append([int(row) for batch in reader for row in batch.row_id])
    assert sorted(row for share in shares for row in share) == list(range(ROWS))
    assert max(map(len, shares)) - min(map(len, shares)) <= 24 * 5 // workers


def test_petastorm_reader_indivisible_row_groups_raise(dataset: Example) -> None:
    with pytest.raises(
        ReaderConfigError,
        match="120 row groups of split 'train' can be divided among 1, 2, 3, 4, 5, 6, 8",
    ):
        TrainingDataset.open(dataset.path).petastorm_reader("train", worker=0, workers=7)


def test_petastorm_reader_of_other_format_raises(tfrecord: Example) -> None:
    with pytest.raises(InvalidArgument, match="tfrecord"):
        TrainingDataset.open(tfrecord.path).petastorm_reader("train")


def test_reader_reads_petastorm_files_without_petastorm(dataset: Example, tmp_path: Path) -> None:
    (tmp_path / "petastorm.py").write_text("raise ImportError('not installed')")
    program = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from featurestore.training.dataset import TrainingDataset\n"
        "dataset = TrainingDataset.open(sys.argv[1])\n"
        "reader = dataset.reader('train', columns=['row_id', 'label'], global_batch_size=12)\n"
        "print(sum(len(batch['row_id']) for batch in reader.batches()))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, dataset.path, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ended.stdout.strip() == str(ROWS // 12 * 12)
