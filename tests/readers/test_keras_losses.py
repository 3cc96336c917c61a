"""Losses that fit and evaluate report, compared with numpy: padding, outputs and parts."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from featurestore import FeatureStore
from featurestore.readers.checkpoint import ReaderCheckpoint
from featurestore.training import TrainingDataset

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
pytestmark = pytest.mark.tensorflow

ROWS, BATCH = 50, 16  # three whole steps, and one of 2 rows
STEPS, SAVE_EVERY = 4, 3
LIBRARIES = ("keras", "tf_keras")


@pytest.fixture
def dataset(empty_store: FeatureStore) -> TrainingDataset:
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=ROWS).astype(np.float32) for name in "xyz"}
    return empty_store.create_training_dataset(
        {"id": range(ROWS), **columns}, "lines", label=["y", "z"], key="id", progress=False
    )


def model_of(
    name: str, *, outputs: int = 2, per_execution: int = 1, activities: str | None = None
) -> Any:
    """Return a model that does not learn."""
    keras: Any = import_module(name)
    keras.utils.set_random_seed(3)
    inputs = keras.Input((), name="x")
    hidden = keras.layers.Dense(
        4, kernel_regularizer="l2", activity_regularizer=activities, bias_initializer="ones"
    )(keras.layers.Reshape((1,))(inputs))
    heads = {head: keras.layers.Dense(1, name=head)(hidden) for head in "yz"[:outputs]}
    model = keras.Model({"x": inputs}, heads if outputs > 1 else heads["y"])
    model.compile(
        keras.optimizers.SGD(0.0),
        loss=dict.fromkeys(heads, "mse") if outputs > 1 else "mse",
        steps_per_execution=per_execution,
    )
    return model


def expected(model: Any, rows: dict[str, Any]) -> dict[str, float]:
    """Return the losses over rows; the total includes the kernel penalty."""
    kernel, bias, *heads = [array.astype(np.float64) for array in model.get_weights()]
    hidden = rows["x"][:, None].astype(np.float64) @ kernel + bias
    losses = {}
    for index, name in enumerate("yz"):
        predictions = (hidden @ heads[2 * index] + heads[2 * index + 1])[:, 0]
        losses[f"{name}_loss"] = float(((predictions - rows[name]) ** 2).mean())
    penalty = 0.01 * float((kernel**2).sum())
    return {"loss": sum(losses.values()) + penalty, **losses}


def all_rows(dataset: TrainingDataset) -> dict[str, Any]:
    frame = dataset.read("train").to_pandas()
    return {name: frame[name].to_numpy() for name in "xyz"}


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
def test_evaluate_weights_output_losses_by_rows(
    dataset: TrainingDataset, name: str, remainder: str
) -> None:
    model = model_of(name)
    reader = dataset.reader("train", global_batch_size=BATCH, remainder=remainder)
    assert reader.evaluate(model) == pytest.approx(expected(model, all_rows(dataset)), rel=1e-5)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("per_execution", [1, 3])
def test_padded_epoch_losses_count_real_rows_only(
    dataset: TrainingDataset, tmp_path: Path, name: str, per_execution: int
) -> None:
    from featurestore.experiments.strategies import report_callback

    model = model_of(name, per_execution=per_execution)
    reader = dataset.reader("train", global_batch_size=BATCH, remainder="pad", seed=1)
    reports: list[tuple[int, dict[str, float]]] = []
    context: Any = SimpleNamespace(report=lambda step, **figures: reports.append((step, figures)))
    run_reader: Any = reader
    findings = report_callback(context, model, run_reader, save_every=SAVE_EVERY, start=(0, 0))
    checkpoint = reader.checkpoint(tmp_path, objects={"model": model})
    history = checkpoint.fit(model, 2, callbacks=[findings], verbose=0).history
    for epoch in range(2):
        figures = {metric: values[epoch] for metric, values in history.items()}
        assert figures == pytest.approx(expected(model, all_rows(dataset)), rel=1e-5)
    steps = [step for step, _ in reports]
    assert steps == ([3, 4, 6, 8] if per_execution == 1 else [3, 4, 7, 8])
    for first, (end, figures) in zip([0, *steps], reports, strict=False):
        batches = [reader.rows(step // STEPS, step % STEPS) for step in range(first, end)]
        numbers = np.concatenate(batches)
        rows = {
            column: values[numbers[numbers >= 0]] for column, values in all_rows(dataset).items()
        }
        assert figures == pytest.approx(expected(model, rows), rel=1e-5)


@pytest.mark.parametrize("remainder", ["keep", "pad"])
def test_losses_divided_by_weights_are_means_by_weight(
    empty_store: FeatureStore, tmp_path: Path, remainder: str
) -> None:
    keras: Any = import_module("keras")
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=ROWS).astype(np.float32) for name in "xyz"}
    # The sums of the weights differ by batch, and some rows have weight 0, as padding has.
    weights = (np.arange(ROWS) % 7).astype(np.float32)
    dataset = empty_store.create_training_dataset(
        {"id": range(ROWS), **columns, "w": weights},
        "weighed",
        label=["y", "z"],
        weight="w",
        key="id",
        progress=False,
    )
    model = model_of("keras")
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.SGD(0.0), loss={"y": loss, "z": loss})
    rows = dataset.read("train").to_pandas()
    # Integer weights count rows, so a mean by weight is the mean over repeated rows.
    repeated = rows.loc[rows.index.repeat(rows["w"].astype(int))]
    right = expected(model, {name: repeated[name].to_numpy() for name in "xyz"})
    reader = dataset.reader("train", global_batch_size=BATCH, remainder=remainder, seed=1)
    checkpoint = reader.checkpoint(tmp_path, objects={})
    history = checkpoint.fit(model, 1, verbose=0).history
    assert {metric: values[0] for metric, values in history.items()} == pytest.approx(right)
    assert reader.evaluate(model) == pytest.approx(right)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("remainder", ["keep", "pad"])
def test_keras_calls_with_a_reader_dataset_weight_losses_by_rows(
    dataset: TrainingDataset, name: str, remainder: str
) -> None:
    model = model_of(name, per_execution=3)
    right = expected(model, all_rows(dataset))
    reader = dataset.reader("train", global_batch_size=BATCH, remainder=remainder, seed=1)
    assert model.evaluate(reader.tf_dataset(), return_dict=True, verbose=0) == pytest.approx(right)
    model = model_of(name, per_execution=3)
    history = model.fit(
        reader.tf_dataset(), validation_data=reader.tf_dataset(), epochs=2, shuffle=False, verbose=0
    ).history
    for metric, value in right.items():
        assert history[metric] == pytest.approx([value] * 2)
        assert history[f"val_{metric}"] == pytest.approx([value] * 2)


@pytest.mark.parametrize("name", LIBRARIES)
def test_resume_between_executions_equals_uninterrupted_fit(
    dataset: TrainingDataset, tmp_path: Path, name: str
) -> None:
    keras: Any = import_module(name)
    reader = dataset.reader("train", global_batch_size=BATCH, remainder="pad", seed=1)

    def fit(begin: str | None) -> tuple[list[Any], Any]:
        model = model_of(name, per_execution=3)
        model.compile(keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=3)
        objects = {"model": model, "optimizer": model.optimizer}
        checkpoint = ReaderCheckpoint(str(tmp_path), reader, objects, keep=9, begin=begin)
        history = checkpoint.fit(model, 2, save_every=3, verbose=0).history
        return model.get_weights(), history["loss"][1]

    weights, loss = fit("")
    # Executions end after steps 3 and 4 of an epoch.
    resumed_weights, resumed_loss = fit("step-000000-000000003")
    assert resumed_loss == loss
    for resumed, uninterrupted in zip(resumed_weights, weights, strict=True):
        np.testing.assert_array_equal(resumed, uninterrupted)


@pytest.mark.parametrize("name", LIBRARIES)
def test_fit_with_activity_penalties_over_padding(
    dataset: TrainingDataset, tmp_path: Path, name: str
) -> None:
    model = model_of(name, activities="l2")
    reader = dataset.reader("train", global_batch_size=BATCH, remainder="pad")
    history = reader.checkpoint(tmp_path, objects={}).fit(model, 1, verbose=0).history
    right = expected(model, all_rows(dataset))
    assert history["y_loss"] == pytest.approx([right["y_loss"]], rel=1e-5)
    assert history["loss"][0] > right["loss"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_batch_sum_losses_are_not_adjusted_for_padding(
    dataset: TrainingDataset, tmp_path: Path, name: str
) -> None:
    keras: Any = import_module(name)
    model = model_of(name, outputs=1)
    model.compile(keras.optimizers.SGD(0.0), loss=keras.losses.MeanSquaredError(reduction="sum"))
    histories = []
    for remainder in ("pad", "drop"):
        reader = dataset.reader(
            "train", global_batch_size=BATCH, remainder=remainder, columns=["x", "y"]
        )
        checkpoint = reader.checkpoint(tmp_path / remainder, objects={})
        histories.append(checkpoint.fit(model, 1, verbose=0).history["loss"][0])
    padded, dropped = histories
    assert padded < dropped  # the mean of four sums, one of them over two rows
    assert padded == pytest.approx(dropped * 3 / 4, rel=0.2)
