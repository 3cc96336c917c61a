"""Runs of training functions are recorded, restarted after kills and stopped with their processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from featurestore import experiments
from featurestore.cli.main import main
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidMetric,
    InvalidTrainFunction,
    LauncherNotFound,
    RunDamaged,
    RunFailed,
    RunNotFound,
    TrainingDatasetNotFound,
)
from featurestore.experiments.status import show_logs
from featurestore.model.json_object import seal
from featurestore.recovery.rebuild import rebuild
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset
from tests.experiments import training_functions

pytestmark = pytest.mark.services


def test_launch_records_request_reads_and_result(
    empty_store: FeatureStore, sums: TrainingDataset, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = experiments.launch(
        training_functions.regression, dataset=sums, params={"lr": 0.2}, name="line", seed=7
    )
    assert (run.state, run.name, run.params, run.reason) == ("finished", "line", {"lr": 0.2}, None)
    losses = run.history("loss")
    assert list(losses) == list(range(2 * (1600 // 40)))
    assert run.metrics == {"loss": losses[79], "final": losses[79]}
    record = run.record
    assert record.dataset is not None
    assert record.dataset.manifest == sums.manifest.content_hash
    assert [(r["split"], r["seed"], r["epoch"]) for r in record.readers] == [("train", 7, 2)]
    assert "def regression" in record.code["source"]
    assert record.code["git"] is None or set(record.code["git"]) == {"commit", "dirty"}
    assert record.environment["packages"]["numpy"]
    assert record.environment["user"]
    assert (record.seed, record.readers[0]["global_batch_size"]) == (7, 40)
    assert record.dataset.version == 1
    (attempt,) = record.attempts
    assert (attempt["state"], attempt["exits"]) == ("finished", ["exit code 0"])
    assert run.seconds is not None
    assert run.dataset is not None
    assert run.dataset.name == "sums"
    assert [name.split("/")[0] for name in run.artifacts] == ["checkpoints"] * 2 + ["tensorboard"]
    assert "attempt 1 begins at 0 0" in run.logs()

    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = list(EventFileLoader(str(Path(run.path, run.artifacts[-1]))).Load())
    actual = {e.step: v for e in events for v in e.summary.value if v.tag == "loss"}
    assert {step: value.tensor.float_val[0] for step, value in actual.items()} == pytest.approx(
        losses
    )

    again = experiments.launch(
        training_functions.regression, dataset=sums, params={"lr": 0.2}, seed=7
    )
    assert again.history("loss") == losses
    compared = experiments.compare(run, again)
    assert (compared.params, compared.code, compared.metrics["loss"]) == (
        {},
        {},
        (losses[79], losses[79]),
    )
    assert [run.id for run in experiments.get_runs()] == [again.id, run.id]
    assert [run.id for run in experiments.get_runs(dataset="sums", limit=1)] == [again.id]
    assert experiments.get_runs(dataset="other") == []

    empty_store.close()
    os.unlink(Path(empty_store.location, "registry.db"))
    assert sorted(rebuild(empty_store.location).experiment_runs) == sorted([run.id, again.id])
    monkeypatch.setenv("FEATURESTORE_LOCATION", empty_store.location)
    shown = json.loads(command(monkeypatch, capsys, "run", "show", run.id))
    assert (shown["id"], shown["state"], shown["metrics"]) == (run.id, "finished", run.metrics)
    listed = json.loads(command(monkeypatch, capsys, "run", "list"))
    assert [row["id"] for row in listed] == [again.id, run.id]
    assert json.loads(command(monkeypatch, capsys, "run", "compare", run.id, again.id))["a"]
    assert "begins at" in command(monkeypatch, capsys, "run", "logs", run.id)
    output = json.loads(command(monkeypatch, capsys, "run", "tensorboard", "line"))
    assert output == {"log_dir": str(Path(empty_store.location, "experiments", "line"))}


def command(monkeypatch: pytest.MonkeyPatch, capsys: Any, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["featurestore", "--output", "json", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    text: str = capsys.readouterr().out
    return text


def test_restarted_workers_reach_equal_losses(
    sums: TrainingDataset,
) -> None:
    reference = experiments.collective_all_reduce(
        training_functions.regression, workers=2, dataset=sums
    )
    deaths = {"0": [37, -1], "1": [-1, 44]}
    run = experiments.collective_all_reduce(
        training_functions.regression, workers=2, dataset=sums, params={"deaths": deaths}, retries=2
    )
    assert run.history("loss") == reference.history("loss")
    assert run.metrics == reference.metrics
    reasons = [attempt["reason"] for attempt in run.record.attempts]
    assert reasons == [
        "worker 0 was lost: killed by SIGKILL",
        "worker 1 was lost: killed by SIGKILL",
        None,
    ]
    start_lines = [line for line in run.logs(0).split("\n") if line.startswith("attempt")]
    assert start_lines[0] == "attempt 1 begins at 0 0"
    assert start_lines[1] == "attempt 2 begins at 0 30"


def test_workers_restart_from_the_same_checkpoint(sums: TrainingDataset) -> None:
    run = experiments.collective_all_reduce(
        training_functions.one_worker_begins_late, workers=2, dataset=sums, retries=1
    )
    for worker in range(2):
        start_lines = [line for line in run.logs(worker).split("\n") if line.startswith("attempt")]
        assert start_lines == ["attempt 1 begins at 0 0", "attempt 2 begins at 0 10"]


def test_imported_kernel_is_not_a_notebook(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel.kernelapp")
    log = tmp_path / "worker.log"
    log.write_text("a line\n")
    with show_logs(lambda: {"worker 0": str(log)}, None) as show:
        show()


@pytest.mark.soak
def test_thirty_random_kills_lose_nothing(sums: TrainingDataset) -> None:
    params = {"epochs": 40, "pause": 0.005}
    reference = experiments.launch(
        training_functions.regression, dataset=sums, params={"epochs": 40}
    )
    kills: list[int] = []
    stop = threading.Event()

    def kill_now_and_then(directory: Path) -> None:
        while len(kills) < 30 and not stop.wait(2.0 + 0.37 * (len(kills) % 7)):
            for path in directory.glob("*/workers/worker-0000*.json"):
                status = json.loads(path.read_text())
                worker = len(kills) % 2
                is_next = status["attempt"] == len(kills) + 1  # one kill for each start
                if is_next and status["state"] == "running" and path.stem.endswith(str(worker)):
                    try:
                        os.kill(status["pid"], signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    kills.append(status["pid"])

    assert sums.session is not None
    folder = Path(sums.session.location, "experiments", "killed")
    killer = threading.Thread(target=kill_now_and_then, args=(folder,))
    killer.start()
    try:
        run = experiments.collective_all_reduce(
            training_functions.regression,
            workers=2,
            dataset=sums,
            params=params,
            name="killed",
            retries=40,
        )
    finally:
        stop.set()
        killer.join()
    alone = experiments.collective_all_reduce(
        training_functions.regression, workers=2, dataset=sums, params={"epochs": 40}
    )
    assert len(reference.history("loss")) == len(alone.history("loss"))
    assert run.history("loss") == alone.history("loss")
    assert len(run.record.attempts) == len(kills) + 1


DRIVER = """
import sys
import signal
import featurestore
from featurestore import experiments
from tests.experiments import training_functions
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell's background job
featurestore.connect(sys.argv[1])
experiments.collective_all_reduce(training_functions.with_grandchildren, workers=2, name="endless")
"""


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGKILL])
def test_driver_exit_ends_workers_and_subprocesses(
    empty_store: FeatureStore, stop_signal: signal.Signals
) -> None:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *sys.path])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, empty_store.location],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )
    try:
        pids = wait_for_pids(Path(empty_store.location), 2)
        assert all(map(is_alive, pids))
        driver.send_signal(stop_signal)
        assert driver.wait(60) != 0
        end = time.monotonic() + 20
        while any(map(is_alive, pids)) and time.monotonic() < end:
            time.sleep(0.05)
        assert [pid for pid in pids if is_alive(pid)] == []
    finally:
        driver.kill()
        driver.wait()
    (run,) = experiments.get_runs("endless", store=empty_store)
    assert run.state == "interrupted"


def wait_for_pids(location: Path, workers: int) -> list[int]:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        texts = [p.read_text() for p in location.glob("experiments/endless/*/pids-*")]
        if len(texts) == workers and all(text.endswith("\n") for text in texts):
            return [int(pid) for text in texts for pid in text.split()]
        time.sleep(0.05)
    raise TimeoutError("the workers never started")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_failed_run_has_reason_and_resumes(
    sums: TrainingDataset,
) -> None:
    with pytest.raises(RunFailed, match="worker 0 was lost: killed by SIGKILL") as failed:
        experiments.launch(
            training_functions.regression,
            dataset=sums,
            params={"deaths": {"0": [25]}},
            name="resumed",
        )
    assert "resume()" in str(failed.value)
    (run,) = experiments.get_runs("resumed")
    assert run.state == "failed"
    resumed = run.resume()
    assert (resumed.id, resumed.state) == (run.id, "finished")
    assert "attempt 2 begins at 0 20" in resumed.logs()
    assert list(resumed.history("loss")) == list(range(80))


def diverging(context: Any) -> None:
    context.report(3, loss=float("nan"))


def raising(context: Any) -> None:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("function", "reason"), [(diverging, "loss.* is nan at step 3"), (raising, "no such thing")]
)
def test_function_error_fails_the_run(
    empty_store: FeatureStore, function: Any, reason: str
) -> None:
    with pytest.raises(RunFailed, match=reason):
        experiments.launch(function, retries=3, store=empty_store)
    (run,) = experiments.get_runs()
    assert len(run.record.attempts) == 1  # what raises raises again


def test_invalid_launch_is_refused_without_side_effects(
    empty_store: FeatureStore, sums: TrainingDataset
) -> None:
    lock = threading.Lock()

    def holds_a_lock(context: Any) -> None:
        lock.acquire()

    def takes(lr: float, units: int) -> None: ...

    train = training_functions.regression
    cases: list[tuple[type[FeatureStoreError], str, Any, dict[str, Any]]] = [
        (InvalidTrainFunction, "cannot be sent to another process", holds_a_lock, {}),
        (InvalidTrainFunction, "requires 'units'", takes, {"params": {"lr": 1}}),
        (
            InvalidTrainFunction,
            "has no argument 'l2'",
            takes,
            {"params": {"lr": 1, "units": 2, "l2": 0}},
        ),
        (InvalidTrainFunction, "is not a function", "train", {}),
        (
            InvalidArgument,
            "other than finite numbers, strings",
            train,
            {"params": {"model": object()}},
        ),
        (
            InvalidArgument,
            "other than finite numbers, strings",
            train,
            {"params": {"lr": float("nan")}},
        ),
        (LauncherNotFound, "Available: 'local', 'ray', 'spark'", train, {"on": "moon"}),
        (InvalidArgument, "is not a training dataset", train, {"dataset": "sums"}),
        (InvalidArgument, "retries=-1", train, {"retries": -1}),
        (InvalidArgument, "seed=1.5", train, {"seed": 1.5}),
    ]
    for error, text, function, arguments in cases:
        with pytest.raises(error, match=text):
            experiments.launch(function, **{"store": empty_store, **arguments})
    empty_store.delete_training_dataset("sums", version=1)
    with pytest.raises(TrainingDatasetNotFound):
        experiments.launch(train, dataset=sums)
    assert not Path(empty_store.location, "experiments").exists()
    assert experiments.get_runs() == []


def test_damaged_record_does_not_hide_other_runs(empty_store: FeatureStore) -> None:
    run = experiments.launch(lambda: {"loss": 1}, name="constant", store=empty_store)
    intact_run = experiments.launch(lambda: 2.5, name="constant", store=empty_store)
    assert intact_run.metrics == {"result": 2.5}
    path = Path(run.path, "run.json")
    record = json.loads(path.read_text())
    damages: list[Any] = [[], {}, {**record, "state": "gone"}, {**record, "metrics": {"loss": "1"}}]
    damages += [{**record, "id": "../../elsewhere"}, {**record, "created": "yesterday"}]
    damages += [{**record, "dataset": {"name": "../x"}}, {**record, "format": 3}]
    texts = [json.dumps(damage) for damage in damages] + ["", "{", "[" * 100_000]
    for text in texts:
        path.write_text(text)
        with pytest.raises(RunDamaged, match=r"run\.json"):
            experiments.get_run(run.id)
        with pytest.warns(UserWarning, match=f"run {run.id} is skipped"):
            assert [run.id for run in experiments.get_runs()] == [intact_run.id]
    actual = rebuild(empty_store.location)
    assert actual.experiment_runs == [intact_run.id]
    assert [path for path, _ in actual.unreadable] == [run.path]
    with pytest.raises(RunNotFound, match=intact_run.id):
        experiments.get_run("20990101-000000-abcdef")


def test_resume_refuses_function_missing_in_module(empty_store: FeatureStore) -> None:
    def local(context: Any) -> None:
        if context.attempt == 1:
            raise InvalidMetric("no")

    with pytest.raises(RunFailed):
        experiments.launch(local, name="inner", store=empty_store)
    (run,) = experiments.get_runs("inner")
    path = Path(run.path, "run.json")
    record = json.loads(path.read_text())
    record["code"]["function"] = "antigravity:nothing"
    del record["checksum"]
    path.write_bytes(seal(record))
    with pytest.raises(InvalidTrainFunction, match="has not loaded"):
        experiments.get_run(run.id).resume()
    assert "antigravity" not in sys.modules
    assert run.resume(local).state == "finished"
