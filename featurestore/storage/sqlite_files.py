"""Files of SQLite databases with a write-ahead log: the registry and the embedded online store."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress

from featurestore.storage import private
from featurestore.storage.links import check_links
from featurestore.storage.local import link_new, temporary_path

_SUFFIXES = ("", "-wal", "-shm", "-journal")
_SWITCH_POLL_SECONDS = 0.005


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
            private.create_file(temporary)
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
