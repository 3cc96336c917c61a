"""An interrupted test run leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.leftover_processes import VARIABLE

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the watcher reads /proc"),
]
# A test that starts a server in a session of its own and never ends.
SUITE = """
import os, subprocess, time
def test_with_server():
    server = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open("ids.tmp", "w") as file:
        file.write(f"{server.pid} {os.getpid()}")
    os.rename("ids.tmp", "ids")
    time.sleep(1000)
"""


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_run_leaves_no_process(tmp_path: Path, signum: signal.Signals, workers: int) -> None:
    (tmp_path / "test_endless.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.leftover_processes"]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    run = subprocess.Popen(
        [*command, "-n", str(workers), "test_endless.py"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not (tmp_path / "ids").exists():
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    processes = [int(word) for word in (tmp_path / "ids").read_text().split()]
    assert all(map(is_running, processes))
    run.send_signal(signum)
    run.wait(300)
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
