"""Copies of shards on this machine, for what reads files and cannot read objects.

A cache is a folder that all processes of a machine may share: each shard is fetched once, checked
against its SHA-256 while it comes, and named by it. What was used longest ago goes first when there
is more than the cache may hold. Who opens a copy holds it by a shared lock while it does, so nobody
removes it then; what is open stays readable after it is gone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from featurestore.errors import DatasetDamaged, InvalidArgument
from featurestore.model.manifest import ManifestFile, ManifestShard
from featurestore.storage import files
from featurestore.storage.failures import writing
from featurestore.storage.location import is_uri

DEFAULT_CACHE_BYTES = 20 * 10**9
_LOCKS = "locks"
_SHA256_DIGITS = 64
_SHA256 = re.compile(r"[0-9a-f]{64}")
# What the cache itself writes: nothing else in the folder is counted or removed.
_COPY = re.compile(r"[0-9a-f]{64}(\.[A-Za-z0-9]+)?")
_UNFINISHED = re.compile(r"\.[0-9a-f]{64}(\.[A-Za-z0-9]+)?\.[0-9a-f]{32}\.tmp")
_ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True)
class ShardCache:
    """A folder of shards and the bytes that it may hold; one shard is kept however large."""

    folder: str
    max_bytes: int = DEFAULT_CACHE_BYTES

    @contextmanager
    def held(self, directory: str, shard: ManifestShard) -> Iterator[str]:
        """Give the path of a shard's copy, which stays while the block runs, with its sidecars.

        Raises:
            DatasetDamaged: The bytes are not those that the manifest names.
            StorageError: It cannot be fetched, or this machine refuses the copy.
        """
        wanted = self._copies(shard)
        target = wanted[-1][1]
        with ExitStack() as opened:
            while True:
                self._fetch(directory, shard, wanted)
                handle = _shared(target)
                if handle is None:
                    continue
                # Another process may have removed one of them before it was held.
                if all(_is_there(path, file.bytes) for file, path in wanted) and _is_same(
                    handle, target
                ):
                    opened.callback(os.close, handle)
                    break
                os.close(handle)
            yield target

    def path_of(self, directory: str, shard: ManifestShard) -> str:
        """Return the path of a shard's copy, fetched if need be; another process may remove it."""
        with self.held(directory, shard) as path:
            return path

    def _copies(self, shard: ManifestShard) -> list[tuple[ManifestFile, str]]:
        """Return the files of a shard and the paths of their copies, the shard last."""
        if not _SHA256.fullmatch(shard.sha256):
            raise DatasetDamaged(f"{shard.sha256!r} of {shard.path!r} is no SHA-256.")
        target = os.path.join(self.folder, shard.sha256)
        wanted = []
        for sidecar in shard.sidecars:
            ending = sidecar.path.removeprefix(shard.path)
            if not re.fullmatch(r"\.[A-Za-z0-9]+", ending):
                raise DatasetDamaged(f"{sidecar.path!r} does not stand beside {shard.path!r}.")
            wanted.append((sidecar, target + ending))
        return [*wanted, (ManifestFile(shard.path, shard.bytes, shard.sha256), target)]

    def _fetch(
        self, directory: str, shard: ManifestShard, wanted: list[tuple[ManifestFile, str]]
    ) -> None:
        with self._locked(shard.sha256):
            fetched = False
            for file, path in wanted:
                if not _is_there(path, file.bytes):
                    source = files.inside(directory, file.path)
                    write_checked(files.pieces(source), path, sha256=file.sha256)
                    fetched = True
            with suppress(FileNotFoundError):
                os.utime(wanted[-1][1])
        if fetched:
            self._make_room(keep=shard.sha256)

    @contextmanager
    def _locked(self, sha256: str) -> Iterator[None]:
        """Let one process or thread of this machine fetch a shard."""
        locks = os.path.join(self.folder, _LOCKS)
        files.make_directory(locks)
        with writing(locks), open(os.path.join(locks, sha256[:2]), "wb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _make_room(self, *, keep: str) -> None:
        """Remove copies used longest ago, and what a killed process began a day ago."""
        found = []
        abandoned = time.time() - _ABANDONED_SECONDS
        for name in files.list_directory(self.folder):
            path = os.path.join(self.folder, name)
            with suppress(FileNotFoundError):
                status = os.stat(path)
                if _COPY.fullmatch(name):
                    found.append((status.st_mtime_ns, status.st_size, name))
                elif _UNFINISHED.fullmatch(name) and status.st_mtime < abandoned:
                    os.remove(path)
        total = sum(size for _, size, _ in found)
        for _, size, name in sorted(found):
            if total <= self.max_bytes:
                return
            if not name.startswith(keep) and self._evict(name):
                total -= size

    def _evict(self, name: str) -> bool:
        """Remove a copy that nobody holds; tell whether it is gone."""
        handle = _opened(os.path.join(self.folder, name[:_SHA256_DIGITS]))
        try:
            if handle is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files.remove(os.path.join(self.folder, name), below=self.folder)
        except BlockingIOError:
            return False
        finally:
            if handle is not None:
                os.close(handle)
        return True


def default_cache() -> ShardCache:
    """Return the cache of this user on this machine."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return ShardCache(os.path.join(caches, "featurestore", "shards"))


def cache_at(folder: str | os.PathLike[str] | None, max_bytes: int) -> ShardCache | None:
    """Return the cache in a folder of this machine, None for no folder.

    Raises:
        InvalidArgument: A cache of no bytes.
        UnsupportedLocation: The folder is a URI.
    """
    if folder is None:
        return None
    if max_bytes < 1:
        raise InvalidArgument(f"cache_bytes={max_bytes!r}: a cache needs room.", hint="20 * 10**9")
    return ShardCache(files.local_directory(folder), max_bytes)


@contextmanager
def local_path(
    directory: str, shard: ManifestShard, cache: ShardCache | None = None
) -> Iterator[str]:
    """Give the path of a shard on this machine: its own, or below a URI that of its copy.

    A copy may be removed when the block has ended; what was opened in it stays readable.
    """
    if not is_uri(directory) and cache is None:
        yield files.inside(directory, shard.path)
        return
    with (cache or default_cache()).held(directory, shard) as path:
        yield path


def write_checked(pieces: Iterator[bytes], target: str, *, sha256: str) -> None:
    """Write bytes as they come to a file, which appears when they have a SHA-256.

    Raises:
        DatasetDamaged: They have another one.
    """
    folder, name = os.path.split(target)
    files.make_directory(folder)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    digest, size = hashlib.sha256(), 0
    try:
        with writing(target):
            with open(temporary, "xb") as written:
                for piece in pieces:
                    digest.update(piece)
                    size += len(piece)
                    written.write(piece)
            if digest.hexdigest() != sha256:
                raise DatasetDamaged(
                    f"What came for {target!r} is not what the manifest names: {size:,} bytes with "
                    f"SHA-256 {digest.hexdigest()}, not {sha256}.",
                    hint="TrainingDataset.open(path).verify() where it came from says more",
                )
            os.replace(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.remove(temporary)


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


def _shared(path: str) -> int | None:
    """Return a handle that holds a copy; None where it is gone."""
    handle = _opened(path)
    if handle is not None:
        fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def _is_same(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _is_there(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except FileNotFoundError:
        return False
