"""Interfaces of storages: ``Storage`` for files by path, ``ObjectStore`` for objects by name.

All files are opened through a ``Storage``, which ``storage.storage_for`` chooses from the path.
``LocalStorage`` works on directories; ``RemoteStorage`` works on URIs, through the ``ObjectStore``
of each bucket or file system. ``fill`` copies responses into buffers of the caller.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class FileStatus:
    """Size of a file in bytes, time of its last change, and its inode or entity tag."""

    size: int
    modified_ns: int
    inode: int | str


@dataclass(frozen=True)
class StoredObject:
    """One object: its name, size in bytes, time of its last write, and entity tag.

    An object that replaces another one of its name has another ``etag``.
    """

    name: str
    size: int
    modified: datetime
    etag: str


class Writer(Protocol):
    """The open file or object to which ``ObjectStore.writer`` and ``Storage.writer`` write."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; return their number."""


class Storage(Protocol):
    """Files and directories by path: an absolute path of this machine, or a URI.

    Writes are atomic: readers see the old content or the new one. Methods raise ``OSError`` where
    the operating system or the server does (FileNotFoundError for a missing file); errors of
    servers are ``StorageError``. Every method may be called by several threads at once.
    """

    @property
    def is_local(self) -> bool:
        """Whether paths belong to the operating system: libraries can open, map and link them."""

    @property
    def supports_appending(self) -> bool:
        """Whether files can be appended to, overwritten in part, and locked."""

    @property
    def prefers_listing(self) -> bool:
        """Whether one list of a directory costs less than looking at several of its files."""

    @property
    def needs_claims(self) -> bool:
        """Whether registries of several machines may share a directory unknown to one another.

        Then versions, leases and staged files are claimed by objects in it.
        """

    def ensure_writable(self, directory: str) -> None:
        """Create a directory if necessary; raise LocationNotWritable unless it can be written."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; directories of object stores need no creation."""

    def write_atomically(self, path: str, data: bytes) -> None:
        """Write a file and bring it to the disk."""

    def replace(self, path: str, data: bytes) -> None:
        """Write a file without bringing it to the disk."""

    def write_new(self, path: str, data: bytes) -> bool:
        """Write a file; return False if its name is taken."""

    def writer(self, path: str) -> AbstractContextManager[Writer]:
        """Open a new file for writing, which gets its name and is durable when the block ends.

        An exception in the block leaves nothing.
        """

    def upload(self, source: str, path: str) -> None:
        """Copy a local file, or a file of the same bucket, to a path."""

    def growing_file(self, path: str) -> AbstractContextManager[str]:
        """Provide a local path to which a file is written; see ``files.growing_file``."""

    def read(self, path: str) -> bytes:
        """Return the content of a file."""

    def read_into(self, path: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes of a file from ``start`` on, one after the other."""

    def read_chunks(self, path: str, *, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a file from ``start`` on, in chunks."""

    def open_whole(self, path: str) -> str | io.BytesIO:
        """Return the path, or the content in memory, for libraries that read all of a file."""

    def open_ranges(self, path: str) -> str | IO[bytes]:
        """Return the path, or a seekable file, for libraries that read some ranges of a file."""

    def exists(self, path: str) -> bool:
        """Return True if there is a file or directory."""

    def status(self, path: str) -> FileStatus:
        """Return the status of a file."""

    def is_readable(self, path: str) -> bool:
        """Return True if this process may read a file or directory."""

    def is_file(self, path: str) -> bool:
        """Return True if a path is a file."""

    def is_directory(self, path: str) -> bool:
        """Return True if a path is a directory."""

    def is_link(self, path: str) -> bool:
        """Return True if a path is a symbolic link; object stores have none."""

    def is_same(self, first_path: str, second_path: str) -> bool:
        """Return True if two paths lead to the same file or directory."""

    def lies_below(self, path: str, directory: str) -> bool:
        """Return True if a path leads below a directory, after links are resolved."""

    def resolve(self, path: str) -> str:
        """Return the path with all symbolic links resolved."""

    def as_uri(self, path: str) -> str:
        """Return the URI of a path, such as ``file:///data`` or ``s3://bucket/data``."""

    def list_directory(self, path: str, *, after: str = "") -> list[str]:
        """Return the names in a directory, sorted, greater than ``after``; empty for a file."""

    def walk(self, directory: str, *, enter: Callable[[str], bool] | None = None) -> Iterator[str]:
        """Yield the paths of all files below a directory; see ``files.walk``."""

    def statuses_below(self, directory: str) -> Iterator[tuple[str, FileStatus]]:
        """Yield path and status of all files below a directory, without those removed meanwhile."""

    def listed_once(self, directory: str, *, after: str = "") -> AbstractContextManager[None]:
        """Answer questions about files of a directory from one list; see ``files.listed_once``."""

    def last_written(self, path: str) -> datetime | None:
        """Return the time of the last write of a file, or of any below it; None without files."""

    def current_time(self, location: str) -> datetime:
        """Return the time of the clock that stamps the files of a location."""

    def remove(self, path: str, names: Sequence[str], *, below: str) -> bool:
        """Remove a file or a directory with all files in it; return whether it existed.

        Args:
            path: What to remove.
            names: The names that lead from ``below`` to the path.
            below: A directory of the caller; no link between it and the path is followed.
        """

    def remove_file(self, path: str) -> None:
        """Remove one file if it exists."""

    def remove_unfinished(self, directory: str, *, before: datetime) -> int:
        """Remove temporary files of killed writers last written before a time; return the number.

        A directory keeps its files: there the writers' own cleanup removes them.
        """

    def add_name(self, source: str, target: str) -> bool:
        """Link a file under a further name; return False if the storage has no links."""


class ObjectStore(Protocol):
    """Objects by name below one root: a bucket, or the root of an HDFS.

    Names are relative, with ``/`` between their parts; no part is empty, ``.`` or ``..``; other
    names are refused. Directories do not exist: a folder exists while it contains an
    object, and no object has the name of a folder. Nothing is renamed, appended to or locked, so that
    every server can keep these guarantees:

    Atomic: an object appears with all its bytes or not at all. Readers see the old object or the
    new one, never a mixture.

    Consistent: what a call has written or removed is visible to every process from then on, in
    lists too.

    Exclusive: of several ``put_new`` of one name exactly one returns, the others raise
    FileExistsError. A lost response of the server does not change that: the call reads the object
    and compares. So two callers must not put equal bytes: they include a random id, for example.

    Retried: transient failures are retried with growing delays. Every call is idempotent.

    Errors: FileNotFoundError and FileExistsError as documented. Other failures raise a
    ``StorageError`` that names object and action and contains no credentials. After one from
    ``put_new`` the object may exist or not; after one from another write the old object or the new
    one exists.

    Threads: every method may be called by several threads at once. A store can be used after
    ``fork``. It cannot be pickled: connect again from its location.
    """

    @property
    def root(self) -> str:
        """The URI that names are relative to."""

    def read(self, name: str) -> bytes:
        """Return all bytes of an object; FileNotFoundError if it does not exist."""

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return ranges of an object, each as first byte and length.

        Neighbors are fetched in one request, distant ranges in parallel.

        Raises:
            FileNotFoundError: The object does not exist.
            StorageError: It ends before a range does.
        """

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes of an object from ``start`` on, one after the other.

        Reused buffers cost a fraction of new memory. After an error their content is undefined.

        Raises:
            FileNotFoundError: The object does not exist.
            StorageError: It ends before the buffers are full.
        """

    def put(self, name: str, data: bytes) -> None:
        """Write an object and replace an existing one."""

    def put_new(self, name: str, data: bytes) -> None:
        """Write an object; FileExistsError if its name is taken."""

    def writer(self, name: str) -> AbstractContextManager[Writer]:
        """Write an object in chunks; it appears when the ``with`` block ends.

        An exception in the block leaves nothing. Memory is bounded at any size.
        """

    def upload(self, name: str, path: str) -> None:
        """Write a local file as an object and replace an existing one."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store; FileNotFoundError if the source does not exist."""

    def children(self, folder: str) -> list[str]:
        """Return the first part of the names below a folder, sorted and unique."""

    def find(self, name: str) -> StoredObject | None:
        """Return size, time and tag of an object, None if it does not exist."""

    def remove(self, name: str) -> bool:
        """Remove an object; return whether it existed, as far as the server knows."""

    def remove_below(self, folder: str) -> int:
        """Remove all objects below a folder that is not the root; return their number.

        Objects that are written meanwhile may remain.
        """

    def remove_unfinished(self, folder: str, *, before: datetime) -> int:
        """Remove temporary files of killed writers below a folder, last written before a time.

        Return their number. Objects remain. Parts of unfinished uploads, which the server hides
        and expires, are left to it.
        """

    def list(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        """Yield all objects below a folder ("" is the root), at any depth, ascending by name.

        With ``after`` only names that are greater; the full name of an object, which need not
        exist. Objects that are written meanwhile may be missing.
        """


def total_bytes(buffers: Sequence[memoryview]) -> int:
    """Return the number of bytes that fill all buffers."""
    return sum(len(buffer) for buffer in buffers)


def fill(buffers: Sequence[memoryview], chunks: Iterable[Buffer]) -> bool:
    """Copy chunks into buffers, one after the other; return True if all buffers are full.

    >>> first, second = bytearray(2), bytearray(3)
    >>> fill([memoryview(first), memoryview(second)], [b"abc", b"de"])
    True
    >>> bytes(first), bytes(second)
    (b'ab', b'cde')
    """
    remaining_buffers = iter(buffers)  # no buffer is empty
    target = memoryview(b"")
    for chunk in chunks:
        source = memoryview(chunk)
        while source:
            if not target:
                target = next(remaining_buffers, target)
                if not target:
                    return True
            count = min(len(target), len(source))
            target[:count] = source[:count]
            target, source = target[count:], source[count:]
    return not target and next(remaining_buffers, None) is None
