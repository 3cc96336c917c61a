"""A small convolutional network, and the function that trains it: alone, on several workers, in a search."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore.training.dataset import TrainingDataset

if TYPE_CHECKING:
    from featurestore.experiments.context import Context

BATCH = 64


def network(dataset: TrainingDataset, dropout: float) -> Any:
    """Return the network over the decoded images of the dataset."""
    import tf_keras as keras

    inputs = dataset.keras_inputs(framework="tf_keras")
    hidden = keras.layers.Rescaling(1 / 255)(inputs["image"])
    for filters in (16, 32):
        hidden = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        hidden = keras.layers.MaxPooling2D()(hidden)
    hidden = keras.layers.Flatten()(hidden)
    hidden = keras.layers.Dense(64, activation="relu")(hidden)
    hidden = keras.layers.Dropout(dropout)(hidden)
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(hidden))


def train(context: Context, lr: float, dropout: float, epochs: int = 4) -> dict[str, float]:
    """Train on this worker's share; report each epoch, keep checkpoints and the model."""
    strategy = context.strategy  # before any other use of TensorFlow
    import tf_keras as keras

    reader = context.reader("train", global_batch_size=BATCH)
    check = context.reader("validation", global_batch_size=BATCH, shuffle=False)
    with strategy.scope():
        model = network(context.dataset, dropout)
        model.compile(
            keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    context.fit(
        model,
        epochs=epochs,
        reader=reader,
        save_every=reader.steps_per_epoch,
        validation_data=check.distribute(epochs),
        validation_steps=check.steps_per_epoch,
        verbose=0,
    )
    # Every worker takes part in saving; the first one's file is kept with the run, the others'
    # stay in their working directories.
    model.save(os.path.join(context.artifact_dir if context.worker == 0 else "", "digits.keras"))
    return {"test_accuracy": accuracy(context.dataset, model)}


def accuracy(dataset: TrainingDataset, model: Any) -> float:
    """Return the share of the test split that the model names, each image once."""
    reader = dataset.reader("test", global_batch_size=256, shuffle=False, remainder="keep")
    right = 0
    for batch in reader.batches():
        scores = model({"image": batch["image"]}, training=False).numpy()
        right += int(np.sum(scores.argmax(axis=1) == batch["digit"]))
    return right / dataset.num_rows("test")
