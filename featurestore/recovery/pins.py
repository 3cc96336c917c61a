"""Pinned versions: the Delta versions used by training datasets and by running exports.

A vacuum retains the files of pinned versions. The pins of a finished dataset are in its manifest
and in the registry. A running export writes its pins to a file in the staging directory before it
reads rows.

Exports and operations that remove files (vacuum, deletion) are synchronized as in Dekker's
algorithm: both first publish their plan, and then check the plan of the other side. A removal
records a ``RECLAIM`` intent before it reads the pins; an export writes its pins before it waits for
``RECLAIM`` intents. So either the removal sees the pins and retains the files, or the export sees
the intent and checks the files after the removal has ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from featurestore.delta.scan import check_files
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    DatasetDamaged,
    FormatTooNew,
    StorageError,
    WriteConflict,
)
from featurestore.model.paths import parse_version_directory
from featurestore.model.plan import Source
from featurestore.recovery import liveness
from featurestore.recovery.in_flight import InFlight
from featurestore.recovery.liveness import Store
from featurestore.registry import intents, training_datasets
from featurestore.registry.intents import Intent
from featurestore.storage import StorePaths, files, storage_for
from featurestore.storage.manifests import is_finished, manifest_path, read_manifest

# The intent kind of a vacuum, and of a deletion before it removes files.
RECLAIM = "reclaim"
_FILE = "sources.json"
_PAUSE_SECONDS = 0.1
_MAX_WAIT = timedelta(minutes=10)


@dataclass(frozen=True, order=True)
class PinnedVersion:
    """A Delta version of a group that is pinned by a training dataset."""

    dataset: str
    dataset_version: int
    delta_version: int


def pin_sources(store: Store, write: InFlight, sources: Sequence[Source]) -> None:
    """Pin the Delta versions that an export reads, until it ends.

    Waits until running vacuums and deletions of these groups have ended.

    Raises:
        VersionVacuumed: A vacuum has removed files of a version; nothing was written.
        WriteConflict: A vacuum or deletion did not end in time.
    """
    pinned = [
        {
            "featuregroup": source.spec.name,
            "version": source.spec.version,
            "delta_version": source.delta_version,
        }
        for source in sources
    ]
    # The pins are written before the intents are read: see the module docstring.
    files.write_json(os.path.join(write.staging, _FILE), {"sources": pinned})
    groups = {(source.spec.name, source.spec.version) for source in sources}
    with store.registry.reading() as connection:
        reclaims = [intent for intent in intents.list_all(connection) if intent.kind == RECLAIM]
    for reclaim in reclaims:
        if (reclaim.name, reclaim.version) in groups:
            _wait_for_removal(store, reclaim)
    # A removal that ended before the pins were written may already have removed files.
    check_source_files(sources)


def check_source_files(sources: Iterable[Source]) -> None:
    """Check that all data files of the source versions exist.

    Raises:
        VersionVacuumed: A vacuum has removed a file.
        TableDamaged: A file or a table is missing.
    """
    for source in sources:
        check_files(read_snapshot(source.path, source.delta_version))


def _wait_for_removal(store: Store, reclaim: Intent) -> None:
    """Wait until a vacuum or deletion has ended, or its process is dead."""
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
    """Return the Delta versions of a group that datasets or running exports pin, ascending."""
    # Exports are read first: if an export ends in the meantime, its dataset is found below.
    pinned = versions_pinned_by_exports(store, name, version)
    pinned.update(pin.delta_version for pin in find_pinning_datasets(store, name, version))
    return sorted(pinned)


def versions_pinned_by_exports(store: Store, name: str, version: int) -> set[int]:
    """Return the Delta versions of a group that running exports pin."""
    with store.registry.reading() as connection:
        exports = [intent for intent in intents.list_all(connection) if intent.kind == "export"]
    paths = StorePaths(store.location)
    pinned = set()
    for export in exports:
        for source in _read_export_pins(os.path.join(paths.stage(export.run_id), _FILE)):
            if (source["featuregroup"], source["version"]) == (name, version):
                pinned.add(source["delta_version"])
    return pinned


def _read_export_pins(file: str) -> list[dict[str, Any]]:
    """Return the pinned sources of a running export.

    The list is empty if the export has just ended, or has not written its pins yet.
    """
    try:
        sources = files.read_json(file)["sources"]
        return [dict(source) for source in sources]
    except StorageError:
        # An unreadable file must not count as no pins, because a vacuum would then remove pinned
        # files.
        if storage_for(file).exists(file):
            raise
        return []
    except (KeyError, TypeError) as error:
        raise StorageError(
            f"The file {file!r} was not written by an export.",
            hint="wait for the export, or remove it",
        ) from error


def find_pinning_datasets(store: Store, name: str, version: int) -> list[PinnedVersion]:
    """Return the training datasets that pin a group version.

    Datasets are read from the registry and from manifests that are not registered yet.

    Raises:
        DatasetDamaged: An unregistered manifest mentions the group and cannot be read.
    """
    with store.registry.reading() as connection:
        registered = {
            (dataset.name, dataset.version) for dataset in training_datasets.list_all(connection)
        }
        pinned = {
            PinnedVersion(*pin)
            for pin in training_datasets.datasets_pinning(connection, name, version)
        }
    for dataset, number in finished_datasets(store):
        if (dataset, number) not in registered:
            directory = StorePaths(store.location).training_dataset(dataset, number)
            pinned |= _read_manifest_pins(directory, name, version)
    return sorted(pinned)


def finished_datasets(store: Store) -> Iterator[tuple[str, int]]:
    """Yield the name and version of every dataset with a manifest."""
    root = StorePaths(store.location).training_datasets
    storage = storage_for(root)
    for name in storage.list_directory(root):
        for entry in storage.list_directory(os.path.join(root, name)):
            version = parse_version_directory(entry)
            if version is not None and is_finished(os.path.join(root, name, entry)):
                yield name, version


def _read_manifest_pins(directory: str, name: str, version: int) -> set[PinnedVersion]:
    """Return the versions of a group that the manifest in a directory pins."""
    try:
        manifest = read_manifest(directory)
    except (DatasetDamaged, FormatTooNew):
        # The pins of a damaged manifest are unknown, but it cannot pin a group that it does not
        # mention.
        if f'"{name}"'.encode() in storage_for(directory).read_bytes(manifest_path(directory)):
            raise
        return set()
    return {
        PinnedVersion(manifest.name, manifest.version, source["delta_version"])
        for source in manifest.sources
        if (source["featuregroup"], source["version"]) == (name, version)
    }
