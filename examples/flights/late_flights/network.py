"""A small network over the features, and how its inputs are scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NUMBERS = (
    "hour", "weekday", "month", "distance", "temp", "humid", "wind_speed", "precip", "pressure", "visib",
    "departures", "mean_delay", "late_share", "built", "seats", "dest_lat", "dest_lon",
    "delay_mean_1h", "delay_mean_1d", "delay_mean_7d",
)  # fmt: skip
WORDS = {"carrier": 64, "origin": 8, "dest": 512}
# Inputs that the question itself brings, beside the features.
OF_THE_QUESTION = ["hour", "weekday", "month", "distance", *WORDS]
COLUMNS = [*NUMBERS, *WORDS, "late"]


def scales(dataset: Any) -> dict[str, Any]:
    """Return (mean, standard deviation) of each number in the training split, and the numbers that have nulls."""
    statistics = dataset.statistics("train")
    columns = {name: statistics.column(name) for name in NUMBERS}
    with_nulls = {name for split in dataset.manifest.splits for name in split.nulls}
    return {
        "scales": {
            name: (float(column.mean), float(column.std) or 1.0) for name, column in columns.items()
        },
        "nullable": [name for name in NUMBERS if name in with_nulls],
    }


def build(inputs_of: Mapping[str, Any]) -> Any:
    """Return the compiled network of what ``scales`` found; build it inside a strategy's scope.

    A number that has nulls comes with a mask, which the network sees, too.
    """
    import tf_keras as keras

    parts, inputs = [], {}
    for name in NUMBERS:
        inputs[name] = keras.Input((), name=name)
        mean, std = inputs_of["scales"][name]
        scaled = keras.layers.Rescaling(1 / std, -mean / std)(inputs[name])
        if name in inputs_of["nullable"]:
            present = inputs[f"{name}_present"] = keras.Input((), name=f"{name}_present")
            scaled = scaled * keras.layers.Rescaling(1.0)(
                present
            )  # a missing number counts as the mean
            parts.append(keras.layers.Reshape((1,))(keras.layers.Rescaling(1.0)(present)))
        parts.append(keras.layers.Reshape((1,))(scaled))
    for name, size in WORDS.items():
        inputs[name] = keras.Input((), name=name, dtype="string")
        place = keras.layers.Hashing(size)(inputs[name])
        parts.append(keras.layers.Embedding(size, 8)(place))
    hidden = keras.layers.Concatenate()(parts)
    for width in (64, 32):
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(2e-3), "binary_crossentropy", weighted_metrics=[])
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
