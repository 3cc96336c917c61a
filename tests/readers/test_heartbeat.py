"""A stopped worker is reported with the step of each worker."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from featurestore.errors import WorkerStalled
from featurestore.readers.heartbeat import EXIT_STALLED, Heartbeat, read_steps

pytestmark = pytest.mark.services


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_heartbeat_report_marks_slowest_worker(tmp_path: Path) -> None:
    clock = Clock()
    beats = [Heartbeat(tmp_path, worker=w, workers=3, timeout=60, clock=clock) for w in range(3)]
    for worker, step in ((0, 8), (1, 7), (2, 8)):
        beats[worker].beat(4, step)
        beats[worker].write()
    clock.now += 59
    assert beats[0].stalled() is None
    clock.now += 1
    report = str(beats[0].stalled())
    assert "Worker 0 of 3 has not finished a step for 60 s" in report
    lines = report.splitlines()
    assert "epoch 4, step 7, 60 s ago" in lines[2]
    assert [line for line in lines if "the others wait for it" in line] == [lines[2]]


STEP = {"worker": 1, "epoch": 3, "step": 1, "time": 1000.0, "host": "a", "pid": 1}
UNREADABLE = [
    b"{",
    b"[1, 2]",
    b'{"other": 1}',
    json.dumps({**STEP, "epoch": "third"}).encode(),
    json.dumps({**STEP, "step": None}).encode(),
    json.dumps({**STEP, "time": 10**400}).encode(),
    None,  # a folder
]


@pytest.mark.parametrize("content", UNREADABLE)
def test_heartbeat_report_tolerates_unreadable_step_file(
    tmp_path: Path, content: bytes | None
) -> None:
    """An unreadable file must not stop the watchdog, or a stall would not be reported."""
    clock = Clock()
    beat = Heartbeat(tmp_path, worker=0, workers=2, timeout=5, clock=clock)
    beat.beat(3, 1)
    beat.write()
    unreadable = tmp_path / "worker-00001.json"
    if content is None:
        unreadable.mkdir()
    else:
        unreadable.write_bytes(content)
    clock.now += 5
    report = str(beat.stalled())
    assert "worker 0: epoch 3, step 1" in report
    assert "worker 1: no step yet" in report


def test_heartbeat_report_contains_worker_without_steps(tmp_path: Path) -> None:
    clock = Clock()
    beat = Heartbeat(tmp_path, worker=0, workers=2, timeout=5, clock=clock)
    beat.beat(0, 1)
    beat.write()
    clock.now += 5
    assert "worker 1: no step yet  <- the others wait for it" in str(beat.stalled())


def test_heartbeat_writes_last_step_periodically_and_on_exit(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, timeout=60) as beat:
        beat.beat(0, 1)
        end = time.monotonic() + 60
        while not read_steps(str(tmp_path), workers=1):
            assert time.monotonic() < end
            time.sleep(0.05)
        beat.beat(0, 2)
    assert read_steps(str(tmp_path), workers=1)[0].step == 2
    assert json.loads((tmp_path / "worker-00000.json").read_text())["epoch"] == 0


def test_heartbeat_report_contains_last_step_of_killed_process(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from featurestore.readers.heartbeat import Heartbeat\n"
        "with Heartbeat(sys.argv[1], worker=1, workers=2) as beat:\n"
        "    for step in range(40):\n"
        "        beat.beat(*divmod(step, 16))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, timeout=50, check=False).returncode == -9
    beat = Heartbeat(tmp_path, worker=0, workers=2)
    for step in (15, 3):  # the second is shorter
        beat.beat(2, step)
        report = beat.report()
        assert f"worker 0: epoch 2, step {step}, " in report
        assert "worker 1: epoch 2, step 7, " in report


def test_heartbeat_unwritable_file_does_not_stop_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "steps").write_text("not a directory")
    beat = Heartbeat(tmp_path / "steps", worker=0, workers=1)
    for step in range(3):
        beat.beat(0, step)
    assert caplog.text.count("cannot be written") == 1


def test_heartbeat_reported_stall_raises_at_next_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.CRITICAL),
        Heartbeat(tmp_path, timeout=0.2, on_stall="report") as beat,
    ):
        beat.beat(0, 1)
        with pytest.raises(WorkerStalled, match="Worker 0 of 1 has not finished a step"):
            beat_until_it_raises(beat)
    assert "has not finished a step" in caplog.text


def beat_until_it_raises(beat: Heartbeat) -> None:
    """Call the heartbeat until it raises, since a busy machine may delay the watchdog."""
    for _ in range(100):
        time.sleep(0.3)
        beat.beat(0, 2)


def test_heartbeat_failed_run_logs_step_of_every_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> None:
        beats = [Heartbeat(tmp_path, worker=worker, workers=2) for worker in range(2)]
        beats[1].beat(0, 4)
        beats[1].write()
        with beats[0]:
            beats[0].beat(0, 5)
            raise RuntimeError("collective operation aborted")

    with caplog.at_level(logging.CRITICAL), pytest.raises(RuntimeError, match="collective"):
        run()
    assert "Worker 0 failed with RuntimeError" in caplog.text
    assert "worker 0: epoch 0, step 5" in caplog.text
    assert "worker 1: epoch 0, step 4" in caplog.text


@pytest.mark.parametrize("stall", ["time.sleep(60)", "ctypes.PyDLL(None).sleep(60)"])
def test_heartbeat_blocked_worker_exits(tmp_path: Path, stall: str) -> None:
    """Neither a storage that does not respond nor a library that holds the GIL stops the watchdog."""
    os.mkfifo(tmp_path / "worker-00001.json")  # reading it waits forever
    program = (
        "import ctypes, sys, time\n"
        "from featurestore.readers.heartbeat import Heartbeat\n"
        "with Heartbeat(sys.argv[1], worker=0, workers=2, timeout=1) as beat:\n"
        "    beat.beat(0, 1)\n"
        f"    {stall}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    if "PyDLL" in stall:
        assert ended.returncode == 1
        assert "Timeout (0:00:02" in ended.stderr
    else:
        assert ended.returncode == EXIT_STALLED
        assert "has not finished a step" in ended.stderr


def test_heartbeat_touch_delays_the_stall(tmp_path: Path) -> None:
    now = [0.0]
    beat = Heartbeat(tmp_path, timeout=10, clock=lambda: now[0])
    beat.beat(0, 1)
    now[0] = 9
    beat.extend()
    now[0] = 18
    assert beat.stalled() is None
    now[0] = 19
    assert beat.stalled() is not None


def test_heartbeat_stalled_process_reports_and_exits(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from featurestore.readers.heartbeat import Heartbeat\n"
        "with Heartbeat(sys.argv[1], worker=1, workers=2, timeout=0.5) as beat:\n"
        "    beat.beat(2, 9)\n"
        "    time.sleep(60)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == EXIT_STALLED
    assert "worker 1: epoch 2, step 9" in ended.stderr
    assert "worker 0: no step yet  <- the others wait for it" in ended.stderr
