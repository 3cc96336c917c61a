"""Files that other processes read while one process writes them: logs, events and the last step."""

from __future__ import annotations

import os
import weakref
from io import FileIO
from typing import IO

from featurestore.storage import protection, storage_for
from featurestore.storage.failures import translate_read_errors, translate_write_errors
from featurestore.storage.protection import check_links

# Windows translates line breaks in a file that is not opened as binary.
_OVERWRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)


class AppendedFile:
    """A log file of one process, written without buffering, so that its content survives a kill."""

    def __init__(self, path: str) -> None:
        self._path = path
        storage_for(path).make_directory(os.path.dirname(path))
        check_links(path)
        with translate_write_errors(path):
            self._file = FileIO(path, "a")

    def write(self, data: bytes) -> int:
        """Append bytes with one system call."""
        with translate_write_errors(self._path):
            return self._file.write(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class OverwrittenFile:
    """A small file that a process overwrites in place; the last content survives a kill.

    Other processes on the same machine see new content immediately, processes on other machines
    after ``sync``. The content is always padded with spaces to the same size.
    """

    def __init__(self, path: str, *, size: int) -> None:
        self._path, self._size = path, size
        storage_for(path).make_directory(os.path.dirname(path))
        check_links(path)
        with translate_write_errors(path):
            self._descriptor = os.open(path, _OVERWRITE, 0o666)
        # Also closes the file if the object is collected without a call of ``close``.
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def write(self, data: bytes) -> None:
        """Overwrite the content with one system call."""
        with translate_write_errors(self._path):
            # Always the same size, so that a reader never sees the end of a longer, earlier
            # content.
            if hasattr(os, "pwrite"):
                os.pwrite(self._descriptor, data.ljust(self._size), 0)
            else:  # Windows
                os.lseek(self._descriptor, 0, os.SEEK_SET)
                os.write(self._descriptor, data.ljust(self._size))

    def sync(self) -> None:
        """Sync the content to disk, so that other machines see it."""
        with translate_write_errors(self._path):
            os.fsync(self._descriptor)


def open_log(path: str) -> IO[bytes]:
    """Open a private file to which a process appends its output."""
    storage_for(path).make_directory(os.path.dirname(path))
    check_links(path)
    with translate_write_errors(path):
        protection.create_file(path)
        return open(path, "ab", buffering=0)


def read_from(path: str, offset: int, *, max_bytes: int = 1 << 20) -> bytes:
    """Return up to ``max_bytes`` of a file from an offset; empty if the file does not exist."""
    if not os.path.exists(path):
        return b""
    check_links(path)
    with translate_read_errors(path), open(path, "rb") as file:
        file.seek(offset)
        return file.read(max_bytes)


def read_last_lines(path: str, count: int) -> list[str]:
    """Return the last lines of a text file, from at most its last 64 KiB."""
    if not os.path.exists(path):
        return []
    data = read_from(path, max(0, os.path.getsize(path) - (1 << 16)))
    # The data may start within a character, and the last element is empty after a final line break.
    return data.decode("utf-8", "replace").split("\n")[-count - 1 :]
