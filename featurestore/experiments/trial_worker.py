"""A worker that lives for many trials: it fetches one after the other from the driver."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from featurestore.experiments.tasks import Task
from featurestore.experiments.worker import run_task
from featurestore.model.json_object import JsonObject
from featurestore.plugins.worker_port import connect_to_driver
from featurestore.storage import files
from featurestore.storage.appending import open_log


class Driver:
    """The driver, asked over TCP."""

    def __init__(self, told: JsonObject) -> None:
        host, port = told.array("address")
        self._connection = connect_to_driver((host, port), told.text("key"))
        self._worker = told.number("worker")

    def ask(self, kind: str, **content: Any) -> JsonObject:
        """Return the answer to a message."""
        message = {"kind": kind, "worker": self._worker, **content}
        try:
            self._connection.send_bytes(json.dumps(message).encode())
            answer = self._connection.recv_bytes()
        except (OSError, EOFError):
            answer = b"{}"
        return JsonObject.of(json.loads(answer), "answer")

    def report(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Tell of metrics, and return whether to stop."""
        return self.ask("report", step=step, metrics=dict(metrics)).flag("stop")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def serve(told: JsonObject, dumped: bytes) -> None:
    """Run trials until the driver has none."""
    driver = Driver(told)
    answer = driver.ask("next")
    while "task" in answer:
        task = Task.from_json(answer.object("task"))
        with _apart(task.run):
            run_task(task, dumped, driver.report)
        _forget_models()
        answer = driver.ask("ended")
    driver.close()


@contextmanager
def _apart(run: str) -> Iterator[None]:
    """Write into a log of the trial's own, in a working directory of its own."""
    place = os.path.join(run, "work", "worker-00000")
    files.make_directory(place)
    outer = os.getcwd()
    kept = os.dup(1), os.dup(2)
    with open_log(os.path.join(run, "logs", "worker-00000.log")) as log:
        _flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(place)
    try:
        yield
    finally:
        _flush()
        os.chdir(outer)
        for number, handle in zip((1, 2), kept, strict=True):
            os.dup2(handle, number)
            os.closerange(handle, handle + 1)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _forget_models() -> None:
    """Let go of the graphs of the last trial; each Keras keeps its own."""
    for name in ("keras", "tf_keras"):
        if name in sys.modules:
            sys.modules[name].backend.clear_session()
