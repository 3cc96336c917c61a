"""Files below a URI: the calls of ``files`` over the storage that the URI lies in.

There are no directories there: one exists as long as something lies below it.
"""

from __future__ import annotations

import io
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

from featurestore.errors import LocationNotWritable, StorageError
from featurestore.storage import settings
from featurestore.storage.connections import connected_roots, object_store_for, options_of
from featurestore.storage.interface import StoredObject
from featurestore.storage.listing import listing_of, names_in
from featurestore.storage.location import Location, is_uri

_CHUNK_BYTES = 8 << 20
_FETCHES = 4


def ensure_writable(directory: str) -> None:
    """Make sure that objects can be written, and that a name can be taken once only.

    Raises:
        LocationNotWritable: Says why.
    """
    storage, folder = object_store_for(directory)
    probe = f"{folder}/.probe-{uuid.uuid4().hex}".lstrip("/")
    try:
        storage.put_new(probe, b"first")
        try:
            storage.put_new(probe, b"second")
        except FileExistsError:
            return
        finally:
            with suppress(StorageError):
                storage.remove(probe)
    except StorageError as error:
        raise LocationNotWritable(
            f"The location {directory!r} cannot be written: {error.message}", hint=error.hint
        ) from error
    raise LocationNotWritable(
        f"The server of {directory!r} overwrites where it was told not to (If-None-Match): two "
        "writers would lose one another's commits.",
        hint="use a server with conditional puts: S3 itself, MinIO, Ceph, versitygw",
    )


def write(path: str, data: bytes) -> None:
    """Write an object whole, in place of what was there."""
    storage, name = object_store_for(path)
    storage.put(name, data)


def write_new(path: str, data: bytes) -> bool:
    """Write an object whole; False when the name is taken."""
    storage, name = object_store_for(path)
    try:
        storage.put_new(name, data)
    except FileExistsError:
        return False
    return True


def upload(source: str, path: str) -> None:
    """Write a file of this machine, or an object of the same bucket, as an object."""
    storage, name = object_store_for(path)
    if source.startswith(f"{storage.root}/"):
        storage.copy(object_store_for(source)[1], name)
    else:
        storage.upload(name, source)


def read(path: str) -> bytes:
    """Return an object; FileNotFoundError when there is none."""
    storage, name = object_store_for(path)
    return storage.read(name)


def read_into(path: str, start: int, targets: Sequence[memoryview]) -> None:
    """Fill memory with the bytes of an object from ``start`` on."""
    storage, name = object_store_for(path)
    storage.read_into(name, start, targets)


def delta_options(path: str) -> dict[str, str] | None:
    """Return the settings of a URI as delta-rs takes them; None for a path of this machine."""
    if not path.startswith("s3://"):
        return dict(options_of(path)) if is_uri(path) else None
    return settings.delta_options(settings.s3_settings(options_of(path)))


class RangedFile(io.RawIOBase):
    """An object as a file to read and seek in, for libraries that read some parts of it.

    It does not change under its name while it is read. One thread reads it.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._storage, self._name = object_store_for(path)
        self._size = status(path).size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = max(starts[whence] + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        length = max(min(len(room), self._size - self._at), 0)
        (data,) = self._storage.ranges(self._name, [(self._at, length)])
        room[:length] = data
        self._at += length
        return length


def s3a_options(path: str) -> dict[str, str]:
    """Return the settings of an ``s3://`` URI as Hadoop's S3A takes them; credentials included."""
    found = settings.s3_settings(options_of(path))
    return settings.s3a_options(found, Location.parse(path).bucket)


def options_of_open() -> dict[str, dict[str, str]]:
    """Return how this process reaches each bucket that it opened, for a process elsewhere.

    Credentials that the environment or a file of this machine tells are among the options.
    """
    found = {}
    for root in connected_roots():
        options = dict(options_of(root))
        if root.startswith("s3://"):
            known = settings.s3_settings(options)
            options = {**known.store, **known.client}
        found[root] = options
    return found


def find(path: str) -> StoredObject | None:
    """Return size, time and tag of an object, None when there is none."""
    known = listing_of(path)
    if known is not None:
        return known.found.get(path)
    storage, name = object_store_for(path)
    return storage.find(name) if name else None


def status(path: str) -> StoredObject:
    """Return size, time and tag of an object; FileNotFoundError when there is none."""
    found = find(path)
    if found is None:
        raise FileNotFoundError(f"There is no {path!r}.")
    return found


def exists(path: str) -> bool:
    """Tell whether there is an object, or something below a path."""
    if find(path) is not None:
        return True
    # Where a list knows of no object, there is no folder that anybody asks for, either.
    return listing_of(path) is None and is_directory(path)


def is_directory(path: str) -> bool:
    """Tell whether something lies below a path."""
    storage, name = object_store_for(path)
    return next(iter(storage.list(name)), None) is not None


def names(path: str, *, after: str) -> list[str]:
    """Return the names in a directory, sorted; with ``after`` objects alone, greater than it."""
    known = names_in(path, after=after)
    if known is not None:
        return known
    storage, name = object_store_for(path)
    if not after:
        return storage.children(name)
    found = []
    for each in storage.list(name, after=f"{name}/{after}"):
        found.append(each.name[len(name) + 1 :])
    return found


def walk(directory: str, *, enter: Callable[[str], bool] | None) -> Iterator[str]:
    """Yield the paths of all objects below a directory; see ``files.walk``."""
    for path, _ in listed(directory):
        folders = path[len(directory) + 1 :].split("/")[:-1]
        if enter is None or all(enter(folder) for folder in folders):
            yield path


def listed(directory: str) -> Iterator[tuple[str, StoredObject]]:
    """Yield path and status of all objects below a directory."""
    storage, name = object_store_for(directory)
    for each in storage.list(name):
        yield f"{storage.root}/{each.name}", each


def last_written(path: str) -> datetime | None:
    """Return when an object or one below it was written last, None where there is none."""
    storage, name = object_store_for(path)
    itself = storage.find(name)
    times = [] if itself is None else [itself.modified]
    times.extend(each.modified for each in storage.list(name))
    return max(times, default=None)


def time_of_store(location: str) -> datetime:
    """Return what time the server of a URI gives to an object that is written now."""
    storage, folder = object_store_for(location)
    probe = f"{folder}/.probe-{uuid.uuid4().hex}".lstrip("/")
    storage.put(probe, b"time")
    try:
        found = storage.find(probe)
    finally:
        storage.remove(probe)
    if found is None:
        raise StorageError(f"What was written to {location!r} is not there.")
    return found.modified


def remove(path: str) -> bool:
    """Remove an object, or all below a path; tell whether there was something."""
    storage, name = object_store_for(path)
    return storage.remove(name) or storage.remove_below(name) > 0


def remove_file(path: str) -> None:
    """Remove one object; nothing happens where there is none."""
    storage, name = object_store_for(path)
    storage.remove(name)


def pieces(path: str, *, start: int = 0) -> Iterator[bytes]:
    """Yield the bytes of an object, some megabytes at a time, the next ones fetched meanwhile.

    ``start``: the first byte that is wanted.
    """
    storage, name = object_store_for(path)
    size = status(path).size

    def fetch(position: int) -> bytes:
        return storage.ranges(name, [(position, min(_CHUNK_BYTES, size - position))])[0]

    waiting: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_FETCHES) as pool:
        for position in range(start, size, _CHUNK_BYTES):
            waiting.append(pool.submit(fetch, position))
            if len(waiting) == _FETCHES:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
