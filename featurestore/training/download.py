"""Resumable download of a dataset to a local directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from featurestore import progress
from featurestore.errors import InvalidArgument
from featurestore.model.manifest import Manifest
from featurestore.model.paths import MANIFEST_FILE
from featurestore.model.threads import independent_tasks
from featurestore.storage import files, storage_for
from featurestore.storage.location import local_directory
from featurestore.storage.manifests import is_finished, read_manifest, write_manifest
from featurestore.storage.shards import write_verified

ByteReader = Callable[[str], Iterator[bytes]]
"""Yields the bytes of a file, by its path relative to the dataset."""

_PARALLEL_FILES = 4


def download(manifest: Manifest, read_bytes: ByteReader, target: str) -> str:
    """Copy the files of a dataset to a local directory and return its path.

    The manifest is written last; until then, the directory is not a dataset. Existing files whose
    SHA-256 matches the manifest are not fetched again, so an interrupted call can be repeated.
    Bytes that do not match the manifest are never written under the final name.

    Args:
        manifest: The manifest of the dataset.
        read_bytes: Yields the bytes of a file; called from several threads.
        target: A directory that is missing, empty, or contains an earlier download.

    Raises:
        InvalidArgument: The directory contains another dataset, or other files.
        DatasetDamaged: The SHA-256 of a file differs from the manifest.
        StorageError: A file cannot be read or written.
    """
    directory = local_directory(target)
    storage = storage_for(directory)
    # Another dataset's files would be mixed with these, and both manifests would be wrong.
    if is_finished(directory) and read_manifest(directory) != manifest:
        raise InvalidArgument(
            f"{directory!r} contains another training dataset.",
            hint="download into a new directory",
        )
    expected_hashes = manifest_hashes(manifest)
    _check_directory(directory, [*expected_hashes, MANIFEST_FILE])

    # The manifest has no sizes of statistics, which are small.
    sizes = {shard.path: shard.bytes for split in manifest.splits for shard in split.shards}
    progress.begin_phase("copy shards", total=sum(sizes.values()), unit="bytes")

    def get(path: str) -> None:
        # A manifest is untrusted input: a path in it must not lead outside the directory.
        target_path = storage.resolve_inside(directory, path)
        if storage.exists(target_path) and files.sha256(target_path) == expected_hashes[path]:
            progress.advance(sizes.get(path, 0))
            return
        chunks = read_bytes(path)
        if path in sizes:
            chunks = progress.count_items(chunks, len)
        write_verified(chunks, target_path, sha256=expected_hashes[path])

    with independent_tasks(_PARALLEL_FILES, "featurestore-download") as pool:
        # If a download fails, cancel the queued ones.
        downloads = [pool.submit(get, path) for path in expected_hashes]
        try:
            for future in downloads:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    write_manifest(directory, manifest)
    return directory


def _check_directory(directory: str, expected_paths: list[str]) -> None:
    """Raise InvalidArgument if the directory contains files that no download has written."""
    expected_names = {path.partition("/")[0] for path in expected_paths}
    for name in storage_for(directory).list_directory(directory):
        # An interrupted download leaves files with this suffix.
        if name not in expected_names and not name.endswith(".tmp"):
            raise InvalidArgument(
                f"{directory!r} contains {name!r}, which does not belong to this training dataset.",
                hint="download into a new directory",
            )


def stored_bytes(directory: str) -> ByteReader:
    """Return a function for ``download`` that reads dataset files from a directory or URI."""

    def read_bytes(path: str) -> Iterator[bytes]:
        return storage_for(directory).read_chunks(os.path.join(directory, path))

    return read_bytes


def manifest_hashes(manifest: Manifest) -> dict[str, str]:
    """Return the SHA-256 of each manifest file, by path."""
    hashes = {}
    for split in manifest.splits:
        for shard in split.shards:
            for sidecar in shard.sidecars:
                hashes[sidecar.path] = sidecar.sha256
            hashes[shard.path] = shard.sha256
    for file in manifest.files:
        hashes[file.path] = file.sha256
    entries = [manifest.transformations]
    for statistics in manifest.statistics.values():
        entries += [statistics, statistics.get("sample")]
    for entry in entries:
        if entry:
            hashes[entry["path"]] = entry["sha256"]
    return hashes
