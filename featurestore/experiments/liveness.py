"""Liveness of runs: the driver holds a lock file in the run's directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.errors import RunRunning
from featurestore.storage import files, locks

_LOCK = "driver.lock"
_locked_paths: set[str] = set()  # closing a second handle of a locked file would release its lock


@contextmanager
def driving(directory: str) -> Iterator[None]:
    """Lock a run while the block drives it.

    Raises:
        RunRunning: Another process, or another thread of this one, drives the run.
    """
    if is_driven(directory):
        raise RunRunning(
            f"The run {os.path.basename(directory)!r} is still running.",
            hint="wait for its end, or end the process that drives it",
        )
    path = os.path.join(directory, _LOCK)
    handle = locks.hold(path)
    _locked_paths.add(path)
    try:
        yield
    finally:
        files.remove(path, below=directory)
        _locked_paths.discard(path)
        locks.release(handle)


def is_driven(directory: str) -> bool:
    """Return True if a live process drives a run."""
    path = os.path.join(directory, _LOCK)
    return path in _locked_paths or locks.is_held(path)
