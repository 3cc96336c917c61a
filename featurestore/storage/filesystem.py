"""Files below URIs as a file system of fsspec, by which DuckDB reads them.

DuckDB shares one handle among its threads, which seek and then read; compressed files it reads on
from where another thread stopped. So what a thread seeks is for its own next read, and reads without
a seek go on behind the last one. Size and time of a file are asked for once.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from featurestore.errors import StorageError, missing_extra
from featurestore.storage.connections import object_store_for
from featurestore.storage.interface import StoredObject
from featurestore.storage.location import SCHEMES

Guard = Callable[[], AbstractContextManager[None]]

_REMEMBERED = 10_000
# Wildcards are taken literally by brackets around them.
_LITERAL = re.compile(r"\[(.)\]")


def file_systems(guard: Guard) -> list[Any]:
    """Return what ``register_filesystem`` of a connection of DuckDB takes, one for each scheme.

    They read only. Each call runs in a context of ``guard``, which sees its errors before DuckDB
    does.

    Raises:
        MissingExtra: fsspec is not installed.
    """
    try:
        from fsspec import AbstractFileSystem
    except ModuleNotFoundError as error:
        raise missing_extra("fsspec", "s3") from error

    # The base class is only there when it is needed. One for each scheme: of several DuckDB would
    # put the first before every path.
    systems = []
    for scheme in SCHEMES:
        system = type("StorageFiles", (_Files, AbstractFileSystem), {"protocol": scheme})
        systems.append(system(guard))
    return systems


class _Files:
    """The calls that DuckDB makes on a file system."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard
        self._known: OrderedDict[str, StoredObject] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, path: str, mode: str = "rb", **_: object) -> _Handle:
        with self._guard():
            if mode != "rb":
                raise StorageError(f"{path!r} can only be read here.")
            return _Handle(path, self._find(path).size, self._guard)

    def glob(self, path: str, **_: object) -> list[str]:
        """Return the one file that a pattern means, as DuckDB wants it: without its scheme."""
        return [_LITERAL.sub(r"\1", path).partition("://")[2]]

    def exists(self, path: str, **_: object) -> bool:
        with self._guard():
            try:
                return self._find(path) is not None
            except FileNotFoundError:
                return False

    def size(self, path: str) -> int:
        with self._guard():
            return self._find(path).size

    def modified(self, path: str) -> datetime:
        with self._guard():
            return self._find(path).modified

    def isdir(self, path: str) -> bool:
        return False

    def _find(self, path: str) -> StoredObject:
        with self._lock:
            known = self._known.get(path)
        if known is not None:
            return known
        storage, name = object_store_for(path)
        found = storage.find(name)
        if found is None:
            raise FileNotFoundError(f"There is no {path!r}.")
        with self._lock:
            self._known[path] = found
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found


class _Handle:
    """An open file: where each thread wants to read, where the last read ended, bytes by ranges."""

    closed = False

    def __init__(self, path: str, size: int, guard: Guard) -> None:
        self._path = path
        self._guard = guard
        self._size = size
        self._end = 0
        self._wanted = threading.local()

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 1:
            offset += self.tell()
        elif whence == 2:
            offset += self._size
        self._wanted.position = self._end = offset
        return offset

    def tell(self) -> int:
        return int(getattr(self._wanted, "position", self._end))

    def read(self, count: int = -1) -> bytes:
        start = self.tell()
        left = max(self._size - start, 0)
        length = left if count < 0 else min(count, left)
        with self._guard():
            storage, name = object_store_for(self._path)
            (data,) = storage.ranges(name, [(start, length)])
        self._wanted.__dict__.pop("position", None)
        self._end = start + length
        return data

    def flush(self) -> None:
        """Do nothing: files are read only."""

    def close(self) -> None:
        """Do nothing: between two ranges nothing is open."""
