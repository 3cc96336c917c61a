"""Workers of Ray Train and of the launcher "ray" read their lanes, and resume after kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore import experiments
from featurestore.errors import EngineError, InvalidArgument, NotEnoughSlots
from featurestore.readers import open_reader
from featurestore.training import TrainingDataset
from featurestore_connectors.launchers import ray as ray_launcher
from tests.experiments import training_functions
from tests.readers.conftest import Example

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"global_batch_size": 12, "seed": 3, "columns": ["row_id", "label"]}


def train_worker(config: dict[str, Any]) -> None:
    """Read two epochs, save the loader's state every four steps, and die once at step 10."""
    from ray import train

    context, out = train.get_context(), Path(config["out"])
    rank, world_size = context.get_world_rank(), context.get_world_size()
    reader = TrainingDataset.open(config["dataset"]).reader("train", **config["settings"])
    loader = reader.torch_loader(rank=rank, world_size=world_size)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            loader.load_state_dict(json.loads(Path(folder, "state.json").read_text()))
    journal = out / f"rank-{rank}-{'first' if checkpoint is None else 'resumed'}.jsonl"
    start = loader.state_dict()
    step = start["epoch"] * reader.steps_per_epoch + start["step"]
    with journal.open("w") as lines:
        for _ in range(start["epoch"], 2):
            for features, _label in loader:
                lines.write(json.dumps([step, features["row_id"].tolist()]) + "\n")
                lines.flush()
                step += 1
                if step % 4 == 0:
                    report_state(loader.state_dict(), out / f"state-{rank}")
                if checkpoint is None and rank == 1 and step == 10:
                    # Ray registers reported checkpoints in the background.
                    while not list(out.glob("runs/*/checkpoint_manager_snapshot.json")):
                        time.sleep(0.1)
                    os.kill(os.getpid(), signal.SIGKILL)


def report_state(state: dict[str, Any], folder: Path) -> None:
    from ray import train

    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps(state))
    train.report({}, checkpoint=train.Checkpoint.from_directory(str(folder)))


def test_ray_train_resumes_killed_worker_with_equal_batches(
    ray_cluster: str, tfrecord: Example, tmp_path: Path
) -> None:
    del ray_cluster
    from ray import cloudpickle
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={
            "dataset": tfrecord.path,
            "settings": SETTINGS,
            "out": str(tmp_path),
        },
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(tmp_path / "runs"), failure_config=FailureConfig(max_failures=1)
        ),
    )
    trainer.fit()
    reader = open_reader(tfrecord.path, tfrecord.manifest, split="train", **SETTINGS)
    for rank in range(2):
        expected = [
            batch["row_id"].tolist()
            for epoch in range(2)
            for batch in reader.batches(epoch, worker=rank, workers=2)
        ]
        first, resumed = (
            [json.loads(line) for line in (tmp_path / f"rank-{rank}-{name}.jsonl").open()]
            for name in ("first", "resumed")
        )
        assert resumed[0][0] in (4, 8)
        assert [step for step, _ in resumed] == list(range(resumed[0][0], len(expected)))
        assert len(first) >= 8
        for step, rows in [*first, *resumed]:
            assert rows == expected[step]


@pytest.fixture
def sums(tmp_path: Path) -> TrainingDataset:
    return training_functions.sums_of(featurestore.connect(tmp_path / "store"))


def test_ray_launcher_restarts_workers_with_equal_losses(
    ray_cluster: str, sums: TrainingDataset
) -> None:
    del ray_cluster
    uninterrupted = experiments.collective_all_reduce(
        training_functions.regression, workers=2, dataset=sums
    )
    run = experiments.collective_all_reduce(
        training_functions.regression,
        workers=2,
        dataset=sums,
        params={"deaths": {"1": [33]}},
        retries=1,
        on="ray",
    )
    assert run.history("loss") == uninterrupted.history("loss")
    assert [attempt["reason"] for attempt in run.record.attempts] == [
        "worker 1 was lost: killed by SIGKILL",
        None,
    ]
    assert run.record.settings["on"] == "ray"


def bowl(x: float, context: Any) -> dict[str, float]:
    context.report(1, y=-x)
    return {"y": -((x - 2) ** 2)}


def test_ray_launcher_runs_trials_of_search(ray_cluster: str, sums: TrainingDataset) -> None:
    del ray_cluster, sums
    study = experiments.search(
        bowl, space={"x": [1, 2]}, metric="y", sampler="grid", parallel=2, on="ray"
    )
    assert study.best.params == {"x": 2}


def test_ray_launcher_without_resources_raises(
    ray_cluster: str, sums: TrainingDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    del ray_cluster
    monkeypatch.setattr(ray_launcher, "_RESERVATION_SECONDS", 1.0)
    with pytest.raises(NotEnoughSlots, match=r"3 workers of .* of 2 CPUs and 0 GPUs"):
        experiments.collective_all_reduce(
            training_functions.regression, workers=3, dataset=sums, on="ray"
        )
    with pytest.raises(NotEnoughSlots, match="'GPU': 1"):
        experiments.launch(
            training_functions.regression, dataset=sums, on=ray_launcher.RayLauncher(cpus=0, gpus=1)
        )
    with pytest.raises(InvalidArgument, match="cpus=-1"):
        ray_launcher.RayLauncher(cpus=-1)


def test_ray_launcher_without_connection_names_ray_init(sums: TrainingDataset) -> None:
    program = (
        "import featurestore\nfrom featurestore import experiments\n"
        f"featurestore.connect({sums.path.split('/trainingdatasets')[0]!r})\n"
        "try:\n    experiments.launch(lambda: None, on='ray')\n"
        f"except featurestore.errors.{EngineError.__name__} as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Hint: import ray; ray.init(address='auto')" in result.stdout


def test_ray_workers_end_with_killed_driver(
    ray_cluster: str, sums: TrainingDataset, tmp_path: Path
) -> None:
    assert sums.session is not None
    program = tmp_path / "driver.py"
    program.write_text(
        "import sys\nimport featurestore, ray\nfrom featurestore import experiments\n"
        "from tests.experiments import training_functions\n"
        "ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "featurestore.connect(sys.argv[2])\n"
        "experiments.collective_all_reduce("
        "training_functions.with_grandchildren, workers=2, on='ray', name='killed')\n"
    )
    driver = subprocess.Popen(
        [sys.executable, str(program), ray_cluster, sums.session.location],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    folder = Path(sums.session.location, "experiments", "killed")
    try:
        wait_until(lambda: len(list(folder.glob("*/pids-*"))) == 2)
    finally:
        driver.kill()
        driver.wait()
    pids = [int(pid) for path in folder.glob("*/pids-*") for pid in path.read_text().split()]
    assert len(pids) == 6
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def wait_until(is_done: Any) -> None:
    end = time.monotonic() + 120
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_ray_page_code_runs(ray_cluster: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests/pages/pages.py"), str(ROOT / "docs/how-to/ray.md")],
        cwd=tmp_path,
        env={
            **os.environ,
            "RAY_ADDRESS": ray_cluster,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-6000:]
