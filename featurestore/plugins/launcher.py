"""The interface of launchers: where the workers of a run are started, watched and stopped.

A launcher is looked up by its name among the entry points ``featurestore.launchers``; ours, local
processes and the barrier mode of Spark, come that way too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from featurestore.errors import LauncherNotFound, did_you_mean, listing
from featurestore.plugins.lookup import find_plugin, load_plugin, plugin_names

# What a worker's process runs; it reads the task and the function from its standard input.
WORKER_MODULE = "featurestore.experiments.worker"


@dataclass(frozen=True)
class WorkerTask:
    """One worker: what it is told, and where its output goes.

    ``settings`` is JSON; the launcher adds ``cluster`` (the addresses of all workers by role) to it
    where ``Gang.needs_addresses``.
    """

    role: str
    index: int
    settings: Mapping[str, Any]
    log: str
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def given(self, function: bytes, cluster: Mapping[str, Sequence[str]] | None) -> bytes:
        """Return the standard input of the worker's process: a line of JSON, then the function."""
        told = {**self.settings, "role": self.role, "index": self.index, "cluster": cluster}
        return json.dumps(told).encode() + b"\n" + function


@dataclass(frozen=True)
class Gang:
    """Workers that run together: all of them or none.

    ``function`` is the pickled training function; only workers' processes load it.
    """

    tasks: tuple[WorkerTask, ...]
    function: bytes = field(repr=False)
    needs_addresses: bool = False


class RunningGang(Protocol):
    """Workers that were started.

    ``poll`` may be called at any time and waits for nothing. ``stop`` ends every worker and all
    that it started, and returns when they are gone; it may be called again.
    """

    def poll(self) -> list[int | None]:
        """Return the exit status of each worker: negative for a signal, None while it runs."""
        ...

    def stop(self) -> None:
        """End all workers."""
        ...


@runtime_checkable
class Launcher(Protocol):
    """Starts workers in one place.

    Workers are fresh processes that run ``python -m`` ``WORKER_MODULE`` with what
    ``WorkerTask.given`` returns as standard input, their output appended to ``log``. They end when
    the process that called ``start`` does, in whatever way that ends. ``driver_host`` is the
    address of this machine at which they reach the process that called ``start``.
    """

    name: str

    @property
    def driver_host(self) -> str:
        """The address of the driver for workers."""
        ...

    def check(self, workers: int) -> None:
        """Raise NotEnoughSlots unless so many workers can run at once now."""
        ...

    def start(self, gang: Gang) -> RunningGang:
        """Start all workers of a gang."""
        ...


def find_launcher(name: str | Launcher) -> Launcher:
    """Return a launcher by its name; a launcher itself is returned as it is.

    Raises:
        LauncherNotFound: Lists those that are installed.
    """
    if not isinstance(name, str):
        return name
    found = find_plugin("launchers", name)
    if found is None:
        known = plugin_names("launchers")
        raise LauncherNotFound(
            f"There is no launcher {name!r}; installed are {listing(known)}.",
            hint=did_you_mean(name, known) or "on='local'",
        )
    launcher: Launcher = load_plugin(found)()
    return launcher
