"""A process of a run: reads its task and the function, trains, and writes how it ended.

``python -m featurestore.experiments.worker`` with a line of JSON and the pickled function as its
standard input, from the launcher that started it: nothing that lies in a store is ever loaded as
code.
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
from collections.abc import Mapping
from typing import Any, NoReturn

from featurestore.errors import FeatureStoreError, Stopped
from featurestore.experiments import functions, randomness
from featurestore.experiments.context import Context, Listener
from featurestore.experiments.reports import check_metrics
from featurestore.experiments.status import WorkerStatus, write_status
from featurestore.experiments.tasks import Task
from featurestore.experiments.teams import CHIEF
from featurestore.model.json_object import JsonObject

EXIT_FAILED = 1


def main() -> int:
    """Do what standard input says, and return the exit status."""
    faulthandler.enable()
    sys.argv = sys.argv or [""]  # some libraries look at it while they are imported
    told = JsonObject.of(json.loads(sys.stdin.buffer.readline()), "task")
    dumped = sys.stdin.buffer.read()
    if told.get("cluster") is not None:
        set_addresses(told)
    if "serve" in told:
        from featurestore.experiments.trial_worker import serve

        serve(told.object("serve"), dumped)
        return 0
    task = Task.from_json(told.object("task"))
    if task.serves:
        return serve_chief(task)
    status = run_task(task, dumped)
    code = 0 if status.state != "failed" else EXIT_FAILED
    if task.role == CHIEF:
        leave(code)
    return code


def run_task(task: Task, dumped: bytes, listener: Listener | None = None) -> WorkerStatus:
    """Call the training function, and return how it ended."""
    begun = WorkerStatus(
        state="running", attempt=task.attempt, pid=os.getpid(), host=socket.gethostname()
    )
    write_status(task, begun)
    randomness.seed_all(task.seed)
    context = Context(task, listener)
    try:
        function = pickle.loads(dumped)
        randomness.seed_all(task.seed)
        returned = functions.call(function, task.params, context)
        ended = begun.ended("finished", metrics=returned_metrics(returned))
    except Stopped:
        ended = begun.ended("stopped")
    except Exception as error:  # whatever a user's function raises is the run's result
        traceback.print_exc()
        ended = begun.failed(error)
    finally:
        context.close()
    ended = ended.with_readers([*(reader.state() for reader in context.readers), *context.matrices])
    ended = ended.with_saved(context.saved)
    write_status(task, ended)
    return ended


def serve_chief(task: Task) -> int:
    """Serve a chief, until the launcher ends this process; the function is not loaded here."""
    from featurestore.experiments.parameter_servers import serve

    status = WorkerStatus(
        state="running", attempt=task.attempt, pid=os.getpid(), host=socket.gethostname()
    )
    write_status(task, status)
    try:
        serve()
    except Exception as error:  # whatever TensorFlow raises is why there is no server
        traceback.print_exc()
        write_status(task, status.failed(error))
    return EXIT_FAILED


def leave(code: int) -> NoReturn:
    """End this process without taking its objects apart.

    The coordinator of TensorFlow joins a daemon thread when it is collected. At the interpreter's
    end that thread is stopped already, and a chief that has finished would wait for it for ever.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def returned_metrics(returned: Any) -> dict[str, float]:
    """Return what a training function returned as metrics; a bare number is its ``result``."""
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        returned = {"result": returned}
    return check_metrics(returned, where="in what the function returned")


def set_addresses(told: JsonObject) -> None:
    """Set TF_CONFIG, which TensorFlow's strategies read."""
    task = {"type": told.text("role"), "index": told.number("index")}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": told.get("cluster"), "task": task})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FeatureStoreError as error:
        sys.exit(f"{type(error).__name__}: {error}")
