"""Worker process of a study: it requests trials from the driver one after the other."""

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
    """TCP connection to the driver."""

    def __init__(self, settings: JsonObject) -> None:
        host, port = settings.array("address")
        self._connection = connect_to_driver((host, port), settings.text("key"))
        self._worker = settings.number("worker")

    def request(self, kind: str, **content: Any) -> JsonObject:
        """Send a message and return the reply."""
        message = {"kind": kind, "worker": self._worker, **content}
        try:
            self._connection.send_bytes(json.dumps(message).encode())
            reply = self._connection.recv_bytes()
        except (OSError, EOFError):
            reply = b"{}"
        return JsonObject.from_value(json.loads(reply), "answer")

    def report(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Send metrics and return True if the trial has to stop."""
        return self.request("report", step=step, metrics=dict(metrics)).flag("stop")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def serve(settings: JsonObject, dumped: bytes) -> None:
    """Run trials until the driver has none."""
    driver = Driver(settings)
    reply = driver.request("next")
    while "task" in reply:
        task = Task.from_json(reply.object("task"))
        with _trial_output(task.run):
            run_task(task, dumped, driver.report)
        _clear_models()
        reply = driver.request("ended")
    driver.close()


@contextmanager
def _trial_output(run: str) -> Iterator[None]:
    """Redirect stdout and stderr to the trial's log, and enter its working directory."""
    working_directory = os.path.join(run, "work", "worker-00000")
    files.make_directory(working_directory)
    previous_directory = os.getcwd()
    saved_handles = os.dup(1), os.dup(2)
    with open_log(os.path.join(run, "logs", "worker-00000.log")) as log:
        _flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(working_directory)
    try:
        yield
    finally:
        _flush()
        os.chdir(previous_directory)
        for descriptor, handle in zip((1, 2), saved_handles, strict=True):
            os.dup2(handle, descriptor)
            os.closerange(handle, handle + 1)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _clear_models() -> None:
    """Clear the graphs of the last trial in each installed Keras."""
    for name in ("keras", "tf_keras"):
        if name in sys.modules:
            sys.modules[name].backend.clear_session()
