"""Checks of a dataset's files against its manifest: present, whole, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

from featurestore.errors import DatasetDamaged, FeatureStoreError, StorageError
from featurestore.model.manifest import MANIFEST_FILE, Manifest, ManifestFile, ManifestShard
from featurestore.plugins.format import DatasetFormat
from featurestore.storage import files
from featurestore.storage.manifests import read_manifest
from featurestore.storage.shardcache import local_path
from featurestore.storage.shardfile import PIECE_BYTES, digest_of, is_temporary
from featurestore.training.verification.problems import Problem
from featurestore.transform.fitted import TRANSFORMATIONS

_OTHER_DIGEST = "its SHA-256 differs from the manifest's"


def manifest_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Read the manifest again: it may have changed since the dataset was opened."""
    try:
        stored = read_manifest(directory)
    except FeatureStoreError as error:
        yield Problem(MANIFEST_FILE, error.message)
        return
    if stored != manifest:
        yield Problem(MANIFEST_FILE, "is not the manifest that was opened")


def unknown_files(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Find files below the splits that the manifest does not know: plain globs would read them."""
    known = {file.path for file in manifest.files}
    for split in manifest.splits:
        for shard in split.shards:
            known.add(shard.path)
            for sidecar in shard.sidecars:
                known.add(sidecar.path)
    for split in manifest.splits:
        for name in files.list_directory(os.path.join(directory, split.name)):
            # A temporary file is no shard: an attempt of a task left it that was killed after the
            # export had ended.
            if f"{split.name}/{name}" not in known and not is_temporary(name):
                yield Problem(f"{split.name}/{name}", "is not in the manifest")


def shard_problems(
    directory: str, manifest: Manifest, shard: ManifestShard, chosen: DatasetFormat
) -> Iterator[Problem]:
    """Check the bytes of a shard and its sidecars, and what its format can tell of it."""
    itself = ManifestFile(shard.path, shard.bytes, shard.sha256)
    for file in (itself, *shard.sidecars):
        yield from file_problems(directory, manifest, file)
    if _absence(directory, shard.path) is not None:
        return
    with ExitStack() as held:
        try:
            path = held.enter_context(local_path(directory, shard))
        except DatasetDamaged:
            return  # its bytes are others, which has been said
        for each in chosen.verify_shard(path, layout=manifest.layout, rows=shard.rows):
            where = "" if each.row is None else f" (row {each.row})"
            yield Problem(shard.path, f"{each.message}{where}", each.offset)


def file_problems(directory: str, manifest: Manifest, file: ManifestFile) -> Iterator[Problem]:
    """Compare size and SHA-256 of a file with the manifest's; say where it begins to differ."""
    absent = _absence(directory, file.path)
    if absent is not None:
        yield Problem(file.path, absent)
        return
    path = os.path.join(directory, file.path)
    size = files.size(path)
    if size != file.bytes:
        message = f"has {size:,} bytes where the manifest says {file.bytes:,}"
        yield Problem(file.path, message, min(size, file.bytes))
        return
    found = digest_of(path)
    if found.hexdigest() == file.sha256:
        return
    owner = _shard_of(manifest, found.hexdigest())
    if owner is not None:
        yield Problem(file.path, f"holds the bytes of {owner!r}", 0)
        return
    stated = manifest.prefixes.get(file.path, [])
    first = PIECE_BYTES * _equal_prefixes(found.prefixes, stated)
    end = min(first + PIECE_BYTES, size) if stated else size
    yield Problem(file.path, f"{_OTHER_DIGEST}, first before byte {end:,}", first)


def statistics_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Compare the SHA-256 of the files of statistics with the manifest's."""
    for statistics in manifest.statistics.values():
        for entry in (statistics, statistics.get("sample")):
            if not entry:
                continue
            absent = _absence(directory, entry["path"])
            if absent is not None:
                yield Problem(entry["path"], absent)
            elif files.sha256(os.path.join(directory, entry["path"])) != entry["sha256"]:
                yield Problem(entry["path"], _OTHER_DIGEST, 0)


def transformations_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Compare the files of transformations with their hashes, also of those that were fitted later."""
    expected = {}
    for name in files.list_directory(os.path.join(directory, TRANSFORMATIONS)):
        if not name.startswith("."):
            expected[f"{TRANSFORMATIONS}/{name}"] = name.removesuffix(".json")
    if manifest.transformations is not None:
        expected[manifest.transformations["path"]] = manifest.transformations["sha256"]
    for path, sha256 in expected.items():
        absent = _absence(directory, path)
        if absent is not None:
            yield Problem(path, absent)
        elif files.sha256(os.path.join(directory, path)) != sha256:
            yield Problem(path, "its SHA-256 is not the one that it was kept under", 0)


def _absence(directory: str, relative: str) -> str | None:
    """Say why a file cannot be looked at; None when it can."""
    try:
        path = files.inside(directory, relative)
    except StorageError as error:
        return error.message
    return None if files.exists(path) else "is missing"


def _shard_of(manifest: Manifest, sha256: str) -> str | None:
    """Return the shard that ought to hold bytes of a SHA-256."""
    for split in manifest.splits:
        for shard in split.shards:
            if shard.sha256 == sha256:
                return shard.path
    return None


def _equal_prefixes(found: list[str], stated: list[str]) -> int:
    """Return how many pieces of a file are sound before the first that differs."""
    for count, (one, other) in enumerate(zip(found, stated, strict=False)):
        if one != other:
            return count
    return len(stated)
