"""Download: a dataset copied to a directory of this machine, checked, and gone on with when cut off."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from featurestore.errors import InvalidArgument
from featurestore.model.manifest import MANIFEST_FILE, Manifest
from featurestore.storage import files
from featurestore.storage.manifests import is_finished, read_manifest, write_manifest
from featurestore.storage.shardcache import write_checked

Pieces = Callable[[str], Iterator[bytes]]
"""Gives the bytes of a file of the dataset, named by its path in it."""

_FILES_AT_ONCE = 4


def download(manifest: Manifest, pieces: Pieces, target: str) -> str:
    """Copy the files of a dataset to a directory of this machine, and return its path.

    The manifest comes last: until then the directory is no dataset. Files that are there already
    and have the SHA-256 that the manifest names are kept, so that a call that was cut off is
    repeated. Wherever the bytes come from, nothing that differs from the manifest gets its name.

    Args:
        manifest: The manifest of the dataset.
        pieces: Where the bytes come from; called by several threads.
        target: A directory, made if need be; empty, or of an earlier download.

    Raises:
        InvalidArgument: The directory holds another dataset, or other files.
        DatasetDamaged: A file is not the one that the manifest names.
        StorageError: Something cannot be read or written.
    """
    directory = files.local_directory(target)
    if is_finished(directory) and read_manifest(directory) != manifest:
        raise InvalidArgument(
            f"{directory!r} holds another training dataset.",
            hint="download into a new directory",
        )
    wanted = files_of(manifest)
    _check_ours(directory, [*wanted, MANIFEST_FILE])

    def get(path: str) -> None:
        place = files.inside(directory, path)
        if not files.exists(place) or files.sha256(place) != wanted[path]:
            write_checked(pieces(path), place, sha256=wanted[path])

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        # One that fails stops those that have not begun.
        waiting = [pool.submit(get, path) for path in wanted]
        try:
            for each in waiting:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    write_manifest(directory, manifest)
    return directory


def _check_ours(directory: str, wanted: list[str]) -> None:
    """Raise before anything is written where a directory holds what no download put there."""
    ours = {path.partition("/")[0] for path in wanted}
    for name in files.list_directory(directory):
        if name not in ours and not name.endswith(".tmp"):
            raise InvalidArgument(
                f"{directory!r} holds {name!r}, which is not of this training dataset.",
                hint="download into a new directory",
            )


def stored_pieces(directory: str) -> Pieces:
    """Return the files of a dataset's directory or URI, as ``download`` takes them."""

    def pieces(path: str) -> Iterator[bytes]:
        return files.read_chunks(os.path.join(directory, path))

    return pieces


def files_of(manifest: Manifest) -> dict[str, str]:
    """Return the SHA-256 of each file that a manifest names, by its path."""
    found = {}
    for split in manifest.splits:
        for shard in split.shards:
            for sidecar in shard.sidecars:
                found[sidecar.path] = sidecar.sha256
            found[shard.path] = shard.sha256
    for file in manifest.files:
        found[file.path] = file.sha256
    entries = [manifest.transformations]
    for statistics in manifest.statistics.values():
        entries += [statistics, statistics.get("sample")]
    for entry in entries:
        if entry:
            found[entry["path"]] = entry["sha256"]
    return found
