"""Searches: what a second worker gains, what a trial costs, and what early stopping spares.

python benchmarks/experiments.py [--quick] [--part workers|asha]

40 trials that sleep for a second are run by one worker and by two, from the call to its return
with all processes started and ended. Both searches have the same seed and the same sampler; the
trials of one and the other are compared.

The network of the flights example is searched without early stopping and with ASHA, over the same
random parameters. What counts is the steps that were trained, whatever else the machine does;
the noise of a result is its standard deviation over three more seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from report import COMPARISONS, Report

import featurestore
from featurestore import experiments
from featurestore.experiments.study import Study

FLIGHTS = Path(__file__).parents[1] / "examples" / "flights"
REPORT = Report(
    "experiments",
    "Trials that sleep for a second; the network of the flights example.",
)


def sleeping(x: float, seconds: float) -> dict[str, float]:
    import time

    time.sleep(seconds)
    return {"y": -((x - 0.3) ** 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter trials, fewer flights")
    parser.add_argument("--part", choices=("workers", "asha"), help="one of the two only")
    arguments = parser.parse_args()
    comparisons = {"workers": compare_workers, "asha": compare_stopping}
    comparisons_to_run = (
        [comparisons[arguments.part]] if arguments.part else list(comparisons.values())
    )
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for compare in comparisons_to_run:
            outcomes.append(compare(Path(folder), quick=arguments.quick))
    REPORT.save(quick=arguments.quick)
    return 0 if all(outcomes) else 1


def search_sleeping(*, seconds: float, trials: int, parallel: int) -> Study:
    return experiments.search(
        sleeping,
        space={"x": experiments.uniform(0, 1)},
        params={"seconds": seconds},
        metric="y",
        sampler="random",
        trials=trials,
        parallel=parallel,
        progress=False,
    )


def seconds_of_trials(study: Study) -> float:
    """Return how long after the first trial's begin the last one ended."""
    starts, ends = [], []
    for run in study.runs:
        for attempt in run.record.attempts:
            starts.append(datetime.fromisoformat(attempt["began"]))
            ends.append(datetime.fromisoformat(attempt["ended"]))
    return (max(ends) - min(starts)).total_seconds()


def compare_workers(folder: Path, *, quick: bool) -> bool:
    """Print the share of one worker's time that two take."""
    seconds = 0.5 if quick else 1.0
    took, trained, parameters = {}, {}, {}
    featurestore.connect(folder / "sleeping")
    search_sleeping(seconds=0.0, trials=1, parallel=1)  # what is imported once counts for neither
    for parallel in (1, 2):
        start = time.perf_counter()
        study = search_sleeping(seconds=seconds, trials=40, parallel=parallel)
        took[parallel] = time.perf_counter() - start
        trained[parallel] = seconds_of_trials(study)
        parameters[parallel] = sorted(run.params["x"] for run in study.runs)
        print(
            f"{parallel} worker(s): 40 trials in {took[parallel]:.1f} s, "
            f"{trained[parallel]:.1f} s from the first one's begin to the last one's end",
            flush=True,
        )
    if parameters[1] != parameters[2]:
        raise SystemExit("one worker and two tried different parameters")
    share = took[2] / took[1]
    cost = (took[1] - 40 * seconds) / 40 * 1000
    print(f"two workers take {share:.3f} of the time of one (limit 0.55)")
    print(f"without the start and the end of workers {trained[2] / trained[1]:.3f}")
    print(f"a trial costs {cost:.0f} ms on top of its training, starts included")
    REPORT.compare("40 trials, two workers vs one", took[2], took[1], "s", at_most=0.55)
    REPORT.add(COMPARISONS, "trial without its training", "ours", cost, "ms")
    return share <= 0.55


def compare_stopping(folder: Path, *, quick: bool) -> bool:
    """Print the share of the steps that ASHA spends, and what its best trial gives."""
    sys.path.insert(0, str(FLIGHTS))
    from late_flights import datasets, features, trials
    from late_flights.training import QUIET

    until = "2013-01-20" if quick else "2013-03-01"
    store = featurestore.connect(folder / "flights")
    features.write_groups(store, until=until)
    frame = store.get_features(features.FEATURES, labels="questions")
    dataset = datasets.make(store, frame, "tfrecord", until=until)
    fixed = {"epochs": 3, "parts": 3}
    space = {"lr": experiments.loguniform(1e-5, 1e-1), "units": [16, 32, 64, 128]}
    steps, best = {}, {}
    for stop in (None, "asha"):
        study = experiments.search(
            trials.train,
            space=space,
            params=fixed,
            trials=12 if quick else 27,
            parallel=2,
            sampler="random",
            stop=stop,
            metric="val_auc",
            dataset=dataset,
            environment=QUIET,
            progress=False,
        )
        steps[stop] = sum(max(run.history("val_auc")) for run in study.runs)
        best[stop] = study.best
        stopped_runs = [run for run in study.runs if run.state == "stopped"]
        print(
            f"stop={stop!r}: {len(study.runs)} trials, {len(stopped_runs)} given up, "
            f"{steps[stop]:,} steps, AUC {best[stop].metrics['val_auc']:.4f}",
            flush=True,
        )
    again = []
    for seed in (1, 2, 3):
        params = {**fixed, **best[None].params}
        run = experiments.launch(
            trials.train,
            dataset=dataset,
            params=params,
            seed=seed,
            environment=QUIET,
            progress=False,
        )
        again.append(run.metrics["val_auc"])
    noise = statistics.stdev(again)
    share = steps["asha"] / steps[None]
    lost = best[None].metrics["val_auc"] - best["asha"].metrics["val_auc"]
    print(f"ASHA spends {share:.2f} of the steps (limit 0.5)")
    print(f"its best AUC is {lost:.4f} below the other (limit: twice the noise, {2 * noise:.4f})")
    row = "steps of ASHA, vs no early stopping"
    REPORT.compare(row, steps["asha"], steps[None], at_most=0.5)
    row = "AUC that ASHA loses, vs no early stopping"
    REPORT.add(COMPARISONS, row, "ours", lost, at_most=2 * noise)
    return share <= 0.5 and lost <= 2 * noise


if __name__ == "__main__":
    sys.exit(main())
