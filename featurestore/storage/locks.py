"""Locks on files, which the operating system releases when their process dies."""

from __future__ import annotations

import fcntl
import os

from featurestore.storage import failures, files


def hold(path: str) -> int:
    """Create a file that this process locks, and return the handle.

    Closing the handle, or the end of the process, releases the lock.

    The lock belongs to the process; a child made by ``fork`` does not have it. The process must not
    open the file again, since closing that handle would release the lock, too.
    """
    directory, name = os.path.split(path)
    files.make_directory(directory)
    temporary = os.path.join(directory, f".{name}")
    with failures.writing(path):
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            # Locked before it gets its name, so that no process sees the name unlocked.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(temporary, path)
        except OSError:
            os.close(handle)
            raise
    return handle


def is_held(path: str) -> bool:
    """Return True if another living process has locked a file."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that concurrent checks do not see each other's lock.
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(handle)
    return False


def release(handle: int) -> None:
    """Release the lock of this process on a file."""
    os.close(handle)
