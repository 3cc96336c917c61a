"""Files that are whole or absent, as every format writes its shards."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from typing import TYPE_CHECKING, Any

from featurestore.plugins.format import WrittenFile
from featurestore.storage import failures, remote
from featurestore.storage.connections import object_store_for
from featurestore.storage.location import is_uri
from featurestore.storage.publication import make_directory, sync_path

if TYPE_CHECKING:
    from types import TracebackType


PIECE_BYTES = 1 << 20
_PREFIX_DIGITS = 8
# The disk is told of so many new bytes at a time.
_WRITEBACK_BYTES = 4 << 20
_TEMPORARY = ".tmp"


def is_temporary(name: str) -> bool:
    """Tell whether a file's name is one that ``ShardFile`` gives until the file is whole."""
    return name.startswith(".") and name.endswith(_TEMPORARY)


class FileDigest:
    """SHA-256 of bytes as they come, and of their first 1, 2, ... MiB.

    The whole proves, the prefixes find a fault.

    The prefixes cost nothing, since SHA-256 goes from front to back. Eight digits of each are kept.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._room = PIECE_BYTES
        self.prefixes: list[str] = []

    def update(self, view: memoryview) -> None:
        """Append bytes."""
        while len(view):
            piece, view = view[: self._room], view[self._room :]
            self._sha256.update(piece)
            self._room -= len(piece)
            if self._room == 0:
                self.prefixes.append(self._sha256.copy().hexdigest()[:_PREFIX_DIGITS])
                self._room = PIECE_BYTES

    def hexdigest(self) -> str:
        """Return the SHA-256 of all bytes so far."""
        return self._sha256.hexdigest()


def digest_of(path: str) -> FileDigest:
    """Return the digest of a file."""
    digest = FileDigest()
    for piece in _pieces(path):
        digest.update(memoryview(piece))
    return digest


def _pieces(path: str) -> Iterator[bytes]:
    if is_uri(path):
        yield from remote.pieces(path)
        return
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


class ShardFile:
    """A file that a format writes: hashed as it grows, under a temporary name until it is whole.

    Leaving the ``with`` block syncs and renames it, an exception removes it, so a retried or killed
    task leaves either nothing or the whole file. Below a URI it is an object from that moment on.
    It has what ``pyarrow`` asks of a sink.
    """

    def __init__(self, directory: str, path: str) -> None:
        self.path = path
        self.size = 0
        self._final = os.path.join(directory, path)
        self._digest = FileDigest()
        self._opened = ExitStack()
        self.closed = True

    def __enter__(self) -> ShardFile:
        self._file = self._opened.enter_context(_until_whole(self._final))
        self.closed = False
        return self

    def write(self, data: Any) -> int:
        """Append bytes or anything with a contiguous buffer; return their number."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        written = 0
        with failures.writing(self._final):
            while written < len(view):
                written += self._file.write(view[written:])
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
        """Do nothing: the ``with`` block closes the file."""

    @property
    def written(self) -> WrittenFile:
        """What was written: path, size and SHA-256."""
        return WrittenFile(
            self.path, self.size, self._digest.hexdigest(), tuple(self._digest.prefixes)
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed = True
        self._opened.__exit__(kind, error, trace)


class _EarlyWriteback:
    """A local file whose bytes go to the disk while it grows, so that the sync waits for the last.

    Else all of a shard waits until then, and the processors with it.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._size = self._begun = 0

    def write(self, data: memoryview) -> int:
        """Append what the system takes of bytes; return their number."""
        written = self._file.write(data)
        self._size += written
        if self._size - self._begun >= _WRITEBACK_BYTES:
            self._begin()
        return written

    def _begin(self) -> None:
        """Let the system write the newest bytes.

        Linux begins that where it is told that they are not needed; what is not on the disk yet
        stays in its cache. An advice that is not taken fails nothing.
        """
        begun, self._begun = self._begun, self._size
        if not hasattr(os, "posix_fadvise"):  # macOS has none
            return
        with suppress(OSError):
            os.posix_fadvise(self._file.fileno(), begun, self._size - begun, os.POSIX_FADV_DONTNEED)


@contextmanager
def _until_whole(path: str) -> Iterator[Any]:
    """Give a file to write to that gets its name where the block ends, and is gone on an error."""
    if is_uri(path):
        storage, name = object_store_for(path)
        with storage.writer(name) as writer:
            yield writer
        return
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}{_TEMPORARY}")
    try:
        with ExitStack() as opened:
            with failures.writing(path):
                make_directory(folder)
                file = opened.enter_context(open(temporary, "wb", buffering=0))
            yield _EarlyWriteback(file)
            with failures.writing(path):
                os.fsync(file.fileno())
        with failures.writing(path):
            os.replace(temporary, path)
            sync_path(folder)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
