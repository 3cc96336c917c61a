"""Launcher that runs workers on the nodes of a Ray cluster, either all or none.

A placement group reserves the resources of all workers before the first one starts. Each worker is
a new process that an actor supervises, since TensorFlow and PyTorch are configured once in a
process. Ray ends the actors when the driver ends, and their worker processes end with them. Nodes
need this package and access to the store's directory.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurestore.errors import EngineError, InvalidArgument, NotEnoughSlots, missing_extra
from featurestore.plugins.launcher import (
    WORKER_MODULE,
    Gang,
    Launcher,
    RunningGang,
    WorkerTask,
    group_addresses,
)
from featurestore.storage.supervised import (
    SupervisedProcess,
    check_shared_directory,
    python_path,
)

_RESERVATION_SECONDS = 20.0
_POLL_SECONDS = 0.05
_STOP_SECONDS = 30.0
# Exit statuses of processes that SIGTERM or SIGKILL ended.
_STOPPED, _LOST = -15, -9


@dataclass(frozen=True)
class RayLauncher:
    """Starts workers on the cluster to which ``ray.init`` has connected this process.

    Args:
        cpus: CPUs that Ray reserves for each worker.
        gpus: GPUs that Ray reserves for each worker and makes visible to it.
    """

    cpus: float = 1
    gpus: float = 0
    name = "ray"

    def __post_init__(self) -> None:
        for argument, number in (("cpus", self.cpus), ("gpus", self.gpus)):
            if isinstance(number, bool) or not isinstance(number, int | float) or number < 0:
                raise InvalidArgument(f"{argument}={number!r} is not a number from 0.")
        if not self.cpus and not self.gpus:
            raise InvalidArgument(
                "cpus=0 and gpus=0 reserve nothing for a worker.", hint="RayLauncher(cpus=1)"
            )

    @property
    def driver_host(self) -> str:
        """The address at which the nodes of the cluster reach this process."""
        return str(_connected_ray().util.get_node_ip_address())

    def check(self, workers: int) -> None:
        """Check that the resources of all workers are free, since Ray would wait without a limit."""
        ray = _connected_ray()
        end = time.monotonic() + _RESERVATION_SECONDS
        # A group reserves resources on single nodes, so sums over all nodes are not sufficient.
        group = self._reserve(workers)
        try:
            while not group.wait(_POLL_SECONDS):
                if time.monotonic() > end:
                    raise NotEnoughSlots(
                        f"{workers} workers of {self._bundle} must run at the same time, but the "
                        f"Ray cluster has {_describe(ray.available_resources())} free of "
                        f"{_describe(ray.cluster_resources())}.",
                        hint="fewer workers=, end other jobs, or add nodes with ray start --address=...",
                    )
        finally:
            ray.util.remove_placement_group(group)

    def start(self, gang: Gang) -> RunningGang:
        group = self._reserve(len(gang.tasks))
        return RayGang(gang, group, resources=(self.cpus, self.gpus))

    @property
    def _bundle(self) -> dict[str, float]:
        resources = {"CPU": self.cpus, "GPU": self.gpus}
        return {name: float(number) for name, number in resources.items() if number}

    def _reserve(self, workers: int) -> Any:
        return _connected_ray().util.placement_group([self._bundle] * workers, strategy="PACK")


class RayGang:
    """A group of workers, each supervised by an actor of the placement group."""

    def __init__(self, gang: Gang, group: Any, *, resources: tuple[float, float]) -> None:
        self._ray = _connected_ray()
        self._group = group
        self._actors: list[Any] = []
        self._results: list[Any] = []
        self._exits: list[int | None] = [None] * len(gang.tasks)
        try:
            self._start(gang, resources)
        except BaseException:
            # Workers that have started must not outlive a failed start.
            self.stop()
            raise

    def poll(self) -> list[int | None]:
        ready, _ = self._ray.wait(self._results, num_returns=len(self._results), timeout=0)
        for result in ready:
            number = self._results.index(result)
            if self._exits[number] is None:
                self._exits[number] = self._exit_status(result)
        return list(self._exits)

    def stop(self) -> None:
        stopped = [actor.stop.remote() for actor in self._actors]
        if stopped:
            # An actor of a lost node never replies, so the wait has a limit.
            self._ray.wait(stopped, num_returns=len(stopped), timeout=_STOP_SECONDS)
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        self._ray.util.remove_placement_group(self._group)

    def _start(self, gang: Gang, resources: tuple[float, float]) -> None:
        ray = self._ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        cpus, gpus = resources
        if not self._group.wait(_RESERVATION_SECONDS):
            raise NotEnoughSlots(
                f"The Ray cluster has no resources for {len(gang.tasks)} workers at the moment.",
                hint="retry when other jobs have ended",
            )
        # Two threads: one waits for the worker process while the other one stops it.
        actor_class = ray.remote(max_concurrency=2, max_restarts=0)(WorkerActor)
        for number, task in enumerate(gang.tasks):
            strategy = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=number
            )
            options = actor_class.options(
                num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy
            )
            self._actors.append(options.remote(task))
        cluster = None
        if gang.needs_addresses:
            addresses = ray.get([actor.address.remote() for actor in self._actors])
            cluster = group_addresses(gang.tasks, addresses)
        function = ray.put(gang.function)
        self._results = [actor.run.remote(function, cluster) for actor in self._actors]

    def _exit_status(self, result: Any) -> int:
        """Return the exit status of a worker whose actor has returned or died."""
        try:
            return int(self._ray.get(result))
        except self._ray.exceptions.RayActorError:
            return _LOST


class WorkerActor:
    """Supervises one worker process on a node."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._server: socket.socket | None = None
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._ended.set()

    def address(self) -> str:
        """Return a free address of this node."""
        import ray

        host = ray.util.get_node_ip_address()
        # The port stays open until the worker process starts, so that actors on one node get
        # different ports.
        self._server = socket.create_server((host, 0))
        return f"{host}:{self._server.getsockname()[1]}"

    def run(self, function: bytes, cluster: Mapping[str, Sequence[str]] | None) -> int:
        """Run the worker process until it exits or ``stop`` is called, and return its status."""
        task = self._task
        check_shared_directory(task.run_directory, f"The Ray node {socket.gethostname()}")
        if self._server is not None:
            self._server.close()
        self._ended.clear()
        process = SupervisedProcess(
            [sys.executable, "-m", WORKER_MODULE],
            task.standard_input(function, cluster),
            log=task.log,
            # The new process needs the import path of this process.
            environment={**os.environ, "PYTHONPATH": python_path(), **task.environment},
            directory=task.directory,
            # Ray kills the children of an actor together with it. A killed supervisor could not
            # terminate the processes that the worker has started.
            detached=True,
        )
        try:
            while (status := process.poll()) is None:
                if self._stop.wait(_POLL_SECONDS):
                    return _STOPPED
        finally:
            process.stop()
            self._ended.set()
        return status

    def stop(self) -> None:
        """Terminate the worker process, and return after it has exited."""
        self._stop.set()
        self._ended.wait()


def _describe(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


def _connected_ray() -> Any:
    """Return the module of Ray; raise an error if this process is not connected to a cluster."""
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise missing_extra("ray", "ray") from error
    if not ray.is_initialized():
        raise EngineError(
            "on='ray' needs a connection to a Ray cluster in this process.",
            hint="import ray; ray.init(address='auto'), or ray.init() for this machine alone",
        )
    return ray


if TYPE_CHECKING:
    _contract: Launcher = RayLauncher()
