"""Access to URIs for libraries without URI support: a file system for DuckDB, and a local mirror.

DuckDB reads through fsspec. Its threads share one handle, on which they seek and then read; for a
compressed file one thread may continue after the read of another thread. So a seek applies to the
next read in the same thread, and a read without a seek continues after the last read in any thread.
The size and time of a file are requested only once.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from featurestore.errors import StorageError, missing_extra
from featurestore.model.runtime import ForkSafeLock
from featurestore.model.threads import independent_tasks
from featurestore.storage import storage_for
from featurestore.storage.connections import object_store_for
from featurestore.storage.failures import translate_write_errors
from featurestore.storage.interface import StoredObject
from featurestore.storage.location import remove_owner, supported_schemes
from featurestore.storage.temporary import remove_temporary, temporary_directory

Guard = Callable[[], AbstractContextManager[None]]

_MAX_CACHED = 10_000
_PARALLEL_FETCHES = 4
# DuckDB escapes wildcards with brackets.
_LITERAL = re.compile(r"\[(.)\]")


def file_systems(guard: Guard) -> list[Any]:
    """Return file systems for DuckDB's ``register_filesystem``, one for each scheme.

    They are read-only. Each call runs inside the context manager ``guard``, which sees errors
    before DuckDB does.

    Raises:
        MissingExtra: fsspec is not installed.
    """
    try:
        from fsspec import AbstractFileSystem
    except ModuleNotFoundError as error:
        raise missing_extra("fsspec", "s3") from error

    # The base class is imported lazily. If a file system had several schemes, DuckDB would prepend
    # the first one to every path, so each scheme has its own file system.
    systems = []
    for scheme in supported_schemes():
        system = type(
            "StorageFiles", (_ReadOnlyFileSystem, AbstractFileSystem), {"protocol": scheme}
        )
        systems.append(system(guard))
    return systems


class _ReadOnlyFileSystem:
    """The file system methods that DuckDB calls."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard
        # Data files are never overwritten, so sizes and times stay valid.
        self._objects: OrderedDict[str, StoredObject] = OrderedDict()
        self._lock = ForkSafeLock()

    def open(self, path: str, mode: str = "rb", **_: object) -> _SharedFile:
        with self._guard():
            if mode != "rb":
                raise StorageError(f"{path!r} cannot be written: this file system is read-only.")
            return _SharedFile(path, self._find(path).size, self._guard)

    def glob(self, path: str, **_: object) -> list[str]:
        """Return the file with an escaped path, without its scheme, as DuckDB expects."""
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
        """Return the size and time of a file, from the server at the first call."""
        with self._lock:
            cached = self._objects.get(path)
        if cached is not None:
            return cached
        store, name = object_store_for(path)
        file = store.find(name)
        if file is None:
            raise FileNotFoundError(f"{remove_owner(path)!r} does not exist.")
        with self._lock:
            self._objects[path] = file
            while len(self._objects) > _MAX_CACHED:
                self._objects.popitem(last=False)
        return file


class _SharedFile:
    """An open file that stores the position of each thread and the end of the last read."""

    closed = False

    def __init__(self, path: str, size: int, guard: Guard) -> None:
        self._path = path
        self._guard = guard
        self._size = size
        self._end = 0
        self._thread = threading.local()

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 1:
            offset += self.tell()
        elif whence == 2:
            offset += self._size
        self._thread.position = self._end = offset
        return offset

    def tell(self) -> int:
        return int(getattr(self._thread, "position", self._end))

    def read(self, count: int = -1) -> bytes:
        start = self.tell()
        remaining = max(self._size - start, 0)
        length = remaining if count < 0 else min(count, remaining)
        with self._guard():
            store, name = object_store_for(self._path)
            (data,) = store.ranges(name, [(start, length)])
        # A seek applies to one read; the next read continues at the end, in any thread.
        self._thread.__dict__.pop("position", None)
        self._end = start + length
        return data

    def flush(self) -> None:
        """Do nothing: files are read-only."""

    def close(self) -> None:
        """Do nothing: no connection is open between reads."""


class LocalMirror:
    """A local copy of selected files below a URI, as they were when listed."""

    def __init__(self, uri: str) -> None:
        """List the files and create the local folder, which ``close`` removes."""
        self._uri = uri
        statuses = storage_for(uri).walk_with_status(uri)
        self._sizes = {path[len(uri) + 1 :]: status.size for path, status in statuses}
        self.folder = temporary_directory()

    @property
    def names(self) -> list[str]:
        """The names of all listed files, whether fetched or not."""
        return list(self._sizes)

    def fetch(self, names: Iterable[str]) -> None:
        """Fetch files concurrently unless they were already fetched; ignore unknown names.

        Raises:
            StorageError: A file cannot be read, or has changed since it was listed.
        """
        missing_names = [
            name
            for name in names
            if name in self._sizes
            and not os.path.exists(storage_for(self.folder).resolve_inside(self.folder, name))
        ]
        threads = max(1, min(_PARALLEL_FETCHES, len(missing_names)))
        with independent_tasks(threads, "featurestore-fetch") as pool:
            # ``list`` raises the first error of the workers.
            list(pool.map(self._fetch, missing_names))

    def close(self) -> None:
        """Remove the local folder."""
        remove_temporary(self.folder)

    def _fetch(self, name: str) -> None:
        source, target = (
            f"{self._uri}/{name}",
            storage_for(self.folder).resolve_inside(self.folder, name),
        )
        with translate_write_errors(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                for chunk in storage_for(source).read_chunks(source):
                    file.write(chunk)
                size = file.tell()
        if size != self._sizes[name]:
            raise StorageError(f"{source!r} changed while it was read.", hint="read again")
