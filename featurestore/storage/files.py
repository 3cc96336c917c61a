"""File functions that take a local path or a URI; all other packages access files through them.

Each function calls the ``Storage`` that contains its path: ``local`` for local paths, ``remote`` for
URIs. Code outside this package never calls ``open``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

from featurestore.errors import LocationNotWritable, StorageError, UnsupportedLocation
from featurestore.model.paths import is_relative_path
from featurestore.model.threads import independent_tasks
from featurestore.storage.failures import translate_read_errors, translate_write_errors
from featurestore.storage.interface import FileStatus
from featurestore.storage.local import LocalStorage, sync_path
from featurestore.storage.location import Location, is_uri, require_local, scheme_of
from featurestore.storage.protection import link_error
from featurestore.storage.remote import RemoteStorage

if TYPE_CHECKING:
    from featurestore.storage.interface import Storage

_LOCAL = LocalStorage()
_REMOTE = RemoteStorage()

_PARALLEL_UPLOADS = 8
# Disks serve several requests concurrently; more threads than this do not help.
_SYNC_THREADS = 8
# The process that made each temporary directory.
_temporary_directories: dict[str, int] = {}


def storage_for(path: str) -> Storage:
    """Return the storage that contains a path.

    >>> storage_for("/data/store").is_local, storage_for("s3://models/features").is_local
    (True, False)
    """
    return _REMOTE if is_uri(path) else _LOCAL


def location_of(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a directory, or the URI of a location in an object store.

    Raises:
        UnsupportedLocation: ``location`` is a URI with an unsupported scheme.
    """
    text = os.fspath(location)
    if storage_for(text).is_local or scheme_of(text) == "file":
        return local_directory(text)
    return Location.parse(text).text


def local_directory(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local or shared POSIX directory.

    Raises:
        UnsupportedLocation: ``location`` is a URI other than ``file://``.
    """
    text = os.fspath(location)
    if text.startswith("file://"):
        text = text[len("file://") :]
    # As a local path, a URI would create a directory such as ``s3:`` in the working directory.
    if "://" in text or text.startswith(("dbfs:", "hdfs:")):
        raise UnsupportedLocation(
            f"location={text!r} is not a local directory.",
            hint="a local or shared POSIX path, such as the mount point of another file system",
        )
    path = os.path.abspath(os.path.expanduser(text))
    if "\\" in path:
        raise UnsupportedLocation(
            f"location={text!r} has a backslash, which engines interpret as a separator.",
            hint="choose a path without backslashes",
        )
    return path


def ensure_writable(directory: str) -> None:
    """Create ``directory`` if necessary and check that files can be written there.

    Raises:
        LocationNotWritable: Files cannot be written; the message contains the directory and the
            reason.
    """
    storage_for(directory).ensure_writable(directory)


def is_writable(directory: str) -> bool:
    """Return True if files can be written in a directory, which is created if necessary."""
    try:
        ensure_writable(directory)
    except LocationNotWritable:
        return False
    return True


def make_directory(path: str, *, durable: bool = False) -> None:
    """Create a directory and its parents if they do not exist; ``durable`` syncs them to disk."""
    storage_for(path).make_directory(path, durable=durable)


# -- writing ------------------------------------------------------------------------------


def write_atomically(path: str, data: bytes) -> None:
    """Write a file atomically: to a temporary file, which is synced and renamed."""
    storage_for(path).write_atomically(path, data)


def write_json(path: str, data: Mapping[str, Any]) -> None:
    """Write a JSON object to a file atomically, indented and with its keys in order."""
    write_atomically(path, json_bytes(data))


def replace_json(path: str, data: Mapping[str, Any]) -> None:
    """Replace a JSON file, so that readers see either the old or the new content.

    The file is not synced, since syncing takes most of the time of a write. Use it for state that
    is not needed after a crash of the machine.
    """
    storage_for(path).replace(path, json_bytes(data))


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """Encode a JSON object as bytes, indented and with its keys in order."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def write_new(path: str, data: bytes) -> bool:
    """Write a new file; return False if the path already exists."""
    return storage_for(path).write_new(path, data)


def growing_file(path: str) -> AbstractContextManager[str]:
    """Yield a local path to which a growing file can be written, and create its directory.

    Objects cannot grow, so for a URI the path is a temporary file, which is uploaded when the block
    ends. A failed upload is logged and does not fail the block.
    """
    return storage_for(path).growing_file(path)


def upload(moves: Sequence[tuple[str, str]]) -> None:
    """Copy local files, or files in the same bucket, to other paths concurrently.

    Each move is a pair of source and target.
    """

    def copy(move: tuple[str, str]) -> None:
        source, target = move
        storage_for(target).upload(source, target)

    # Concurrent, since closing one file on HDFS can take half a second.
    threads = min(_PARALLEL_UPLOADS, max(len(moves), 1))
    with independent_tasks(threads, "featurestore-upload") as pool:
        list(pool.map(copy, moves))


def sync(paths: Iterable[str]) -> None:
    """Fsync local files and their parent directories. Object stores need no sync.

    Files are synced concurrently, each directory once.
    """
    local_files = [path for path in paths if storage_for(path).is_local]
    folders = sorted({os.path.dirname(path) for path in local_files})
    # Files first: a synced directory entry must not refer to content that is not on disk.
    for batch in (local_files, folders):
        if len(batch) == 1:
            sync_path(batch[0])
        elif batch:
            threads = min(_SYNC_THREADS, len(batch))
            with independent_tasks(threads, "featurestore-sync") as pool:
                list(pool.map(sync_path, batch))


def rename(source: str, target: str) -> None:
    """Rename a file atomically within one file system and replace an existing target."""
    require_local(source, "Renames", "copy the object by hand")
    os.replace(source, target)


def create_link(source: str, target: str) -> bool:
    """Create a hard link; return False if the file system does not support links.

    Both paths must be in the same file system.
    """
    storage = storage_for(source)
    return storage is storage_for(target) and storage.create_link(source, target)


def remove(path: str, *, below: str) -> bool:
    """Remove a file or a directory tree below ``below``; return whether it existed.

    Neither ``below`` itself nor anything outside it is ever removed: the path is opened directory
    by directory, and a symbolic link in between is refused. If the path itself is a symbolic link,
    the link is removed, not its target.

    Args:
        path: The file or directory.
        below: The store location, or another directory that belongs to the caller.

    Raises:
        StorageError: The path is not below ``below``, or the system refuses the removal; as much of
        the directory as possible is removed.
    """
    return storage_for(path).remove(path, _relative_parts(path, below), below=below)


def _relative_parts(path: str, below: str) -> list[str]:
    """Return the parts of a path relative to a directory; refuse paths outside it."""
    root = os.path.join(below, "")
    # On Windows, parts of a path are separated by backslashes or slashes.
    relative = path[len(root) :].replace(os.sep, "/") if path.startswith(root) else ""
    names = relative.split("/") if relative else []
    # The last check before a removal. It does not depend on the caller having checked the path.
    if not names or any(name in ("", ".", "..") for name in names):
        raise StorageError(f"Refused to remove {path!r}: it is not below {below!r}.")
    return names


# -- reading ------------------------------------------------------------------------------


def read_bytes(path: str) -> bytes:
    """Return the content of a file."""
    with translate_read_errors(path):
        return storage_for(path).read(path)


def read_text(path: str) -> str:
    """Return the content of a UTF-8 file.

    Raises:
        OSError: The unchanged system error, so that callers can distinguish reasons.
        UnicodeDecodeError: The file is not UTF-8.
    """
    # TextIOWrapper translates line breaks as ``open`` does.
    content = io.BytesIO(storage_for(path).read(path))
    return io.TextIOWrapper(content, encoding="utf-8").read()


def read_json(path: str) -> Any:
    """Return the value that a JSON file contains."""
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"The file {path!r} is damaged: {error}.", hint="restore it from a copy"
        ) from error


def read_into(path: str, start: int, buffers: Sequence[memoryview]) -> None:
    """Fill buffers in order with the bytes of a file, starting at offset ``start``."""
    with translate_read_errors(path):
        storage_for(path).read_into(path, start, buffers)


def read_chunks(path: str, *, start: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks, starting at offset ``start``."""
    with translate_read_errors(path):
        yield from storage_for(path).read_chunks(path, start=start)


def sha256(path: str) -> str:
    """Return the SHA-256 digest of a file."""
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def open_complete(path: str) -> str | io.BytesIO:
    """Return a file for libraries that read complete files: the local path, or the content.

    Raises:
        OSError: The unchanged system error.
    """
    return storage_for(path).open_complete(path)


def open_ranges(path: str) -> str | IO[bytes]:
    """Return a file for libraries that read byte ranges: the local path, or a seekable file.

    Raises:
        OSError: The unchanged system error.
    """
    return storage_for(path).open_ranges(path)


# -- inspecting ---------------------------------------------------------------------------


def exists(path: str) -> bool:
    """Return True if a file or directory exists."""
    return storage_for(path).exists(path)


def is_readable(path: str) -> bool:
    """Return True if this process may read a file or directory."""
    return storage_for(path).is_readable(path)


def is_file(path: str) -> bool:
    """Return True if a path is a file."""
    return storage_for(path).is_file(path)


def is_directory(path: str) -> bool:
    """Return True if a path is a directory."""
    return storage_for(path).is_directory(path)


def is_link(path: str) -> bool:
    """Return True if a path is a symbolic link; always False for object stores."""
    return storage_for(path).is_link(path)


def is_same(first_path: str, second_path: str) -> bool:
    """Return True if two paths refer to the same file or directory."""
    storage = storage_for(first_path)
    return storage is storage_for(second_path) and storage.is_same(first_path, second_path)


def is_below(path: str, directory: str) -> bool:
    """Return True if a path is below a directory after symbolic links are resolved."""
    storage = storage_for(path)
    return storage is storage_for(directory) and storage.is_below(path, directory)


def resolve(path: str) -> str:
    """Return a path with all symbolic links resolved; return a URI unchanged."""
    return storage_for(path).resolve(path)


def resolve_inside(directory: str, relative: str) -> str:
    """Return the absolute path of a file whose relative path is stored in a directory's metadata.

    Raises:
        StorageError: The path leaves the directory or contains a symbolic link.
    """
    if not is_relative_path(relative):
        raise StorageError(f"{relative!r} is not a path below {directory!r}.")
    storage = storage_for(directory)
    path = directory
    for name in relative.split("/"):
        path = os.path.join(path, name)
        # Every part is checked: a link at any level could lead out of the directory.
        if storage.is_link(path):
            raise link_error(path)
    return path


def status(path: str) -> FileStatus:
    """Return the status of a file.

    Raises:
        OSError: The unchanged system error, so that callers can distinguish reasons.
    """
    return storage_for(path).status(path)


def size(path: str) -> int:
    """Return the size of a file in bytes."""
    with translate_read_errors(path):
        return status(path).size


def list_directory(path: str, *, after: str = "") -> list[str]:
    """List the sorted names in a directory; empty if it does not exist or is a file.

    With ``after``, only greater names are listed; the directory must not have subdirectories.
    """
    with translate_read_errors(path):
        return storage_for(path).list_directory(path, after=after)


def walk(directory: str, *, enter: Callable[[str], bool] | None = None) -> Iterator[str]:
    """Yield the paths of all files below a directory, ordered by directory and name.

    Symbolic links to directories are not followed. ``enter`` takes a directory name and returns
    whether to descend into the directory.
    """
    return storage_for(directory).walk(directory, enter=enter)


def walk_with_status(directory: str) -> Iterator[tuple[str, FileStatus]]:
    """Yield path and status of all files below a directory; skip files removed meanwhile."""
    return storage_for(directory).walk_with_status(directory)


def list_sizes(directory: str) -> dict[str, int]:
    """Return the file sizes below a directory by path, if listing it is cheap.

    Return an empty dict for a local directory, where checking single files costs less than a
    listing.
    """
    storage = storage_for(directory)
    if not storage.prefers_listing:
        return {}
    return {path: status.size for path, status in storage.walk_with_status(directory)}


def cached_listing(directory: str, *, after: str = "") -> AbstractContextManager[None]:
    """List a directory once, and use this listing for lookups in this thread during the block.

    This has no effect for a local directory, or inside a block for the same directory whose listing
    already covers the same names.
    """
    return storage_for(directory).cached_listing(directory, after=after)


def last_write_time(path: str) -> datetime | None:
    """Return the last write time of a file or of the newest file in a directory, None if missing.

    For a URI the time is from the clock of the server.
    """
    return storage_for(path).last_write_time(path)


def current_time(location: str) -> datetime:
    """Return the current time by the clock that stamps files in a location."""
    return storage_for(location).current_time(location)


# -- temporary files ----------------------------------------------------------------------


def temporary_directory() -> str:
    """Create a temporary directory for this process; ``remove_temporary`` removes it."""
    with translate_write_errors(tempfile.gettempdir()):
        directory = tempfile.mkdtemp(prefix="featurestore-")
    _temporary_directories[directory] = os.getpid()
    return directory


def remove_temporary(directory: str) -> None:
    """Remove a directory made by ``temporary_directory``; ignore files that cannot be removed.

    A forked child does not remove the directories of its parent.
    """
    if _temporary_directories.pop(directory, os.getpid()) != os.getpid():
        return
    with suppress(StorageError):
        remove(directory, below=os.path.dirname(directory))
