"""Files that are read while a process writes them: appended lines and events, the last step."""

from __future__ import annotations

import os
import weakref
from io import FileIO
from typing import IO

from featurestore.storage import files
from featurestore.storage.failures import reading, writing


class AppendedFile:
    """A file of one process, written without buffering: what was written outlives a kill."""

    def __init__(self, path: str) -> None:
        self._path = path
        files.make_directory(os.path.dirname(path))
        with writing(path):
            self._file = FileIO(path, "a")

    def write(self, data: bytes) -> int:
        """Append bytes in one call of the system."""
        with writing(self._path):
            return self._file.write(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class OverwrittenFile:
    """A small file whose content a process overwrites: what was written last outlives a kill.

    Other processes of the machine see it at once, other machines when it was synced. All contents
    have one size in the file, filled up with spaces.
    """

    def __init__(self, path: str, *, size: int) -> None:
        self._path, self._size = path, size
        files.make_directory(os.path.dirname(path))
        with writing(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def write(self, data: bytes) -> None:
        """Overwrite the content in one call of the system."""
        with writing(self._path):
            os.pwrite(self._descriptor, data.ljust(self._size), 0)

    def sync(self) -> None:
        """Write the content to the disk, where other machines see it."""
        with writing(self._path):
            os.fsync(self._descriptor)


def open_log(path: str) -> IO[bytes]:
    """Return a file that a process may write its output to, behind what is there."""
    files.make_directory(os.path.dirname(path))
    with writing(path):
        return open(path, "ab", buffering=0)


def read_from(path: str, offset: int, *, most: int = 1 << 20) -> bytes:
    """Return what a file holds from an offset on, at most some bytes; nothing where there is none."""
    if not os.path.exists(path):
        return b""
    with reading(path), open(path, "rb") as file:
        file.seek(offset)
        return file.read(most)


def last_lines(path: str, count: int) -> list[str]:
    """Return the last lines of a text file, of the last 64 KiB."""
    if not os.path.exists(path):
        return []
    data = read_from(path, max(0, os.path.getsize(path) - (1 << 16)))
    return data.decode("utf-8", "replace").split("\n")[-count - 1 :]
