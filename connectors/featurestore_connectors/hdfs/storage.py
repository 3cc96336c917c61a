"""Files in HDFS, which are written under a temporary name in the same folder and then renamed.

A rename without overwriting corresponds to a conditional put in object stores: the namenode
determines which writer is first. HDFS shows files while they are written, so temporary names start
with a dot.
"""

from __future__ import annotations

import re
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from featurestore.errors import StorageError
from featurestore.model.threads import independent_tasks
from featurestore.storage.failures import translate_read_errors, with_retries
from featurestore.storage.interface import StoredObject, Writer, fill, total_bytes
from featurestore.storage.location import check_name
from featurestore_connectors.hdfs import client as hdfs_client
from featurestore_connectors.hdfs.client import POLICY, LostResponseError

if TYPE_CHECKING:
    from featurestore.storage.interface import ObjectStore

Result = TypeVar("Result")

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
# Ranges with smaller gaps are read together.
_COALESCED_BYTES = 256 << 10
_CHUNK_BYTES = 4 << 20
_PARALLEL_READS = 8
_NAMENODE_CHECK_INTERVAL = 10
# The delays increase with each check and add up to four seconds.
_COMPLETION_CHECKS = 40
_FIRST_CHECK_DELAY = 0.005


class HdfsStorage:
    """The files in an HDFS file system, relative to its root.

    HDFS times have millisecond precision, and there are no entity tags: an object that replaces
    another one of the same size in the same millisecond has the same ``etag``. Writing takes longer
    than that.

    Args:
        root: The URI of the file system, such as "hdfs://namenode:8020".
        options: Hadoop client settings from ``storage_options=``; missing settings are read from
        ``$HADOOP_CONF_DIR``.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self.root = root
        self._client = hdfs_client.open_client(root, options)
        self._namenode_checked_until = 0.0

    def read(self, name: str) -> bytes:
        path = self._path(name)

        def call() -> bytes:
            # A reader may see fewer bytes than the namenode reports, so both sizes are compared.
            size = self._client.get_file_info(path).length
            reader = self._client.read(path)
            _check_complete(reader, size)
            return bytes(reader.read())

        return self._with_retries("read", name, call)

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        path = self._path(name)

        def call() -> list[bytes]:
            end = max((start + length for start, length in ranges if length > 0), default=0)
            return _read_ranges(self._reader(path, end), ranges)

        return self._with_retries("read", name, call)

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> None:
        path, length = self._path(name), total_bytes(buffers)

        def call() -> None:
            reader = self._reader(path, start + length)
            if not fill(buffers, reader.read_range_stream(start, length)):
                raise StorageError(f"Cannot read {self.root + path!r}: the response is incomplete.")

        self._with_retries("read", name, call)

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)

        def call() -> None:
            with _TemporaryFile(self._client, path) as file:
                file.write(data)
                file.publish(overwrite=True)

        self._write(name, call)

    def put_new(self, name: str, data: bytes) -> None:
        path = self._path(name)

        def call() -> bool:
            try:
                with _TemporaryFile(self._client, path) as file:
                    file.write(data)
                    file.publish(overwrite=False)
            except FileExistsError:
                # The response to an earlier rename in this call may have been lost.
                return self._has_content(name, data)
            except LostResponseError:
                if not self._has_content(name, data):
                    raise
            return True

        # The name is checked first, since writing a file takes half a second even if it fails.
        if self.find(name) is not None or not self._write(name, call):
            raise FileExistsError(f"{self.root + path!r} already exists.")

    @contextmanager
    def writer(self, name: str) -> Iterator[Writer]:
        path = self._path(name)
        with self._write(name, partial(_TemporaryFile, self._client, path)) as file:
            yield _NamingWriter(file, self.root + path)
            self._write(name, partial(file.publish, overwrite=True))

    def upload(self, name: str, path: str) -> None:
        target = self._path(name)

        def call() -> None:
            with _TemporaryFile(self._client, target) as file:
                source.seek(0)
                while chunk := source.read(_CHUNK_BYTES):
                    file.write(chunk)
                file.publish(overwrite=True)

        with translate_read_errors(path), open(path, "rb", buffering=0) as source:
            self._write(name, call)

    def copy(self, source: str, target: str) -> None:
        path, target_path = self._path(source), self._path(target)

        def call() -> None:
            # HDFS has no copy on the server, so the bytes pass through this process.
            reader = self._client.read(path)
            with _TemporaryFile(self._client, target_path) as file:
                for chunk in reader.read_range_stream(0, len(reader)):
                    file.write(chunk)
                file.publish(overwrite=True)

        self._with_retries("copy", source, call)

    def children(self, folder: str) -> list[str]:
        names = []
        folders = []
        for entry in self._entries(folder):
            if entry.isdir:
                folders.append(entry.path)
            else:
                names.append(_base_name(entry.path))
        # Each folder needs at least one request to determine whether it contains objects.
        threads = min(_PARALLEL_READS, max(len(folders), 1))
        with independent_tasks(threads, "featurestore-hdfs") as pool:
            for path, has_objects in zip(
                folders, pool.map(self._has_objects, folders), strict=True
            ):
                if has_objects:
                    names.append(_base_name(path))
        return sorted(names)

    def find(self, name: str) -> StoredObject | None:
        path = self._path(name)
        try:
            info = self._with_retries("find", name, partial(self._client.get_file_info, path))
        except FileNotFoundError:
            return None
        return None if info.isdir else _to_stored_object(info)

    def remove(self, name: str) -> bool:
        if self.find(name) is None:
            return False
        self._with_retries("remove", name, partial(self._client.delete, self._path(name)))
        return True

    def remove_below(self, folder: str) -> int:
        count = sum(1 for _ in self.list(check_name(folder)))
        # If an object has this name, it is not a folder. Temporary files in the folder are also
        # removed.
        if self.find(folder) is None:
            delete = partial(self._client.delete, self._path(folder), recursive=True)
            with suppress(FileNotFoundError):
                self._with_retries("remove", folder, delete)
        return count

    def remove_unfinished(self, folder: str, *, before: datetime) -> int:
        removed = 0
        for entry in self._list(folder, recursive=True):
            if _is_temporary(entry) and _to_stored_object(entry).modified < before:
                delete = partial(self._client.delete, entry.path)
                removed += self._with_retries("remove", entry.path[1:], delete)
        return removed

    def list(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        for entry in self._entries(folder):
            name = entry.path[1:]
            if not entry.isdir:
                if name > after:
                    yield _to_stored_object(entry)
            # Only folders that may contain objects after the given name are listed.
            elif after < f"{name}/" or after.startswith(f"{name}/"):
                yield from self.list(name, after=after)

    def _reader(self, path: str, end: int) -> Any:
        """Open a file and check that it has at least ``end`` bytes."""
        reader = self._client.read(path)
        if end > len(reader):
            _check_complete(reader, self._client.get_file_info(path).length)
            raise StorageError(
                f"Cannot read {self.root + path!r}: the file ends before byte {end}."
            )
        return reader

    def _path(self, name: str) -> str:
        return f"/{check_name(name)}"

    def _with_retries(self, action: str, name: str, call: Callable[[], Result]) -> Result:
        """Run a call with retries of transient errors, after checking the namenode."""

        def attempt() -> Result:
            # Each check opens a connection, so it is only repeated after some seconds.
            if time.monotonic() > self._namenode_checked_until:
                hdfs_client.check_namenode(self.root)
            with hdfs_client.record_use(), hdfs_client.translate_permission_errors():
                result = call()
            self._namenode_checked_until = time.monotonic() + _NAMENODE_CHECK_INTERVAL
            return result

        uri = f"{self.root}/{name}"
        return with_retries(action, uri, attempt, policy=POLICY)

    def _write(self, name: str, call: Callable[[], Result]) -> Result:
        """Run a call that writes; raise StorageError if a part of the path is a file."""
        try:
            return self._with_retries("write", name, call)
        except FileNotFoundError:
            raise StorageError(
                f"Cannot write {self.root}/{name}: a part of its path is a file.",
                hint="choose another name",
            ) from None

    def _list(self, folder: str, *, recursive: bool = False) -> Sequence[Any]:
        """Return the status of entries in a folder, optionally recursive; empty if missing."""
        path = self._path(folder) if folder else "/"

        def call() -> Sequence[Any]:
            return list(self._client.list_status(path, recursive))

        try:
            return self._with_retries("list", folder, call)
        except FileNotFoundError:
            return []

    def _entries(self, folder: str) -> Sequence[Any]:
        """Return the status of entries in a folder, ordered by the full names of objects below."""
        entries = [
            entry
            for entry in self._list(folder)
            # Listing a file returns the file itself.
            if entry.path != f"/{folder}" and not _is_temporary(entry)
        ]
        return sorted(entries, key=lambda entry: entry.path + "/" * entry.isdir)

    def _has_objects(self, path: str) -> bool:
        """Return True if there is an object below a folder; empty folders do not count."""
        return next(self.list(path[1:]), None) is not None

    def _has_content(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name) == data
        except FileNotFoundError:
            return False


class _TemporaryFile:
    """A new file with a temporary name in its target folder; it is removed unless published."""

    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path
        self._temporary = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"
        self._file = client.create(self._temporary)
        self._size = 0
        self._complete: Any = None
        self._published = False

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._size += len(data)
        return len(data)

    def publish(self, *, overwrite: bool) -> None:
        """Close the file, which completes it, and rename it; may be called again.

        Raises:
            FileExistsError: The target already exists.
            LostResponseError: The temporary file does not exist; it may already have been renamed.
        """
        self._file.close()
        try:
            self._wait_until_complete()
            self._client.rename(self._temporary, self._path, overwrite)
        except FileNotFoundError:
            # hdfs-native retries a rename whose response was lost.
            if not overwrite or not self._is_renamed():
                raise LostResponseError(f"{self._temporary} no longer exists") from None
        self._published = True

    def _wait_until_complete(self) -> None:
        """Wait until readers see all bytes: the namenode may report the file as closed before."""
        # A file must not be published before all its bytes are readable.
        for attempt in range(_COMPLETION_CHECKS):
            reader = self._client.read(self._temporary)
            if len(reader) == self._size:
                self._complete = self._client.get_file_info(self._temporary)
                return
            time.sleep(_FIRST_CHECK_DELAY * (attempt + 1))
        _check_complete(reader, self._size)

    def _is_renamed(self) -> bool:
        """Return whether the target is the renamed temporary file."""
        try:
            info = self._client.get_file_info(self._path)
        except FileNotFoundError:
            return False
        return (
            self._complete is not None
            and _to_stored_object(info).etag == _to_stored_object(self._complete).etag
        )

    def __enter__(self) -> _TemporaryFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._published:
            with suppress(*hdfs_client.client_errors()):
                self._file.close()
            with suppress(*hdfs_client.client_errors()):
                self._client.delete(self._temporary)


class _NamingWriter:
    """A writer that adds the object name to error messages."""

    def __init__(self, file: _TemporaryFile, uri: str) -> None:
        self._file = file
        self._uri = uri

    def write(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._file.write(bytes(data))
        except hdfs_client.client_errors() as error:
            raise hdfs_client.to_storage_error("write", self._uri, error) from None


def _check_complete(reader: Any, size: int) -> None:
    """Raise a transient error unless an open file has the size reported by the namenode.

    A file may be closed before its last block is known, and until then readers see fewer bytes.
    """
    if len(reader) != size:
        raise OSError(f"only {len(reader)} of {size} bytes can be read")


def _read_ranges(reader: Any, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read ranges of an open file: adjacent ranges together, distant ranges in parallel."""
    merged = _merge_ranges(ranges)
    starts = [start for start, _ in merged]
    threads = min(_PARALLEL_READS, max(len(merged), 1))
    with independent_tasks(threads, "featurestore-hdfs") as pool:
        chunks = list(pool.map(lambda merged_range: reader.read_range(*merged_range), merged))

    def slice_of(start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        index = bisect_right(starts, start) - 1
        offset = start - starts[index]
        return bytes(chunks[index][offset : offset + length])

    return [slice_of(start, length) for start, length in ranges]


def _merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges (first byte and length) that are separated by small gaps, in ascending order."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(ranges):
        if length <= 0:
            continue
        if merged and start <= sum(merged[-1]) + _COALESCED_BYTES:
            first, merged_length = merged[-1]
            merged[-1] = (first, max(merged_length, start + length - first))
        else:
            merged.append((start, length))
    return merged


def _to_stored_object(info: Any) -> StoredObject:
    modified = datetime.fromtimestamp(info.modification_time / 1000, UTC)
    etag = f"{info.modification_time}-{info.length}"
    return StoredObject(info.path[1:], info.length, modified, etag)


def _is_temporary(info: Any) -> bool:
    return _TEMPORARY.fullmatch(_base_name(info.path)) is not None


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


if TYPE_CHECKING:
    _contract: type[ObjectStore] = HdfsStorage
