"""Protection of local files from other users: private modes, and links below a store, which are refused.

The registry, access rights, logs, staging folders, lock files, certificates, and the state directory
with its grants are private, independent of the umask. Data files follow the umask of the user. In a
folder with the setgid bit, which people set to share a store in their group, the group gets the same
rights to private files as to the folder.

Another person who can write to a location could create a link in it, so that a read returns a file
outside of the location, or a write replaces it. The store creates no links. The location may be a link,
since the user names it. Hard links cannot be distinguished from files; the operating system lets
people link only files that they may access.
"""

from __future__ import annotations

import atexit
import glob
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

from featurestore.errors import StorageError
from featurestore.model.paths import (
    ACCESS_FILE,
    ERASURES,
    EXPERIMENTS,
    LOGS,
    ORIGINS,
    OWNERS,
    STAGING,
)

PRIVATE_FOLDERS = frozenset({ERASURES, LOGS, ORIGINS, OWNERS, STAGING})
# SQLite files of registries, with their write-ahead logs and journals.
_REGISTRY = re.compile(r"registry(-[0-9a-f]{32})?\.db.*")
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
# The locations of the stores that this process has opened, as absolute paths.
_locations: set[str] = set()
# A junction is a link between folders on Windows.
_is_junction = getattr(os.path, "isjunction", lambda _path: False)


def state_folder() -> str:
    """Return the directory of the state of this user on this machine; it may not exist."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "featurestore")


def is_private(path: str) -> bool:
    """Return True if a local path is private.

    >>> is_private("/data/store/_logs/etl/1.log"), is_private("/data/store/featuregroups/g/v1")
    (True, False)
    """
    *folders, name = path.split(os.sep)
    if name == ACCESS_FILE or _REGISTRY.fullmatch(name):
        return True
    if name in PRIVATE_FOLDERS or not PRIVATE_FOLDERS.isdisjoint(folders):
        return True
    state = state_folder()
    return path == state or path.startswith(os.path.join(state, ""))


def opener(path: str) -> Callable[[str, int], int]:
    """Return an opener for ``open`` that creates a file with the mode of ``path``.

    Writers create a file by a temporary name, so ``path`` is its final name. The umask reduces the
    mode further.
    """
    # Files in a staging folder become data files by a hard link; their folder is private.
    if is_private(path) and STAGING not in path.split(os.sep):
        return partial(os.open, mode=_private_mode(path, _FILE_MODE))
    return partial(os.open, mode=0o666)


def create_file(path: str) -> None:
    """Create an empty private file, if it does not exist, for a library that opens it by path."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    with suppress(FileExistsError):
        os.close(os.open(path, flags, _private_mode(path, _FILE_MODE)))


def make_folders(path: str) -> None:
    """Create a directory and its parents if they do not exist; private directories get a private mode."""
    if not is_private(path):
        os.makedirs(path, exist_ok=True)
        return
    if not os.path.isdir(path):
        make_folders(os.path.dirname(path))
        try:
            os.mkdir(path, _private_mode(path, _FOLDER_MODE))
        except FileExistsError:
            # Another process may have created it.
            if not os.path.isdir(path):
                raise


def make_temporary_folder(directory: str, prefix: str) -> str:
    """Create a private folder with a new name in a directory, and return its path."""
    folder = tempfile.mkdtemp(prefix=prefix, dir=directory)
    group_mode = _private_mode(folder, _FOLDER_MODE)
    if group_mode != _FOLDER_MODE:
        os.chmod(folder, stat.S_ISGID | group_mode)
    return folder


def user_temporary_folder() -> str:
    """Return the private folder for temporary files of this user, which is created by this call.

    Other users can prepare a folder or a link with the same name in the temporary directory of the
    machine. Then a folder with a new name is used until the process ends.
    """
    directory = tempfile.gettempdir()
    if not hasattr(os, "getuid"):  # Windows has a temporary directory for each user
        return directory
    folder = os.path.join(directory, f"featurestore-{os.getuid()}")
    if not os.path.lexists(folder):
        with suppress(FileExistsError):
            os.mkdir(folder, _FOLDER_MODE)
    status = os.lstat(folder)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if is_own and not status.st_mode & _GROUP_AND_OTHERS:
        return folder
    return _process_temporary_folder(directory)


@cache
def _process_temporary_folder(directory: str) -> str:
    folder = tempfile.mkdtemp(prefix="featurestore-", dir=directory)
    atexit.register(_remove_own_folder, folder, os.getpid())
    return folder


def _remove_own_folder(folder: str, process: int) -> None:
    """Remove a folder of this process; a forked child also runs the exit functions of its parent."""
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _private_mode(path: str, mode: int) -> int:
    """Return a private mode, with the rights of the group if the parent has the setgid bit."""
    try:
        parent = os.stat(os.path.dirname(path) or os.curdir).st_mode
    except OSError:  # the caller reports that the parent is missing
        return mode
    if not parent & stat.S_ISGID:
        return mode
    group = (parent & stat.S_IRWXG) >> 3
    return mode | ((mode >> 6) & group) << 3


@dataclass(frozen=True)
class ExposedPath:
    """A private file or folder that other users can access, and the command that changes it."""

    path: str
    mode: int

    @property
    def command(self) -> str:
        """The command that removes the rights of other users."""
        has_group = bool(os.stat(os.path.dirname(self.path)).st_mode & stat.S_ISGID)
        return f"chmod -R {'o' if has_group else 'go'}-rwx {shlex.quote(self.path)}"


def find_exposed_paths(location: str) -> Iterator[ExposedPath]:
    """Yield private files and folders of a local store that other users can access.

    Folders are not searched further, since one command changes all their files.
    """
    folder = glob.escape(location)
    patterns = (f"{folder}/{EXPERIMENTS}/**/logs/*.log", f"{folder}/online/*.db*")
    paths = [
        os.path.join(location, name) for name in sorted(os.listdir(location)) if is_private(name)
    ]
    for pattern in patterns:
        paths += sorted(glob.glob(pattern, recursive=True))
    for path in paths:
        try:
            status = os.lstat(path)
        except FileNotFoundError:  # another process removed it, such as a journal of SQLite
            continue
        allowed = _private_mode(path, _FOLDER_MODE if stat.S_ISDIR(status.st_mode) else _FILE_MODE)
        mode = stat.S_IMODE(status.st_mode)
        if mode & _GROUP_AND_OTHERS & ~allowed and not stat.S_ISLNK(status.st_mode):
            yield ExposedPath(path, mode)


# -- links --------------------------------------------------------------------------------


def protect_location(location: str) -> None:
    """Refuse links below a local location from now on."""
    _locations.add(location)


def check_links(path: str) -> None:
    """Check that no part of a local path below a protected location is a link.

    Other paths, and missing files, are not refused.

    Raises:
        StorageError: A part is a symbolic link, or the path is a pipe, a socket or a device, which
            could block a reader.
    """
    # The innermost protected location above the path.
    location = os.path.dirname(path)
    while location not in _locations:
        parent = os.path.dirname(location)
        if parent == location:
            return
        location = parent
    component = location
    for name in path[len(location) + 1 :].split(os.sep):
        component = os.path.join(component, name)
        try:
            mode = os.lstat(component).st_mode
        except OSError:  # the caller reports the error of its own call
            return
        if stat.S_ISLNK(mode) or _is_junction(component):
            raise link_error(component)
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise StorageError(
            f"{path!r} is neither a file nor a directory.", hint="remove it from the store"
        )


def link_error(path: str) -> StorageError:
    """Return the error for a link in a store."""
    return StorageError(
        f"{path!r} is a symbolic link, which a store must not contain.",
        hint="replace the link with a copy of the file",
    )
