"""Training: two processes with DistributedDataParallel, and Lightning's Trainer."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import featurestore
from featurestore import transform as t
from featurestore.errors import InvalidArgument
from featurestore.readers import resume
from featurestore.readers.order import PADDING
from featurestore.training import TrainingDataset
from tests.readers.conftest import ROWS, Example
from tests.torch.elements import open_numbers
from tests.torch.evaluated_model import figures_of, normalized_model

PROGRAM = Path(__file__).with_name("ddp_program.py")


def train(dataset: str, out: Path, evaluated: Path, *, world: int, stop: int = 0) -> None:
    """Run the ranks of a training run to completion."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(world):
        words = [sys.executable, str(PROGRAM), dataset, str(out)]
        words += map(str, (rank, world, port, stop, evaluated))
        processes.append(
            subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
        )
    try:
        output = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world, "\n".join(output)


def journal(out: Path, rank: int) -> list[Any]:
    return [json.loads(line) for line in (out / f"rank-{rank}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the datasets ``plain`` and ``weighed`` with 89 rows each."""
    folder = tmp_path_factory.mktemp("evaluated")
    rng = np.random.default_rng(0)
    rows = pa.table(
        {
            "id": range(89),
            "x": rng.normal(size=89).astype(np.float32),
            "w": rng.uniform(0, 2, 89).astype(np.float32),
            "y": rng.integers(0, 2, 89),
        }
    )
    with featurestore.connect(folder) as store:
        for name, weight in (("plain", None), ("weighed", "w")):
            store.create_training_dataset(
                rows, name, label="y", key="id", weight=weight, features=["x"], progress=False
            )
    return folder / "trainingdatasets"


def expected_figures(dataset: TrainingDataset, weight: str | None) -> dict[str, float]:
    """Compute the figures of the model over every row with numpy in double precision."""
    rows = dataset.read("train").to_pandas()
    layers = [value.double().numpy() for value in normalized_model().state_dict().values()]
    kernel, bias, gamma, beta, mean, variance, _, top, top_bias = layers
    hidden = rows[["x"]].to_numpy(np.float64) @ kernel.T + bias
    hidden = np.tanh(gamma * (hidden - mean) / np.sqrt(variance + 1e-5) + beta)
    logits = (hidden @ top.T + top_bias)[:, 0]
    y = rows["y"].to_numpy()
    weights = rows[weight].to_numpy(np.float64) if weight else np.ones(len(rows))
    losses = np.logaddexp(0, logits) - y * logits
    right = (logits > 0) == (y > 0)
    return {
        "loss": float(np.average(losses, weights=weights)),
        "accuracy": float(np.average(right, weights=weights)),
    }


@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
@pytest.mark.parametrize(("name", "weight"), [("plain", None), ("weighed", "w")])
def test_evaluate_torch_function_counts_each_row_once(
    evaluated: Path, name: str, weight: str | None, remainder: str
) -> None:
    dataset = TrainingDataset.open(str(evaluated / name / "v1"))
    reader = dataset.reader("train", global_batch_size=12, remainder=remainder)
    figures = reader.evaluate(figures_of(normalized_model().eval()))
    assert figures == pytest.approx(expected_figures(dataset, weight), rel=1e-6)


def test_evaluate_class_weights_apply_to_torch_function(evaluated: Path) -> None:
    dataset = TrainingDataset.open(str(evaluated / "weighed" / "v1"))
    by_class = {0: 1.0, 1: 3.0}
    reader = dataset.reader("train", global_batch_size=12, class_weights=by_class)
    actual = reader.evaluate(lambda features, label, weight: {"label": label})
    rows = dataset.read("train").to_pandas()
    weights = rows["w"] * rows["y"].map(by_class)
    assert actual["label"] == pytest.approx(np.average(rows["y"], weights=weights), rel=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        torch.nn.Linear(1, 1),
        lambda features, label: {"loss": features["x"].mean()},
        lambda features, label: {"loss": features["x"].numpy()},
        lambda features, label: features["x"],
    ],
)
def test_evaluate_function_without_row_figures_raises(evaluated: Path, model: Any) -> None:
    dataset = TrainingDataset.open(str(evaluated / "plain" / "v1"))
    reader = dataset.reader("train", global_batch_size=12)
    with pytest.raises(InvalidArgument, match="label"):
        reader.evaluate(model)


@pytest.mark.slow
def test_ddp_two_ranks_resume_with_equal_losses(
    tfrecord: Example, evaluated: Path, tmp_path: Path
) -> None:
    reference, cut = tmp_path / "whole", tmp_path / "cut"
    train(tfrecord.path, reference, evaluated, world=2)
    train(tfrecord.path, cut, evaluated, world=2, stop=23)  # in the middle of the second epoch
    assert not (cut / "weights-0.json").exists()
    train(tfrecord.path, cut, evaluated, world=2)
    journals = [journal(reference, rank) for rank in range(2)]
    assert len(journals[0]) == len(journals[1]) == 2 * 17
    for epoch in range(2):
        rows = [
            row for rank in journals for step in rank[17 * epoch :][:17] for row in step["rows"]
        ]
        assert sorted(row for row in rows if row != PADDING) == list(range(ROWS))
    for rank in range(2):
        assert journal(cut, rank) == journals[rank]
        name = f"weights-{rank}.json"
        assert (cut / name).read_text() == (reference / name).read_text()
    texts = [(reference / f"figures-{rank}.json").read_text() for rank in range(2)]
    assert texts[0] == texts[1]
    for name, weight in (("plain", None), ("weighed", "w")):
        right = expected_figures(TrainingDataset.open(str(evaluated / name / "v1")), weight)
        for case, figures in json.loads(texts[0])[name].items():
            assert figures == pytest.approx(right, rel=1e-6), case


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning warns about few workers, loggers and more
def test_lightning_resumes_within_epoch(tfrecord: Example, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    reader = open_numbers(tfrecord, seed=5)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(4, 1)
            self.rows: list[list[int]] = []
            self.losses: list[float] = []

        def training_step(self, batch: Any, _number: int) -> Any:
            features, label = batch
            loss = ((self.layer(features["vector"])[:, 0] - label) ** 2).mean()
            self.rows.append(features["row_id"].tolist())
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    def run(steps: int, resumed: Path | None = None) -> Module:
        module = Module()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path, filename="{step}", every_n_train_steps=22, save_top_k=-1
        )
        trainer = lightning.Trainer(
            max_epochs=3,
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            callbacks=[saving],
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, reader.torch_loader(), ckpt_path=resumed)
        return module

    reference = run(-1)
    expected = []
    for epoch in range(3):
        expected += [batch["row_id"].tolist() for batch in reader.batches(epoch)]
    assert reference.rows == expected
    first = run(22)
    second = run(-1, tmp_path / "step=22.ckpt")
    assert first.rows + second.rows == expected
    assert first.losses + second.losses == reference.losses


def test_flights_example_trains_with_torch(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "examples" / "flights"
    command = [sys.executable, "one_process.py", "--until", "2013-01-08", "--epochs", "2"]
    command += ["--framework", "torch", "--out", str(tmp_path)]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"torch: test AUC 0\.[5-9]\d\d on 1,154 flights", result.stdout)


def test_resume_accepts_torch_loader_state(tfrecord: Example) -> None:
    reader = open_numbers(tfrecord)
    loader = reader.torch_loader(start_epoch=2)
    next(iter(loader))
    again, epoch, step = resume(tfrecord.path, tfrecord.manifest, loader.state_dict())
    assert (again.settings, epoch, step) == (reader.settings, 2, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loader_lists_are_values_and_row_splits(tmp_path: Path, workers: int) -> None:
    rows = pa.table(
        {
            "id": range(64),
            "ids": pa.array([list(range(row % 4)) for row in range(64)], pa.list_(pa.int64())),
            "words": pa.array([["a"] * (row % 3) for row in range(64)], pa.list_(pa.string())),
            "y": [row % 2 for row in range(64)],
        }
    )
    with featurestore.connect(tmp_path / "store") as store:
        dataset = store.create_training_dataset(
            rows, "lists", label="y", key="id", progress=False,
            transformations={"ids": t.pad(2) | t.vocabulary(), "words": t.pad(2) | t.vocabulary()},
        )  # fmt: skip
        options: dict[str, Any] = {"global_batch_size": 10, "columns": ["ids", "words", "y"]}
        raw = dataset.reader("train", transformed=False, remainder="keep", **options)
        expected = dataset.reader("train", remainder="keep", **options).batches()
        prepare = dataset.preprocessor("torch")
        loader = raw.torch_loader(num_workers=workers)
        for (features, _), batch, codes in zip(loader, raw.batches(), expected, strict=True):
            ids, words = features["ids"], features["words"]
            assert ids.values.tolist() == batch["ids"].values.tolist()
            assert words.values == batch["words"].values.tolist()
            assert ids.row_splits.tolist() == batch["ids"].row_splits.tolist()
            nested = torch.nested.nested_tensor_from_jagged(ids.values, offsets=ids.row_splits)
            for inputs in (ids, nested):
                arguments = prepare({"ids": inputs, "words": words})
                assert arguments["ids"].tolist() == codes["ids"].tolist()
                assert arguments["words"].tolist() == codes["words"].tolist()


def test_torch_loader_padded_lists_are_codes(tmp_path: Path) -> None:
    words = [["late", "gate"], None, [], ["gate", "bus", "late", "gate"]] * 20
    numbers = [[0.5], [1.0, 2.0], [], [3.0]] * 20
    rows = pa.table({"y": range(80), "words": words, "numbers": numbers})
    chains = {"words": t.pad(3) | t.vocabulary(), "numbers": t.pad(2) | t.clip(high=2)}
    with featurestore.connect(tmp_path) as store:
        dataset = store.create_training_dataset(
            rows, "lists", label="y", progress=False, transformations=chains
        )
        (features, label), *_ = dataset.reader("train", global_batch_size=40).torch_loader()
    module = dataset.preprocessor("torch")
    expected = [int(row) for row in label]
    arguments = {
        "words": [words[row] for row in expected],
        "numbers": [numbers[row] for row in expected],
    }
    prepared = module(arguments)
    for name in chains:
        assert torch.equal(features[name], prepared[name])
    assert features["words"].dtype == torch.int32
    assert features["words"].shape == (40, 3)
