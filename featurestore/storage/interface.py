"""The interface of a storage: what the store asks of a disk, an object store or HDFS, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class StoredObject:
    """One object: its name, size in bytes, when it was written, and what tells it from others.

    An object that takes the place of another under its name has another ``etag``.
    """

    name: str
    size: int
    modified: datetime
    etag: str


class Writer(Protocol):
    """Bytes on their way to an object, as ``Storage.writer`` gives them."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; return their number."""


class Storage(Protocol):
    """Objects by name below one root: a directory, or a prefix of a bucket.

    Names are relative, with ``/`` between their parts; no part is empty, ``.`` or ``..``, and other
    names are refused. There are no directories: a folder is there as long as an object lies below
    it, and no object has the name of a folder. Nothing is renamed, appended to or locked, so that
    every kind of storage can keep these promises:

    Whole: an object appears with all its bytes, or not at all. Readers see the old object or the
    new one, never a part of one.

    At once: what a call has written, removed or listed as written is what every process sees from
    then on.

    Once: of several ``put_new`` of one name exactly one returns, the others raise FileExistsError.
    An answer of the server that is lost on the way does not change that: the call looks what is
    there. So two callers must not put the same bytes: let them hold something of their own, such
    as a random id.

    Repeated: what fails on the way to a server is tried again, with growing pauses, unless the
    answer is final. Repeating does no harm, as every call says the same when it is repeated.

    Errors: FileNotFoundError and FileExistsError where the method says so. All else is a
    ``StorageError`` that names object and action and holds no credentials. After one from
    ``put_new`` the object may be there or not, after one from any other write the old object or the
    new one is.

    Threads: every method may be called by several threads at once. A storage can be used after
    ``fork``; it cannot be pickled: open it again from its location.
    """

    @property
    def root(self) -> str:
        """The directory or URI that names are relative to."""

    def read(self, name: str) -> bytes:
        """Return all bytes of an object; FileNotFoundError when there is none."""

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return parts of an object, each given by its first byte and its length.

        Neighbors are fetched together, and what lies apart at the same time.

        Raises:
            FileNotFoundError: There is no such object.
            StorageError: It ends before a range does.
        """

    def read_into(self, name: str, start: int, targets: Sequence[memoryview]) -> None:
        """Fill memory with the bytes of an object from ``start`` on, one target after the other.

        For much that is read again and again: memory that is used again costs a fraction of new
        one. After an error the targets hold anything.

        Raises:
            FileNotFoundError: There is no such object.
            StorageError: It ends before the targets are full.
        """

    def put(self, name: str, data: bytes) -> None:
        """Write an object in place of what has its name."""

    def put_new(self, name: str, data: bytes) -> None:
        """Write an object; FileExistsError when the name is taken."""

    def writer(self, name: str) -> AbstractContextManager[Writer]:
        """Write an object piece by piece: it takes its name where the ``with`` block ends.

        An exception in the block leaves nothing. Memory is bounded, however much is written.
        """

    def upload(self, name: str, path: str) -> None:
        """Write a file of this machine as an object, in place of what has its name."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the storage; FileNotFoundError when there is no source."""

    def children(self, folder: str) -> list[str]:
        """Return the first part of the names below a folder, sorted, each once."""

    def find(self, name: str) -> StoredObject | None:
        """Return size, time and tag of an object, None when there is none."""

    def remove(self, name: str) -> bool:
        """Remove an object; whether it was there, as far as the storage tells."""

    def remove_below(self, folder: str) -> int:
        """Remove all objects below a folder, return their number; those written meanwhile may stay.

        The folder is not the root.
        """

    def remove_unfinished(self, folder: str, *, before: datetime) -> int:
        """Remove what writers that were killed left below a folder, last written before a time.

        Return the number of files. Objects stay. What a server itself hides and clears away (parts
        of uploads to a bucket) is left to it.
        """

    def list(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        """Yield all objects below a folder ("" is the root), at any depth, ascending by name.

        With ``after`` only those whose name is greater; it is a whole name, too, whether there is
        such an object or not. Objects that are written meanwhile may be left out.
        """
