"""Files that grow: lines and events of a run are appended, and read while they are written."""

from __future__ import annotations

import os
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
