"""Removal of local files and directories that does not follow links."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from featurestore.errors import StorageError

# False on Windows. Its file system journals the entries of directories, which cannot be synced.
OPENS_DIRECTORIES = hasattr(os, "O_DIRECTORY")


def remove_below(path: str, names: Sequence[str], *, below: str) -> bool:
    """Remove a file or a directory tree; return whether it existed.

    Every directory is opened relative to its parent. A link that another process creates in the
    meantime cannot redirect the removal.

    Args:
        path: The path, for errors.
        names: The parts of the path relative to ``below``.
        below: A directory of the caller; links between it and the path are not followed.

    Raises:
        StorageError: The system refuses the removal; as much of the directory as possible is
            removed.
    """
    with ExitStack() as handles:
        try:
            if not OPENS_DIRECTORIES:
                return _remove_by_path(below, names)
            parent = _open_directory(below, None, handles)
            for name in names[:-1]:
                parent = _open_directory(name, parent, handles)
            status = os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                _remove_tree(names[-1], parent)
            else:
                os.unlink(names[-1], dir_fd=parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            reason = error.strerror or str(error)
            if error.filename is not None:
                reason = f"{error.strerror} ({error.filename})"
            raise StorageError(
                f"Cannot remove {path!r}: {reason}.",
                hint="check permissions, and that no directory of the store is a symbolic link",
            ) from error
    return True


def _remove_by_path(below: str, names: Sequence[str]) -> bool:
    """Remove a path where directories cannot be opened; refuse links between it and ``below``."""
    is_junction = getattr(os.path, "isjunction", os.path.islink)  # since Python 3.12
    parent = below
    for name in names[:-1]:
        parent = os.path.join(parent, name)
        if os.path.islink(parent) or is_junction(parent):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), parent)
    path = os.path.join(parent, names[-1])
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
    return True


def _remove_tree(name: str, parent: int) -> None:
    """Remove a directory and as many of its files as possible; raise OSError if any remain."""
    # The first pass removes what it can; the second collects the errors of what remains. Without a
    # handler, rmtree of Python 3.13 replaces the name of the file in an error by that of its folder.
    shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    errors: list[OSError] = []

    def collect_error(_function: object, path: str, reported: Any) -> None:
        # Before Python 3.12, the handler receives the result of `sys.exc_info`.
        error = reported[1] if isinstance(reported, tuple) else reported
        if not isinstance(error, FileNotFoundError):  # another process may remove the same files
            error.filename = path
            errors.append(error)

    handler: dict[str, Any] = {"onexc" if sys.version_info >= (3, 12) else "onerror": collect_error}
    shutil.rmtree(name, dir_fd=parent, **handler)
    if errors:
        raise errors[0]


def _open_directory(name: str, parent: int | None, handles: ExitStack) -> int:
    """Open a directory by name relative to an open directory; refuse a symbolic link."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    if parent is not None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            raise FileNotFoundError(name)  # the path is a file, so it contains nothing
        flags |= os.O_NOFOLLOW
    handle = os.open(name, flags, dir_fd=parent)
    handles.callback(os.close, handle)
    return handle
