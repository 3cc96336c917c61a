"""Launcher that runs workers as local processes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from featurestore.plugins.launcher import WORKER_MODULE, Gang, Launcher, RunningGang, WorkerTask
from featurestore.storage import storage_for
from featurestore.storage.supervised import SupervisedProcess, python_path

_GPUS = "/proc/driver/nvidia/gpus"
_DEVICES = "CUDA_VISIBLE_DEVICES"


class LocalLauncher:
    """Starts local workers and divides the machine's devices among them."""

    name = "local"
    driver_host = "127.0.0.1"

    def check(self, workers: int) -> None:
        """Accept any number of workers."""

    def start(self, gang: Gang) -> RunningGang:
        cluster = None
        if gang.needs_addresses:
            cluster = addresses(gang.tasks)
        shares = device_shares(visible_devices(), [task.role for task in gang.tasks])
        running = LocalGang()
        try:
            for task, share in zip(gang.tasks, shares, strict=True):
                environment = {**os.environ, "PYTHONPATH": python_path(), **task.environment}
                if share is not None:
                    # Devices that the caller has assigned to a task take precedence.
                    environment[_DEVICES] = task.environment.get(_DEVICES, share)
                running.processes.append(
                    SupervisedProcess(
                        [sys.executable, "-m", WORKER_MODULE],
                        task.standard_input(gang.function, cluster),
                        log=task.log,
                        environment=environment,
                        directory=task.directory,
                    )
                )
        except BaseException:
            # Workers that have started must not outlive a failed start.
            running.stop()
            raise
        return running


class LocalGang:
    """A group of local worker processes."""

    def __init__(self) -> None:
        self.processes: list[SupervisedProcess] = []

    def poll(self) -> list[int | None]:
        return [process.poll() for process in self.processes]

    def stop(self) -> None:
        for process in self.processes:
            process.stop()


def addresses(tasks: Sequence[WorkerTask]) -> dict[str, list[str]]:
    """Return an address with a free port for each worker, by role."""
    # All ports are open at the same time, so that each worker gets a different port.
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in tasks]
    addresses_by_role: dict[str, list[str]] = {}
    for task, server in zip(tasks, servers, strict=True):
        addresses_by_role.setdefault(task.role, []).append(f"127.0.0.1:{server.getsockname()[1]}")
        server.close()
    return addresses_by_role


def visible_devices() -> list[str]:
    """Return the GPUs that are visible to child processes."""
    visible = os.environ.get(_DEVICES)
    if visible is not None:
        return [device for device in visible.split(",") if device not in ("", "-1")]
    # The NVIDIA driver has one directory per GPU here. CUDA is not initialized.
    return [str(number) for number, _ in enumerate(storage_for(_GPUS).list_directory(_GPUS))]


def device_shares(devices: Sequence[str], roles: Sequence[str]) -> list[str | None]:
    """Return the devices of each task: equal shares, or round-robin if there are too few devices.

    Only tasks with the role "worker" get devices. None means no restriction.

    >>> two = ["worker", "worker"]
    >>> device_shares(["0", "1", "2", "3"], two), device_shares(["0"], two), device_shares([], two)
    (['0,1', '2,3'], ['0', '0'], [None, None])
    >>> device_shares(["0", "1"], ["chief", "worker", "ps"])
    ['-1', '0,1', '-1']
    """
    if not devices or len(roles) < 2:
        return [None] * len(roles)
    workers = roles.count("worker")
    devices_per_worker = len(devices) // workers
    shares: list[str | None] = []
    worker = 0
    for role in roles:
        if role != "worker":
            # CUDA shows no device for this number.
            shares.append("-1")
            continue
        first = worker % len(devices) if devices_per_worker == 0 else worker * devices_per_worker
        shares.append(",".join(devices[first : first + max(devices_per_worker, 1)]))
        worker += 1
    return shares


if TYPE_CHECKING:
    _contract: Launcher = LocalLauncher()
