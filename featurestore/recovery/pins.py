"""Pins: the Delta versions that training datasets were, or are being, created from.

A vacuum keeps the files of pinned versions. A finished dataset pins them by its manifest and by the
registry; an export in flight by a file in its stage, written before it reads.

Writers of pins and removers of files (a vacuum, a deletion) exclude each other as in Dekker's
algorithm: each publishes its plan first, and then reads that of the other. A remover records its
intent ``RECLAIM`` and then reads the pins; an export writes its pins and then waits for these
intents. So either the remover sees the pins and keeps the files, or the export sees the intent and
checks its files after the end of the remover.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from featurestore.delta.maintenance import check_files
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    DatasetDamaged,
    StorageError,
    TrainingDatasetNotFound,
    WriteConflict,
)
from featurestore.model.paths import StorePaths, parse_version_directory
from featurestore.model.plan import Source
from featurestore.recovery import liveness
from featurestore.recovery.in_flight import InFlight
from featurestore.recovery.liveness import Store
from featurestore.registry import intents, training_datasets
from featurestore.registry.intents import Intent
from featurestore.storage import files
from featurestore.storage.manifests import is_finished, manifest_path, read_manifest

# The kind of the intent of a vacuum, and of a deletion before its first removal.
RECLAIM = "reclaim"
_FILE = "sources.json"
_PAUSE_SECONDS = 0.1
_MAX_WAIT = timedelta(minutes=10)


@dataclass(frozen=True, order=True)
class PinnedVersion:
    """A training dataset that was created from a Delta version of a group."""

    dataset: str
    dataset_version: int
    delta_version: int


def pin_sources(store: Store, write: InFlight, sources: Sequence[Source]) -> None:
    """Pin the Delta versions of an export until it ends.

    Wait for running vacuums and deletions of these groups.

    Raises:
        VersionVacuumed: A vacuum removed files of a version; nothing was written.
        WriteConflict: A vacuum or deletion did not end.
    """
    pinned = [
        {
            "featuregroup": source.spec.name,
            "version": source.spec.version,
            "delta_version": source.delta_version,
        }
        for source in sources
    ]
    files.write_json(os.path.join(write.staging, _FILE), {"sources": pinned})
    groups = {(source.spec.name, source.spec.version) for source in sources}
    with store.registry.reading() as connection:
        reclaims = [each for each in intents.list_all(connection) if each.kind == RECLAIM]
    for reclaim in reclaims:
        if (reclaim.name, reclaim.version) in groups:
            _wait_for(store, reclaim)
    check_pinned(sources)


def check_pinned(sources: Iterable[Source]) -> None:
    """Check that all files of the pinned versions exist.

    Raises:
        VersionVacuumed: A vacuum has removed a file.
        TableDamaged: A file or a table is missing.
    """
    for source in sources:
        check_files(read_snapshot(source.path, source.delta_version))


def _wait_for(store: Store, reclaim: Intent) -> None:
    """Wait until a vacuum or deletion has ended or its process has died."""
    start = monotonic()
    while True:
        with store.registry.reading() as connection:
            is_running = intents.find(connection, reclaim.run_id) is not None
            is_running = is_running and liveness.is_alive(connection, store.location, reclaim.owner)
        if not is_running:
            return
        if monotonic() - start > _MAX_WAIT.total_seconds():
            raise WriteConflict(
                f"A vacuum or deletion of feature group {reclaim.name!r} version "
                f"{reclaim.version} by {reclaim.owner} has been running for more than "
                f"{_MAX_WAIT.total_seconds() / 60:.0f} minutes; nothing was written.",
                hint="end that process, or repeat the export later",
            )
        sleep(_PAUSE_SECONDS)


def pinned_versions(store: Store, name: str, version: int) -> list[int]:
    """Return the Delta versions of a group that training datasets pin, finished or in flight."""
    # Exports in flight first: one that ends in the meantime is among the finished ones.
    pinned = pinned_by_exports(store, name, version)
    pinned.update(each.delta_version for each in pinned_by(store, name, version))
    return sorted(pinned)


def pinned_by_exports(store: Store, name: str, version: int) -> set[int]:
    """Return the Delta versions of a group that exports in flight pin."""
    with store.registry.reading() as connection:
        exports = [each for each in intents.list_all(connection) if each.kind == "export"]
    paths = StorePaths(store.location)
    pinned = set()
    for export in exports:
        for source in _sources_in_flight(os.path.join(paths.stage(export.run_id), _FILE)):
            if (source["featuregroup"], source["version"]) == (name, version):
                pinned.add(source["delta_version"])
    return pinned


def _sources_in_flight(file: str) -> list[dict[str, Any]]:
    """Return the pinned sources of an export in flight.

    Empty if the export has just ended, or has not begun to read.
    """
    try:
        sources = files.read_json(file)["sources"]
        return [dict(each) for each in sources]
    except StorageError:
        if files.exists(file):
            raise
        return []
    except (KeyError, TypeError) as error:
        raise StorageError(
            f"The file {file!r} was not written by an export.",
            hint="wait for the export, or remove it",
        ) from error


def pinned_by(store: Store, name: str, version: int) -> list[PinnedVersion]:
    """Return the training datasets that pin a group.

    They come from the registry, and from manifests that are not registered yet.

    Raises:
        DatasetDamaged: An unregistered manifest names the group and cannot be read.
    """
    with store.registry.reading() as connection:
        registered = {(each.name, each.version) for each in training_datasets.list_all(connection)}
        pinned = {
            PinnedVersion(*each)
            for each in training_datasets.datasets_pinning(connection, name, version)
        }
    for dataset, number in _finished_datasets(store):
        if (dataset, number) not in registered:
            directory = StorePaths(store.location).training_dataset(dataset, number)
            pinned |= _pins_of_manifest(directory, name, version)
    return sorted(pinned)


def _finished_datasets(store: Store) -> Iterator[tuple[str, int]]:
    """Yield the name and version of every dataset with a manifest."""
    root = StorePaths(store.location).training_datasets
    for name in files.list_directory(root):
        for entry in files.list_directory(os.path.join(root, name)):
            version = parse_version_directory(entry)
            if version is not None and is_finished(os.path.join(root, name, entry)):
                yield name, version


def _pins_of_manifest(directory: str, name: str, version: int) -> set[PinnedVersion]:
    try:
        manifest = read_manifest(directory)
    except (DatasetDamaged, TrainingDatasetNotFound):
        # The pins of a damaged manifest are unknown, but it cannot pin groups that it does not
        # name.
        if f'"{name}"'.encode() in files.read_bytes(manifest_path(directory)):
            raise
        return set()
    return {
        PinnedVersion(manifest.name, manifest.version, source["delta_version"])
        for source in manifest.sources
        if (source["featuregroup"], source["version"]) == (name, version)
    }
