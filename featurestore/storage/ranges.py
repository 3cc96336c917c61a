"""Reads of byte ranges of an open local file.

The file stays open, since a cache may remove its copy of the file, and it is not mapped into memory: a
truncation during a read would end the process with SIGBUS.
"""

from __future__ import annotations

import os
import weakref

from featurestore.model.runtime import ForkSafeLock


class RangeFile:
    """An open file whose ranges several threads may read.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._lock = ForkSafeLock()
        self._closing = weakref.finalize(self, os.close, self._handle)
        self.size = os.fstat(self._handle).st_size

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from a position; raise OSError if the file is shorter."""
        chunks = []
        position, end = start, start + size
        # A damaged index may name any range: its memory is not allocated before the file has it.
        if end > self.size and end > os.fstat(self._handle).st_size:
            raise OSError("the file was truncated while it was read")
        while position < end:
            # Linux reads at most 2 GiB at a time.
            data = self._read_some(position, end - position)
            if not data:
                raise OSError("the file was truncated while it was read")
            chunks.append(data)
            position += len(data)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _read_some(self, start: int, size: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._handle, size, start)
        with self._lock:  # Windows has one position for all threads
            os.lseek(self._handle, start, os.SEEK_SET)
            return os.read(self._handle, size)

    def close(self) -> None:
        """Close the file; may be called repeatedly."""
        self._closing()
