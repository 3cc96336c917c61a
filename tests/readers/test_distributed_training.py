"""MultiWorkerMirroredStrategy with real processes.

Equal steps, the same global batches, kill and resume.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from featurestore.readers import Reader, open_reader
from featurestore.readers.heartbeat import EXIT_STALLED
from tests.forking import ForkServer
from tests.readers.conftest import Example
from tests.readers.free_ports import free_ports

if find_spec("tensorflow") is None:  # this process does not import it
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
pytestmark = [pytest.mark.services, pytest.mark.tensorflow, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("worker_program.py")
EPOCHS = 2


class Run:
    """The workers of one training run."""

    def __init__(
        self,
        server: ForkServer,
        mode: str,
        dataset: str,
        out: Path,
        *,
        workers: int,
        timeout: int = 200,
        stalls: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.out, self.workers = out, workers
        out.mkdir(parents=True, exist_ok=True)
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
        self.processes = []
        for index in range(workers):
            environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
            if index in stalls:
                environment["STALL_AT"] = stalls[index]
            arguments = [mode, dataset, str(out), str(EPOCHS), str(timeout)]
            log = out / f"log-{index}.txt"
            self.processes.append(
                server.start(PROGRAM, arguments, output=log, environment=environment, folder=out)
            )

    def finish(self) -> Run:
        try:
            for process in self.processes:
                process.wait(240)
        finally:
            self.kill()
        logs = "\n".join(
            (self.out / f"log-{index}.txt").read_text()[-3000:] for index in range(self.workers)
        )
        assert [process.returncode for process in self.processes] == [0] * self.workers, logs
        return self

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def wait_for(self, steps: int) -> None:
        """Wait until the first worker has completed some steps."""
        end = time.monotonic() + 240
        while len(self.journal(0)) < steps:
            assert time.monotonic() < end, (self.out / "log-0.txt").read_text()[-3000:]
            assert self.processes[0].poll() is None, (self.out / "log-0.txt").read_text()[-3000:]
            time.sleep(0.02)

    def journal(self, worker: int) -> list[dict[str, Any]]:
        path = self.out / f"worker-{worker}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def global_batches(self) -> list[list[int]]:
        journals = [self.journal(worker) for worker in range(self.workers)]
        assert len({len(journal) for journal in journals}) == 1, (
            "workers made different numbers of steps"
        )
        return [
            [row for step in steps for row in step["rows"]] for steps in zip(*journals, strict=True)
        ]

    def losses(self) -> list[list[str]]:
        return [[step["loss"] for step in self.journal(worker)] for worker in range(self.workers)]

    def weights(self) -> list[Any]:
        return [
            json.loads((self.out / f"weights-{worker}.json").read_text())
            for worker in range(self.workers)
        ]


@pytest.fixture(scope="module")
def reader(tfrecord: Example) -> Reader:
    return open_reader(
        tfrecord.path,
        tfrecord.manifest,
        split="train",
        global_batch_size=12,
        seed=3,
        remainder="pad",
    )


@pytest.fixture(scope="module")
def uninterrupted(
    fork_server: ForkServer, tfrecord: Example, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    return Run(
        fork_server, "keras", tfrecord.path, tmp_path_factory.mktemp("uninterrupted"), workers=2
    ).finish()


def expected_batches(reader: Reader, epochs: Sequence[int] = range(EPOCHS)) -> list[list[int]]:
    return [
        reader.rows(epoch, step).tolist()
        for epoch in epochs
        for step in range(reader.steps_per_epoch)
    ]


def assert_close(actual: Any, expected: Any) -> None:
    flat = [
        [float.fromhex(value) for array in weights for value in array]
        for weights in (actual, expected)
    ]
    np.testing.assert_allclose(flat[0], flat[1], rtol=1e-3, atol=1e-5)


# The Keras tests cover one and two workers.
@pytest.mark.parametrize(
    "workers", [3, pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak)]
)
def test_custom_loop_global_batches_independent_of_worker_count(
    fork_server: ForkServer, tfrecord: Example, reader: Reader, tmp_path: Path, workers: int
) -> None:
    run = Run(fork_server, "custom", tfrecord.path, tmp_path, workers=workers).finish()
    assert run.global_batches() == expected_batches(reader)


def test_keras_fit_two_workers_same_batches_and_equal_weights(
    uninterrupted: Run, reader: Reader
) -> None:
    assert uninterrupted.global_batches() == expected_batches(reader)
    first, second = uninterrupted.weights()
    assert first == second


def test_keras_fit_one_worker_matches_two_workers(
    fork_server: ForkServer, tfrecord: Example, reader: Reader, uninterrupted: Run, tmp_path: Path
) -> None:
    alone = Run(fork_server, "keras", tfrecord.path, tmp_path, workers=1).finish()
    assert alone.global_batches() == expected_batches(reader)
    assert_close(alone.weights()[0], uninterrupted.weights()[0])


def test_killed_run_resumes_exactly_and_with_other_worker_count(
    fork_server: ForkServer, tfrecord: Example, reader: Reader, uninterrupted: Run, tmp_path: Path
) -> None:
    killed = Run(fork_server, "keras", tfrecord.path, tmp_path / "killed", workers=2)
    killed.wait_for(12)
    killed.kill()
    checkpoints = sorted((killed.out / "checkpoints").glob("step-*"))
    assert checkpoints
    state = json.loads((checkpoints[-1] / "reader.json").read_text())
    steps_done = state["epoch"] * reader.steps_per_epoch + state["step"]
    assert 0 < steps_done < reader.steps_per_epoch

    for workers in (2, 1):
        out = tmp_path / f"resumed-{workers}"
        shutil.copytree(killed.out / "checkpoints", out / "checkpoints")
        resumed = Run(fork_server, "keras", tfrecord.path, out, workers=workers).finish()
        assert resumed.global_batches() == expected_batches(reader)[steps_done:]
        if workers == 2:
            assert resumed.losses() == [losses[steps_done:] for losses in uninterrupted.losses()]
            assert resumed.weights() == uninterrupted.weights()
        else:  # the same rows, summed in another order
            assert_close(resumed.weights()[0], uninterrupted.weights()[0])


def test_stopped_worker_report_contains_steps_of_all_workers(
    fork_server: ForkServer, tfrecord: Example, tmp_path: Path
) -> None:
    run = Run(fork_server, "keras", tfrecord.path, tmp_path, workers=2, stalls={1: "6"})
    try:
        end = time.monotonic() + 200
        while run.processes[0].poll() is None and time.monotonic() < end:
            assert run.processes[1].poll() is None, (tmp_path / "log-1.txt").read_text()[-3000:]
            time.sleep(0.02)
        assert run.processes[0].returncode == EXIT_STALLED
    finally:
        run.kill()
    log = (tmp_path / "log-0.txt").read_text()
    assert "Worker 0 of 2 has not finished a step for" in log
    assert re.search(r"worker 0: epoch \d+, step \d+, \d+ s ago", log)
    assert re.search(r"worker 1: epoch \d+, step \d+, \d+ s ago", log)


def test_worker_without_partner_at_start_exits(
    fork_server: ForkServer, tfrecord: Example, tmp_path: Path
) -> None:
    run = Run(
        fork_server, "keras", tfrecord.path, tmp_path, workers=2, timeout=3, stalls={1: "start"}
    )
    try:
        # TensorFlow holds the GIL, so that only the timer without an interpreter can end it.
        assert run.processes[0].wait(100) == 1
    finally:
        run.kill()
    assert "_initialize_multi_worker" in (tmp_path / "log-0.txt").read_text()


def test_replicas_get_consecutive_parts_of_worker_batch(
    fork_server: ForkServer, tfrecord: Example, reader: Reader, tmp_path: Path
) -> None:
    program = tmp_path / "replicas.py"
    program.write_text(
        """
import json, sys
import tensorflow as tf
from featurestore.training.dataset import TrainingDataset
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
dataset = TrainingDataset.open(sys.argv[1])
options = {"columns": ["row_id", "label"], "global_batch_size": 12, "seed": 3, "remainder": "pad"}
reader = dataset.reader("train", **options)
for features, label, weight in reader.distribute(strategy, 2, start_step=3):
    replicas = zip(*map(strategy.experimental_local_results, (features["row_id"], weight)), strict=True)
    print(json.dumps([[int(r) if w else -1 for r, w in zip(rows, weights)] for rows, weights in replicas]))
"""
    )
    output = tmp_path / "output.txt"
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
    running = fork_server.start(
        program, [tfrecord.path], output=output, environment=environment, folder=tmp_path
    )
    assert running.wait(240) == 0, output.read_text()[-3000:]
    lines = output.read_text().splitlines()
    steps = [json.loads(line) for line in lines if line.startswith("[[")]
    assert [[len(replica) for replica in step] for step in steps] == [[6, 6]] * (
        2 * reader.steps_per_epoch - 3
    )
    assert [[row for replica in step for row in replica] for step in steps] == expected_batches(
        reader
    )[3:]
