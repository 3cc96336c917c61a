"""Shard files: hashed while written, cached locally for objects, and mapped into memory.

A cache is a folder that all processes on a machine may share. Each shard is fetched once, verified
against its SHA-256 during the download, and named by its SHA-256. The least recently used copies
are evicted when the cache is full. A shared lock protects a copy from eviction until it is opened;
an open file remains readable after eviction.

If as many threads as processors write files, all compute at the same time and then wait for the disk
at the same time. With more threads, a slot for each processor, and ``release_slot`` before
each wait, some threads compute while others wait.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurestore.errors import DatasetDamaged, InvalidArgument
from featurestore.model.manifest import ManifestFile, ManifestShard
from featurestore.plugins.format import WrittenFile
from featurestore.storage import storage_for
from featurestore.storage.failures import translate_write_errors
from featurestore.storage.location import local_directory
from featurestore.storage.locks import exclusive_lock, lock_shared, remove_unless_shared

if TYPE_CHECKING:
    from types import TracebackType

PIECE_BYTES = 1 << 20
_PREFIX_DIGITS = 8
_TEMPORARY = ".tmp"
DEFAULT_CACHE_BYTES = 20 * 10**9
_LOCKS = "locks"
_SHA256_DIGITS = 64
_SHA256 = re.compile(r"[0-9a-f]{64}")
# File names that belong to the cache; other files in the folder are neither counted nor removed.
_COPY = re.compile(r"[0-9a-f]{64}(\.[A-Za-z0-9]+)?")
_UNFINISHED = re.compile(r"\.[0-9a-f]{64}(\.[A-Za-z0-9]+)?\.[0-9a-f]{32}\.tmp")
_ABANDONED_SECONDS = 24 * 3600
_thread = threading.local()


@dataclass(frozen=True)
class ShardCache:
    """A cache folder with a maximum size; it holds one shard even if the shard is larger."""

    folder: str
    max_bytes: int = DEFAULT_CACHE_BYTES

    @contextmanager
    def locked_copy(self, directory: str, shard: ManifestShard) -> Iterator[str]:
        """Yield the path of a shard's local copy, which is not evicted during the block.

        Its sidecar files have the same path with their suffixes.

        Raises:
            DatasetDamaged: The bytes do not match the manifest.
            StorageError: The shard cannot be fetched, or the copy cannot be written.
        """
        copies = self._copy_paths(shard)
        target = copies[-1][1]
        with ExitStack() as handles:
            while True:
                self._fetch(directory, shard, copies)
                handle = _open_existing(target)
                if handle is not None:
                    lock_shared(handle)
                if handle is None:
                    continue
                # Another process may have evicted a copy before it was locked.
                is_complete = all(_has_size(path, file.bytes) for file, path in copies)
                if is_complete and _refers_to(handle, target):
                    handles.callback(os.close, handle)
                    break
                os.close(handle)
            yield target

    def path_of(self, directory: str, shard: ManifestShard) -> str:
        """Return the path of a shard's copy, fetched if necessary; another process may evict it."""
        with self.locked_copy(directory, shard) as path:
            return path

    def _copy_paths(self, shard: ManifestShard) -> list[tuple[ManifestFile, str]]:
        """Return the files of a shard with the paths of their copies, the shard itself last."""
        # Manifests are untrusted, and this text becomes a file name.
        if not _SHA256.fullmatch(shard.sha256):
            raise DatasetDamaged(f"{shard.sha256!r} of {shard.path!r} is not a SHA-256 digest.")
        target = os.path.join(self.folder, shard.sha256)
        copies = []
        for sidecar in shard.sidecars:
            suffix = sidecar.path.removeprefix(shard.path)
            if not re.fullmatch(r"\.[A-Za-z0-9]+", suffix):
                raise DatasetDamaged(f"{sidecar.path!r} is not a sidecar of {shard.path!r}.")
            copies.append((sidecar, target + suffix))
        # The shard is fetched last, so that its sidecars exist when a reader opens and locks it.
        return [*copies, (ManifestFile(shard.path, shard.bytes, shard.sha256), target)]

    def _fetch(
        self, directory: str, shard: ManifestShard, copies: list[tuple[ManifestFile, str]]
    ) -> None:
        """Fetch the files of a shard that are missing in the cache."""
        storage = storage_for(directory)
        with self._locked(shard.sha256):
            was_fetched = False
            for file, path in copies:
                if not _has_size(path, file.bytes):
                    source = storage.resolve_inside(directory, file.path)
                    write_verified(storage.read_chunks(source), path, sha256=file.sha256)
                    was_fetched = True
            # The modification time of a copy is the time of its last use.
            with suppress(FileNotFoundError):
                os.utime(copies[-1][1])
        if was_fetched:
            self._evict_oldest(keep=shard.sha256)

    @contextmanager
    def _locked(self, sha256: str) -> Iterator[None]:
        """Lock a shard, so that only one process or thread on this machine fetches it."""
        folder = os.path.join(self.folder, _LOCKS)
        storage_for(folder).make_directory(folder)
        # Lock files are never removed: a process could hold the lock of a removed file while
        # another one locks a new file. 256 files serve all shards.
        with (
            translate_write_errors(folder),
            exclusive_lock(os.path.join(folder, sha256[:2])),
        ):
            yield

    def _evict_oldest(self, *, keep: str) -> None:
        """Evict the least recently used copies, and temporary files older than a day."""
        copies = []
        abandoned = time.time() - _ABANDONED_SECONDS
        for name in storage_for(self.folder).list_directory(self.folder):
            path = os.path.join(self.folder, name)
            with suppress(FileNotFoundError):
                status = os.stat(path)
                if _COPY.fullmatch(name):
                    copies.append((status.st_mtime_ns, status.st_size, name))
                elif _UNFINISHED.fullmatch(name) and status.st_mtime < abandoned:
                    os.remove(path)
        total = sum(size for _, size, _ in copies)
        for _, size, name in sorted(copies):
            if total <= self.max_bytes:
                return
            if name.startswith(keep):
                continue
            # Readers hold a shared lock on the shard until they have opened the copy.
            lock_file = os.path.join(self.folder, name[:_SHA256_DIGITS])
            path = os.path.join(self.folder, name)
            if remove_unless_shared(path, lock_file=lock_file, below=self.folder):
                total -= size


def default_cache() -> ShardCache:
    """Return the default cache of the current user on this machine."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return ShardCache(os.path.join(caches, "featurestore", "shards"))


def open_cache(folder: str | os.PathLike[str] | None, max_bytes: int) -> ShardCache | None:
    """Return the cache in a local folder, None if ``folder`` is None.

    Raises:
        InvalidArgument: The cache size is zero.
        UnsupportedLocation: The folder is a URI.
    """
    if folder is None:
        return None
    if max_bytes < 1:
        raise InvalidArgument(f"cache_bytes={max_bytes!r} must be positive.", hint="20 * 10**9")
    return ShardCache(local_directory(folder), max_bytes)


@contextmanager
def local_path(
    directory: str, shard: ManifestShard, cache: ShardCache | None = None
) -> Iterator[str]:
    """Yield the local path of a shard, or for a URI the path of its cached copy.

    A copy may be evicted after the block ends; files opened in the block remain readable.
    """
    storage = storage_for(directory)
    if cache is None and storage.is_local:
        yield storage.resolve_inside(directory, shard.path)
        return
    with (cache or default_cache()).locked_copy(directory, shard) as path:
        yield path


def write_verified(chunks: Iterator[bytes], target: str, *, sha256: str) -> None:
    """Write chunks to a file, which appears only if their SHA-256 is as expected.

    Raises:
        DatasetDamaged: The SHA-256 differs.
    """
    folder, name = os.path.split(target)
    storage_for(folder).make_directory(folder)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    digest, size = hashlib.sha256(), 0
    try:
        with translate_write_errors(target):
            with open(temporary, "xb") as file:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
            # Verified under the temporary name, so that no process opens a damaged copy.
            if digest.hexdigest() != sha256:
                raise DatasetDamaged(
                    f"The content for {target!r} differs from the manifest: {size:,} bytes with "
                    f"SHA-256 {digest.hexdigest()}, not {sha256}.",
                    hint="TrainingDataset.open(path).verify() at the source lists the damage",
                )
            os.replace(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.remove(temporary)


def _open_existing(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


def _refers_to(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _has_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except FileNotFoundError:
        return False


class FileDigest:
    """The SHA-256 of a byte stream, and of its prefixes of 1, 2, ... MiB.

    The final hash detects damage; the prefix hashes locate it. They cost nothing, since SHA-256 is
    computed sequentially. Only eight hex digits of each prefix hash are stored.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._until_prefix = PIECE_BYTES
        self.prefixes: list[str] = []

    def update(self, view: memoryview) -> None:
        """Append bytes."""
        while len(view):
            block, view = view[: self._until_prefix], view[self._until_prefix :]
            self._sha256.update(block)
            self._until_prefix -= len(block)
            if self._until_prefix == 0:
                self.prefixes.append(self._sha256.copy().hexdigest()[:_PREFIX_DIGITS])
                self._until_prefix = PIECE_BYTES

    def hexdigest(self) -> str:
        """Return the SHA-256 of all bytes appended so far."""
        return self._sha256.hexdigest()


def compute_digest(path: str) -> FileDigest:
    """Compute the digest of a file."""
    digest = FileDigest()
    for chunk in storage_for(path).read_chunks(path):
        digest.update(memoryview(chunk))
    return digest


class ShardFile:
    """A shard file that is hashed while it is written, under a temporary name until it is complete.

    When the ``with`` block ends, the file is synced and renamed; after an exception it is removed.
    So a retried or killed task leaves either no file or the complete file. For a URI the object
    appears when the block ends. The class has the methods that ``pyarrow`` requires of a sink.
    """

    def __init__(self, directory: str, path: str) -> None:
        self.path = path
        self.size = 0
        self._final = os.path.join(directory, path)
        self._digest = FileDigest()
        self._resources = ExitStack()
        self.closed = True

    def __enter__(self) -> ShardFile:
        self._file = self._resources.enter_context(storage_for(self._final).writer(self._final))
        self.closed = False
        return self

    def write(self, data: Any) -> int:
        """Append bytes or an object with a contiguous buffer; return the number of bytes."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        count = 0
        with translate_write_errors(self._final):
            # An unbuffered file may write fewer bytes than it gets.
            while count < len(view):
                count += self._file.write(view[count:])
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
        """Do nothing: the ``with`` block closes the file."""

    @property
    def written_file(self) -> WrittenFile:
        """The path, size and SHA-256 of the file."""
        return WrittenFile(
            self.path, self.size, self._digest.hexdigest(), tuple(self._digest.prefixes)
        )

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed = True
        # The rest is a wait for the disk or the network.
        release_slot()
        self._resources.__exit__(error_type, error, trace)


def is_temporary(name: str) -> bool:
    """Return True if a file name is the temporary name of an incomplete shard."""
    return name.startswith(".") and name.endswith(_TEMPORARY)


# -- slots ----------------------------------------------------------------------------------


class ProcessorSlots:
    """A limit on the number of threads that compute at the same time.

    >>> slots = ProcessorSlots(1)
    >>> with slots.slot():
    ...     release_slot()
    ...     with slots.slot():
    ...         pass
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        # A released slot goes to the thread that has waited longest. With a semaphore, the thread
        # that releases a slot could take it again first.
        self._waiting_threads: deque[threading.Event] = deque()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for a slot; the thread has it until the block ends or it calls ``release_slot``."""
        outer_slots = getattr(_thread, "slots", None)
        self._acquire()
        _thread.slots = self
        try:
            yield
        finally:
            release_slot()
            _thread.slots = outer_slots

    def _acquire(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            is_released = threading.Event()
            self._waiting_threads.append(is_released)
        is_released.wait()

    def release(self) -> None:
        """Pass a slot to the next thread."""
        with self._lock:
            if self._waiting_threads:
                self._waiting_threads.popleft().set()
            else:
                self._free += 1


def release_slot() -> None:
    """Release the slot of the current thread, if it has one, because the thread will wait."""
    slots: ProcessorSlots | None = getattr(_thread, "slots", None)
    if slots is not None:
        _thread.slots = None
        slots.release()
