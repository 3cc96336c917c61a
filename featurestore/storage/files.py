"""Functions over files by path, on this machine or at a URI: the entry for all other packages.

Each function goes to the ``Storage`` of its path; code outside this package never calls ``open``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import IO, Any

from featurestore.errors import LocationNotWritable, StorageError, UnsupportedLocation
from featurestore.model.paths import is_relative_path
from featurestore.storage import local, storage_for
from featurestore.storage.failures import reading, writing
from featurestore.storage.interface import FileStatus
from featurestore.storage.location import Location, require_local, scheme_of

_COPY_ATTEMPTS = 10
_PARALLEL_UPLOADS = 8


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
    if "://" in text or text.startswith(("dbfs:", "hdfs:")):
        raise UnsupportedLocation(
            f"location={text!r} is not a directory of this machine.",
            hint="a local or shared POSIX path, also one where another file system is mounted",
        )
    path = os.path.abspath(os.path.expanduser(text))
    if "\\" in path:
        raise UnsupportedLocation(
            f"location={text!r} has a backslash, which engines take for a separator.",
            hint="choose a directory without one",
        )
    return path


def ensure_writable(directory: str) -> None:
    """Create ``directory`` if necessary and check that files can be written there.

    Raises:
        LocationNotWritable: With the directory and the reason.
    """
    storage_for(directory).ensure_writable(directory)


def is_writable(directory: str) -> bool:
    """Return True if files can be written in a directory, which is created if necessary."""
    try:
        ensure_writable(directory)
    except LocationNotWritable:
        return False
    return True


def make_directory(path: str) -> None:
    """Create a directory and its parents if they do not exist."""
    storage_for(path).make_directory(path)


# -- writing ------------------------------------------------------------------------------


def write_atomically(path: str, data: bytes) -> None:
    """Write a file so that readers see the old content or the new: temporary, synced, renamed."""
    storage_for(path).write_atomically(path, data)


def write_json(path: str, data: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, indented, with its keys in their order."""
    write_atomically(path, json_bytes(data))


def replace_json(path: str, data: Mapping[str, Any]) -> None:
    """Write a JSON object so that readers see the old content or the new.

    It is not synced, which takes most of the time of a write: for state that is of no use after a
    crash of the machine.
    """
    storage_for(path).replace(path, json_bytes(data))


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON file, indented, with the keys in their order."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def write_new(path: str, data: bytes) -> bool:
    """Write a file; return False if its name is taken."""
    return storage_for(path).write_new(path, data)


def growing_file(path: str) -> AbstractContextManager[str]:
    """Provide the local path at which a growing file is written; its directory is created.

    Objects cannot grow: for a URI it is a temporary file, which is uploaded when the block ends. A
    failed upload is logged and does not fail the block.
    """
    return storage_for(path).growing_file(path)


def upload(moves: Sequence[tuple[str, str]]) -> None:
    """Copy local files, or files of the same bucket, to paths; several at a time.

    Each move is a source and a target.
    """

    def copy(move: tuple[str, str]) -> None:
        source, target = move
        storage_for(target).upload(source, target)

    with ThreadPoolExecutor(min(_PARALLEL_UPLOADS, max(len(moves), 1))) as pool:
        list(pool.map(copy, moves))


def sync(paths: Iterable[str]) -> None:
    """Bring files, and their names in their directories, to the disk; objects already are.

    Several at a time, each directory once.
    """
    local.sync(path for path in paths if storage_for(path).is_local)


def rename(source: str, target: str) -> None:
    """Rename a file in one file system, atomically; an existing target is replaced."""
    require_local(source, "New names for files", "copy the object by hand")
    os.replace(source, target)


def add_name(source: str, target: str) -> bool:
    """Link a file under a further name; return False if the file system has no links.

    Both names have to be in one file system.
    """
    storage = storage_for(source)
    return storage is storage_for(target) and storage.add_name(source, target)


def remove(path: str, *, below: str) -> bool:
    """Remove a file, or a directory with all its files, below a directory; return if it existed.

    Nothing outside ``below`` is ever removed, nor ``below`` itself: the path is followed directory
    by directory, and a symbolic link in between is refused. A link at the end of the path is removed
    itself, not its target.

    Args:
        path: The file or directory.
        below: The store's location, or another directory that belongs to the caller.

    Raises:
        StorageError: The path is not below that directory, or the system refuses: then as much of
            the directory is removed as possible.
    """
    return storage_for(path).remove(path, _names_below(path, below), below=below)


def _names_below(path: str, below: str) -> list[str]:
    """Return the names that lead from a directory to a path; refuse other paths."""
    root = os.path.join(below, "")
    names = path[len(root) :].split("/") if path.startswith(root) else []
    if not names or any(name in ("", ".", "..") for name in names):
        raise StorageError(f"Refused to remove {path!r}: it is not below {below!r}.")
    return names


# -- reading ------------------------------------------------------------------------------


def read_bytes(path: str) -> bytes:
    """Return the content of a file."""
    with reading(path):
        return storage_for(path).read(path)


def read_text(path: str) -> str:
    """Return the content of a UTF-8 file.

    Raises:
        OSError: As the system raises it, for callers that distinguish reasons.
        UnicodeDecodeError: The file is not UTF-8.
    """
    content = io.BytesIO(storage_for(path).read(path))
    return io.TextIOWrapper(content, encoding="utf-8").read()


def read_json(path: str) -> Any:
    """Return the JSON value of a file."""
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"The file {path!r} is damaged: {error}.") from error


def read_into(path: str, start: int, buffers: Sequence[memoryview]) -> None:
    """Fill buffers with the bytes of a file from ``start`` on, one after the other."""
    with reading(path):
        storage_for(path).read_into(path, start, buffers)


def read_chunks(path: str, *, start: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a file from ``start`` on, in chunks."""
    with reading(path):
        yield from storage_for(path).read_chunks(path, start=start)


def sha256(path: str) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def open_whole(path: str) -> str | io.BytesIO:
    """Return a file for libraries that read complete files: the path, or the content in memory.

    Raises:
        OSError: As the system raises it.
    """
    return storage_for(path).open_whole(path)


def open_ranges(path: str) -> str | IO[bytes]:
    """Return a file for libraries that read ranges: the path, or a seekable file.

    Raises:
        OSError: As the system raises it.
    """
    return storage_for(path).open_ranges(path)


# -- looking ------------------------------------------------------------------------------


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
    """Return True if a path is a symbolic link; object stores have none."""
    return storage_for(path).is_link(path)


def is_same(first_path: str, second_path: str) -> bool:
    """Return True if two paths lead to the same file or directory."""
    storage = storage_for(first_path)
    return storage is storage_for(second_path) and storage.is_same(first_path, second_path)


def lies_below(path: str, directory: str) -> bool:
    """Return True if a path leads below a directory, after links are resolved."""
    storage = storage_for(path)
    return storage is storage_for(directory) and storage.lies_below(path, directory)


def resolve(path: str) -> str:
    """Return a path with all symbolic links resolved; a URI unchanged."""
    return storage_for(path).resolve(path)


def inside(directory: str, relative: str) -> str:
    """Return the path of a file that a stored text names, relative to a directory.

    Raises:
        StorageError: The text leads outside, or through a symbolic link.
    """
    if not is_relative_path(relative):
        raise StorageError(f"{relative!r} is not a path below {directory!r}.")
    storage = storage_for(directory)
    path = directory
    for name in relative.split("/"):
        path = os.path.join(path, name)
        if storage.is_link(path):
            raise StorageError(
                f"{path!r} is a symbolic link; the files of a store are not.",
                hint="copy the file to where the link is",
            )
    return path


def status(path: str) -> FileStatus:
    """Return the status of a file.

    Raises:
        OSError: As the system raises it, for callers that distinguish reasons.
    """
    return storage_for(path).status(path)


def size(path: str) -> int:
    """Return the number of bytes of a file."""
    with reading(path):
        return status(path).size


def list_directory(path: str, *, after: str = "") -> list[str]:
    """Return the sorted names in a directory; empty for a missing directory and for a file.

    With ``after`` only names that are greater: for a directory without subdirectories.
    """
    with reading(path):
        return storage_for(path).list_directory(path, after=after)


def walk(directory: str, *, enter: Callable[[str], bool] | None = None) -> Iterator[str]:
    """Yield the paths of all files below a directory, in the order of their directories and names.

    Symbolic links to directories are not followed. ``enter`` decides by the name of a directory
    whether to descend into it.
    """
    return storage_for(directory).walk(directory, enter=enter)


def statuses_below(directory: str) -> Iterator[tuple[str, FileStatus]]:
    """Yield path and status of all files below a directory, without those removed meanwhile."""
    return storage_for(directory).statuses_below(directory)


def listed_sizes(directory: str) -> dict[str, int]:
    """Return the sizes of all files below a directory by path, if one list is cheap.

    Empty for a local directory, where a look at each file costs less than a list of all.
    """
    storage = storage_for(directory)
    if not storage.prefers_listing:
        return {}
    return {path: status.size for path, status in storage.statuses_below(directory)}


def listed_once(directory: str, *, after: str = "") -> AbstractContextManager[None]:
    """List a directory now, and answer from that list in this thread until the block ends.

    Nothing happens for a local directory, and inside a block of the same directory whose list
    covers as much.
    """
    return storage_for(directory).listed_once(directory, after=after)


def last_written(path: str) -> datetime | None:
    """Return the time of the last write of a file, or of any below it; None without files.

    For a URI it is a time of the server's clock.
    """
    return storage_for(path).last_written(path)


def current_time(location: str) -> datetime:
    """Return the time of the clock that stamps the files of a location: the server's for a URI."""
    return storage_for(location).current_time(location)


# -- temporary files ----------------------------------------------------------------------


def temporary_directory() -> str:
    """Create a temporary directory of this process; ``remove_temporary`` removes it."""
    with writing(tempfile.gettempdir()):
        return tempfile.mkdtemp(prefix="featurestore-")


def remove_temporary(directory: str) -> None:
    """Remove a directory of ``temporary_directory``; files that cannot be removed remain."""
    with suppress(StorageError):
        remove(directory, below=os.path.dirname(directory))


def copy_together(paths: Iterable[str], directory: str) -> None:
    """Copy local files that belong together into a directory, again while they change.

    Missing files are left out.

    Raises:
        StorageError: They changed during every attempt.
    """
    sources = list(paths)
    for _ in range(_COPY_ATTEMPTS):
        before = [_stamp(path) for path in sources]
        for path in sources:
            with reading(path), suppress(FileNotFoundError):
                shutil.copyfile(path, os.path.join(directory, os.path.basename(path)))
        if before == [_stamp(path) for path in sources]:
            return
    raise StorageError(
        f"{sources[0]!r} changes all the time and cannot be copied.", hint="try again"
    )


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
