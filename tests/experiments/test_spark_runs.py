"""Workers as tasks of a barrier stage, on a real standalone cluster of two slots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from featurestore import experiments
from featurestore.training import TrainingDataset
from tests.cluster.standalone import environment, standalone_cluster
from tests.experiments import training

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_barrier_tasks_train_as_local_processes_do_and_are_counted_first(
    sums: TrainingDataset, tmp_path: Path
) -> None:
    assert sums.session is not None
    local = experiments.collective_all_reduce(training.regression, workers=2, dataset=sums)
    path = os.pathsep.join([str(ROOT), *sys.path])
    log = tmp_path / "driver.log"
    with standalone_cluster(tmp_path) as master, log.open("w") as errors:
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("spark_driver.py")),
                master,
                sums.session.location,
            ],
            env=environment(PYTHONPATH=path),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, log.read_text()[-5000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    losses = {str(step): loss for step, loss in local.history("loss").items()}
    assert answer["whole"] == [losses, [None]]
    assert answer["killed"] == [losses, ["worker 1 was lost: killed by SIGKILL", None]]
    assert answer["best"] == {"x": 2}
    assert "3 workers are to run at once" in answer["refused"]
    assert "has 2 free slots of 2" in answer["refused"]
    assert answer["refused_after"] < 60
    assert answer["more_runs"] == 0
