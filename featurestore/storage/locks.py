"""Locks on files, which end with their process, and the identity of the machine that holds them.

Processes of one machine see each other's locks at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from pathlib import Path

from featurestore.storage import failures, files

_BOOT = Path("/proc/sys/kernel/random/boot_id")


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


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def lock_folder(location: str) -> str:
    """Create and return the local folder for lock files of processes that use a URI."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    key = hashlib.sha256(location.encode()).hexdigest()[:32]
    folder = os.path.join(state, "featurestore", "owners", key)
    os.makedirs(folder, exist_ok=True)
    return folder


def machine_id(directory: str) -> str:
    """Return eight hex digits, equal for processes that share a kernel and a directory's file system.

    Containers of one machine that mount the same volume share both, and so does a restarted
    container. After a reboot the digits differ.
    """
    try:
        kernel = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        kernel = host_name()
    device = os.stat(directory).st_dev
    return hashlib.sha256(f"{kernel}/{device}".encode()).hexdigest()[:8]
