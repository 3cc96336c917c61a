"""Checks of a dataset's files against its manifest: missing, damaged and unknown files."""

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

_DIGEST_DIFFERS = "its SHA-256 differs from the manifest's"


def manifest_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Check that the manifest has not changed since the dataset was opened."""
    try:
        stored_manifest = read_manifest(directory)
    except FeatureStoreError as error:
        yield Problem(MANIFEST_FILE, error.message)
        return
    if stored_manifest != manifest:
        yield Problem(MANIFEST_FILE, "is not the manifest that was opened")


def unknown_files(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Yield files in split folders that the manifest does not list; plain globs would read them."""
    known_paths = {file.path for file in manifest.files}
    for split in manifest.splits:
        for shard in split.shards:
            known_paths.add(shard.path)
            for sidecar in shard.sidecars:
                known_paths.add(sidecar.path)
    for split in manifest.splits:
        for name in files.list_directory(os.path.join(directory, split.name)):
            # A task attempt that was killed after the export had ended leaves a temporary file.
            if f"{split.name}/{name}" not in known_paths and not is_temporary(name):
                yield Problem(f"{split.name}/{name}", "is not in the manifest")


def shard_problems(
    directory: str, manifest: Manifest, shard: ManifestShard, dataset_format: DatasetFormat
) -> Iterator[Problem]:
    """Check the bytes of a shard and its sidecars, and the records of the shard."""
    shard_file = ManifestFile(shard.path, shard.bytes, shard.sha256)
    for file in (shard_file, *shard.sidecars):
        yield from file_problems(directory, manifest, file)
    if _absence(directory, shard.path) is not None:
        return
    with ExitStack() as stack:
        try:
            path = stack.enter_context(local_path(directory, shard))
        except DatasetDamaged:
            return  # its bytes differ, which is reported above
        for finding in dataset_format.verify_shard(path, layout=manifest.layout, rows=shard.rows):
            position = "" if finding.row is None else f" (row {finding.row})"
            yield Problem(shard.path, f"{finding.message}{position}", finding.offset)


def file_problems(directory: str, manifest: Manifest, file: ManifestFile) -> Iterator[Problem]:
    """Compare the size and SHA-256 of a file with the manifest; report the first difference."""
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
    digest = digest_of(path)
    if digest.hexdigest() == file.sha256:
        return
    owner = _shard_with_digest(manifest, digest.hexdigest())
    if owner is not None:
        yield Problem(file.path, f"holds the bytes of {owner!r}", 0)
        return
    stated = manifest.prefixes.get(file.path, [])
    first = PIECE_BYTES * _equal_prefixes(digest.prefixes, stated)
    end = min(first + PIECE_BYTES, size) if stated else size
    yield Problem(file.path, f"{_DIGEST_DIFFERS}, first before byte {end:,}", first)


def statistics_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Compare the SHA-256 of the statistics files with the manifest."""
    for statistics in manifest.statistics.values():
        for entry in (statistics, statistics.get("sample")):
            if not entry:
                continue
            absent = _absence(directory, entry["path"])
            if absent is not None:
                yield Problem(entry["path"], absent)
            elif files.sha256(os.path.join(directory, entry["path"])) != entry["sha256"]:
                yield Problem(entry["path"], _DIGEST_DIFFERS, 0)


def transformations_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Compare the transformation files with their hashes, including those fitted later."""
    expected = {
        f"{TRANSFORMATIONS}/{name}": name.removesuffix(".json")
        for name in files.list_directory(os.path.join(directory, TRANSFORMATIONS))
        if not name.startswith(".")
    }
    if manifest.transformations is not None:
        expected[manifest.transformations["path"]] = manifest.transformations["sha256"]
    for path, sha256 in expected.items():
        absent = _absence(directory, path)
        if absent is not None:
            yield Problem(path, absent)
        elif files.sha256(os.path.join(directory, path)) != sha256:
            yield Problem(path, "its SHA-256 differs from its file name", 0)


def _absence(directory: str, relative: str) -> str | None:
    """Return why a file cannot be checked; None if it can."""
    try:
        path = files.inside(directory, relative)
    except StorageError as error:
        return error.message
    return None if files.exists(path) else "is missing"


def _shard_with_digest(manifest: Manifest, sha256: str) -> str | None:
    """Return the shard that has this SHA-256 in the manifest."""
    for split in manifest.splits:
        for shard in split.shards:
            if shard.sha256 == sha256:
                return shard.path
    return None


def _equal_prefixes(digests: list[str], expected_digests: list[str]) -> int:
    """Return the number of blocks before the first that differs."""
    for index, (digest, expected) in enumerate(zip(digests, expected_digests, strict=False)):
        if digest != expected:
            return index
    return len(expected_digests)
