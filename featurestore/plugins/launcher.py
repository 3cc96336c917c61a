"""The launcher interface: starting, polling and stopping the workers of a run.

Launchers are entry points of the group ``featurestore.launchers``, including the built-in launchers
(local processes, Spark barrier mode).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from featurestore.errors import LauncherNotFound, did_you_mean, listing
from featurestore.plugins import find_plugin, load_plugin, plugin_names

# The module that worker processes run; it reads the task and the function from standard input.
WORKER_MODULE = "featurestore.experiments.worker"


@dataclass(frozen=True)
class WorkerTask:
    """The settings and output paths of one worker.

    ``settings`` is a JSON object; the launcher adds ``cluster`` (worker addresses by role) if
    ``Gang.needs_addresses``.
    """

    role: str
    index: int
    settings: Mapping[str, Any]
    log: str
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def standard_input(self, function: bytes, cluster: Mapping[str, Sequence[str]] | None) -> bytes:
        """Return the worker's standard input: a line of JSON, then the pickled function."""
        task_settings = {
            **self.settings,
            "role": self.role,
            "index": self.index,
            "cluster": cluster,
        }
        # The settings come first, so that the worker can apply them before it unpickles the
        # function.
        return json.dumps(task_settings).encode() + b"\n" + function

    @property
    def run_directory(self) -> str:
        """The directory of the run, which contains the logs of its workers."""
        return os.path.dirname(os.path.dirname(self.log))


def group_addresses(tasks: Sequence[WorkerTask], addresses: Sequence[str]) -> dict[str, list[str]]:
    """Return the addresses of workers by role, in the order of the tasks."""
    cluster: dict[str, list[str]] = {}
    for task, address in zip(tasks, addresses, strict=True):
        cluster.setdefault(task.role, []).append(address)
    return cluster


@dataclass(frozen=True)
class Gang:
    """A group of workers that are started together or not at all.

    ``function`` is the pickled training function, which only worker processes unpickle.
    """

    tasks: tuple[WorkerTask, ...]
    function: bytes = field(repr=False)
    needs_addresses: bool = False


class RunningGang(Protocol):
    """A running gang of workers.

    ``poll`` never blocks. ``stop`` terminates all workers and their child processes, and returns
    after they have exited; it may be called repeatedly.
    """

    def poll(self) -> list[int | None]:
        """Return the exit status of each worker: negative for a signal, None if it is running."""
        ...

    def stop(self) -> None:
        """Terminate all workers."""
        ...


@runtime_checkable
class Launcher(Protocol):
    """A method of starting workers.

    Workers are new processes that run ``python -m`` ``WORKER_MODULE`` with
    ``WorkerTask.standard_input`` as standard input; their output is appended to ``log``. Workers
    end when the process that called ``start`` ends, even if it is killed. ``driver_host`` is the
    address at which workers can connect to this process.
    """

    name: str

    @property
    def driver_host(self) -> str:
        """The address at which workers can connect to the driver."""
        ...

    def check(self, workers: int) -> None:
        """Raise NotEnoughSlots if this number of workers cannot run concurrently at the moment."""
        ...

    def start(self, gang: Gang) -> RunningGang:
        """Start all workers of a gang."""
        ...


def find_launcher(name: str | Launcher) -> Launcher:
    """Create a launcher by its entry point name, or return an instance unchanged.

    Raises:
        LauncherNotFound: No launcher with this name is installed.
    """
    if not isinstance(name, str):
        return name
    entry_point = find_plugin("launchers", name)
    if entry_point is None:
        available = plugin_names("launchers")
        raise LauncherNotFound(
            f"Unknown launcher {name!r}. Available: {listing(available)}.",
            hint=did_you_mean(name, available) or "on='local'",
        )
    launcher: Launcher = load_plugin(entry_point)()
    return launcher
