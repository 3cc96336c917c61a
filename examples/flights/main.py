"""Runs the complete example; --search, --ablate and --score continue after the main steps.

Raw tables, feature groups, point-in-time features, training datasets, two workers, verification.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from late_flights import datasets, features, pictures, serving, training, trials
from rich.console import Console

import featurestore

console = Console(highlight=False)
# Before this time, a window of a week is not complete.
AFTER_A_WEEK = "asked_at >= timestamptz '2013-01-07 12:00:00+00:00'"


@contextmanager
def step(title: str) -> Iterator[Callable[[str], None]]:
    """Print the title of a step, its messages, and its duration."""
    console.print(f"[bold]{title}[/bold]")
    started = time.perf_counter()
    yield lambda text: console.print(f"  {text}", soft_wrap=True)
    console.print(f"  [dim]{time.perf_counter() - started:.1f} s[/dim]")


def main() -> int:
    """Run the example and return the exit status."""
    arguments = _arguments()
    place = Path(arguments.out).resolve()
    place.mkdir(parents=True, exist_ok=True)
    store = featurestore.connect(place / "store", engine=arguments.engine)

    with step(f"1. Feature groups ({arguments.engine})") as say:
        for group in features.write_groups(store, until=arguments.until):
            say(f"{group.name} version {group.version}: {group.rows:,} rows")

    with step("2. Point-in-time features for each flight") as say:
        frame = store.get_features(features.FEATURES, labels="questions")
        say(f"{len(frame.columns)} columns for {frame.count():,} labels")
        shown = ("carrier", "flight", "asked_at", "late", "temp", "mean_delay", "delay_mean_1d")
        frame.filter(AFTER_A_WEEK).select(*shown).show(5)

    with step("3. Training datasets") as say:
        made = {}
        for data_format in ("tfrecord", "parquet"):
            made[data_format] = datasets.make(store, frame, data_format, until=arguments.until)
            dataset = made[data_format]
            rows = ", ".join(f"{split} {dataset.num_rows(split):,}" for split in dataset.splits)
            say(f"{dataset.name} version {dataset.version}: {rows}")
    dataset = made["tfrecord"]

    run = place / f"run-{dataset.version}"
    run.mkdir(exist_ok=True)
    with step("4. Two workers train under MultiWorkerMirroredStrategy") as say:
        status = _train(dataset.path, out=str(run), epochs=arguments.epochs)
        if status != 0:
            return status
        history = json.loads((run / "history.json").read_text())
        say(
            f"loss {history['loss'][0]:.4f} -> {history['loss'][-1]:.4f}, validation {history['val_loss'][-1]:.4f}"
        )

    with step("5. Evaluation on the test split") as say:
        result = training.evaluate(dataset.path, out=str(run))
        say(
            f"test AUC {result['auc']:.3f} on {result['rows']:,.0f} flights, {result['base_rate']:.1%} late"
        )

    with step("6. Pictures") as say:
        heatmap, curve = run / "correlations.png", run / "loss.png"
        figure = store.visualize_training_dataset_correlations(
            dataset.name, split="train", plot=False
        )
        figure.savefig(heatmap, dpi=120)
        pictures.loss_curve(history, str(curve), base=result["base_rate"])
        say(str(heatmap))
        say(str(curve))

    with step("7. Verification") as say:
        reports = [each.verify() for each in made.values()]
        for report in reports:
            say(str(report))
    with step("8. A served prediction") as say:
        served, scored = serving.predict(store)
        say(f"served {served:.6f}, scored offline {scored:.6f}: equal {served == scored}")

    if arguments.search:
        with step(f"9. {arguments.search} trials, two at a time") as say:
            study = trials.search(dataset, trials=arguments.search)
            states = [each.state for each in study.runs]
            stopped = states.count("stopped")
            say(
                f"{len(states)} trials, {stopped} stopped early; best parameters: {study.best.params}"
            )
            say(f"validation AUC {study.best.metrics['val_auc']:.3f}")

    if arguments.ablate:
        with step("10. Contribution of each feature group") as say:
            ablation = trials.ablate(dataset)
            say(str(ablation))
            ablation.plot().savefig(run / "ablation.png", dpi=120)

    if arguments.score:
        with step("11. Predictions as a feature group") as say:
            asked = store.get_featuregroup("questions").sample(fraction=0.1, seed=1)
            model, auc = trials.score(store, dataset, asked)
            rows = store.get_featuregroup("late_predictions").count()
            say(f"{rows:,} rows of model {model.name} version {model.version}, AUC {auc:.3f}")

    console.print(f"\nverify: {'ok' if all(report.ok for report in reports) else 'FAILED'}")
    console.print(f"test AUC: {result['auc']:.3f}")
    console.print(f"store: {store.location}\ndataset: {dataset.path}\nrun: {run}", soft_wrap=True)
    serve = f"{Path(sys.executable).parent}/featurestore --location {store.location} serve"
    console.print(f"open the store in a browser: {serve}", soft_wrap=True)
    return 0 if all(report.ok for report in reports) and served == scored else 1


def _train(dataset: str, *, out: str, epochs: int) -> int:
    processes = training.start_workers(dataset, out=out, epochs=epochs)
    try:
        with console.status("training"):
            codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        console.print(f"[red]a worker failed (exit {codes}); see {out}/worker-*.log[/red]")
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="duckdb", help="duckdb or spark")
    parser.add_argument(
        "--out", default=str(Path(__file__).parent / "build"), help="the folder of all output"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--until", default=None, help="only flights before this day (ISO), for a quick try"
    )
    parser.add_argument("--search", type=int, default=0, metavar="N", help="search with N trials")
    parser.add_argument("--ablate", action="store_true", help="leave out each feature group")
    parser.add_argument("--score", action="store_true", help="register a model and score with it")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.exit(main())
