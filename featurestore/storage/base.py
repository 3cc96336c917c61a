"""The base class of storages: files and directories by path, which is a local path or a URI.

``storage_for`` selects the storage of a path, and ``Session.storage`` is the one of a store. The
public methods of ``Storage`` translate errors; ``LocalStorage`` and ``RemoteStorage`` implement the
abstract ones.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import IO

from featurestore.errors import LocationNotWritable, StorageError
from featurestore.model.paths import is_relative_path
from featurestore.model.threads import independent_tasks
from featurestore.storage.failures import translate_read_errors, translate_write_errors
from featurestore.storage.interface import FileStatus, Writer
from featurestore.storage.protection import link_error

_PARALLEL_UPLOADS = 8


class Storage(ABC):
    """Files and directories by path, which is an absolute local path or a URI.

    Writes are atomic: readers see either the old or the new content. Errors are raised as
    ``StorageError`` with the path and the reason, except by ``read``, ``read_text``, ``status``,
    ``open_complete`` and ``open_ranges``: they raise the ``OSError`` of the system unchanged
    (FileNotFoundError for a missing file), so that callers can distinguish reasons. Abstract
    methods with an underscore raise it as well, and the public methods translate it. All methods
    are thread-safe.

    Attributes:
        is_local: Whether paths are local: libraries can open, map and link the files.
        supports_appending: Whether files support appending, partial overwrites and locks.
        prefers_listing: Whether listing a directory once is cheaper than checking several of its
            files.
        needs_claims: Whether several machines with separate registries may share a directory. If
            so, versions, leases and staged files are claimed with objects in the directory.
    """

    is_local: bool
    supports_appending: bool
    prefers_listing: bool
    needs_claims: bool

    # -- writing --------------------------------------------------------------------------

    @abstractmethod
    def ensure_writable(self, directory: str) -> None:
        """Create a directory if necessary and check that files can be written there.

        Raises:
            LocationNotWritable: Files cannot be written; the message contains the directory and the
                reason.
        """

    def is_writable(self, directory: str) -> bool:
        """Return True if files can be written in a directory, which is created if necessary."""
        try:
            self.ensure_writable(directory)
        except LocationNotWritable:
            return False
        return True

    def make_directory(self, path: str, *, durable: bool = False) -> None:
        """Create a directory and its parents if they do not exist; ``durable`` syncs them to disk.

        Object stores do not need directories.
        """
        with translate_write_errors(path):
            self._make_directory(path, durable=durable)

    def write_atomically(self, path: str, data: bytes) -> None:
        """Write a file and sync it to disk."""
        with translate_write_errors(path):
            self._write(path, data, durable=True)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file without syncing it, since syncing takes most of the time of a write.

        Use it for state that is not needed after a crash of the machine.
        """
        with translate_write_errors(path):
            self._write(path, data, durable=False)

    def write_new(self, path: str, data: bytes) -> bool:
        """Write a new file; return False if the path already exists."""
        with translate_write_errors(path):
            return self._write_new(path, data)

    @abstractmethod
    def writer(self, path: str) -> AbstractContextManager[Writer]:
        """Open a new file for writing; it appears under its name, synced, when the block ends.

        If the block raises an exception, no file remains.
        """

    @abstractmethod
    def growing_file(self, path: str) -> AbstractContextManager[str]:
        """Yield a local path to which a growing file can be written, and create its directory.

        Objects cannot grow, so for a URI the path is a temporary file, which is uploaded when the
        block ends. A failed upload is logged and does not fail the block.
        """

    @abstractmethod
    def upload(self, source: str, path: str) -> None:
        """Copy a local file, or a file in the same bucket, to a path."""

    def upload_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Copy files to other paths concurrently; each move is a pair of source and target."""
        # Concurrent, since closing one file on HDFS can take half a second.
        threads = min(_PARALLEL_UPLOADS, max(len(moves), 1))
        with independent_tasks(threads, "featurestore-upload") as pool:
            list(pool.map(lambda move: self.upload(*move), moves))

    @abstractmethod
    def sync(self, paths: Iterable[str]) -> None:
        """Fsync files and their parent directories. Object stores need no sync."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically within one file system and replace an existing target.

        Raises:
            UnsupportedLocation: The path is a URI.
        """

    @abstractmethod
    def create_link(self, source: str, target: str) -> bool:
        """Create a hard link; return False if the file system does not support links."""

    def remove(self, path: str, *, below: str) -> bool:
        """Remove a file or a directory tree below ``below``; return whether it existed.

        Neither ``below`` itself nor anything outside it is ever removed: the path is opened
        directory by directory, and a symbolic link in between is refused. If the path itself is a
        symbolic link, the link is removed, not its target.

        Args:
            path: The file or directory.
            below: The store location, or another directory that belongs to the caller.

        Raises:
            StorageError: The path is not below ``below``, or the system refuses the removal; as
                much of the directory as possible is removed.
        """
        root = os.path.join(below, "")
        # On Windows, parts of a path are separated by backslashes or slashes.
        relative = path[len(root) :].replace(os.sep, "/") if path.startswith(root) else ""
        names = relative.split("/") if relative else []
        # The last check before a removal. It does not depend on the caller having checked the path.
        if not names or any(name in ("", ".", "..") for name in names):
            raise StorageError(f"Refused to remove {path!r}: it is not below {below!r}.")
        return self._remove(path, names, below=below)

    @abstractmethod
    def remove_file(self, path: str) -> None:
        """Remove a file if it exists."""

    @abstractmethod
    def remove_unfinished(self, directory: str, *, before: datetime) -> int:
        """Remove temporary files that killed writers last wrote before a time; return the number.

        In local directories no file is removed, since the writers' own cleanup does it.
        """

    # -- reading --------------------------------------------------------------------------

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            OSError: The unchanged system error, so that callers can distinguish reasons.
        """

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a file."""
        with translate_read_errors(path):
            return self.read(path)

    def read_text(self, path: str) -> str:
        """Return the content of a UTF-8 file.

        Raises:
            OSError: The unchanged system error, so that callers can distinguish reasons.
            UnicodeDecodeError: The file is not UTF-8.
        """
        # TextIOWrapper translates line breaks as ``open`` does.
        return io.TextIOWrapper(io.BytesIO(self.read(path)), encoding="utf-8").read()

    def read_into(self, path: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers in order with the bytes of a file, starting at offset ``start``."""
        with translate_read_errors(path):
            self._read_into(path, start, buffers)

    def read_chunks(self, path: str, *, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a file in chunks, starting at offset ``start``."""
        with translate_read_errors(path):
            yield from self._read_chunks(path, start)

    @abstractmethod
    def open_complete(self, path: str) -> str | io.BytesIO:
        """Return a file for libraries that read complete files: the local path, or the content.

        Raises:
            OSError: The unchanged system error.
        """

    @abstractmethod
    def open_ranges(self, path: str) -> str | IO[bytes]:
        """Return a file for libraries that read byte ranges: the local path, or a seekable file.

        Raises:
            OSError: The unchanged system error.
        """

    # -- inspecting -----------------------------------------------------------------------

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return True if a file or directory exists."""

    @abstractmethod
    def is_readable(self, path: str) -> bool:
        """Return True if this process may read a file or directory."""

    @abstractmethod
    def is_file(self, path: str) -> bool:
        """Return True if a path is a file."""

    @abstractmethod
    def is_directory(self, path: str) -> bool:
        """Return True if a path is a directory."""

    @abstractmethod
    def is_link(self, path: str) -> bool:
        """Return True if a path is a symbolic link; always False for object stores."""

    @abstractmethod
    def is_same(self, first_path: str, second_path: str) -> bool:
        """Return True if two paths refer to the same file or directory."""

    @abstractmethod
    def is_below(self, path: str, directory: str) -> bool:
        """Return True if a path is below a directory after symbolic links are resolved."""

    @abstractmethod
    def resolve(self, path: str) -> str:
        """Return a path with all symbolic links resolved; return a URI unchanged."""

    def resolve_inside(self, directory: str, relative: str) -> str:
        """Return the absolute path of a file whose relative path is stored in a directory's metadata.

        Raises:
            StorageError: The path leaves the directory or contains a symbolic link.
        """
        if not is_relative_path(relative):
            raise StorageError(f"{relative!r} is not a path below {directory!r}.")
        path = directory
        for name in relative.split("/"):
            path = os.path.join(path, name)
            # Every part is checked: a link at any level could lead out of the directory.
            if self.is_link(path):
                raise link_error(path)
        return path

    @abstractmethod
    def as_uri(self, path: str) -> str:
        """Return the URI of a path, such as ``file:///data`` or ``s3://bucket/data``."""

    @abstractmethod
    def status(self, path: str) -> FileStatus:
        """Return the status of a file.

        Raises:
            OSError: The unchanged system error, so that callers can distinguish reasons.
        """

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        with translate_read_errors(path):
            return self.status(path).size

    def list_directory(self, path: str, *, after: str = "") -> list[str]:
        """List the sorted names in a directory; empty if it does not exist or is a file.

        With ``after``, only greater names are listed; the directory must not have subdirectories.
        """
        with translate_read_errors(path):
            return self._list_directory(path, after)

    @abstractmethod
    def walk(self, directory: str, *, enter: Callable[[str], bool] | None = None) -> Iterator[str]:
        """Yield the paths of all files below a directory, ordered by directory and name.

        Symbolic links to directories are not followed. ``enter`` takes a directory name and returns
        whether to descend into the directory.
        """

    @abstractmethod
    def walk_with_status(self, directory: str) -> Iterator[tuple[str, FileStatus]]:
        """Yield path and status of all files below a directory; skip files removed meanwhile."""

    def list_sizes(self, directory: str) -> dict[str, int]:
        """Return the file sizes below a directory by path, if listing it is cheap.

        Return an empty dict for a local directory, where checking single files costs less than a
        listing.
        """
        if not self.prefers_listing:
            return {}
        return {path: status.size for path, status in self.walk_with_status(directory)}

    @abstractmethod
    def cached_listing(self, directory: str, *, after: str = "") -> AbstractContextManager[None]:
        """List a directory once, and use this listing for lookups in this thread during the block.

        This has no effect for a local directory, or inside a block for the same directory whose
        listing already covers the same names.
        """

    @abstractmethod
    def last_write_time(self, path: str) -> datetime | None:
        """Return the last write time of a file or of a directory's newest file, None if missing.

        For a URI the time is from the clock of the server.
        """

    @abstractmethod
    def current_time(self, location: str) -> datetime:
        """Return the current time by the clock that stamps files in a location."""

    # -- implementations ------------------------------------------------------------------

    @abstractmethod
    def _make_directory(self, path: str, *, durable: bool) -> None: ...

    @abstractmethod
    def _write(self, path: str, data: bytes, *, durable: bool) -> None: ...

    @abstractmethod
    def _write_new(self, path: str, data: bytes) -> bool: ...

    @abstractmethod
    def _remove(self, path: str, names: Sequence[str], *, below: str) -> bool:
        """Remove a path, which has the parts ``names`` below ``below``."""

    @abstractmethod
    def _read_into(self, path: str, start: int, buffers: Sequence[memoryview]) -> None: ...

    @abstractmethod
    def _read_chunks(self, path: str, start: int) -> Iterator[bytes]: ...

    @abstractmethod
    def _list_directory(self, path: str, after: str) -> list[str]: ...
