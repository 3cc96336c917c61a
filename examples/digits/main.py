"""Runs the exercise: labeled images, TFRecord, a network on several workers, a search, predictions.

python examples/digits/main.py [--workers 2] [--trials 6] [--epochs 4]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from handwriting import images, training
from rich.console import Console

import featurestore
from featurestore import experiments

# Models of tf_keras: fit of Keras 3 does not run on several workers.
ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
console = Console(highlight=False)


def main() -> int:
    """Run the exercise and return the exit status."""
    given = _arguments()
    os.environ.update(ENVIRONMENT)
    store = featurestore.connect(Path(given.out).resolve() / "store")

    dataset = images.make(store)
    rows = ", ".join(f"{split} {dataset.num_rows(split):,}" for split in dataset.splits)
    console.print(f"[bold]1. Images in TFRecord[/bold]: version {dataset.version}, {rows}")

    run = experiments.collective_all_reduce(
        training.train,
        workers=given.workers,
        dataset=dataset,
        params={"lr": 0.003, "dropout": 0.3, "epochs": given.epochs},
        name="digits",
        retries=2,
        environment=ENVIRONMENT,
    )
    console.print(f"[bold]2. {given.workers} workers[/bold]: {_metrics(run.metrics)}")
    console.print(f"  TensorBoard: {run.log_dir}\n  artifacts: {run.artifacts}", soft_wrap=True)

    study = experiments.search(
        training.train,
        space={
            "lr": experiments.loguniform(1e-4, 1e-1),
            "dropout": experiments.uniform(0, 0.6),
        },
        params={"epochs": given.epochs},
        trials=given.trials,
        parallel=given.workers,
        sampler="tpe",
        stop="asha",
        metric="val_accuracy",
        direction="max",
        dataset=dataset,
        name="digits_search",
        environment=ENVIRONMENT,
    )
    best = study.best
    shown = ", ".join(f"{name} {value:.4f}" for name, value in best.params.items())
    console.print(f"[bold]3. Search[/bold]: the best of {len(study.runs)} has {shown}")
    console.print(f"  {_metrics(best.metrics)}")

    model = experiments.register_model(best, "digits", stage="staging")
    asked = images.labeled().slice(0, 300)
    found = store.score(model, labels=asked.drop(["digit"])).to_pandas()
    named = np.stack(found["prediction"]).argmax(axis=1)
    right = named == asked["digit"].to_numpy()[found["scan"]]
    console.print(f"[bold]4. Predictions[/bold]: {right.mean():.1%} of {len(right)} scans named")
    console.print(f"test accuracy: {best.metrics['test_accuracy']:.3f}")
    return 0


def _metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in sorted(metrics.items()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--out", default=str(Path(__file__).parent / "build"), help="where everything is written"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
