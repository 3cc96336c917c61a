"""Hyperparameter searches: Optuna samplers, asynchronous workers and resume after a crash."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from featurestore import experiments
from featurestore.errors import InvalidArgument, InvalidMetric, RunFailed, RunNotFound
from featurestore.experiments.spaces import check_space, evolve
from featurestore.experiments.study import Study
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset
from tests.experiments import training_functions

pytestmark = pytest.mark.services

pytest.importorskip("optuna")

SPACE = {"x": experiments.uniform(-1, 1), "units": [8, 16]}


def bowl(x: float, units: int, context: Any) -> None:
    for step in range(1, 10):
        context.report(step, y=-((x - 0.3) ** 2) - units / 100 - 1 / step)


def outcome(study: Study) -> list[Any]:
    return [(run.params, run.metrics, run.state) for run in study.runs]


@pytest.mark.parametrize(
    ("sampler", "stop"),
    [
        ("tpe", "asha"),
        pytest.param("random", "median", marks=pytest.mark.soak),
        pytest.param("evolution", None, marks=pytest.mark.soak),
    ],
)
def test_equal_seeds_give_equal_trials_after_resume(
    empty_store: FeatureStore, sampler: str, stop: str | None
) -> None:
    options = {
        "space": SPACE,
        "metric": "y",
        "sampler": sampler,
        "stop": stop,
        "store": empty_store,
    }
    reference = experiments.search(bowl, trials=16, **options)
    study = experiments.search(bowl, trials=9, **options)
    resumed_study = experiments.get_study(study.id).resume(bowl, trials=16)
    assert outcome(resumed_study) == outcome(reference)
    states = Counter(run.state for run in reference.runs)
    assert sum(states.values()) == 16
    assert (states["stopped"] > 0) == (stop is not None)
    finished = [run for run in reference.runs if run.state == "finished"]
    assert reference.best.metrics["y"] == max(run.metrics["y"] for run in finished)
    assert reference.run.metrics == {"y": reference.best.metrics["y"]}
    assert len(reference.to_pandas()) == 16


def test_search_tries_grid_and_accepts_optuna_sampler(empty_store: FeatureStore) -> None:
    import optuna

    grid = experiments.search(
        bowl,
        space={"x": [0.1, 0.3], "units": experiments.integers(1, 3)},
        metric="y",
        sampler="grid",
        store=empty_store,
        parallel=2,
    )
    assert sorted((run.params["x"], run.params["units"]) for run in grid.runs) == [
        (x, units) for x in (0.1, 0.3) for units in (1, 2, 3)
    ]
    assert grid.best.params == {"x": 0.3, "units": 1}
    study = experiments.search(
        bowl,
        space=SPACE,
        metric="y",
        trials=3,
        store=empty_store,
        sampler=optuna.samplers.NSGAIISampler(seed=1),
        stop=optuna.pruners.ThresholdPruner(lower=-100),
    )
    assert [run.state for run in study.runs] == ["finished"] * 3
    with pytest.raises(InvalidArgument, match="NSGAIISampler"):
        study.resume(bowl)


@pytest.mark.filterwarnings("ignore")  # of TensorBoard's own libraries
def test_tensorboard_compares_trials_of_search(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = experiments.search(bowl, space=SPACE, metric="y", sampler="random", trials=3)
    # TensorBoard reads files by TensorFlow where there is one; its own reader is as good.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, get_experiment, list_session_groups
    from tensorboard.plugins.hparams.backend_context import Context

    folder = os.path.dirname(study.run.path)
    events = EventMultiplexer()
    events.AddRunsFromDirectory(folder)
    events.Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(events, folder)))
    requested = api_pb2.GetExperimentRequest()
    actual = get_experiment.Handler(RequestContext(), context, "", requested).run()
    assert {info.name for info in actual.hparam_infos} == {"x", "units"}
    request = api_pb2.ListSessionGroupsRequest(slice_size=100, allowed_statuses=[0, 1, 2, 3])
    for info in actual.metric_infos:
        request.col_params.add().metric.CopyFrom(info.name)
    shown = {}
    handler = list_session_groups.Handler(RequestContext(), context, "", request)
    for group in handler.run().session_groups:
        params = {name: value.number_value for name, value in group.hparams.items()}
        (value,) = [metric.value for metric in group.metric_values if metric.name.tag == "y"]
        shown[group.name] = (params, pytest.approx(value))
    assert shown == {run.id: (run.params, run.metrics["y"]) for run in study.runs}


def test_evolution_beats_random_sampling() -> None:
    space = check_space({"a": experiments.uniform(0, 1), "b": [1, 2, 3, 4]})
    nearest = []
    for seed in range(10):
        finished: list[Any] = []
        for number in range(60):
            point = evolve(space, finished, seed=f"{seed}/{number}")
            finished.append((point, (point["a"] - 0.7) ** 2 + abs(point["b"] - 3)))
        nearest.append(min(value for _, value in finished))
    # Of sixty random points, fifteen have b=3; the nearest is about 1/32 away, 0.001 squared.
    assert sorted(nearest)[5] < 1e-4


def dying(x: int, context: Any) -> dict[str, float]:
    reader = context.reader("train", global_batch_size=40)
    checkpoint = context.checkpoint()
    print("from", reader.epoch * reader.steps_per_epoch + reader.step)
    for step, _ in reader.steps(epochs=1):
        checkpoint.save()
        context.report(step, y=x)
        if step == 11 and context.attempt == 1 and x % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if x == 4:
            raise ValueError("four is no number")
    return {"y": x}


def test_dead_worker_is_replaced_and_trial_continues(sums: TrainingDataset) -> None:
    shown: list[str] = []
    study = experiments.search(
        dying,
        space={"x": [1, 2, 3, 4]},
        metric="y",
        sampler="grid",
        parallel=2,
        dataset=sums,
        progress=shown.extend,
    )
    runs = {run.params["x"]: run for run in study.runs}
    assert {x: run.state for x, run in runs.items()} == {
        1: "finished",
        2: "finished",
        3: "finished",
        4: "failed",
    }
    assert runs[4].reason == "ValueError: four is no number"
    for x in (1, 3):
        assert runs[x].record.attempts[0]["reason"] == "its worker was lost: killed by SIGKILL"
        assert len(runs[x].history("y")) == 40
        assert "from 12" in runs[x].logs()
    assert study.best.params == {"x": 3}
    assert set(shown) & {f"trial {number} x={number + 1}: from 0" for number in range(4)}


DRIVER = """
import sys, time
import featurestore
from featurestore import experiments

def slow(x, context):
    reader = context.reader("train", global_batch_size=40)
    checkpoint = context.checkpoint()
    for step, _ in reader.steps(epochs=1):
        context.report(step, y=x)
        checkpoint.save()
        time.sleep(0.02)

store = featurestore.connect(sys.argv[1])
dataset = store.get_training_dataset("sums")
if len(sys.argv) > 2:
    (study,) = [r for r in experiments.get_runs("crashed") if r.kind == "search"]
    experiments.get_study(study.id).resume()
else:
    experiments.search(slow, space={"x": experiments.uniform(0, 1)}, metric="y", trials=5,
                       sampler="random", dataset=dataset, name="crashed")
"""


def test_search_resumes_after_driver_kill(empty_store: FeatureStore, sums: Any) -> None:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    program = Path(empty_store.location).parent / "driver.py"
    program.write_text(DRIVER)
    command = [sys.executable, str(program), empty_store.location]
    driver = subprocess.Popen(command, env=environment)
    folder = Path(empty_store.location, "experiments", "crashed")
    try:
        end = time.monotonic() + 120
        while len(list(folder.glob("*/metrics.jsonl"))) < 2:
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        driver.kill()
        driver.wait()
    before = [run for run in experiments.get_runs("crashed", trials=True) if run.kind == "trial"]
    assert Counter(run.state for run in before)["finished"] >= 1
    assert subprocess.run([*command, "again"], env=environment, timeout=200).returncode == 0
    (study,) = [run for run in experiments.get_runs("crashed") if run.kind == "search"]
    trials = experiments.get_study(study.id).runs
    assert [run.record.number for run in trials] == list(range(5))
    assert {run.state for run in trials} == {"finished"}
    assert {len(run.history("y")) for run in trials} == {40}
    assert {run.id for run in before} <= {run.id for run in trials}


def test_invalid_search_is_refused_without_side_effects(empty_store: FeatureStore) -> None:
    good: dict[str, Any] = {"space": SPACE, "metric": "y", "trials": 3, "store": empty_store}
    for wrong, text in [
        ({"sampler": "bayes"}, "'tpe', 'random', 'grid', 'evolution'"),
        ({"stop": "hyper"}, "'asha', 'median'"),
        ({"direction": "up"}, "neither 'max' nor 'min'"),
        ({"space": {}}, "has no parameters"),
        ({"space": {"x": 3}}, "is not a set of values"),
        ({"space": {"x": [object()]}, "sampler": "grid"}, "other than finite numbers, strings"),
        ({"sampler": "grid"}, "finite set of values"),
        ({"trials": None}, "only a grid has"),
        ({"trials": 0}, "trials=0"),
        ({"parallel": 0}, "parallel=0"),
        ({"metric": "val auc"}, "is not a valid name"),
        ({"params": {"x": 1}}, "space and params both contain"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            experiments.search(bowl, **{**good, **wrong})
    assert not Path(empty_store.location, "experiments").exists()


def nan(x: float, context: Any) -> None:
    context.report(1, y=float("nan"))


def test_unknown_metric_ends_search_nan_fails_trial(empty_store: FeatureStore) -> None:
    with pytest.raises(InvalidMetric, match="without metric 'val_auc'; it reported 'y'"):
        experiments.search(bowl, space=SPACE, metric="val_auc", trials=30, store=empty_store)
    assert len(experiments.get_runs(trials=True)) == 2
    with pytest.raises(RunFailed, match=r"No trial of .* finished.*'y' is nan"):
        experiments.search(nan, space={"x": [1, 2]}, metric="y", sampler="grid", store=empty_store)
    trial = next(run for run in experiments.get_runs(trials=True) if run.kind == "trial")
    with pytest.raises(RunNotFound, match="not a search"):
        experiments.get_study(trial.id)
    search_run = next(run for run in experiments.get_runs() if run.kind == "search")
    hint = rf"experiments\.get_study\('{search_run.id}'\)\.resume\(\)"
    with pytest.raises(InvalidArgument, match=hint):
        search_run.resume(nan)


_arrays: list[weakref.ref[np.ndarray[Any, Any]]] = []


def fails_at_first(trial: int) -> dict[str, float]:
    if trial:
        return {"y": float(_arrays[0]() is not None)}
    gc.disable()  # frees only what nothing refers to
    array = np.zeros(1000)
    _arrays.append(weakref.ref(array))
    raise ValueError("the array is not needed any more")


def test_failed_trial_does_not_keep_its_data(empty_store: FeatureStore) -> None:
    study = experiments.search(
        fails_at_first,
        space={"trial": [0, 1]},
        metric="y",
        sampler="grid",
        parallel=1,
        store=empty_store,
    )
    assert study.best.params == {"trial": 1}
    assert study.best.metrics == {"y": 0.0}


def test_search_trials_read_the_dataset(sums: TrainingDataset) -> None:
    study = experiments.search(
        training_functions.regression,
        space={"lr": [0.01, 0.2]},
        metric="final",
        direction="min",
        sampler="grid",
        dataset=sums,
        params={"epochs": 1},
    )
    assert study.best.params == {"lr": 0.2, "epochs": 1}
    assert study.best.dataset is not None
