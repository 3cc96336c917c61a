"""Evaluation, validation and class weights under strategies, compared with numpy."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import featurestore
from tests.forking import ForkServer
from tests.readers.free_ports import free_ports

if find_spec("tensorflow") is None:  # this process does not import it
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("evaluation_program.py")
ROWS = 88
Figures = dict[str, float]


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": range(ROWS),
            "a": rng.normal(size=ROWS).astype(np.float32),
            "b": rng.normal(size=ROWS).astype(np.float32),
            "w": rng.uniform(0.5, 2.0, ROWS).astype(np.float32),
            "y": rng.integers(0, 2, ROWS),
            "z": rng.normal(size=ROWS).astype(np.float32),
        }
    )


@pytest.fixture(scope="module")
def results(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """The figures of each worker by strategy."""
    folder = tmp_path_factory.mktemp("evaluation")
    with featurestore.connect(folder / "store", engine="duckdb") as store:
        for name, arguments in (
            ("plain", {"label": "y"}),
            ("weighed", {"label": "y", "weight": "w"}),
            ("two_labels", {"label": ["y", "z"]}),
        ):
            store.create_training_dataset(
                frame(), name, features=["a", "b"], key="id", progress=False, **arguments
            )
        datasets = folder / "store" / "trainingdatasets"
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
        runs = []
        ports = [str(port) for port in free_ports(5)]
        for strategy, workers in (("multiworker", 2), ("mirrored", 1), ("none", 1), ("servers", 1)):
            for index in range(workers):
                environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
                if strategy == "multiworker":
                    task = {"type": "worker", "index": index}
                    environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
                out = folder / f"{strategy}-{index}.json"
                process = fork_server.start(
                    PROGRAM,
                    [strategy, str(datasets), str(out), *ports],
                    output=folder / f"{strategy}-{index}.log",
                    environment=environment,
                    folder=folder,
                )
                runs.append((strategy, out, process))
        result: dict[str, list[dict[str, Any]]] = {}
        for strategy, out, process in runs:
            status = process.wait(240)
            assert status == 0, process.output.read_text()[-3000:]
            result.setdefault(strategy, []).append(json.loads(out.read_text()))
        return result


def forward(weights: list[Any]) -> tuple[Any, Any]:
    """Return the network's outputs for every row: the sigmoid head and the other head."""
    rows = frame()
    values: npt.NDArray[np.float64] = rows[["a", "b"]].to_numpy(np.float64)
    arrays = [np.array(array, np.float64) for array in weights]
    hidden = np.tanh(values @ arrays[0] + arrays[1])
    heads = arrays[2:]
    if len(arrays) >= 8:
        (gamma, beta, mean, variance), heads = arrays[2:6], arrays[6:]
        hidden = gamma * (hidden - mean) / np.sqrt(variance + 1e-3) + beta
    logits = (hidden @ heads[0] + heads[1])[:, 0]
    z_values = (hidden @ heads[2] + heads[3])[:, 0] if len(heads) > 2 else None
    return 1 / (1 + np.exp(-logits)), z_values


def expected(name: str, weights: list[Any]) -> Figures:
    """Compute loss and metrics over every row once, with numpy in double precision."""
    rows = frame()
    chance, z_values = forward(weights)
    y = rows["y"].to_numpy()
    weight = rows["w"].to_numpy() if name == "weighed" else np.ones(ROWS)
    losses = -(y * np.log(chance) + (1 - y) * np.log(1 - chance))
    right = (chance > 0.5) == y
    figures = {
        "loss": float((losses * weight).mean()),
        "accuracy": float((right * weight).sum() / weight.sum()),
        "tp": float((weight * ((chance > 0.5) & (y == 1))).sum()),
    }
    if name == "two_labels":
        squared = float(((z_values - rows["z"].to_numpy()) ** 2).mean())
        return {
            "loss": figures["loss"] + squared,
            "y_loss": figures["loss"],
            "z_loss": squared,
            "y_accuracy": figures["accuracy"],
            "y_tp": figures["tp"],
        }
    return figures


FITTED = ["multiworker", "mirrored", "none"]


@pytest.mark.parametrize("strategy", [*FITTED, "servers"])
@pytest.mark.parametrize("name", ["plain", "weighed", "two_labels"])
def test_distributed_evaluate_counts_every_row_once(
    results: dict[str, list[dict[str, Any]]], strategy: str, name: str
) -> None:
    for worker in results[strategy]:
        case = worker[name]
        for remainder, figures in case["figures"].items():
            assert figures == pytest.approx(expected(name, case["weights"]), rel=1e-5), remainder
    assert all(worker == results[strategy][0] for worker in results[strategy])


@pytest.mark.parametrize("strategy", FITTED)
def test_distributed_evaluate_keras_3_counts_every_row_once(
    results: dict[str, list[dict[str, Any]]], strategy: str
) -> None:
    for worker in results[strategy]:
        case = worker["keras 3"]
        right = expected("two_labels", case["weights"])
        del right["y_tp"]
        assert case["figures"] == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("strategy", FITTED)
def test_distributed_fit_validation_and_weighted_loss_exclude_padding(
    results: dict[str, list[dict[str, Any]]], strategy: str
) -> None:
    for worker in results[strategy]:
        fit = worker["fit"]
        history = fit["history"]
        assert fit["epoch"] == [0, 1]
        last = {name: history[f"val_{name}"][-1] for name in fit["after"]}
        assert last == pytest.approx(fit["after"], rel=1e-6)
        assert last == pytest.approx(expected("plain", fit["weights"]), rel=1e-5)
        assert fit["restored"] == pytest.approx(fit["after"], rel=1e-6)


@pytest.mark.parametrize("strategy", FITTED)
@pytest.mark.parametrize("way", ["checkpoint", "keras"])
def test_distributed_validation_data_with_padding_counts_real_rows(
    results: dict[str, list[dict[str, Any]]], strategy: str, way: str
) -> None:
    for worker in results[strategy]:
        right = expected("two_labels", worker["outputs"]["weights"])
        history = worker["outputs"][way]
        for epoch in range(2):
            actual = {name: history[f"val_{name}"][epoch] for name in right}
            assert actual == pytest.approx(right, rel=1e-5)
        if way == "checkpoint":
            # No epoch is better than the first one.
            assert (len(history["loss"]), worker["outputs"]["stopped"]) == (2, 1)
            losses = [name for name in right if name.endswith("loss")]
            actual = {name: history[name][1] for name in losses}
            assert actual == pytest.approx({name: right[name] for name in losses}, rel=1e-5)


@pytest.mark.parametrize("strategy", FITTED)
def test_model_evaluate_and_custom_loop_exclude_padding(
    results: dict[str, list[dict[str, Any]]], strategy: str
) -> None:
    for worker in results[strategy]:
        outputs = worker["outputs"]
        right = expected("two_labels", outputs["weights"])
        assert outputs["saved"] == outputs["weights"]
        assert outputs["evaluate"] == pytest.approx(right, rel=1e-5)
        loop = {"loss": right["y_loss"], "accuracy": right["y_accuracy"]}
        assert outputs["loop"] == pytest.approx(loop, rel=1e-5)


def test_class_weights_loss_independent_of_replica_count(
    results: dict[str, list[dict[str, Any]]],
) -> None:
    losses = [
        worker["fit"]["history"]["loss"] for strategy in FITTED for worker in results[strategy]
    ]
    # BatchNormalization normalizes each replica's part of a batch, so only one process is exact.
    assert losses[0] == losses[1]
    assert all(np.isfinite(losses).ravel())


def test_datasets_partly_read_by_keras_raise(results: dict[str, list[dict[str, Any]]]) -> None:
    for worker in results["multiworker"]:
        assert "one of 2 workers" in worker["refusal"]
        assert "reader.distribute(strategy)" in worker["refusal"]
        assert worker["validation"].startswith("InvalidArgument")
    for strategy in ("multiworker", "mirrored"):
        for worker in results[strategy]:
            by_class = worker["outputs"]["class_weight"]
            assert by_class.startswith("ReaderConfigError")
            assert 'class_weights="balanced"' in by_class
            refusal = worker["outputs"]["refusal"]
            assert refusal.startswith("InvalidArgument")
            assert "validation=checks" in refusal
            assert "validation_steps=checks.steps_per_epoch" in refusal
    (servers,) = results["servers"]
    distributed, evaluation, options, fitted = servers["refusals"]
    for refusal in (distributed, evaluation, fitted):
        assert refusal.startswith("ReaderConfigError")
        assert "coordinator.schedule(train_step, args=(batch,))" in refusal
    assert "reader.evaluate(model)" in evaluation
    assert options.startswith("InvalidArgument")
