"""File locks that end with their process, and the identity of the machine that holds them.

Processes on the same machine see each other's locks immediately. Where the operating system has no
POSIX locks (Windows), the locks are those of the library filelock.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from featurestore.errors import StorageError
from featurestore.storage import failures, protection, storage_for

if TYPE_CHECKING:
    import filelock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# A check of a lock by another process holds it briefly.
_FILELOCK_SECONDS = 10
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def acquire_lock(path: str) -> int | filelock.BaseFileLock:
    """Create a file, lock it, and return the file handle, on Windows the lock of filelock.

    The lock is released when the handle is closed or the process ends.

    The lock belongs to the process and is not inherited by a child created with ``fork``. The
    process must not open the file again, since closing the second handle would also release the
    lock.
    """
    directory, name = os.path.split(path)
    storage_for(directory).make_directory(directory)
    if fcntl is None:
        lock = _build_filelock(path)
        with failures.translate_write_errors(path):
            return lock.acquire(timeout=_FILELOCK_SECONDS).lock
    temporary = os.path.join(directory, f".{name}")
    with failures.translate_write_errors(path):
        handle = protection.opener(path)(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
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
    if fcntl is None:
        import filelock

        if not os.path.exists(path):
            return False
        try:
            with _build_filelock(path).acquire(timeout=0):
                return False
        except filelock.Timeout:
            return True
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


def remove_lock_file(handle: int | filelock.BaseFileLock, path: str, *, below: str) -> None:
    """Remove the file of a lock that this process holds, and release the lock.

    Raises:
        StorageError: The file cannot be removed.
    """
    storage = storage_for(path)
    if isinstance(handle, int):
        # Removed while it is locked: after the release, the path may already be the lock file of
        # the next owner.
        try:
            storage.remove(path, below=below)
        finally:
            os.close(handle)
        return
    handle.release()  # Windows cannot remove an open file
    storage.remove(path, below=below)


@contextmanager
def exclusive_lock(path: str) -> Iterator[None]:
    """Hold an exclusive lock during a ``with`` block; threads and processes wait for it."""
    if fcntl is None:
        with _build_filelock(path):
            yield
        return
    with open(path, "wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def lock_shared(handle: int) -> None:
    """Take a shared lock on an open file, so that ``remove_unless_shared`` does not remove it."""
    # Windows removes no open file, so it needs no lock.
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_SH)


def remove_unless_shared(path: str, *, lock_file: str, below: str) -> bool:
    """Remove a file unless another open file has a shared lock on ``lock_file``.

    Returns whether it was removed.
    """
    storage = storage_for(path)
    if fcntl is None:
        try:
            storage.remove(path, below=below)
        except StorageError:  # another process has opened it
            return False
        return True
    handle = None
    try:
        with suppress(FileNotFoundError):
            handle = os.open(lock_file, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        storage.remove(path, below=below)
    except BlockingIOError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _build_filelock(path: str) -> filelock.BaseFileLock:
    import filelock

    # Any thread may release the lock.
    return filelock.FileLock(path, thread_local=False)


def host_name() -> str:
    """Return the host name of this machine."""
    return socket.gethostname()


@cache
def process_namespace() -> str:
    """Return what identifies the processes with which this one shares process numbers.

    Containers may have the name of their host, and copies of a machine the name of the original.
    """
    identifiers = [socket.gethostname()]
    with suppress(OSError):
        identifiers += [os.readlink("/proc/self/ns/pid"), _BOOT.read_text().strip()[:8]]
    return "@".join(identifiers).replace("/", "")


def lock_folder(location: str) -> str:
    """Create and return the local folder for the lock files of processes that use a URI."""
    key = hashlib.sha256(location.encode()).hexdigest()[:32]
    folder = os.path.join(protection.state_folder(), "owners", key)
    protection.make_folders(folder)
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
