"""File locks that end with their process, and the identity of the machine that holds them.

Processes on the same machine see each other's locks immediately.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from pathlib import Path

from featurestore.storage import failures, files

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def acquire_lock(path: str) -> int:
    """Create a file, lock it, and return the file handle.

    The lock is released when the handle is closed or the process ends.

    The lock belongs to the process and is not inherited by a child created with ``fork``. The
    process must not open the file again, since closing the second handle would also release the
    lock.
    """
    directory, name = os.path.split(path)
    files.make_directory(directory)
    temporary = os.path.join(directory, f".{name}")
    with failures.translate_write_errors(path):
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            # The file is locked before it gets its name, so that no process sees it unlocked.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(temporary, path)
        except OSError:
            os.close(handle)
            raise
    return handle


def is_locked(path: str) -> bool:
    """Return True if another living process holds the lock on a file."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # A shared lock, so that concurrent checks do not see each other's lock.
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        # POSIX allows both errors for a lock that another process holds.
        return True
    finally:
        os.close(handle)
    return False


def release_lock(handle: int) -> None:
    """Release this process's lock on a file."""
    os.close(handle)


def host_name() -> str:
    """Return the host name of this machine."""
    return socket.gethostname()


def lock_folder(location: str) -> str:
    """Create and return the local folder for the lock files of processes that use a URI."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    key = hashlib.sha256(location.encode()).hexdigest()[:32]
    folder = os.path.join(state, "featurestore", "owners", key)
    os.makedirs(folder, exist_ok=True)
    return folder


def machine_id(directory: str) -> str:
    """Return eight hex digits that identify the kernel and the file system of a directory.

    They are equal for all containers on one machine that mount the same volume, also after a
    container restart, and change with a reboot.
    """
    try:
        # The boot id changes with a reboot, which also ends all locks.
        kernel = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        kernel = host_name()
    device = os.stat(directory).st_dev
    return hashlib.sha256(f"{kernel}/{device}".encode()).hexdigest()[:8]
