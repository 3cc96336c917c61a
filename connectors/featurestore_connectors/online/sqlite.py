"""SQLite as an online store: a file on a local disk, read and written by processes of one machine.

The write-ahead log admits readers during a write. It is synchronized to disk by
``compare_and_set``: a power loss may remove the last commits before it, but never an earlier commit
alone.

SQLite writes next to a file even to read it. If the folder cannot be written, for example on a
read-only file system, a copy in a temporary folder is read. The copy is made again after the file
has changed.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from featurestore.errors import InvalidArgument, OnlineStoreError, OnlineStoreUnavailable
from featurestore.model.runtime import ForkGuard
from featurestore.model.times import utc_now
from featurestore.plugins.online import (
    DurabilityRisk,
    IdentifiesServer,
    OnlineConfig,
    OnlineStore,
)
from featurestore.storage import sqlite_files, storage_for
from featurestore.storage.temporary import remove_temporary, temporary_directory
from featurestore_connectors.online.connections import (
    ConnectionPool,
    ThreadedReads,
    end_of_prefix,
)

_PREFIX = "sqlite:///"
# Another process may hold the write lock for the duration of a batch.
_LOCK_SECONDS = 30.0
# Keys per SELECT. Their number is padded to a power of two, since each number is a statement that
# SQLite compiles, and Python caches 128 statements.
_MAX_KEYS = 512
_DELETE_BATCH = 10_000
_SCAN_BATCH = 5_000
_CREATE = """
    CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID
"""
_SELECT = {
    count: f"SELECT key, value FROM entries WHERE key IN ({', '.join('?' * count)})"
    for count in (1 << power for power in range(_MAX_KEYS.bit_length()))
}
_UPSERT = "INSERT INTO entries VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
# Blobs are compared byte by byte, which is the order of big-endian numbers.
_UPSERT_NEWER = f"{_UPSERT} WHERE substr(entries.value, 2, 8) < substr(excluded.value, 2, 8)"
_DELETE = """
    DELETE FROM entries
    WHERE key IN (SELECT key FROM entries WHERE key >= ?1 AND (?2 IS NULL OR key < ?2) LIMIT ?3)
"""
_DELETE_KEY = "DELETE FROM entries WHERE key = ?"
_SCAN = """
    SELECT key FROM entries WHERE key >= ?1 AND (?2 IS NULL OR key < ?2) ORDER BY key LIMIT ?3
"""
_MAX_FILE_NUMBER = 2**31 - 2
_STATISTICS = "SELECT count(*), coalesce(sum(length(key) + length(value)), 0) FROM entries"


class SQLiteOnlineStore:
    """A SQLite file."""

    name = "sqlite"

    def __init__(self, config: OnlineConfig) -> None:
        path = config.uri.removeprefix(_PREFIX)
        if not config.uri.startswith(_PREFIX) or not path or config.secret is not None:
            raise InvalidArgument(
                f"Online store {config.name!r}: a SQLite file has a path and no secret.",
                hint="sqlite:////var/lib/features/online.db",
            )
        self.config = config
        self._path = path
        self._pool = ConnectionPool(self._connect)
        self._fork_guard = ForkGuard(
            f"Online store {config.name!r}",
            close_idle=self._pool.close_idle,
            discard=self._pool.discard_inherited,
        )
        # Set while the folder of the file cannot be written.
        self._copy: _FileCopy | None = None
        self._async_reads = ThreadedReads(self.read)

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: dict[bytes, bytes] = {}
        with self._borrow() as connection:
            for start in range(0, len(keys), _MAX_KEYS):
                batch = keys[start : start + _MAX_KEYS]
                count = 1 << (len(batch) - 1).bit_length()
                padding = (batch[0],) * (count - len(batch))
                values.update(connection.execute(_SELECT[count], (*batch, *padding)))
        return list(map(values.get, keys))

    async def read_async(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._async_reads.read(keys)

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        with self._transaction() as connection:
            connection.executemany(_UPSERT, zip(keys, values, strict=True))

    def write_newer(self, keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        with self._transaction() as connection:
            cursor = connection.executemany(_UPSERT_NEWER, zip(keys, values, strict=True))
            return max(cursor.rowcount, 0)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        with self._transaction(synchronous="FULL") as connection:
            row = connection.execute(_SELECT[1], (key,)).fetchone()
            current = None if row is None else row[1]
            if current not in (expected, value):
                return False
            connection.execute(_UPSERT, (key, value))
            return True

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        start, end = prefix, end_of_prefix(prefix)
        while True:
            with self._borrow() as connection:
                arguments = (start, end, _SCAN_BATCH)
                keys = [bytes(key) for (key,) in connection.execute(_SCAN, arguments)]
            if not keys:
                return
            yield keys
            start = keys[-1] + b"\0"  # the next possible key

    def delete(self, keys: Sequence[bytes]) -> int:
        with self._transaction() as connection:
            return max(connection.executemany(_DELETE_KEY, zip(keys, strict=True)).rowcount, 0)

    def delete_prefix(self, prefix: bytes) -> int:
        deleted, count = 0, _DELETE_BATCH
        while count == _DELETE_BATCH:
            # Other processes can write between two batches.
            with self._transaction() as connection:
                arguments = (prefix, end_of_prefix(prefix), _DELETE_BATCH)
                count = connection.execute(_DELETE, arguments).rowcount
            deleted += count
        return deleted

    def discard_deleted(self) -> None:
        """Overwrite the bytes of deleted values in the file and in the write-ahead log."""
        with self._borrow() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def clock(self) -> datetime:
        return utc_now()

    def check(self) -> None:
        # An empty transaction requires the permission to write.
        with self._transaction() as connection:
            connection.execute("SELECT 1 FROM entries LIMIT 1")

    def server_identity(self) -> str | None:
        with self._borrow() as connection:
            (number,) = connection.execute("PRAGMA user_version").fetchone()
        if not number:
            # A new file, or one of an earlier release; another process may number it first.
            with self._transaction() as connection:
                (number,) = connection.execute("PRAGMA user_version").fetchone()
                number = number or 1 + secrets.randbelow(_MAX_FILE_NUMBER)
                connection.execute(f"PRAGMA user_version = {number}")
        return f"file={number}"

    def durability_risks(self) -> Sequence[DurabilityRisk]:
        return []

    def statistics(self) -> Mapping[str, int]:
        with self._borrow() as connection:
            keys, size = connection.execute(_STATISTICS).fetchone()
        return {"keys": keys, "bytes": size}

    def close(self) -> None:
        self._async_reads.close()
        self._pool.close_idle()

    def _connect(self) -> sqlite3.Connection:
        folder = os.path.dirname(self._path)
        storage = storage_for(folder)
        if storage.exists(self._path) and not storage.is_writable(folder):
            return self._connect_to_copy()
        storage.make_directory(folder)
        sqlite_files.create_database(self._path)
        connection = sqlite3.connect(
            self._path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )
        with _closed_after_error(connection):
            sqlite_files.use_write_ahead_log(connection, seconds=_LOCK_SECONDS)
            sqlite_files.check_last_page(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_CREATE)
        return connection

    def _connect_to_copy(self) -> sqlite3.Connection:
        self._copy = self._copy or _FileCopy(self._path)
        connection = sqlite3.connect(self._copy.path, isolation_level=None, check_same_thread=False)
        with _closed_after_error(connection):
            sqlite_files.check_last_page(connection)
        return connection

    def _drop_copy(self) -> None:
        self._copy = None
        self._pool.close_idle()

    @contextmanager
    def _borrow(self) -> Iterator[sqlite3.Connection]:
        if self._copy is not None and not self._copy.is_current():
            self._drop_copy()
        try:
            with self._fork_guard, self._pool.borrow() as connection:
                yield connection
        except sqlite3.OperationalError as error:
            raise OnlineStoreUnavailable(
                f"Online store {self.config.name!r}: {self._path}: {error}.",
                hint="check that the file and its folder can be written, and that the disk is not full",
            ) from error
        except sqlite3.Error as error:
            raise OnlineStoreError(
                f"Online store {self.config.name!r}: {self._path}: {error}.",
                hint="remove the file, and publish again",
            ) from error

    @contextmanager
    def _transaction(self, synchronous: str = "NORMAL") -> Iterator[sqlite3.Connection]:
        if self._copy is not None and storage_for(self._path).is_writable(
            os.path.dirname(self._path)
        ):
            self._drop_copy()
        with self._borrow() as connection:
            if self._copy is not None:
                raise sqlite3.OperationalError("the folder of the file cannot be written")
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            # Immediate: a transaction that reads first could not wait for another writer.
            connection.execute("BEGIN IMMEDIATE")
            # After an error the connection is closed, which rolls back.
            yield connection
            connection.execute("COMMIT")


@contextmanager
def _closed_after_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


class _FileCopy:
    """A copy of a SQLite file and its write-ahead log, which is removed with this object."""

    def __init__(self, path: str) -> None:
        self._sources = [path, f"{path}-wal"]
        folder = temporary_directory()
        weakref.finalize(self, remove_temporary, folder)
        # Before the copy: a change during the copy makes it outdated.
        self._states = sqlite_files.sizes_and_times(self._sources)
        sqlite_files.copy_consistently(self._sources, folder)
        self.path = os.path.join(folder, os.path.basename(path))

    def is_current(self) -> bool:
        """Return whether the copied files have not changed."""
        return sqlite_files.sizes_and_times(self._sources) == self._states


if TYPE_CHECKING:
    _contract: type[OnlineStore] = SQLiteOnlineStore
    _identity: type[IdentifiesServer] = SQLiteOnlineStore
