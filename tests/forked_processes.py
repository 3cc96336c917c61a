"""Processes that a test starts and kills, forked from a process that has imported the store."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess
from typing import Any

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    [
        "featurestore.store",
        "featurestore.jobs.service",
        "tests.jobs.killed_jobs",
        "tests.forked_processes",
    ]
)


def start(target: Any, *arguments: Any) -> BaseProcess:
    process = server.Process(target=_run, args=(dict(os.environ), target, arguments))
    process.start()
    return process


def kill(process: BaseProcess) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may end between the two
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
    process.join()


def _run(environment: dict[str, str], target: Any, arguments: tuple[Any, ...]) -> None:
    """Run a target in the environment of its test; the server still has that of an earlier test."""
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)
