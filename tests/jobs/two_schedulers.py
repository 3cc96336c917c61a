"""Two scheduler processes on one registry that are killed, suspended and slowed at random times."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import featurestore
from featurestore.jobs.scheduler import Options
from featurestore.model import times
from featurestore.storage import locks
from tests.forked_processes import kill, start
from tests.jobs.conftest import START
from tests.jobs.suspended_hosts import TIMEOUT, shorten_timeouts

# A job notes the times at which its function is called and returns.
NOTE = """
import json, os, time
from pathlib import Path

def note(name, window, pause):
    called = time.time()
    time.sleep(pause)
    line = {"job": name, "window": window.start.isoformat(), "pid": os.getpid(), "called": called}
    line["returned"] = time.time()
    with Path(__file__).with_name("calls").open("a") as file:
        file.write(json.dumps(line) + "\\n")
"""
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Clock:
    """A clock of all processes, in real time from one hour on, except during hours that pass fast.

    ``file`` has the time at which fast hours begin, and the time at which they end. Failed windows
    are retried in real time.
    """

    file: Path
    seconds_per_hour: float
    created: float = field(default_factory=time.time)

    def __call__(self) -> datetime:
        return START + timedelta(hours=1) + self._passed()

    def _passed(self) -> timedelta:
        """Return the time since the first hour."""
        now = time.time()
        begin, end = [*self._marks(), now, now][:2]
        fast_seconds = min(now, end) - begin
        slow_seconds = now - self.created - fast_seconds
        return timedelta(hours=fast_seconds / self.seconds_per_hour, seconds=slow_seconds)

    def _marks(self) -> list[float]:
        return [float(line) for line in self.file.read_text().split()] if self.file.exists() else []

    def mark(self) -> None:
        """Begin the fast hours now, or end them in the middle of an hour."""
        mark = time.time()
        for begin in self._marks():
            hours = int((mark - begin) / self.seconds_per_hour) + 1.5
            mark = begin + hours * self.seconds_per_hour
        with self.file.open("a") as file:
            file.write(f"{mark}\n")

    def count_hours(self) -> int:
        """Return the number of complete hours at the end of the fast hours."""
        begin, end = self._marks()
        return 1 + int((end - begin) / self.seconds_per_hour)


@dataclass(frozen=True)
class Call:
    """A call of a job's function that returned."""

    job: str
    window: str
    pid: int
    called: float
    returned: float


def read_calls(definitions: Path) -> list[Call]:
    """Return the calls that the jobs next to a file have noted, by the time of the call."""
    file = definitions.with_name("calls")
    lines = file.read_text().splitlines() if file.exists() else []
    return sorted((Call(**json.loads(line)) for line in lines), key=lambda call: call.called)


def schedule(
    location: str, registry: str | None, clock: Clock, machine: str | None, default_timeouts: bool
) -> None:
    """Run a scheduler; ``machine`` is the id of another host, None for this one."""
    if not default_timeouts:
        shorten_timeouts()
    if machine is not None:
        locks.machine_id = lambda _: machine  # type: ignore[assignment]
    times.clock = clock
    store = featurestore.connect(location, registry=registry, engine="duckdb")
    store.scheduler(Options(workers=3, every=POLL_SECONDS)).run()


@dataclass
class Schedulers:
    """The two processes, and the disturbances that they got.

    On two hosts (``are_hosts``), a busy machine can also delay a heartbeat past the timeout.
    """

    start_process: Callable[[int], BaseProcess]
    rng: random.Random
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("kill", "stop", "slow"), 0)
    )
    suspended_pids: set[int] = field(default_factory=set)
    suspension: float = 2.5 * TIMEOUT
    are_hosts: bool = False

    def __post_init__(self) -> None:
        self.processes = [self.start_process(number) for number in range(2)]

    def may_lose_lease(self, *pids: int) -> bool:
        """Return whether one of the processes may have been considered dead while it lived."""
        return self.are_hosts or bool(self.suspended_pids & set(pids))

    def disturb_randomly(self) -> None:
        """Disturb one of the processes."""
        self.disturb(self.rng.randrange(2), self.rng.choice(sorted(self.counts)))

    def disturb(self, number: int, action: str) -> None:
        """Kill a scheduler and start another, suspend it past its lease, or slow it."""
        process = self.processes[number]
        self.counts[action] += 1
        if action == "kill":
            kill(process)
            self.processes[number] = self.start_process(number)
            return
        self.suspended_pids.add(process.pid or 0)
        pauses = [self.suspension] if action == "stop" else [0.05] * 30
        for pause in pauses:
            os.kill(process.pid or 0, signal.SIGSTOP)
            time.sleep(pause)
            os.kill(process.pid or 0, signal.SIGCONT)
            time.sleep(0.02)

    def end(self) -> None:
        """End both processes after their runs."""
        for process in self.processes:
            os.kill(process.pid or 0, signal.SIGTERM)
        for process in self.processes:
            process.join(60)
            assert process.exitcode == 0
            kill(process)


def start_schedulers(
    location: str,
    clock: Clock,
    rng: random.Random,
    *,
    registry: str | None = None,
    default_timeouts: bool = False,
) -> Schedulers:
    """Start two schedulers: on one host with SQLite, on two hosts with a registry server."""

    def start_process(number: int) -> BaseProcess:
        machine = None if registry is None else f"{'ab'[number]}" * 8
        return start(schedule, location, registry, clock, machine, default_timeouts)

    return Schedulers(start_process, rng, are_hosts=registry is not None)
