"""The network as one training function: searched, taken apart, and kept for predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from featurestore import FeatureStore, experiments
from featurestore.experiments.models import Model
from featurestore.retrieval import FeatureFrame
from featurestore.training.dataset import TrainingDataset
from late_flights import network
from late_flights.training import BATCH, QUIET

if TYPE_CHECKING:
    from featurestore.experiments.context import Context
    from featurestore.experiments.planned import Ablation
    from featurestore.experiments.study import Study


def train(
    context: Context, lr: float = 2e-3, units: int = 64, epochs: int = 1, parts: int = 1
) -> dict[str, float]:
    """Train in one process; report the validation AUC ``parts`` times an epoch, keep the model."""
    import tf_keras as keras

    dataset = context.dataset
    reader = context.reader("train", global_batch_size=BATCH, nulls="mask")
    check = context.reader(
        "validation", global_batch_size=4096, shuffle=False, remainder="keep", nulls="mask"
    )
    model = network.build(dataset, columns=[*context.inputs, "late"], lr=lr, units=units)
    truth = np.concatenate([batch["late"] for batch in check.batches()])
    every = max(1, reader.steps_per_epoch // parts)

    class Report(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step = int(self.model.optimizer.iterations.numpy())
            if step % every == 0 or step == epochs * reader.steps_per_epoch:
                scores = self.model.predict(check.tf_dataset(), verbose=0).reshape(-1)
                context.report(step, val_auc=network.auc(truth, scores))

    context.fit(model, epochs=epochs, reader=reader, callbacks=[Report()], verbose=0)
    model.save(os.path.join(context.artifact_dir, "model.keras"))
    return {"epochs": epochs}


def search(dataset: TrainingDataset, *, trials: int, parallel: int = 2, epochs: int = 2) -> Study:
    """Search learning rate and width; trials that are worse than others early are given up."""
    return experiments.search(
        train,
        space={"lr": experiments.loguniform(1e-4, 1e-1), "units": [16, 32, 64, 128]},
        params={"epochs": epochs, "parts": 2},
        trials=trials,
        parallel=parallel,
        sampler="tpe",
        stop="asha",
        metric="val_auc",
        dataset=dataset,
        name="late_flights_search",
        environment=QUIET,
    )


def ablate(
    dataset: TrainingDataset,
    *,
    features: str | Mapping[str, Sequence[str]] = "groups",
    repeats: int = 2,
    parallel: int = 2,
) -> Ablation:
    """Tell what each feature group, or what lists of features, are worth to the network."""
    return experiments.ablate(
        train,
        dataset=dataset,
        features=features,
        metric="val_auc",
        repeats=repeats,
        parallel=parallel,
        name="late_flights_ablation",
        environment=QUIET,
    )


def score(
    store: FeatureStore, dataset: TrainingDataset, labels: FeatureFrame
) -> tuple[Model, float]:
    """Train and register a model, write its predictions, and return it with their AUC."""
    run = experiments.launch(
        train, dataset=dataset, name="late_flights", environment=QUIET, params={"epochs": 2}
    )
    model = experiments.register_model(run, "late_flights", stage="staging")
    store.score(model, labels=labels, featuregroup="late_predictions")
    written = store.get_featuregroup("late_predictions").to_arrow()
    truth = written["late"].to_numpy()
    return model, network.auc(truth, written["prediction"].to_numpy())
