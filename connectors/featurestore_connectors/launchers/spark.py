"""Workers as tasks of one barrier stage of Spark: all of them run, or none.

Each task starts a fresh process, since Spark's own Python processes are used again and TensorFlow
can be configured once only. Tasks keep a connection to the driver: over it they tell how their
process ended, and its end tells them to stop. Executors have this package installed and see the
store's directory.
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

from featurestore.errors import EngineError, NotEnoughSlots, RunFailed, missing_extra
from featurestore.plugins.launcher import WORKER_MODULE, Gang, Launcher, RunningGang, WorkerTask
from featurestore.plugins.worker_port import Peer, WorkerPort, connect_to_driver
from featurestore.storage import files
from featurestore.storage.supervised import SupervisedProcess, search_path

_REGISTRATION_SECONDS = 20.0
_POLL_SECONDS = 0.05
_STOP_SECONDS = 30.0
_STOPPED, _LOST = -15, -9


class SparkLauncher:
    """Starts workers on the cluster of the active Spark session."""

    name = "spark"

    @property
    def driver_host(self) -> str:
        """The address at which executors reach the driver: loopback where all run here."""
        context = _session().sparkContext
        if context.master.startswith("local"):
            return "127.0.0.1"
        return str(context.getConf().get("spark.driver.host"))

    def check(self, workers: int) -> None:
        """Count slots first: Spark itself would wait ten minutes without a word."""
        context = _session().sparkContext
        end = time.monotonic() + _REGISTRATION_SECONDS
        while (free := free_slots(context)) < workers:
            if time.monotonic() > end:
                raise NotEnoughSlots(
                    f"{workers} workers are to run at once, and the cluster at {context.master} "
                    f"has {free} free slots of {_slots(context)}.",
                    hint=f"workers={max(free, 1)}, end other jobs, or ask for more executors",
                )
            time.sleep(_POLL_SECONDS)

    def start(self, gang: Gang) -> RunningGang:
        return SparkGang(_session().sparkContext, gang, host=self.driver_host)


@dataclass(frozen=True)
class _Stage:
    """What every task of a gang is told."""

    gang: Gang
    address: tuple[str, int]
    key: str


class SparkGang:
    """Workers that run as the tasks of one stage."""

    def __init__(self, context: Any, gang: Gang, *, host: str) -> None:
        from pyspark import InheritableThread

        self._context = context
        self._exits: list[int | None] = [None] * len(gang.tasks)
        self._port = WorkerPort(host)
        self._tasks: dict[Peer, int] = {}
        self._error: Exception | None = None
        self._group = f"featurestore-{secrets.token_hex(8)}"
        stage = _Stage(gang, self._port.address, self._port.key)
        self._job = InheritableThread(target=self._run, args=(stage,), daemon=True)
        self._job.start()

    def poll(self) -> list[int | None]:
        self._listen()
        if not self._job.is_alive():
            self._listen_to_the_end()
            if self._error is not None and None in self._exits:
                raise RunFailed(f"Spark could not run the workers: {self._error}") from self._error
            self._exits = [_LOST if each is None else each for each in self._exits]
        return list(self._exits)

    def stop(self) -> None:
        self._port.close()
        self._job.join(_STOP_SECONDS)
        if self._job.is_alive():
            self._context.cancelJobGroup(self._group)
            self._job.join(_STOP_SECONDS)

    def _run(self, stage: _Stage) -> None:
        """Run the stage; a task that is lost fails it, which Spark does not try again."""
        self._context.setJobGroup(self._group, "workers of an experiment", interruptOnCancel=True)
        count = len(stage.gang.tasks)
        tasks = self._context.parallelize(range(count), count).barrier()
        try:
            tasks.mapPartitions(_in_task(stage)).collect()
        except Exception as error:  # py4j's, pyspark's and Java's have no common base
            self._error = error

    def _listen_to_the_end(self) -> None:
        """Take in what tasks sent before they ended."""
        end = time.monotonic() + _STOP_SECONDS
        while self._port.has_peers and time.monotonic() < end:
            self._listen()
            time.sleep(_POLL_SECONDS)
        self._listen()

    def _listen(self) -> None:
        """Take in what tasks have sent: their number, and how their process ended."""
        for received in self._port.poll(0):
            if received.data is None:
                self._end(received.peer)
                continue
            try:
                message = json.loads(received.data)
                if received.peer in self._tasks:
                    self._exits[self._tasks[received.peer]] = int(message["exit"])
                else:
                    self._begin(received.peer, int(message["index"]))
            except (ValueError, TypeError, KeyError, RecursionError):
                self._port.drop(received.peer)

    def _begin(self, peer: Peer, index: int) -> None:
        if index not in range(len(self._exits)) or index in self._tasks.values():
            raise ValueError(f"no task {index} is expected")
        self._tasks[peer] = index

    def _end(self, peer: Peer) -> None:
        """Forget a connection; a task that had not ended is lost."""
        index = self._tasks.pop(peer, None)
        if index is not None and self._exits[index] is None:
            self._exits[index] = _LOST


def _in_task(stage: _Stage) -> Any:
    """Return what each task runs over its one row, the number of its worker."""

    def run(rows: Iterable[int]) -> Iterator[int]:
        for index in rows:
            yield run_task(stage, index)

    return run


def run_task(stage: _Stage, index: int) -> int:
    """Run one worker on an executor, and return its exit status."""
    from pyspark import BarrierTaskContext

    barrier = BarrierTaskContext.get()
    tasks = stage.gang.tasks
    host = barrier.getTaskInfos()[index].address.split(":")[0]
    with socket.create_server((host, 0)) as held:
        mine = f"{host}:{held.getsockname()[1]}"
        found = barrier.allGather(mine)
    cluster: dict[str, list[str]] = {}
    for task, address in zip(tasks, found, strict=True):
        cluster.setdefault(task.role, []).append(address)
    check_run_is_seen(tasks[index])
    told = tasks[index].given(stage.gang.function, cluster if stage.gang.needs_addresses else None)
    with connect_to_driver(stage.address, stage.key) as driver:
        driver.send_bytes(json.dumps({"index": index}).encode())
        status = _supervise(tasks[index], told, driver)
        driver.send_bytes(json.dumps({"exit": status}).encode())
    return status


def check_run_is_seen(task: WorkerTask) -> None:
    """Refuse an executor that does not see the run's directory."""
    run = os.path.dirname(os.path.dirname(task.log))
    if not files.is_directory(run):
        raise EngineError(
            f"The executor on {socket.gethostname()} does not see {run!r}.",
            hint="put the store into a directory that all machines share",
        )


def _supervise(task: WorkerTask, told: bytes, driver: Connection) -> int:
    """Run a worker's process to its end, or until the driver is gone."""
    process = SupervisedProcess(
        [sys.executable, "-m", WORKER_MODULE],
        told,
        log=task.log,
        environment={**os.environ, "PYTHONPATH": search_path(), **task.environment},
        directory=task.directory,
    )
    try:
        while (status := process.poll()) is None:
            if driver.poll(_POLL_SECONDS):  # the driver sends nothing: its end is gone
                return _STOPPED
    finally:
        process.stop()
    return status


def free_slots(context: Any) -> int:
    """Return how many tasks could start now."""
    tracker = context.statusTracker()
    running = 0
    for stage in tracker.getActiveStageIds():
        told = tracker.getStageInfo(stage)
        if told is not None:
            running += told.numActiveTasks
    return max(0, _slots(context) - running)


def _slots(context: Any) -> int:
    """Return how many tasks the executors of now can run at once."""
    inner = context._jsc.sc()
    profile = inner.resourceProfileManager().defaultResourceProfile()
    return int(inner.maxNumConcurrentTasks(profile))


def _session() -> Any:
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise missing_extra("pyspark", "spark") from error
    if SparkContext._active_spark_context is None:
        raise EngineError(
            "on='spark' needs a Spark session, and there is none in this process.",
            hint="featurestore.connect(location, engine='spark'), or start a SparkSession",
        )
    return SparkSession.builder.getOrCreate()


if TYPE_CHECKING:
    _contract: Launcher = SparkLauncher()
