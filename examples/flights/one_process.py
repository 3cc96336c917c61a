"""Trains the network of the example in one process: with Keras 3, tf_keras or PyTorch.

python examples/flights/one_process.py --framework torch
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from late_flights import datasets, features, network
from late_flights.training import BATCH

import featurestore
from featurestore.training.dataset import TrainingDataset


def by_keras(dataset: TrainingDataset, framework: str, *, epochs: int) -> dict[str, float]:
    """Train with one of the two Keras; return AUC, base rate and rows of the test split."""
    options = {"columns": network.COLUMNS, "nulls": "mask"}
    reader = dataset.reader("train", global_batch_size=BATCH, seed=7, **options)
    test = dataset.reader(
        "test", global_batch_size=4096, shuffle=False, remainder="keep", **options
    )
    # The first weights decide much in so short a training.
    importlib.import_module(framework).utils.set_random_seed(7)
    model = network.build(dataset, framework)
    model.fit(reader.tf_dataset(), epochs=epochs, shuffle=False, verbose=2)
    scores = model.predict(test.tf_dataset(), verbose=0).reshape(-1)
    truth = np.concatenate([batch["late"] for batch in test.batches()])
    auc = network.auc(truth, scores)
    return {"auc": auc, "base_rate": float(truth.mean()), "rows": len(truth)}


def by_torch(dataset: TrainingDataset, *, epochs: int) -> dict[str, float]:
    """Train with PyTorch; return the same."""
    from late_flights import torch_network

    model = torch_network.train(dataset, epochs=epochs)
    return torch_network.score(dataset, model)


def main() -> None:
    """Create groups and a dataset, train, and print the metrics of the test split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=["keras", "tf_keras", "torch"], default="keras")
    parser.add_argument("--out", default=str(Path(__file__).parent / "build"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--until", default=None, help="only flights before this day (ISO)")
    given = parser.parse_args()
    with featurestore.connect(Path(given.out).resolve() / "store") as store:
        features.write_groups(store, until=given.until)
        frame = store.get_features(features.FEATURES, labels="questions")
        dataset = datasets.make(store, frame, "tfrecord", until=given.until)
    if given.framework == "torch":
        found = by_torch(dataset, epochs=given.epochs)
    else:
        found = by_keras(dataset, given.framework, epochs=given.epochs)
    print(
        f"{given.framework}: test AUC {found['auc']:.3f} on {found['rows']:,} flights, "
        f"{found['base_rate']:.1%} late"
    )


if __name__ == "__main__":
    main()
