"""Files at URIs: a ``Storage`` that uses the object stores and HDFS connections of this process.

Object stores have no directories: a directory exists as long as it contains a file.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any

from featurestore.errors import LocationNotWritable, StorageError
from featurestore.model.paths import is_relative_path
from featurestore.model.threads import independent_tasks
from featurestore.storage.base import Storage
from featurestore.storage.connections import object_store_for
from featurestore.storage.failures import translate_write_errors
from featurestore.storage.interface import FileStatus, StoredObject, Writer
from featurestore.storage.location import require_local

_log = logging.getLogger("featurestore.storage")
_CHUNK_BYTES = 8 << 20
_PARALLEL_FETCHES = 4
_BUFFER_BYTES = 64 << 10


class RemoteStorage(Storage):
    """Files in object stores and HDFS; each method uses the connection to the path's bucket."""

    is_local = False
    supports_appending = False
    prefers_listing = True
    needs_claims = True

    def ensure_writable(self, directory: str) -> None:
        """Check that objects can be written, and that the server supports conditional puts."""
        store, folder = object_store_for(directory)
        probe = _probe_name(folder)
        try:
            # The second put must be refused. Otherwise concurrent commits would overwrite each
            # other.
            store.put_new(probe, b"first")
            try:
                store.put_new(probe, b"second")
            except FileExistsError:
                return
            finally:
                with suppress(StorageError):
                    store.remove(probe)
        except StorageError as error:
            raise LocationNotWritable(
                f"The location {directory!r} cannot be written: {error.message}", hint=error.hint
            ) from error
        raise LocationNotWritable(
            f"The server of {directory!r} overwrites objects despite If-None-Match: "
            "concurrent writers would lose commits.",
            hint="use a server with conditional puts: S3 itself, MinIO, Ceph, versitygw",
        )

    def _make_directory(self, path: str, *, durable: bool) -> None:
        return

    def _write(self, path: str, data: bytes, *, durable: bool) -> None:
        store, name = object_store_for(path)
        store.put(name, data)

    def _write_new(self, path: str, data: bytes) -> bool:
        store, name = object_store_for(path)
        try:
            store.put_new(name, data)
        except FileExistsError:
            return False
        return True

    def writer(self, path: str) -> AbstractContextManager[Writer]:
        store, name = object_store_for(path)
        return store.writer(name)

    @contextmanager
    def growing_file(self, path: str) -> Iterator[str]:
        """Yield the path of a temporary file that is uploaded when the block ends.

        A failed upload is logged and does not fail the block.
        """
        with translate_write_errors(tempfile.gettempdir()):
            folder = tempfile.mkdtemp(prefix="featurestore-")
        temporary = os.path.join(folder, os.path.basename(path))
        try:
            yield temporary
        finally:
            # Also after an exception, since the file is the log of a run, which explains the
            # failure.
            try:
                self.upload(temporary, path)
            except StorageError as error:
                _log.warning("A file could not be uploaded: %s", error.message)
            shutil.rmtree(folder, ignore_errors=True)

    def sync(self, paths: Iterable[str]) -> None:
        return

    def rename(self, source: str, target: str) -> None:
        require_local(source, "Renames", "copy the object by hand")

    def upload(self, source: str, path: str) -> None:
        """Upload a local file, or copy an object within a bucket."""
        store, name = object_store_for(path)
        if source.startswith(f"{store.root}/"):
            store.copy(object_store_for(source)[1], name)
        else:
            store.upload(name, source)

    def read(self, path: str) -> bytes:
        store, name = object_store_for(path)
        return store.read(name)

    def _read_into(self, path: str, start: int, buffers: Sequence[memoryview]) -> None:
        store, name = object_store_for(path)
        store.read_into(name, start, buffers)

    def _read_chunks(self, path: str, start: int) -> Iterator[bytes]:
        """Yield the bytes of an object in chunks, while the next chunk is fetched."""
        store, name = object_store_for(path)
        size = self.status(path).size

        def fetch(position: int) -> bytes:
            return store.ranges(name, [(position, min(_CHUNK_BYTES, size - position))])[0]

        # At most _PARALLEL_FETCHES chunks are in memory, and they are yielded in order.
        pending: deque[Future[bytes]] = deque()
        threads = max(1, min(_PARALLEL_FETCHES, -(-(size - start) // _CHUNK_BYTES)))
        with independent_tasks(threads, "featurestore-fetch") as pool:
            for position in range(start, size, _CHUNK_BYTES):
                pending.append(pool.submit(fetch, position))
                if len(pending) == _PARALLEL_FETCHES:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

    def open_complete(self, path: str) -> str | io.BytesIO:
        return io.BytesIO(self.read(path))

    def open_ranges(self, path: str) -> str | IO[bytes]:
        return io.BufferedReader(_RangedFile(path, self.status(path).size), _BUFFER_BYTES)

    def exists(self, path: str) -> bool:
        if _find(path) is not None:
            return True
        # A listing that covers the path contains the object itself; callers do not look up
        # subfolders.
        return _find_listing(path) is None and self.is_directory(path)

    def status(self, path: str) -> FileStatus:
        file = _find(path)
        if file is None:
            raise FileNotFoundError(f"{path!r} does not exist.")
        return _to_file_status(file)

    def is_readable(self, path: str) -> bool:
        return self.exists(path)

    def is_file(self, path: str) -> bool:
        return _find(path) is not None

    def is_directory(self, path: str) -> bool:
        store, name = object_store_for(path)
        return next(iter(store.list(name)), None) is not None

    def is_link(self, path: str) -> bool:
        return False

    def is_same(self, first_path: str, second_path: str) -> bool:
        return first_path == second_path

    def is_below(self, path: str, directory: str) -> bool:
        relative = path.removeprefix(f"{directory}/")
        return relative != path and is_relative_path(relative)

    def resolve(self, path: str) -> str:
        return path

    def as_uri(self, path: str) -> str:
        return path

    def _list_directory(self, path: str, after: str) -> list[str]:
        """List the names in a directory; with ``after``, only objects are listed, not folders."""
        listing = _listing.get()
        if listing is not None and listing.folder == path and listing.after <= after:
            return listing.names(after)
        store, name = object_store_for(path)
        if not after:
            return store.children(name)
        return [
            listed_object.name[len(name) + 1 :]
            for listed_object in store.list(name, after=f"{name}/{after}")
        ]

    def walk(self, directory: str, *, enter: Callable[[str], bool] | None = None) -> Iterator[str]:
        for path, _ in self.walk_with_status(directory):
            folders = path[len(directory) + 1 :].split("/")[:-1]
            if enter is None or all(map(enter, folders)):
                yield path

    def walk_with_status(self, directory: str) -> Iterator[tuple[str, FileStatus]]:
        store, name = object_store_for(directory)
        for file in store.list(name):
            yield f"{store.root}/{file.name}", _to_file_status(file)

    @contextmanager
    def cached_listing(self, directory: str, *, after: str = "") -> Iterator[None]:
        outer = _listing.get()
        if outer is not None and outer.folder == directory and outer.after <= after:
            yield
            return
        store, name = object_store_for(directory)
        listed_objects = store.list(name, after=f"{name}/{after}" if after else "")
        objects = {
            f"{store.root}/{listed_object.name}": listed_object for listed_object in listed_objects
        }
        token = _listing.set(_Listing(directory, after, objects))
        try:
            yield
        finally:
            _listing.reset(token)

    def last_write_time(self, path: str) -> datetime | None:
        store, name = object_store_for(path)
        file = store.find(name)
        # The path may be an object or a folder of objects.
        times = [stored_object.modified for stored_object in store.list(name)]
        if file is not None:
            times.append(file.modified)
        return max(times, default=None)

    def current_time(self, location: str) -> datetime:
        """Return the time that the server assigns to a new object."""
        store, folder = object_store_for(location)
        # Clocks of clients differ, so the time comes from an object that the server has just
        # stamped.
        probe = _probe_name(folder)
        store.put(probe, b"time")
        try:
            probe_object = store.find(probe)
        finally:
            store.remove(probe)
        if probe_object is None:
            raise StorageError(f"The object just written to {location!r} does not exist.")
        return probe_object.modified

    def _remove(self, path: str, names: Sequence[str], *, below: str) -> bool:
        store, name = object_store_for(path)
        return store.remove(name) or store.remove_below(name) > 0

    def remove_file(self, path: str) -> None:
        store, name = object_store_for(path)
        store.remove(name)

    def remove_unfinished(self, directory: str, *, before: datetime) -> int:
        store, folder = object_store_for(directory)
        return store.remove_unfinished(folder, before=before)

    def create_link(self, source: str, target: str) -> bool:
        return False


@dataclass(frozen=True)
class _Listing:
    """The objects in a folder whose names are greater than ``after``, by path.

    A Delta table operation checks many log files one by one. Each check is a request to the server,
    while one listing covers a thousand files. A listing does not contain files that are written
    later, so it is used only to read one snapshot and never to resolve a race.
    """

    folder: str
    after: str
    objects: Mapping[str, StoredObject]

    def covers(self, path: str) -> bool:
        """Return True if the listing would contain a path."""
        folder, _, name = path.rpartition("/")
        return folder == self.folder and name > self.after

    def names(self, after: str) -> list[str]:
        """Return the names greater than ``after``, sorted."""
        start = len(self.folder) + 1
        names = [path[start:] for path in self.objects]
        return sorted(name for name in names if name > after and "/" not in name)


# A context variable, so that other threads, which may be writing, see the current state.
_listing: ContextVar[_Listing | None] = ContextVar("listing", default=None)


def _find_listing(path: str) -> _Listing | None:
    listing = _listing.get()
    return listing if listing is not None and listing.covers(path) else None


def _find(path: str) -> StoredObject | None:
    """Return name, size, time and tag of an object, None if it does not exist."""
    listing = _find_listing(path)
    if listing is not None:
        return listing.objects.get(path)
    store, name = object_store_for(path)
    return store.find(name) if name else None


def _to_file_status(file: StoredObject) -> FileStatus:
    return FileStatus(file.size, int(file.modified.timestamp() * 1e9), file.etag)


def _probe_name(folder: str) -> str:
    return f"{folder}/.probe-{uuid.uuid4().hex}".lstrip("/")


class _RangedFile(io.RawIOBase):
    """An object as a seekable file, for libraries that read byte ranges.

    The object must not change while it is read. The file is not thread-safe.
    """

    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self._store, self._name = object_store_for(path)
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(starts[whence] + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        length = max(min(len(target), self._size - self._position), 0)
        (data,) = self._store.ranges(self._name, [(self._position, length)])
        target[:length] = data
        self._position += length
        return length
