"""Ends the servers and programs that a test run leaves behind, however the run ends.

A pytest plugin. All processes of a run inherit an environment variable with the id of the run. A
watcher waits for the end of the run: the end of its input, which also comes if the run is killed. It
then ends all processes with this id (Linux only: it reads ``/proc``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# No prefix of the library or of Spark: tests remove such variables from the environment.
VARIABLE = "PYTEST_RUN_ID"
_SECONDS_TO_EXIT = 5
_WATCHER = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the watcher; the workers of pytest-xdist belong to the run of their controller."""
    if hasattr(config, "workerinput") or not Path("/proc/self/environ").exists():
        return
    run_id = f"{os.getpid()}-{time.time_ns()}"
    environment = dict(os.environ)
    os.environ[VARIABLE] = run_id
    command = [sys.executable, "-I", __file__, run_id]
    # A session of its own: an interrupt of the terminal is not for the watcher.
    config.stash[_WATCHER] = subprocess.Popen(
        command, stdin=subprocess.PIPE, env=environment, start_new_session=True
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the watcher end what is left, and wait for it."""
    if _WATCHER in config.stash:
        config.stash[_WATCHER].communicate()


def find_processes(run_id: str) -> Iterator[int]:
    """Yield the ids of all processes of a run."""
    entry = f"{VARIABLE}={run_id}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (folder / "environ").read_bytes():
                yield int(folder.name)
        except OSError:  # it has ended, or belongs to another user
            continue


def end_processes(run_id: str) -> None:
    """Terminate all processes of a run, and kill those that do not exit."""
    deadline = time.monotonic() + _SECONDS_TO_EXIT
    while processes := list(find_processes(run_id)):
        is_late = time.monotonic() > deadline
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL if is_late else signal.SIGTERM)
            except ProcessLookupError:
                continue
        time.sleep(0.2)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_processes(sys.argv[1])
