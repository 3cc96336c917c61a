"""A small network over the features, and what is done to them before it sees them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from featurestore import transform as t
from featurestore.training.dataset import TrainingDataset

NUMBERS = (
    "hour", "weekday", "month", "distance", "temp", "humid", "wind_speed", "precip", "pressure", "visib",
    "departures", "mean_delay", "late_share", "built", "seats", "dest_lat", "dest_lon",
    "delay_mean_1h", "delay_mean_1d", "delay_mean_7d",
)  # fmt: skip
WORDS = {"carrier": 64, "origin": 8, "dest": 512}
# Inputs that are columns of the labels, in addition to the features.
OF_THE_QUESTION = ["hour", "weekday", "month", "distance", *WORDS]
COLUMNS = [*NUMBERS, *WORDS, "late"]


TRANSFORMATIONS = {name: t.standardize() for name in NUMBERS}
TRANSFORMATIONS |= {name: t.hash_bucket(size) for name, size in WORDS.items()}


def build(
    dataset: TrainingDataset,
    framework: str = "tf_keras",
    *,
    columns: Sequence[str] = COLUMNS,
    lr: float = 2e-3,
    units: int = 64,
) -> Any:
    """Return the compiled network over transformed inputs; build it inside a strategy's scope.

    A number that has nulls comes with a mask, which the network sees, too; without its value it
    counts as the mean, which is 0.
    """
    keras = importlib.import_module(framework)
    inputs = dataset.keras_inputs(columns=columns, nulls="mask", framework=framework)
    parts = []
    for name, given in inputs.items():
        if name in WORDS:
            parts.append(keras.layers.Embedding(WORDS[name] + 1, 8)(given))
        elif not name.endswith("_present"):
            parts.append(keras.layers.Reshape((1,))(given))
        elif name.removesuffix("_present") in NUMBERS:
            # Whether a word is there is part of its code.
            as_number = keras.layers.Rescaling(1.0)(given)
            parts.append(keras.layers.Reshape((1,))(as_number))
    hidden = keras.layers.Concatenate()(parts)
    for width in (units, 32):
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(lr), "binary_crossentropy", weighted_metrics=[])
    return model


def auc(labels: Sequence[int] | np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> float:
    """Return the area under the ROC curve.

    The chance that a late flight scores above a punctual one, ties half.

    >>> auc([0, 0, 1, 1], np.array([0.1, 0.4, 0.35, 0.8]))
    0.75
    """
    truth = np.asarray(labels).astype(bool)
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives, negatives = int(truth.sum()), int((~truth).sum())
    return float((ranks[truth].sum() - positives * (positives + 1) / 2) / (positives * negatives))
