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
    """A clock of all processes, in which some hours pass fast, and then real time."""

    started: float
    seconds_per_hour: float
    hours: int

    def __call__(self) -> datetime:
        seconds = max(time.time() - self.started, 0.0)
        all_seconds = self.hours * self.seconds_per_hour
        hours = min(seconds, all_seconds) / self.seconds_per_hour
        # After the last hour it passes in real time, so that failed windows are retried.
        return START + timedelta(hours=hours, seconds=max(seconds - all_seconds, 0.0))

    @property
    def has_ended(self) -> bool:
        """Whether all hours have passed."""
        return time.time() > self.started + self.hours * self.seconds_per_hour


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
    """The two processes, and the disturbances that they got."""

    start_process: Callable[[int], BaseProcess]
    rng: random.Random
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("kill", "stop", "slow"), 0)
    )
    suspended_pids: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.processes = [self.start_process(number) for number in range(2)]

    def disturb(self) -> None:
        """Kill one scheduler and start another, suspend it past its lease, or slow it."""
        number = self.rng.randrange(2)
        process, action = self.processes[number], self.rng.choice(sorted(self.counts))
        self.counts[action] += 1
        if action == "kill":
            kill(process)
            self.processes[number] = self.start_process(number)
            return
        self.suspended_pids.add(process.pid or 0)
        pauses = [2.5 * TIMEOUT] if action == "stop" else [0.05] * 30
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

    return Schedulers(start_process, rng)
