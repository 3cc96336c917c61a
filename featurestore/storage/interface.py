"""The interface of object stores: objects by name below a root. Storage plugins implement it.

``RemoteStorage`` accesses URIs through the ``ObjectStore`` of each bucket or file system. ``fill``
copies responses to buffers of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class FileStatus:
    """The size of a file in bytes, the time of its last change, and its inode or entity tag."""

    size: int
    modified_ns: int
    inode: int | str


@dataclass(frozen=True)
class StoredObject:
    """The name, size in bytes, last write time and entity tag of an object.

    If an object is replaced by another one, its ``etag`` changes.
    """

    name: str
    size: int
    modified: datetime
    etag: str


class Writer(Protocol):
    """The open file or object to which ``ObjectStore.writer`` and ``Storage.writer`` write."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; return their number."""


class ObjectStore(Protocol):
    """Objects by name below a root: a bucket, or the root of an HDFS file system.

    Names are relative paths with ``/`` as separator, without parts that are empty, ``.`` or ``..``;
    other names are refused. There are no directories: a folder exists while it contains an object,
    and no object has the same name as a folder. Objects are never renamed, appended to or locked,
    so that every server can provide these guarantees:

    Atomic: an object appears with all its bytes or not at all. Readers see either the old or the
    new object, never a mixture.

    Consistent: objects that a call wrote or removed are immediately visible to every process, also
    in listings.

    Exclusive: if several callers call ``put_new`` with the same name, exactly one call returns and
    the others raise FileExistsError. This holds even if a server response is lost, because the call
    then reads the object and compares the bytes. So two callers must not put equal bytes; they can
    include a random id, for example.

    Retried: transient failures are retried with growing delays. Every call is idempotent.

    Errors: FileNotFoundError and FileExistsError as documented. Other failures raise a
    ``StorageError`` whose message contains the object and the action but no credentials. After a
    failed ``put_new`` the object may or may not exist; after another failed write either the old or
    the new object exists.

    Threads: all methods are thread-safe. A store can be used after ``fork``. It cannot be pickled;
    connect to its location again instead.
    """

    @property
    def root(self) -> str:
        """The URI to which names are relative."""

    def read(self, name: str) -> bytes:
        """Return all bytes of an object; raise FileNotFoundError if it does not exist."""

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return byte ranges of an object, each specified by its first byte and length.

        Adjacent ranges are fetched in one request, distant ranges in parallel.

        Raises:
            FileNotFoundError: The object does not exist.
            StorageError: The object ends before the end of a range.
        """

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers in order with the bytes of an object, starting at offset ``start``.

        Reusing buffers is much cheaper than allocating memory. After an error the content of the
        buffers is undefined.

        Raises:
            FileNotFoundError: The object does not exist.
            StorageError: The object ends before the buffers are full.
        """

    def put(self, name: str, data: bytes) -> None:
        """Write an object; replace an existing one."""

    def put_new(self, name: str, data: bytes) -> None:
        """Write a new object; raise FileExistsError if the name already exists."""

    def writer(self, name: str) -> AbstractContextManager[Writer]:
        """Open a new object for writing in chunks; it appears when the ``with`` block ends.

        If the block raises an exception, no object remains. Memory is bounded for any object size.
        """

    def upload(self, name: str, path: str) -> None:
        """Upload a local file as an object; replace an existing one."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store; raise FileNotFoundError if the source does not exist."""

    def children(self, folder: str) -> list[str]:
        """List the names directly in a folder, objects and subfolders, sorted and unique."""

    def find(self, name: str) -> StoredObject | None:
        """Return name, size, time and tag of an object, None if it does not exist."""

    def remove(self, name: str) -> bool:
        """Remove an object; return whether it existed, if the server reports it."""

    def remove_below(self, folder: str) -> int:
        """Remove all objects below a folder, which is not the root; return their number.

        Objects that are written meanwhile may remain.
        """

    def remove_unfinished(self, folder: str, *, before: datetime) -> int:
        """Remove temporary files below a folder that killed writers last wrote before a time.

        Return the number of removed files. Objects are not removed. Parts of unfinished uploads,
        which the server hides and expires itself, are not removed either.
        """

    def list(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        """Yield all objects below a folder ("" is the root), recursively and ordered by name.

        With ``after``, only greater names are listed; it is the full name of an object, which need
        not exist. Objects that are written meanwhile may be missing.
        """


def total_bytes(buffers: Sequence[memoryview]) -> int:
    """Return the total size of all buffers in bytes."""
    return sum(len(buffer) for buffer in buffers)


def fill(buffers: Sequence[memoryview], chunks: Iterable[Buffer]) -> bool:
    """Copy chunks to buffers in order; return True if all buffers are full.

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
