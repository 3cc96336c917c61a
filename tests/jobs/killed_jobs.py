"""Processes that run jobs and die at a chosen statement or on request."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import time
from datetime import datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import featurestore
from featurestore.jobs import execution, service
from featurestore.jobs.scheduler import Options
from featurestore.model import times
from tests.jobs.conftest import HOURS, START, Clock


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminate(process: BaseProcess) -> int | None:
    """Send SIGTERM to a process and return its exit status.

    One that stays says where each of its threads is.
    """
    os.kill(process.pid or 0, signal.SIGTERM)
    process.join(60)
    if process.is_alive():
        os.kill(process.pid or 0, signal.SIGABRT)  # faulthandler writes the threads' stacks
        process.join(10)
    return process.exitcode


def backfill(
    location: str, name: str, crash_points: tuple[str, ...] = (), size: int = 0, at_once: int = 1
) -> None:
    """Run a backfill in a separate process that dies where it first reaches a statement.

    Crash points are ``module:function``.

    ``size`` cuts chunks of so many windows, and ``at_once`` of them are computed side by side.
    """
    _prepare(crash_points, START + HOURS * timedelta(hours=1))
    if size:
        execution.CHUNKS.update(sql=size, python=size)
    service.usable_cores = lambda: at_once
    store = featurestore.connect(location)
    Path(location, "ready").touch()
    store.backfill_job(name, START, START + HOURS * timedelta(hours=1))


def run_due(location: str, name: str, crash_points: tuple[str, ...], now: datetime) -> None:
    """Run the due windows in a separate process that dies at a statement."""
    _prepare(crash_points, now)
    featurestore.connect(location).run_job(name, due=True)


def _prepare(crash_points: tuple[str, ...], now: datetime) -> None:
    for crash_point in crash_points:
        module, function = crash_point.split(":")
        setattr(importlib.import_module(module), function, die)
    clock = Clock()
    clock.now = now
    times.clock = clock


def schedule(location: str, go: Path, speed: float, now: datetime) -> None:
    """Run a scheduler whose clock is ``now`` until a file exists, then ``speed`` times as fast.

    Says by a file of its own in the location that it has connected.
    """

    def clock() -> datetime:
        passed = max(time.time() - go.stat().st_mtime, 0.0) if go.exists() else 0.0
        return now + timedelta(seconds=passed * speed)

    faulthandler.enable()
    times.clock = clock
    scheduler = featurestore.connect(location).scheduler(Options(every=0.1))
    Path(location, f"ready{os.getpid()}").touch()
    scheduler.run()
