"""Shards that are compared with the SHA-256 in their manifest before they are read."""

from __future__ import annotations

from dataclasses import replace

from featurestore.errors import DatasetDamaged
from featurestore.model.manifest import ManifestShard
from featurestore.storage import storage_for
from featurestore.storage.interface import FileStatus
from featurestore.storage.shards import PIECE_BYTES, FileDigest, compute_digest


class VerifiedShards:
    """The status of each file whose SHA-256 was compared. A pickled copy is empty.

    A file is read again only if its status has changed. The modification time of a cached copy is
    the time of its last use, so only size and inode of a copy are compared.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, tuple[str, FileStatus]] = {}

    def __reduce__(self) -> tuple[type[VerifiedShards], tuple[()]]:
        return VerifiedShards, ()

    def is_unchanged(self, shard: ManifestShard, path: str) -> bool:
        """Return whether the files of a shard at a path were compared and have not changed.

        Raises:
            DatasetDamaged: A file cannot be read.
        """
        return all(
            self._statuses.get(file_path) == (sha256, _status(file_path))
            for file_path, sha256 in _paths(shard, path)
        )

    def verify(self, shard: ManifestShard, path: str, *, is_copy: bool) -> None:
        """Compare the files of a shard at a path with their SHA-256, unless that was done.

        Raises:
            DatasetDamaged: The SHA-256 differs, or a file cannot be read.
        """
        for file_path, sha256 in _paths(shard, path):
            # The status precedes the read, so that a later change of the file is another status.
            status = _status(file_path)
            if is_copy:
                status = replace(status, modified_ns=0)
            if self._statuses.get(file_path) == (sha256, status):
                continue
            _compare(file_path, compute_digest(file_path).hexdigest(), sha256)
            self._statuses[file_path] = sha256, status


def check_beginning(shard: ManifestShard, path: str, data: memoryview, prefixes: list[str]) -> None:
    """Compare the first MiB of a shard, or all its bytes if it is smaller, with the manifest.

    This detects a shard that was exchanged for another one, whose records are valid.

    Args:
        shard: The shard.
        path: Its path, for the error.
        data: The first MiB.
        prefixes: The digests of the first 1, 2, ... MiB in the manifest; if there are none, only
            smaller shards are compared.

    Raises:
        DatasetDamaged: The bytes differ.
    """
    digest = FileDigest()
    digest.update(data)
    if shard.bytes < PIECE_BYTES:
        _compare(path, digest.hexdigest(), shard.sha256)
    elif prefixes:
        _compare(path, digest.prefixes[0], prefixes[0], content="the SHA-256 of its first MiB")


def _compare(path: str, sha256: str, expected: str, *, content: str = "its SHA-256") -> None:
    if sha256 != expected:
        raise DatasetDamaged(
            f"The file {path!r} differs from the manifest: {content} is {sha256}, not {expected}."
        )


def _paths(shard: ManifestShard, path: str) -> list[tuple[str, str]]:
    """Return the path and the SHA-256 of the files of a shard that is at ``path``."""
    return [(path + file.path.removeprefix(shard.path), file.sha256) for file in shard.files]


def _status(path: str) -> FileStatus:
    try:
        return storage_for(path).status(path)
    except OSError as error:
        raise DatasetDamaged(
            f"The file {path!r} cannot be read: {error.strerror or error}."
        ) from error
