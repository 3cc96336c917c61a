"""Keras callbacks across a resume within an epoch, and the returned history."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featurestore import FeatureStore

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
pytestmark = [pytest.mark.tensorflow]
EPOCHS = 6


class Cut(Exception):
    """Raised where the process would have been killed."""


def training(store: FeatureStore, folder: Path, *, cut_at: int | None) -> dict[str, Any]:
    """Fit up to step ``cut_at`` (None: to the end); return comparable results."""
    import keras

    keras.utils.set_random_seed(5)
    dataset = store.get_training_dataset("line")
    reader = dataset.reader("train", global_batch_size=8, seed=1)
    checks = dataset.reader("train", global_batch_size=48, remainder="keep")
    inputs = {"x": keras.Input((), name="x")}
    hidden = keras.layers.Reshape((1,))(inputs["x"])
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.5), loss="mse")
    model.optimizer.build(model.trainable_variables)
    stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, min_delta=10.0)
    plateau = keras.callbacks.ReduceLROnPlateau(
        monitor="val_loss", patience=1, min_delta=10.0, factor=0.5
    )
    starts = []

    class Watch(keras.callbacks.Callback):
        steps = 0

        def on_train_begin(self, logs: Any = None) -> None:
            starts.append("begin")

        def on_train_end(self, logs: Any = None) -> None:
            starts.append("end")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == cut_at:
                raise Cut

    checkpoint = reader.checkpoint(folder, objects={"model": model, "optimizer": model.optimizer})
    history = checkpoint.fit(
        model,
        EPOCHS,
        validation=checks,
        save_every=2,
        callbacks=[stopping, plateau, Watch()],
        verbose=0,
    )
    return {
        "epoch": history.epoch,
        "val_loss": history.history.get("val_loss", []),
        "stopped": stopping.stopped_epoch,
        "wait": stopping.wait,
        "rate": float(model.optimizer.learning_rate),
        "weights": [array.tolist() for array in model.get_weights()],
        "starts": starts,
    }


@pytest.fixture
def line_store(empty_store: FeatureStore) -> FeatureStore:
    rng = np.random.default_rng(0)
    x = rng.normal(size=48).astype(np.float32)
    empty_store.create_training_dataset(
        {"id": range(48), "x": x, "y": 3 * x}, "line", label="y", key="id", progress=False
    )
    return empty_store


def test_fit_callbacks_resume_from_mid_epoch_checkpoint(
    line_store: FeatureStore, tmp_path: Path
) -> None:
    reference = training(line_store, tmp_path / "whole", cut_at=None)
    with pytest.raises(Cut):
        training(line_store, tmp_path / "cut", cut_at=15)  # in the third epoch of six steps
    resumed = training(line_store, tmp_path / "cut", cut_at=None)
    assert reference["starts"] == resumed["starts"] == ["begin", "end"]
    assert reference["epoch"] == list(range(len(reference["epoch"])))
    assert resumed["epoch"] == reference["epoch"][2:]
    assert resumed["val_loss"] == pytest.approx(reference["val_loss"][2:], rel=1e-6)
    for name in ("stopped", "wait", "rate"):
        assert resumed[name] == reference[name], name
    assert reference["stopped"] > 0
    np.testing.assert_allclose(resumed["weights"][0], reference["weights"][0], rtol=1e-6)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_fit_under_strategy_resumes_after_checkpoint(
    line_store: FeatureStore, tmp_path: Path, library: str
) -> None:
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip(library)
    dataset = line_store.get_training_dataset("line")
    squares = dataset.read("train").to_pandas()["y"].to_numpy() ** 2
    reader = dataset.reader("train", global_batch_size=10, seed=1)  # drops other rows each time
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        inputs = keras.Input((), name="x")
        zeros = keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Model({"x": inputs}, zeros(keras.layers.Reshape((1,))(inputs)))
        model.compile(keras.optimizers.SGD(0.0), loss="mse")
    checkpoint = reader.checkpoint(tmp_path, objects={}, strategy=strategy)
    checkpoint.save(1, 2)
    history = checkpoint.fit(model, 4, verbose=0).history
    expected = []
    for epoch, first in ((1, 2), (2, 0), (3, 0)):
        rows = [reader.rows(epoch, step) for step in range(first, reader.steps_per_epoch)]
        expected.append(float(squares[np.concatenate(rows)].mean()))
    assert history["loss"] == pytest.approx(expected, rel=1e-5)


def test_fit_after_early_stopping_trains_no_further(
    line_store: FeatureStore, tmp_path: Path
) -> None:
    first = training(line_store, tmp_path / "run", cut_at=None)
    assert 0 < first["stopped"] < EPOCHS - 1
    again = training(line_store, tmp_path / "run", cut_at=1)  # no step is made
    assert again["epoch"] == []
    assert again["weights"] == first["weights"]
