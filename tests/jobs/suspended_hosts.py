"""Schedulers of other hosts, which are suspended or killed at a chosen call."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import featurestore
from featurestore.jobs.scheduler import Options
from featurestore.model import times
from featurestore.recovery import liveness
from featurestore.registry import database
from featurestore.storage import locks

# Seconds without a heartbeat after which a host is considered dead.
TIMEOUT = 0.8
IDLE_SECONDS = 2


@dataclass(frozen=True)
class CallPoint:
    """The n-th call of a function, such as ``jobs/run.py:check_lease``, or its return."""

    function: str
    number: int = 1
    event: str = "call"


def shorten_timeouts() -> None:
    """Let this process consider hosts dead, and transactions idle, after about a second."""
    liveness.HEARTBEAT_TIMEOUT = timedelta(seconds=TIMEOUT)
    liveness.HEARTBEAT_SECONDS = TIMEOUT / 4
    database.IDLE_SECONDS = IDLE_SECONDS
    database.LONGEST_SECONDS = 2 * IDLE_SECONDS


def run_due_jobs(
    location: str,
    registry: str,
    now: datetime,
    point: CallPoint | None,
    action: int = signal.SIGSTOP,
    record: str | None = None,
) -> None:
    """Run a scheduler once as another host, which gets a signal at a call.

    ``record`` is a file for the numbers of calls by function.
    """
    shorten_timeouts()
    locks.machine_id = lambda _: "aaaaaaaa"  # type: ignore[assignment]
    times.clock = lambda: now
    store = featurestore.connect(location, registry=registry, engine="duckdb")
    counts = Counter[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or "/featurestore" not in code.co_filename:
            return
        function = f"{code.co_filename.rpartition('/featurestore')[2]}:{code.co_qualname}"
        counts[function] += event == ("call" if point is None else point.event)
        if point is None or event != point.event or not function.endswith(point.function):
            return
        if counts[function] == point.number:
            os.kill(os.getpid(), action)

    threading.setprofile(profile)  # of the threads that run jobs
    store.scheduler(Options(workers=1, stale=True)).run_due()
    threading.setprofile(None)
    if record is not None:
        Path(record).write_text(json.dumps(counts))


def wait_until_stopped(process: BaseProcess) -> bool:
    """Wait until a process is suspended or ends; return True if it is suspended."""
    deadline = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < deadline:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return True
        time.sleep(0.01)
    assert not process.is_alive(), "neither suspended nor ended"
    return False
