"""The interface of launchers, which start, poll and stop the workers of a run.

Launchers are entry points of the group ``featurestore.launchers``, the built-in ones included
(local processes, Spark barrier mode).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from featurestore.errors import LauncherNotFound, did_you_mean, listing
from featurestore.plugins import find_plugin, load_plugin, plugin_names

# The module that a worker process runs; it reads the task and the function from standard input.
WORKER_MODULE = "featurestore.experiments.worker"


@dataclass(frozen=True)
class WorkerTask:
    """The settings and the output paths of one worker.

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
        return json.dumps(task_settings).encode() + b"\n" + function


@dataclass(frozen=True)
class Gang:
    """Workers that start together or not at all.

    ``function`` is the pickled training function; only workers' processes load it.
    """

    tasks: tuple[WorkerTask, ...]
    function: bytes = field(repr=False)
    needs_addresses: bool = False


class RunningGang(Protocol):
    """A started gang of workers.

    ``poll`` never blocks. ``stop`` ends every worker with its child processes and returns after
    they have exited; it may be called again.
    """

    def poll(self) -> list[int | None]:
        """Return the exit status of each worker: negative for a signal, None while it runs."""
        ...

    def stop(self) -> None:
        """End all workers."""
        ...


@runtime_checkable
class Launcher(Protocol):
    """A way to start workers.

    Workers are new processes that run ``python -m`` ``WORKER_MODULE`` with
    ``WorkerTask.standard_input`` as standard input; their output is appended to ``log``. They end
    when the process that called ``start`` ends, also if it is killed. ``driver_host`` is the
    address of this machine at which workers reach the process that called ``start``.
    """

    name: str

    @property
    def driver_host(self) -> str:
        """The driver's address as seen by workers."""
        ...

    def check(self, workers: int) -> None:
        """Raise NotEnoughSlots if this number of workers cannot run at once now."""
        ...

    def start(self, gang: Gang) -> RunningGang:
        """Start all workers of a gang."""
        ...


def find_launcher(name: str | Launcher) -> Launcher:
    """Create a launcher from its name; an instance is returned unchanged.

    Raises:
        LauncherNotFound: No such launcher is installed.
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
