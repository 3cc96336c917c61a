"""The statements of docs/training.md and docs/reader-order.md hold.

Their scripts run, their vectors are the order's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from featurestore.readers.order import ReaderOrder
from tests.forking import ForkServer
from tests.readers.conftest import Example
from tests.readers.test_reader_order import GOLDEN_VECTORS

pytestmark = pytest.mark.services

Start = Callable[[str, int], "subprocess.Popen[bytes]"]
DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", text, re.DOTALL)


def block(page: str, text: str) -> str:
    """Return the only Python block of a page that contains a string."""
    (code,) = (source for source in blocks(page, "python") if text in source)
    return code


def test_order_page_vectors_equal_golden_vectors() -> None:
    (text,) = blocks("reader-order.md", "json")
    vectors = json.loads(text)
    assert len(vectors) == len(GOLDEN_VECTORS)
    for vector in vectors:
        epoch, first, digest = vector.pop("epoch"), vector.pop("first"), vector.pop("sha256")
        order = ReaderOrder(**vector)
        batches = order.epoch(epoch).batches(0, order.steps_per_epoch)
        assert batches[0].tolist() == first
        assert hashlib.sha256(batches.astype("<i8").tobytes()).hexdigest() == digest


@pytest.fixture
def training_page(tmp_path: Path) -> Start:
    """Start the script of the training page for some epochs, with its output in a file."""
    for needed in ("tensorflow", "tf_keras", "pandas"):
        pytest.importorskip(needed)
    script = block("training.md", 'if "TF_CONFIG" in os.environ')
    assert "epochs=5" in script
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2")

    def start(log: str, epochs: int) -> subprocess.Popen[bytes]:
        changed = script.replace("epochs=5", f"epochs={epochs}")
        (tmp_path / "train.py").write_text(changed, encoding="utf-8")
        with (tmp_path / log).open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "train.py"],
                cwd=tmp_path,
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    return start


def kill(running: subprocess.Popen[bytes]) -> None:
    """Kill the process group of the script and its workers."""
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def finish(running: subprocess.Popen[bytes], log: Path) -> tuple[int, int]:
    """Wait for the script, check that its workers agree, and return where it resumed."""
    try:
        assert running.wait(timeout=240) == 0, log.read_text()[-3000:]
    finally:
        if running.poll() is None:
            kill(running)
    text = log.read_text()
    match = re.search(r"resuming at \(epoch, step\) \((\d+), (\d+)\) of 97 steps", text)
    assert match is not None, text
    # Both workers write to one file, so a line may end where the other worker's begins.
    sums = re.findall(r"worker \d of 2: sum of weights (-?\d+\.\d{6})", text)
    assert len(sums) == 2
    assert len(set(sums)) == 1
    return int(match[1]), int(match[2])


@pytest.mark.tensorflow
@pytest.mark.slow
def test_training_page_script_runs(training_page: Start, tmp_path: Path) -> None:
    assert finish(training_page("whole.txt", 1), tmp_path / "whole.txt") == (0, 0)


# test_distributed_training.py covers the resume of two killed workers from one checkpoint.
@pytest.mark.tensorflow
@pytest.mark.soak
def test_training_page_script_resumes_after_kill(training_page: Start, tmp_path: Path) -> None:
    killed = training_page("killed.txt", 2)
    try:
        end = time.monotonic() + 200
        while not list((tmp_path / "two-workers" / "checkpoints").glob("step-*")):
            assert killed.poll() is None, (tmp_path / "killed.txt").read_text()[-3000:]
            assert time.monotonic() < end, (tmp_path / "killed.txt").read_text()[-3000:]
            time.sleep(0.05)
    finally:
        kill(killed)
    assert finish(training_page("resumed.txt", 2), tmp_path / "resumed.txt") > (0, 0)


LOOP_PROGRAM = """
import os, sys
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf
import tf_keras
from featurestore.training import TrainingDataset

class Stop(Exception):
    pass

tf_keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
directory, epochs, stop = sys.argv[2], 3, int(sys.argv[3])
reader = TrainingDataset.open(sys.argv[1]).reader("train", global_batch_size=12, columns=["ratio", "label"])
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    model.optimizer = tf_keras.optimizers.Adam(0.01)
    model.build((None, 1))
    model.optimizer.build(model.trainable_variables)
steps_run = 0

@tf.function
def run(batch):
    def on_replica(features, label):
        with tf.GradientTape() as tape:
            error = tf.square(model(features["ratio"][:, None])[:, 0] - tf.cast(label, tf.float32))
            loss = tf.reduce_sum(error) / reader.global_batch_size
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    strategy.run(on_replica, args=batch)

def train_step(batch):
    global steps_run
    if steps_run == stop:
        raise Stop
    run(batch)
    steps_run += 1

try:
    exec(open(sys.argv[4]).read())
except Stop:
    pass
print(steps_run, [float(v).hex() for array in model.get_weights() for v in array.reshape(-1)])
"""


@pytest.mark.tensorflow
@pytest.mark.slow
def test_training_page_loop_resumes_exactly(
    tmp_path: Path, tfrecord: Example, fork_server: ForkServer
) -> None:
    pytest.importorskip("tf_keras")
    program, loop = tmp_path / "program.py", tmp_path / "loop.py"
    program.write_text(LOOP_PROGRAM, encoding="utf-8")
    loop.write_text(textwrap.dedent(block("training.md", "heartbeat.beat")), encoding="utf-8")
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")

    def run(directory: str, stop: int) -> tuple[int, str]:
        output = tmp_path / f"{directory}{stop}.txt"
        running = fork_server.start(
            program,
            [tfrecord.path, str(tmp_path / directory), str(stop), str(loop)],
            output=output,
            environment=environment,
            folder=tmp_path,
        )
        assert running.wait(240) == 0, output.read_text()[-3000:]
        (last,) = re.findall(r"^(\d+) (\[.*\])$", output.read_text(), re.MULTILINE)
        return int(last[0]), last[1]

    step_count, expected = run("whole", -1)
    assert step_count == 3 * 16
    assert run("parts", 25)[0] == 25
    assert run("parts", -1) == (step_count - 20, expected)
