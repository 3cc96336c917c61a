"""Locks on files and directories, which the operating system drops when their process dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from featurestore.storage import files
from featurestore.storage.publication import sync_path

HOLD = ".export"  # the file in a held directory whose lock its process has


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock on a file, made if need be, while the block runs; others wait."""
    handle = _open_lock(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def make_held(directory: str) -> int:
    """Make a directory that this process holds, and return the handle: closing it, or the end of the process, lets go.

    Callers hold a lock of their own meanwhile, or somebody could take the directory for an abandoned one.
    """
    with files.writing(directory):
        os.mkdir(directory)
        sync_path(os.path.dirname(directory))
    handle = _open_lock(os.path.join(directory, HOLD))
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def is_held(directory: str) -> bool:
    """Tell whether a living process holds a directory."""
    try:
        handle = os.open(os.path.join(directory, HOLD), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _open_lock(path: str) -> int:
    with files.writing(path):
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
