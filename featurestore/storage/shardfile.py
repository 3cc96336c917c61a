"""Files of shards: hashed while they are written, complete or absent afterwards."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from featurestore.plugins.format import WrittenFile
from featurestore.storage.failures import writing
from featurestore.storage.selection import storage_for

if TYPE_CHECKING:
    from types import TracebackType


PIECE_BYTES = 1 << 20
_PREFIX_DIGITS = 8
_TEMPORARY = ".tmp"


def is_temporary(name: str) -> bool:
    """Return True for the name that a file has until it is complete."""
    return name.startswith(".") and name.endswith(_TEMPORARY)


class FileDigest:
    """SHA-256 of a stream of bytes, and of its first 1, 2, ... MiB.

    The final hash detects damage, the prefixes locate it. They cost nothing, since SHA-256 reads
    from front to back. Eight digits of each are stored.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._until_prefix = PIECE_BYTES
        self.prefixes: list[str] = []

    def update(self, view: memoryview) -> None:
        """Append bytes."""
        while len(view):
            block, view = view[: self._until_prefix], view[self._until_prefix :]
            self._sha256.update(block)
            self._until_prefix -= len(block)
            if self._until_prefix == 0:
                self.prefixes.append(self._sha256.copy().hexdigest()[:_PREFIX_DIGITS])
                self._until_prefix = PIECE_BYTES

    def hexdigest(self) -> str:
        """Return the SHA-256 of all bytes so far."""
        return self._sha256.hexdigest()


def digest_of(path: str) -> FileDigest:
    """Return the digest of a file."""
    digest = FileDigest()
    for chunk in storage_for(path).read_chunks(path):
        digest.update(memoryview(chunk))
    return digest


class ShardFile:
    """The file of a shard: hashed while it grows, under a temporary name until it is complete.

    Leaving the ``with`` block syncs and renames it, an exception removes it, so a retried or killed
    task leaves either nothing or the complete file. For a URI the object appears then. It has the
    methods that ``pyarrow`` requires of a sink.
    """

    def __init__(self, directory: str, path: str) -> None:
        self.path = path
        self.size = 0
        self._final = os.path.join(directory, path)
        self._digest = FileDigest()
        self._opened = ExitStack()
        self.closed = True

    def __enter__(self) -> ShardFile:
        self._file = self._opened.enter_context(storage_for(self._final).writer(self._final))
        self.closed = False
        return self

    def write(self, data: Any) -> int:
        """Append bytes or anything with a contiguous buffer; return their number."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        written = 0
        with writing(self._final):
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
        """Path, size and SHA-256 of the file."""
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
