"""Worker processes: each trains one run, or consecutive trials of a study.

The launcher starts ``python -m featurestore.experiments.worker`` and sends a line of JSON and the
pickled function to standard input; no code is ever loaded from a store.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from featurestore import _current
from featurestore.errors import FeatureStoreError, Stopped
from featurestore.experiments import functions
from featurestore.experiments.context import Context, Listener
from featurestore.experiments.run_files import check_metrics
from featurestore.experiments.status import WorkerStatus, write_status
from featurestore.experiments.tasks import CHIEF, Task, seed_all
from featurestore.model.json_object import JsonObject
from featurestore.model.run_record import State
from featurestore.plugins.worker_port import connect_to_driver
from featurestore.storage import storage_for
from featurestore.storage.appending import open_log

EXIT_FAILED = 1


def main() -> int:
    """Run the task from standard input and return the exit status."""
    faulthandler.enable()
    sys.argv = sys.argv or [""]  # some libraries read it while they are imported
    message = JsonObject.from_value(json.loads(sys.stdin.buffer.readline()), "task")
    dumped = sys.stdin.buffer.read()
    if message.get("cluster") is not None:
        set_tf_config(message)
    if "serve" in message:
        serve_trials(message.object("serve"), dumped)
        return 0
    task = Task.from_json(message.object("task"))
    if task.serves:
        return serve_chief(task)
    status = run_task(task, dumped)
    code = 0 if status.state != "failed" else EXIT_FAILED
    if task.role == CHIEF:
        exit_without_finalizers(code)
    return code


def run_task(task: Task, dumped: bytes, listener: Listener | None = None) -> WorkerStatus:
    """Call the training function and return the final status."""
    running_status = WorkerStatus(
        state="running", attempt=task.attempt, pid=os.getpid(), host=socket.gethostname()
    )
    write_status(task, running_status)
    # Reads of the store by the function are recorded with the run.
    _current.begin_run(task.run)
    seed_all(task.seed)
    context = Context(task, listener)
    state: State = "failed"
    metrics: dict[str, float] = {}
    failure: Exception | None = None
    try:
        function = pickle.loads(dumped)
        # Seed again: unpickling imports modules, which may draw random numbers or load TensorFlow.
        seed_all(task.seed)
        returned = functions.call(function, task.params, context)
        state, metrics = "finished", to_metrics(returned)
    except Stopped:
        state = "stopped"
    except Exception as error:  # any exception of the user's function fails the run
        traceback.print_exc()
        failure = error
    finally:
        # Close before the final status is written: the driver reads the metrics after it.
        context.close()
    readers = [*(reader.state() for reader in context.readers), *context.matrices]
    final_status = running_status.ended(
        state, readers=readers, saved=context.saved, metrics=metrics, error=failure
    )
    # Its traceback refers to this frame: the data of the function would remain until a collection.
    failure = None
    write_status(task, final_status)
    return final_status


def serve_chief(task: Task) -> int:
    """Serve the chief until the launcher ends this process, without loading the function."""
    from featurestore.experiments.strategies import serve

    status = WorkerStatus(
        state="running", attempt=task.attempt, pid=os.getpid(), host=socket.gethostname()
    )
    write_status(task, status)
    try:
        serve()
    except Exception as error:  # any exception of TensorFlow stops the server
        traceback.print_exc()
        write_status(task, status.ended("failed", readers=(), saved={}, error=error))
    return EXIT_FAILED


def exit_without_finalizers(code: int) -> NoReturn:
    """Exit this process without finalizing its objects.

    When TensorFlow's coordinator is garbage-collected, it joins a daemon thread. At interpreter
    shutdown that thread has already stopped, so a finished chief would wait for it forever.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def to_metrics(returned: Any) -> dict[str, float]:
    """Convert a function's return value to metrics; a number is named ``result``."""
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        returned = {"result": returned}
    return check_metrics(returned, location="in the return value of the function")


def set_tf_config(message: JsonObject) -> None:
    """Set TF_CONFIG, which the TensorFlow strategies read."""
    task = {"type": message.text("role"), "index": message.number("index")}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": message.get("cluster"), "task": task})


class Driver:
    """TCP connection to the driver."""

    def __init__(self, settings: JsonObject) -> None:
        host, port = settings.array("address")
        self._connection = connect_to_driver((host, port), settings.text("key"))
        self._worker = settings.number("worker")

    def request(self, subject: str, **content: Any) -> JsonObject:
        """Send a message and return the reply."""
        message = {"kind": subject, "worker": self._worker, **content}
        try:
            self._connection.send_bytes(json.dumps(message).encode())
            reply = self._connection.recv_bytes()
        except (OSError, EOFError):
            # The driver has ended. An empty reply contains no task, so this worker ends as well.
            reply = b"{}"
        return JsonObject.from_value(json.loads(reply), "answer")

    def report(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Send metrics and return True if the trial must stop."""
        return self.request("report", step=step, metrics=dict(metrics)).flag("stop")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def serve_trials(settings: JsonObject, dumped: bytes) -> None:
    """Run trials until the driver has no more."""
    driver = Driver(settings)
    reply = driver.request("next")
    while "task" in reply:
        task = Task.from_json(reply.object("task"))
        with _trial_output(task.run):
            run_task(task, dumped, driver.report)
        # Keras keeps global state for every model, so the memory of the process would grow with
        # each trial.
        for name in {"keras", "tf_keras"} & sys.modules.keys():
            sys.modules[name].backend.clear_session()
        reply = driver.request("ended")
    driver.close()


@contextmanager
def _trial_output(run: str) -> Iterator[None]:
    """Redirect stdout and stderr to the trial's log, and enter its working directory."""
    working_directory = os.path.join(run, "work", "worker-00000")
    storage_for(working_directory).make_directory(working_directory)
    previous_directory = os.getcwd()
    # Redirect the descriptors, so that the output of C libraries and child processes is logged,
    # too.
    saved_handles = os.dup(1), os.dup(2)
    with open_log(os.path.join(run, "logs", "worker-00000.log")) as log:
        # Buffered output belongs to the previous log.
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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FeatureStoreError as error:
        sys.exit(f"{type(error).__name__}: {error}")
