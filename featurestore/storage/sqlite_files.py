"""Files of SQLite databases with a write-ahead log: the registry and the embedded online store."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing, suppress

from featurestore.errors import StorageError
from featurestore.storage import protection
from featurestore.storage.failures import translate_read_errors
from featurestore.storage.local import link_new, temporary_path
from featurestore.storage.protection import check_links

_SUFFIXES = ("", "-wal", "-shm", "-journal")
_COPY_ATTEMPTS = 10
_SWITCH_POLL_SECONDS = 0.005
# The format of a write-ahead log: https://sqlite.org/fileformat2.html#the_write_ahead_log
_LOG_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_LOG_SALTS = slice(16, 24)
_FRAME_SALTS = slice(8, 16)


def create_database(path: str) -> None:
    """Create a private database, whose mode SQLite copies to its logs, if the file does not exist.

    The file appears with its write-ahead log already enabled. The process must not create it at
    ``path`` itself: a thread that closes a descriptor of a file removes the locks of all threads of
    its process on the file, so other processes could delete a log that these threads still write.

    Raises:
        StorageError: The database or one of its logs is a link in a store.
        sqlite3.Error: The database cannot be written, for example because the disk is full.
    """
    for suffix in _SUFFIXES:
        check_links(path + suffix)
    if os.path.exists(path):
        return
    temporary = temporary_path(path)
    try:
        # SQLite reports a missing or read-only directory itself.
        with suppress(OSError):
            protection.create_file(temporary)
            with closing(sqlite3.connect(temporary)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
            link_new(temporary, path)
    finally:
        for suffix in _SUFFIXES:
            with suppress(OSError):
                os.unlink(temporary + suffix)


def use_write_ahead_log(connection: sqlite3.Connection, *, seconds: float) -> None:
    """Enable the write-ahead log of an older file, which other connections may do at the same time.

    SQLite does not apply the timeout of the connection to this change. Files keep it.

    Args:
        connection: A connection without an open transaction.
        seconds: How long to wait for the locks of other connections.

    Raises:
        sqlite3.OperationalError: The file is still locked, or it cannot be read or written.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # The low byte of an extended code is the error.
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
        time.sleep(_SWITCH_POLL_SECONDS)


def check_last_page(connection: sqlite3.Connection) -> None:
    """Check that the file of a connection does not end within a page.

    SQLite finds missing pages, but replaces the missing bytes of the last page by zeros, so that
    rows of this page are missing without an error.

    Raises:
        sqlite3.DatabaseError: The end of the file is missing.
    """
    (_, _, path), *_ = connection.execute("PRAGMA database_list").fetchall()
    if not os.path.exists(path):  # in memory, or removed since the connection began
        return
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    # The size without a descriptor of the file: its close would remove locks of this process.
    whole_pages, extra_bytes = divmod(os.stat(path).st_size, page_size)
    # A write that failed may leave a part of a page, which the log contains.
    if extra_bytes and whole_pages + 1 not in _pages_in_log(path + "-wal", page_size):
        raise sqlite3.DatabaseError(f"the file ends within page {whole_pages + 1}")


def _pages_in_log(path: str, page_size: int) -> set[int]:
    """Return the numbers of the pages in a write-ahead log, without those of its earlier use."""
    pages: set[int] = set()
    with suppress(FileNotFoundError), open(path, "rb") as log:
        salts = log.read(_LOG_HEADER_BYTES)[_LOG_SALTS]
        while len(frame := log.read(_FRAME_HEADER_BYTES + page_size)) > _FRAME_HEADER_BYTES:
            if frame[_FRAME_SALTS] == salts:
                pages.add(int.from_bytes(frame[:4], "big"))
    return pages


def copy_consistently(paths: Iterable[str], directory: str) -> None:
    """Copy local files into a directory as a consistent set: retry if they change meanwhile.

    Missing files are skipped.

    Raises:
        StorageError: The files changed during every attempt.
    """
    sources = list(paths)
    for _ in range(_COPY_ATTEMPTS):
        # Another process may write between two copies. The set is consistent only if no file changed
        # from the first copy to the last one.
        before = sizes_and_times(sources)
        for path in sources:
            with translate_read_errors(path), suppress(FileNotFoundError):
                shutil.copyfile(path, os.path.join(directory, os.path.basename(path)))
        if before == sizes_and_times(sources):
            return
    raise StorageError(
        f"{sources[0]!r} changed during each of {_COPY_ATTEMPTS} attempts to copy it.",
        hint="try again",
    )


def sizes_and_times(paths: Iterable[str]) -> list[tuple[int, int] | None]:
    """Return the modification time and size of local files, which differ after a change."""
    return [_size_and_mtime(path) for path in paths]


def _size_and_mtime(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
