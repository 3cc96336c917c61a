"""How DuckDB reads files below URIs: a file system of Python over the store's own storages.

DuckDB shares one handle among its threads and reads by seek and read, so each thread has a position
of its own. What it reads here never changes under its name, so size and time are asked for once.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from datetime import datetime
from typing import TYPE_CHECKING

from featurestore.errors import StorageError, missing_extra
from featurestore.storage.interface import StoredObject
from featurestore.storage.location import SCHEMES, storage_of
from featurestore_connectors.duckdb_delta.failures import kept

if TYPE_CHECKING:
    import duckdb

_REMEMBERED = 10_000
# ``sqltext.literal_path`` takes wildcards literally by brackets around them.
_LITERAL = re.compile(r"\[(.)\]")


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Let a connection, and all of its database, read files below URIs."""
    try:
        from fsspec import AbstractFileSystem
    except ModuleNotFoundError as error:
        raise missing_extra("fsspec", "s3") from error

    # The base class is only there when it is needed. One for each scheme: of several DuckDB would
    # put the first before every path.
    for scheme in SCHEMES:
        system = type("StorageFiles", (_Files, AbstractFileSystem), {"protocol": scheme})
        connection.register_filesystem(system())


class _Files:
    """The calls that DuckDB makes on a file system."""

    def __init__(self) -> None:
        super().__init__()
        self._known: OrderedDict[str, StoredObject] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, path: str, mode: str = "rb", **_: object) -> _Handle:
        with kept():
            if mode != "rb":
                raise StorageError(f"DuckDB may not write {path!r}.")
            return _Handle(path, self._find(path).size)

    def glob(self, path: str, **_: object) -> list[str]:
        """Return the one file that a pattern means, as DuckDB wants it: without its scheme."""
        return [_LITERAL.sub(r"\1", path).partition("://")[2]]

    def exists(self, path: str, **_: object) -> bool:
        with kept():
            try:
                return self._find(path) is not None
            except FileNotFoundError:
                return False

    def size(self, path: str) -> int:
        with kept():
            return self._find(path).size

    def modified(self, path: str) -> datetime:
        with kept():
            return self._find(path).modified

    def isdir(self, path: str) -> bool:
        return False

    def _find(self, path: str) -> StoredObject:
        with self._lock:
            known = self._known.get(path)
        if known is not None:
            return known
        storage, name = storage_of(path)
        found = storage.find(name)
        if found is None:
            raise FileNotFoundError(f"There is no {path!r}.")
        with self._lock:
            self._known[path] = found
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found


class _Handle:
    """An open file: a position in each thread, bytes by ranges."""

    closed = False

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size
        self._at = threading.local()

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 1:
            offset += self.tell()
        elif whence == 2:
            offset += self._size
        self._at.position = offset
        return offset

    def tell(self) -> int:
        return int(getattr(self._at, "position", 0))

    def read(self, count: int = -1) -> bytes:
        start = self.tell()
        left = max(self._size - start, 0)
        length = left if count < 0 else min(count, left)
        with kept():
            storage, name = storage_of(self._path)
            (data,) = storage.ranges(name, [(start, length)])
        self._at.position = start + length
        return data

    def flush(self) -> None:
        """Do nothing: files are read only."""

    def close(self) -> None:
        """Do nothing: between two ranges nothing is open."""
