"""Copies of shards on this machine, for what reads files and cannot read objects.

A cache is a folder that all processes of a machine may share: each shard is fetched once, checked
against its SHA-256 while it comes, and named by it. What was used longest ago goes first when there
is more than the cache may hold; a process that has such a file open keeps it until it closes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from featurestore.errors import DatasetDamaged, InvalidArgument
from featurestore.model.manifest import ManifestFile, ManifestShard
from featurestore.storage import files
from featurestore.storage.failures import writing
from featurestore.storage.location import is_uri

DEFAULT_CACHE_BYTES = 20 * 10**9
_LOCKS = "locks"
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

    def path_of(self, directory: str, shard: ManifestShard) -> str:
        """Return the path of a shard's copy, fetched if need be, with its sidecars beside it.

        Raises:
            DatasetDamaged: The bytes are not those that the manifest names.
            StorageError: It cannot be fetched, or this machine refuses the copy.
        """
        if not _SHA256.fullmatch(shard.sha256):
            raise DatasetDamaged(f"{shard.sha256!r} of {shard.path!r} is no SHA-256.")
        target = os.path.join(self.folder, shard.sha256)
        wanted = [(ManifestFile(shard.path, shard.bytes, shard.sha256), target)]
        for sidecar in shard.sidecars:
            ending = sidecar.path.removeprefix(shard.path)
            if not re.fullmatch(r"\.[A-Za-z0-9]+", ending):
                raise DatasetDamaged(f"{sidecar.path!r} does not stand beside {shard.path!r}.")
            wanted.append((sidecar, target + ending))
        with self._locked(shard.sha256):
            fetched = False
            for file, path in reversed(wanted):  # the shard last: with it all are there
                if not _is_there(path, file.bytes):
                    source = files.inside(directory, file.path)
                    write_checked(files.pieces(source), path, sha256=file.sha256)
                    fetched = True
            with suppress(FileNotFoundError):
                os.utime(target)
        if fetched:
            self._make_room(keep=shard.sha256)
        return target

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
            if not name.startswith(keep):
                files.remove(os.path.join(self.folder, name), below=self.folder)
                total -= size


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


def local_path(directory: str, shard: ManifestShard, cache: ShardCache | None = None) -> str:
    """Return the path of a shard on this machine: its own, or below a URI that of its copy."""
    if not is_uri(directory) and cache is None:
        return files.inside(directory, shard.path)
    return (cache or default_cache()).path_of(directory, shard)


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


def _is_there(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except FileNotFoundError:
        return False
