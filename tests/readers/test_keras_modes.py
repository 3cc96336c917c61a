"""Losses of fit and evaluate in each mode of Keras, compared with a training in numpy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import combinations, product, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import featurestore
from featurestore.readers import Reader
from featurestore.training import TrainingDataset
from tests.forking import ForkServer
from tests.readers.free_ports import free_ports

if find_spec("tensorflow") is None:  # this process does not import it
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("losses_program.py")
PAGE = Path(__file__).parents[2] / "docs" / "training.md"
ROWS, BATCH, EPOCHS, RATE = 50, 16, 2, 0.02  # a last step of 2 rows
PENALTY = 0.01  # of "l2"
VALUES: dict[str, tuple[Any, ...]] = {
    "library": ("keras", "tf_keras"),
    "strategy": ("none", "mirrored", "multiworker"),
    "remainder": ("keep", "pad", "drop"),
    "steps_per_execution": (1, 3),
    "precision": ("float32", "mixed_float16", "mixed_bfloat16"),
    "outputs": (1, 2),
    "weighted": (False, True),
}
HEADERS = {
    "none": "one process",
    "mirrored": "`MirroredStrategy`",
    "multiworker": "`MultiWorkerMirroredStrategy`",
}
TOLERANCE = {"float32": 2e-5, "mixed_float16": 5e-3, "mixed_bfloat16": 2e-2}
Cell = dict[str, Any]
Array = npt.NDArray[np.float64]


def all_cells() -> list[Cell]:
    return [dict(zip(VALUES, values, strict=True)) for values in product(*VALUES.values())]


def covering(cells: list[Cell], names: Iterable[str]) -> list[Cell]:
    """Return cells that contain each pair of values of two properties with each library."""

    def pairs(cell: Cell) -> set[Any]:
        return {
            (cell["library"], first, cell[first], second, cell[second])
            for first, second in combinations(names, 2)
        }

    missing = set().union(*map(pairs, cells))
    chosen = []
    while missing:
        chosen.append(max(cells, key=lambda cell: len(pairs(cell) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def short_list() -> list[Cell]:
    """Return cells that contain each pair of values, of the supported and of the refused ones."""
    cells = all_cells()
    supported = [cell for cell in cells if is_documented(cell)]
    refused = [cell for cell in cells if not is_documented(cell)]
    return [
        *covering(supported, [name for name in VALUES if name != "library"]),
        *covering(refused, ["strategy", "remainder", "steps_per_execution"]),
    ]


def documented() -> dict[str, dict[str, str]]:
    """Return the supported modes by call and strategy, as the page states them."""
    lines = PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| mode |"))
    table = takewhile(lambda line: line.startswith("|"), lines[start:])
    header, _, *body = [[text.strip() for text in line.strip("| ").split("|")] for line in table]
    return {call: dict(zip(header[1:], texts, strict=True)) for call, *texts in body}


def is_documented(cell: Cell) -> bool:
    """Return whether the page states that ``fit`` supports a cell."""
    text = documented()[f"`fit` of `{cell['library']}`"][HEADERS[cell["strategy"]]]
    single_steps = "`steps_per_execution=1`" in text
    return f'"{cell["remainder"]}"' in text and (
        not single_steps or cell["steps_per_execution"] == 1
    )


def dataset_name(cell: Cell) -> str:
    return f"outputs_{cell['outputs']}_{'weighted' if cell['weighted'] else 'plain'}"


def open_reader(datasets: Path, cell: Cell) -> tuple[TrainingDataset, Reader]:
    dataset = TrainingDataset.open(str(datasets / dataset_name(cell) / "v1"))
    remainder = cell["remainder"]
    return dataset, dataset.reader("train", global_batch_size=BATCH, seed=1, remainder=remainder)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modes")
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=ROWS).astype(np.float32) for name in "abyz"}
    columns["y"] *= 3
    # Some rows have weight 0, as padding has.
    weights = rng.integers(0, 3, ROWS).astype(np.float32)
    with featurestore.connect(folder / "store", engine="duckdb") as store:
        for outputs, weighted in product(VALUES["outputs"], VALUES["weighted"]):
            store.create_training_dataset(
                {"id": range(ROWS), **columns, "w": weights},
                dataset_name({"outputs": outputs, "weighted": weighted}),
                features=["a", "b"],
                label=list("yz"[:outputs]),
                weight="w" if weighted else None,
                key="id",
                progress=False,
            )
    return folder / "store" / "trainingdatasets"


@pytest.fixture(
    scope="module",
    params=["short", *(pytest.param(name, marks=pytest.mark.soak) for name in VALUES["remainder"])],
)
def outcomes(
    request: pytest.FixtureRequest,
    fork_server: ForkServer,
    datasets: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[dict[str, Any]]:
    """The outcome of each cell in each worker."""
    folder = tmp_path_factory.mktemp("modes")
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    cells = [cell for cell in all_cells() if cell["remainder"] == request.param] or short_list()
    started = []
    for strategy in VALUES["strategy"]:
        programs = [
            {
                **cell,
                "dataset": str(datasets / dataset_name(cell) / "v1"),
                "batch": BATCH,
                "epochs": EPOCHS,
                "rate": rate_of(cell),
            }
            for cell in cells
            if cell["strategy"] == strategy
        ]
        for index in range(2 if strategy == "multiworker" else 1):
            environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
            if strategy == "multiworker":
                task = {"type": "worker", "index": index}
                environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
            out = folder / f"{strategy}-{index}.json"
            process = fork_server.start(
                PROGRAM,
                [strategy, str(out), json.dumps(programs)],
                output=folder / f"{strategy}-{index}.log",
                environment=environment,
                folder=folder,
            )
            started.append((out, process))
    results = []
    for out, process in started:
        assert process.wait(550) == 0, process.output.read_text()[-3000:]
        results.extend(json.loads(out.read_text()))
    return results


def rate_of(cell: Cell) -> float:
    """Return the learning rate; mixed_float16 skips steps while its loss scale is too large."""
    return 0.0 if cell["precision"] == "mixed_float16" else RATE


class LinearModel:
    """The model of the program in numpy, with its gradient written by hand."""

    def __init__(self, weights: list[Any], names: str) -> None:
        self.kernel, self.bias, *heads = [np.array(array, np.float64) for array in weights]
        self.heads = {name: heads[2 * index : 2 * index + 2] for index, name in enumerate(names)}

    def losses(self, rows: dict[str, Array]) -> dict[str, Array]:
        """Return the weighted squared error of each row by head."""
        hidden = rows["x"] @ self.kernel + self.bias
        return {
            name: rows["w"] * ((hidden @ kernel + bias)[:, 0] - rows[name]) ** 2
            for name, (kernel, bias) in self.heads.items()
        }

    def penalty(self) -> float:
        return PENALTY * float((self.kernel**2).sum())

    def step(self, rows: dict[str, Array], *, size: int, rate: float) -> None:
        """Descend along the gradient of the losses divided by the size of the batch."""
        hidden = rows["x"] @ self.kernel + self.bias
        hidden_gradient = np.zeros_like(hidden)
        for name, (kernel, bias) in self.heads.items():
            error = 2 * rows["w"] * ((hidden @ kernel + bias)[:, 0] - rows[name]) / size
            hidden_gradient += error[:, None] @ kernel.T
            self.heads[name] = [
                kernel - rate * hidden.T @ error[:, None],
                bias - rate * error.sum(),
            ]
        kernel_gradient = rows["x"].T @ hidden_gradient + 2 * PENALTY * self.kernel
        self.kernel = self.kernel - rate * kernel_gradient
        self.bias = self.bias - rate * hidden_gradient.sum(axis=0)


def means(losses: list[dict[str, Array]], penalty: float) -> dict[str, float]:
    """Return the figures of Keras from the losses of all rows."""
    heads = {
        f"{name}_loss": float(np.concatenate([batch[name] for batch in losses]).mean())
        for name in losses[0]
    }
    total = {"loss": sum(heads.values()) + penalty}
    return {**total, **heads} if len(heads) > 1 else total


def rows_of(dataset: TrainingDataset, *, weighted: bool) -> dict[str, Array]:
    frame = dataset.read("train").to_pandas()
    labels = {name: frame[name].to_numpy(np.float64) for name in dataset.roles.labels}
    weights = frame["w"].to_numpy(np.float64) if weighted else np.ones(len(frame))
    return {"x": frame[["a", "b"]].to_numpy(np.float64), "w": weights, **labels}


def train(
    model: LinearModel, reader: Reader, rows: dict[str, Array], rate: float
) -> Iterator[dict[str, float]]:
    """Train in numpy, and yield the figures of each epoch."""
    for epoch in range(EPOCHS):
        losses, penalties, counts = [], [], []
        for step in range(reader.steps_per_epoch):
            numbers = reader.rows(epoch, step)
            batch = {name: values[numbers[numbers >= 0]] for name, values in rows.items()}
            losses.append(model.losses(batch))
            penalties.append(model.penalty())
            counts.append(len(batch["w"]))
            model.step(batch, size=len(numbers), rate=rate)
        yield means(losses, float(np.average(penalties, weights=counts)))


def test_losses_equal_numpy_or_are_refused_in_each_mode(
    outcomes: list[dict[str, Any]], datasets: Path, subtests: pytest.Subtests
) -> None:
    assert outcomes
    for outcome in outcomes:
        cell = outcome["cell"]
        with subtests.test(**{name: cell[name] for name in VALUES}):
            dataset, reader = open_reader(datasets, cell)
            rows = rows_of(dataset, weighted=cell["weighted"])
            names = "yz"[: cell["outputs"]]
            tolerance = TOLERANCE[cell["precision"]]
            if is_documented(cell):
                assert "error" not in outcome, outcome["error"]
                model = LinearModel(outcome["first"], names)
                for epoch, figures in enumerate(train(model, reader, rows, rate_of(cell))):
                    actual = {name: values[epoch] for name, values in outcome["history"].items()}
                    assert actual == pytest.approx(figures, rel=tolerance), epoch
                assert outcome["position"] == [EPOCHS, 0]
            else:
                assert outcome["error"].startswith("ReaderConfigError: ")
                assert outcome["last"] == outcome["first"]
                assert outcome["position"] == [0, 0]
            evaluated = documented()["`evaluate` of both"][HEADERS[cell["strategy"]]]
            assert f'"{cell["remainder"]}"' in evaluated
            model = LinearModel(outcome["last"], names)
            figures = means([model.losses(rows)], model.penalty())
            assert outcome["evaluation"] == pytest.approx(figures, rel=tolerance)
