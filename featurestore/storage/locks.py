"""Locks on files, which the operating system drops when their process dies."""

from __future__ import annotations

import fcntl
import os

from featurestore.storage import failures, files


def hold(path: str) -> int:
    """Make a file that this process holds, and return the handle.

    Closing it, or the end of the process, lets go.

    The lock belongs to the process: a child made by ``fork`` does not hold it. Within the process
    that holds a file nobody may open it again, since closing that would let go, too.
    """
    directory, name = os.path.split(path)
    files.make_directory(directory)
    temporary = os.path.join(directory, f".{name}")
    with failures.writing(path):
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            # Held before it has its name: whoever sees the name never sees it free.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(temporary, path)
        except OSError:
            os.close(handle)
            raise
    return handle


def is_held(path: str) -> bool:
    """Tell whether another living process holds a file."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that several who look at once do not take one another for the holder.
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(handle)
    return False


def release(handle: int) -> None:
    """Let go of a file that this process holds."""
    os.close(handle)
