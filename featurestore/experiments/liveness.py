"""Which runs have a living driver: it holds a lock file in the run's directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.errors import RunRunning
from featurestore.storage import files, locks

_LOCK = "driver.lock"
_held: set[str] = set()  # a process must not open again what it holds: closing would let go


@contextmanager
def driving(directory: str) -> Iterator[None]:
    """Hold a run while the block drives it.

    Raises:
        RunRunning: Another process, or another thread of this one, does.
    """
    if is_driven(directory):
        raise RunRunning(
            f"The run {os.path.basename(directory)!r} runs still.",
            hint="wait for its end, or end the process that drives it",
        )
    path = os.path.join(directory, _LOCK)
    handle = locks.hold(path)
    _held.add(path)
    try:
        yield
    finally:
        files.remove(path, below=directory)
        _held.discard(path)
        locks.release(handle)


def is_driven(directory: str) -> bool:
    """Tell whether a living process drives a run."""
    path = os.path.join(directory, _LOCK)
    return path in _held or locks.is_held(path)
