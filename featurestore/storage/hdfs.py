"""The storage in an HDFS: files of a namenode, written beside their place and renamed.

A rename without overwrite is what a conditional put is elsewhere: the namenode decides who was
first. A file is visible there while it is written, so it has a name with a dot until it is whole.
"""

from __future__ import annotations

import re
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from featurestore.errors import StorageError
from featurestore.storage import hdfs_failures
from featurestore.storage.attempts import repeated
from featurestore.storage.failures import reading
from featurestore.storage.hdfs_client import knock, noted, opened
from featurestore.storage.hdfs_failures import LostAnswerError
from featurestore.storage.interface import StoredObject, Writer
from featurestore.storage.location import check_name
from featurestore.storage.targets import bytes_of, fill

if TYPE_CHECKING:
    from featurestore.storage.interface import Storage

Result = TypeVar("Result")

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
# Ranges that lie closer together are read as one.
_COALESCED_BYTES = 256 << 10
_PIECE_BYTES = 4 << 20
_AT_ONCE = 8
_TRUST_SECONDS = 10
_LOOKS = 40
_FIRST_LOOK_SECONDS = 0.005


class HdfsStorage:
    """Files of an HDFS, below its root.

    HDFS keeps times in milliseconds and no tag: an object that takes the place of one of the same
    size, written at the same millisecond, has the same ``etag``. Writing takes longer than that.

    Args:
        root: The URI of the file system, such as "hdfs://namenode:8020".
        options: Settings of Hadoop's client, as ``storage_options=`` gives them; else those of
            ``$HADOOP_CONF_DIR``.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self.root = root
        self._client = opened(root, options)
        self._trusted_until = 0.0

    def read(self, name: str) -> bytes:
        path = self._path(name)

        def call() -> bytes:
            size = self._client.get_file_info(path).length
            reader = self._client.read(path)
            _check_whole(reader, size)
            return bytes(reader.read())

        return self._repeated("read", name, call)

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        path = self._path(name)

        def call() -> list[bytes]:
            end = max((start + length for start, length in ranges if length > 0), default=0)
            return _read_ranges(self._reader(path, end), ranges)

        return self._repeated("read", name, call)

    def read_into(self, name: str, start: int, targets: Sequence[memoryview]) -> None:
        path, length = self._path(name), bytes_of(targets)

        def call() -> None:
            reader = self._reader(path, start + length)
            if not fill(targets, reader.read_range_stream(start, length)):
                raise StorageError(f"Cannot read {self.root + path!r}: it came incomplete.")

        self._repeated("read", name, call)

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)

        def call() -> None:
            with _Unfinished(self._client, path) as file:
                file.write(data)
                file.publish(overwrite=True)

        self._write(name, call)

    def put_new(self, name: str, data: bytes) -> None:
        path = self._path(name)

        def call() -> bool:
            try:
                with _Unfinished(self._client, path) as file:
                    file.write(data)
                    file.publish(overwrite=False)
            except FileExistsError:
                # The answer to an earlier rename of this call may have been lost on the way.
                return self._is_there(name, data)
            except LostAnswerError:
                if not self._is_there(name, data):
                    raise
            return True

        # Looked at first, since a file that is written in vain takes half a second, too.
        if self.find(name) is not None or not self._write(name, call):
            raise FileExistsError(f"There is {self.root + path!r} already.")

    @contextmanager
    def writer(self, name: str) -> Iterator[Writer]:
        path = self._path(name)
        with self._write(name, partial(_Unfinished, self._client, path)) as file:
            yield _Piecewise(file, self.root + path)
            self._write(name, partial(file.publish, overwrite=True))

    def upload(self, name: str, path: str) -> None:
        target = self._path(name)

        def call() -> None:
            with _Unfinished(self._client, target) as file:
                source.seek(0)
                while piece := source.read(_PIECE_BYTES):
                    file.write(piece)
                file.publish(overwrite=True)

        with reading(path), open(path, "rb", buffering=0) as source:
            self._write(name, call)

    def copy(self, source: str, target: str) -> None:
        path, place = self._path(source), self._path(target)

        def call() -> None:
            reader = self._client.read(path)
            with _Unfinished(self._client, place) as file:
                for piece in reader.read_range_stream(0, len(reader)):
                    file.write(piece)
                file.publish(overwrite=True)

        self._repeated("copy", source, call)

    def children(self, folder: str) -> list[str]:
        names = []
        folders = []
        for entry in self._entries(folder):
            if entry.isdir:
                folders.append(entry.path)
            else:
                names.append(_last(entry.path))
        with ThreadPoolExecutor(min(_AT_ONCE, max(len(folders), 1))) as pool:
            for path, holds in zip(folders, pool.map(self._holds, folders), strict=True):
                if holds:
                    names.append(_last(path))
        return sorted(names)

    def find(self, name: str) -> StoredObject | None:
        path = self._path(name)
        try:
            found = self._repeated("find", name, partial(self._client.get_file_info, path))
        except FileNotFoundError:
            return None
        return None if found.isdir else _stored(found)

    def remove(self, name: str) -> bool:
        if self.find(name) is None:
            return False
        self._repeated("remove", name, partial(self._client.delete, self._path(name)))
        return True

    def remove_below(self, folder: str) -> int:
        found = sum(1 for _ in self.list(check_name(folder)))
        # An object of that name is no folder. What killed writers left goes with the folder.
        if self.find(folder) is None:
            delete = partial(self._client.delete, self._path(folder), recursive=True)
            with suppress(FileNotFoundError):
                self._repeated("remove", folder, delete)
        return found

    def remove_unfinished(self, folder: str, *, before: datetime) -> int:
        removed = 0
        for entry in self._listed(folder, recursive=True):
            if _is_temporary(entry) and _stored(entry).modified < before:
                delete = partial(self._client.delete, entry.path)
                removed += self._repeated("remove", entry.path[1:], delete)
        return removed

    def list(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        for entry in self._entries(folder):
            name = entry.path[1:]
            if not entry.isdir:
                if name > after:
                    yield _stored(entry)
            elif after < f"{name}/" or after.startswith(f"{name}/"):
                yield from self.list(name, after=after)

    def _reader(self, path: str, end: int) -> Any:
        """Open a file that has bytes up to ``end``."""
        reader = self._client.read(path)
        if end > len(reader):
            _check_whole(reader, self._client.get_file_info(path).length)
            raise StorageError(f"Cannot read {self.root + path!r}: it ends before byte {end}.")
        return reader

    def _path(self, name: str) -> str:
        return f"/{check_name(name)}"

    def _repeated(self, action: str, name: str, call: Callable[[], Result]) -> Result:
        def understood() -> Result:
            if time.monotonic() > self._trusted_until:
                knock(self.root)
            with noted(), hdfs_failures.nothing_below_files():
                found = call()
            self._trusted_until = time.monotonic() + _TRUST_SECONDS
            return found

        place = f"{self.root}/{name}"
        return repeated(action, place, understood, answers=hdfs_failures.ANSWERS)

    def _write(self, name: str, call: Callable[[], Result]) -> Result:
        try:
            return self._repeated("write", name, call)
        except FileNotFoundError:
            raise StorageError(
                f"Cannot write {self.root}/{name}: a part of its path is a file.",
                hint="choose another name",
            ) from None

    def _listed(self, folder: str, *, recursive: bool = False) -> Sequence[Any]:
        """Return the status of what is in a folder, or of all below it; nothing where it is not."""
        path = self._path(folder) if folder else "/"

        def call() -> Sequence[Any]:
            return list(self._client.list_status(path, recursive))

        try:
            return self._repeated("list", folder, call)
        except FileNotFoundError:
            return []

    def _entries(self, folder: str) -> Sequence[Any]:
        """Return the status of what is in a folder, in the order of the names of all below it."""
        found = []
        for entry in self._listed(folder):
            # The list of a file is the file itself.
            if entry.path != f"/{folder}" and not _is_temporary(entry):
                found.append(entry)
        return sorted(found, key=lambda entry: entry.path + "/" * entry.isdir)

    def _holds(self, path: str) -> bool:
        """Tell whether there is an object below a folder: empty folders are not there."""
        return next(self.list(path[1:]), None) is not None

    def _is_there(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name) == data
        except FileNotFoundError:
            return False


class _Unfinished:
    """A new file beside its place, under a temporary name; removed unless it was published."""

    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path
        self._temporary = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"
        self._file = client.create(self._temporary)
        self._size = 0
        self._whole: Any = None
        self._published = False

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._size += len(data)
        return len(data)

    def publish(self, *, overwrite: bool) -> None:
        """Close the file, which makes it whole, and give it its name; may be repeated.

        Raises:
            FileExistsError: The name is taken.
            LostAnswerError: The temporary file is gone, and whether it was renamed nobody knows.
        """
        self._file.close()
        try:
            self._wait_until_whole()
            self._client.rename(self._temporary, self._path, overwrite)
        except FileNotFoundError:
            # The library sends a rename again when its answer was lost.
            if not overwrite or not self._has_moved():
                raise LostAnswerError(f"{self._temporary} is gone") from None
        self._published = True

    def _wait_until_whole(self) -> None:
        """Wait until readers get all bytes: a namenode may close a file a moment earlier."""
        for attempt in range(_LOOKS):
            reader = self._client.read(self._temporary)
            if len(reader) == self._size:
                self._whole = self._client.get_file_info(self._temporary)
                return
            time.sleep(_FIRST_LOOK_SECONDS * (attempt + 1))
        _check_whole(reader, self._size)

    def _has_moved(self) -> bool:
        try:
            there = self._client.get_file_info(self._path)
        except FileNotFoundError:
            return False
        return self._whole is not None and _stored(there).etag == _stored(self._whole).etag

    def __enter__(self) -> _Unfinished:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._published:
            with suppress(*hdfs_failures.errors()):
                self._file.close()
            with suppress(*hdfs_failures.errors()):
                self._client.delete(self._temporary)


class _Piecewise:
    """A writer whose errors name the object."""

    def __init__(self, file: _Unfinished, place: str) -> None:
        self._file = file
        self._place = place

    def write(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._file.write(bytes(data))
        except hdfs_failures.errors() as error:
            raise hdfs_failures.failure("write", self._place, error) from None


def _check_whole(reader: Any, size: int) -> None:
    """Raise an error that passes unless an open file has the size that the namenode tells.

    Where a file may be closed before its last block is known, a reader gets less for a moment.
    """
    if len(reader) != size:
        raise OSError(f"{len(reader)} bytes can be read of {size}")


def _read_ranges(reader: Any, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return ranges of an open file, which has them: neighbors together, others side by side."""
    wanted = _coalesced(ranges)
    starts = [start for start, _ in wanted]
    with ThreadPoolExecutor(min(_AT_ONCE, max(len(wanted), 1))) as pool:
        parts = list(pool.map(lambda part: reader.read_range(*part), wanted))
    found = []
    for start, length in ranges:
        if length <= 0:
            found.append(b"")
            continue
        number = bisect_right(starts, start) - 1
        offset = start - starts[number]
        found.append(bytes(parts[number][offset : offset + length]))
    return found


def _coalesced(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges that hold the given ones, first byte and length, ascending and apart."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(ranges):
        if length <= 0:
            continue
        if merged and start <= sum(merged[-1]) + _COALESCED_BYTES:
            first, before = merged[-1]
            merged[-1] = (first, max(before, start + length - first))
        else:
            merged.append((start, length))
    return merged


def _stored(found: Any) -> StoredObject:
    modified = datetime.fromtimestamp(found.modification_time / 1000, UTC)
    etag = f"{found.modification_time}-{found.length}"
    return StoredObject(found.path[1:], found.length, modified, etag)


def _is_temporary(found: Any) -> bool:
    return _TEMPORARY.fullmatch(_last(found.path)) is not None


def _last(path: str) -> str:
    return path.rpartition("/")[2]


if TYPE_CHECKING:
    _contract: type[Storage] = HdfsStorage
