"""Launcher that runs workers as tasks of one Spark barrier stage, either all or none.

Each task starts a new process, since Spark reuses its Python processes and TensorFlow can be
configured only once. Tasks keep a connection to the driver, over which they send their exit status.
They stop when the connection closes. Executors need this package and access to the store's
directory.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from featurestore.errors import (
    EngineError,
    NotEnoughSlots,
    RunFailed,
    ThreadsUnavailable,
    missing_extra,
)
from featurestore.model.threads import translate_thread_errors
from featurestore.plugins.launcher import (
    WORKER_MODULE,
    Gang,
    Launcher,
    RunningGang,
    WorkerTask,
    group_addresses,
)
from featurestore.plugins.worker_port import Peer, WorkerPort, connect_to_driver
from featurestore.storage.supervised import (
    SupervisedProcess,
    check_shared_directory,
    python_path,
)

_REGISTRATION_SECONDS = 20.0
_POLL_SECONDS = 0.05
_STOP_SECONDS = 30.0
# Exit statuses of processes that SIGTERM or SIGKILL ended.
_STOPPED, _LOST = -15, -9


class SparkLauncher:
    """Starts workers on the cluster of the active Spark session."""

    name = "spark"

    @property
    def driver_host(self) -> str:
        """The address at which executors reach the driver: loopback in local mode."""
        context = _active_session().sparkContext
        if context.master.startswith("local"):
            return "127.0.0.1"
        return str(context.getConf().get("spark.driver.host"))

    def check(self, workers: int) -> None:
        """Check that enough slots are free, since Spark would wait silently for ten minutes."""
        context = _active_session().sparkContext
        end = time.monotonic() + _REGISTRATION_SECONDS
        while (free := free_slots(context)) < workers:
            if time.monotonic() > end:
                raise NotEnoughSlots(
                    f"{workers} workers must run at the same time, but the cluster at "
                    f"{context.master} has {free} free slots of {_total_slots(context)}.",
                    hint=f"workers={max(free, 1)}, end other jobs, or configure more executors",
                )
            time.sleep(_POLL_SECONDS)

    def start(self, gang: Gang) -> RunningGang:
        return SparkGang(_active_session().sparkContext, gang, host=self.driver_host)


@dataclass(frozen=True)
class _Stage:
    """The arguments that all tasks of a gang share."""

    gang: Gang
    address: tuple[str, int]
    key: str


class SparkGang:
    """A group of workers that run as tasks of one stage."""

    def __init__(self, context: Any, gang: Gang, *, host: str) -> None:
        from pyspark import InheritableThread

        self._context = context
        self._exits: list[int | None] = [None] * len(gang.tasks)
        self._port = WorkerPort(host)
        self._tasks: dict[Peer, int] = {}
        self._error: Exception | None = None
        self._group = f"featurestore-{secrets.token_hex(8)}"
        stage = _Stage(gang, self._port.address, self._port.key)
        # Spark assigns the job group to the thread in the JVM that belongs to this thread.
        self._job = InheritableThread(target=self._run, args=(stage,), daemon=True)
        try:
            with translate_thread_errors():
                self._job.start()
        except ThreadsUnavailable:
            self._port.close()
            raise

    def poll(self) -> list[int | None]:
        self._receive_messages()
        if not self._job.is_alive():
            self._receive_remaining()
            if self._error is not None and None in self._exits:
                raise RunFailed(f"Spark could not run the workers: {self._error}") from self._error
            self._exits = [_LOST if exit is None else exit for exit in self._exits]
        return list(self._exits)

    def stop(self) -> None:
        self._port.close()
        self._job.join(_STOP_SECONDS)
        if self._job.is_alive():
            self._context.cancelJobGroup(self._group)
            self._job.join(_STOP_SECONDS)

    def _run(self, stage: _Stage) -> None:
        """Run the stage. Spark does not retry a barrier stage after it has lost a task."""
        self._context.setJobGroup(self._group, "workers of an experiment", interruptOnCancel=True)
        count = len(stage.gang.tasks)
        tasks = self._context.parallelize(range(count), count).barrier()
        try:
            tasks.mapPartitions(_task_function(stage)).collect()
        except Exception as error:  # py4j's, pyspark's and Java's have no common base
            self._error = error

    def _receive_remaining(self) -> None:
        """Receive the remaining messages of finished tasks."""
        end = time.monotonic() + _STOP_SECONDS
        while self._port.has_peers and time.monotonic() < end:
            self._receive_messages()
            time.sleep(_POLL_SECONDS)
        self._receive_messages()

    def _receive_messages(self) -> None:
        """Receive task messages: the worker number, and the exit status of its process."""
        for received in self._port.poll(0):
            if received.data is None:
                self._remove_task(received.peer)
                continue
            try:
                message = json.loads(received.data)
                if received.peer in self._tasks:
                    self._exits[self._tasks[received.peer]] = int(message["exit"])
                else:
                    self._register_task(received.peer, int(message["index"]))
            except (ValueError, TypeError, KeyError, RecursionError):
                # An invalid message must not affect the other workers.
                self._port.drop(received.peer)

    def _register_task(self, peer: Peer, index: int) -> None:
        if index not in range(len(self._exits)) or index in self._tasks.values():
            raise ValueError(f"unexpected task {index}")
        self._tasks[peer] = index

    def _remove_task(self, peer: Peer) -> None:
        """Close a task connection; a task that sent no exit status is lost."""
        index = self._tasks.pop(peer, None)
        if index is not None and self._exits[index] is None:
            self._exits[index] = _LOST


def _task_function(stage: _Stage) -> Any:
    """Return the function for a task's partition, whose only row is the worker number."""

    def run(rows: Iterable[int]) -> Iterator[int]:
        for index in rows:
            yield run_task(stage, index)

    return run


def run_task(stage: _Stage, index: int) -> int:
    """Run one worker on an executor and return its exit status."""
    from pyspark import BarrierTaskContext

    barrier = BarrierTaskContext.get()
    tasks = stage.gang.tasks
    host = barrier.getTaskInfos()[index].address.split(":")[0]
    # The port stays open until all tasks have one, so that tasks on one host get different ports.
    with socket.create_server((host, 0)) as server:
        own_address = f"{host}:{server.getsockname()[1]}"
        addresses = barrier.allGather(own_address)
    cluster = group_addresses(tasks, addresses)
    check_shared_directory(tasks[index].run_directory, f"The executor on {socket.gethostname()}")
    task_input = tasks[index].standard_input(
        stage.gang.function, cluster if stage.gang.needs_addresses else None
    )
    with connect_to_driver(stage.address, stage.key) as driver:
        driver.send_bytes(json.dumps({"index": index}).encode())
        status = _supervise(tasks[index], task_input, driver)
        driver.send_bytes(json.dumps({"exit": status}).encode())
    return status


def _supervise(task: WorkerTask, task_input: bytes, driver: Connection) -> int:
    """Run a worker process until it exits or the driver disconnects."""
    process = SupervisedProcess(
        [sys.executable, "-m", WORKER_MODULE],
        task_input,
        log=task.log,
        # The new process needs the import path of this process.
        environment={**os.environ, "PYTHONPATH": python_path(), **task.environment},
        directory=task.directory,
    )
    try:
        while (status := process.poll()) is None:
            if driver.poll(_POLL_SECONDS):  # the driver sends no data, so the connection was closed
                return _STOPPED
    finally:
        process.stop()
    return status


def free_slots(context: Any) -> int:
    """Return the number of free task slots."""
    tracker = context.statusTracker()
    running = 0
    for stage in tracker.getActiveStageIds():
        stage_info = tracker.getStageInfo(stage)
        if stage_info is not None:
            running += stage_info.numActiveTasks
    return max(0, _total_slots(context) - running)


def _total_slots(context: Any) -> int:
    """Return the number of task slots on the current executors."""
    inner = context._jsc.sc()
    profile = inner.resourceProfileManager().defaultResourceProfile()
    return int(inner.maxNumConcurrentTasks(profile))


def _active_session() -> Any:
    """Return the active Spark session; raise an error if no session is active."""
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise missing_extra("pyspark", "spark") from error
    if SparkContext._active_spark_context is None:
        raise EngineError(
            "on='spark' needs an active Spark session in this process.",
            hint="featurestore.connect(location, engine='spark'), or start a SparkSession",
        )
    return SparkSession.builder.getOrCreate()


if TYPE_CHECKING:
    _contract: Launcher = SparkLauncher()
