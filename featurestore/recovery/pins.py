"""Pins: the Delta versions that training datasets were made from, or are being made from.

No vacuum takes the files of a pinned version. A finished dataset pins by its manifest and by the
registry; an export in flight by a file in its stage, written before it reads.

What removes files of older versions (a vacuum, a deletion) and what pins them exclude each other as
in Dekker's algorithm: each says first what it is about to do, and then looks at what the other has
said. The one records its intent ``RECLAIM`` and then reads the pins; the other writes its pins and
then waits for the intents that it finds. So either the pins are seen, and their files stay, or the
intent is seen, and the export looks at its files when that has ended.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from featurestore.delta.presence import check_files
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    DatasetDamaged,
    StorageError,
    TrainingDatasetNotFound,
    WriteConflict,
)
from featurestore.model.paths import StorePaths, version_of
from featurestore.model.plan import Source
from featurestore.recovery import owners
from featurestore.recovery.in_flight import InFlight
from featurestore.recovery.owners import Store
from featurestore.registry import intents, training_datasets
from featurestore.registry.intents import Intent
from featurestore.storage import files
from featurestore.storage.manifests import is_finished, manifest_path, read_manifest

# The kind of the intent of a vacuum, and of a deletion that has not begun to remove.
RECLAIM = "reclaim"
_FILE = "sources.json"
_PAUSE_SECONDS = 0.1
_LONGEST_WAIT = timedelta(minutes=10)


@dataclass(frozen=True, order=True)
class PinnedVersion:
    """A training dataset that was made from a Delta version of a group."""

    dataset: str
    dataset_version: int
    delta_version: int


def pin(store: Store, write: InFlight, sources: Sequence[Source]) -> None:
    """Pin the Delta versions that an export is about to read, until it ends.

    A vacuum or deletion of these groups that is at work already is waited for.

    Raises:
        VersionVacuumed: It took files of a version; nothing was written.
        WriteConflict: It did not end.
    """
    pinned = []
    for source in sources:
        pinned.append(
            {
                "featuregroup": source.spec.name,
                "version": source.spec.version,
                "delta_version": source.delta_version,
            }
        )
    files.write_json(os.path.join(write.staging, _FILE), {"sources": pinned})
    groups = {(source.spec.name, source.spec.version) for source in sources}
    for reclaim in _reclaiming(store, groups):
        _wait_for(store, reclaim)
    check_pinned(sources)


def check_pinned(sources: Iterable[Source]) -> None:
    """Make sure that every file of the pinned versions is there.

    Raises:
        VersionVacuumed: A vacuum has removed one.
        TableDamaged: A file, or a whole table, is missing.
    """
    for source in sources:
        check_files(read_snapshot(source.path, source.delta_version))


def _reclaiming(store: Store, groups: Collection[tuple[str, int]]) -> list[Intent]:
    """Return the intents of vacuums and deletions of some groups."""
    with store.registry.reading() as connection:
        found = intents.every(connection)
    reclaiming = []
    for intent in found:
        if intent.kind == RECLAIM and (intent.name, intent.version) in groups:
            reclaiming.append(intent)
    return reclaiming


def _wait_for(store: Store, reclaim: Intent) -> None:
    """Wait until a vacuum or deletion has ended, or its process has died."""
    since = monotonic()
    while True:
        with store.registry.reading() as connection:
            at_work = intents.find(connection, reclaim.run_id) is not None
            at_work = at_work and owners.is_alive(connection, store.location, reclaim.owner)
        if not at_work:
            return
        if monotonic() - since > _LONGEST_WAIT.total_seconds():
            raise WriteConflict(
                f"A vacuum or deletion of feature group {reclaim.name!r} version "
                f"{reclaim.version} by {reclaim.owner} is at work, for more than "
                f"{_LONGEST_WAIT.total_seconds() / 60:.0f} minutes; nothing was written.",
                hint="end that process, or repeat the export later",
            )
        sleep(_PAUSE_SECONDS)


def pinned_versions(store: Store, name: str, version: int) -> list[int]:
    """Return the Delta versions of a group that training datasets pin, finished or in flight."""
    # Those in flight first: one that ends meanwhile is among the finished ones.
    pinned = pinned_by_exports(store, name, version)
    pinned.update(each.delta_version for each in pinned_by(store, name, version))
    return sorted(pinned)


def pinned_by_exports(store: Store, name: str, version: int) -> set[int]:
    """Return the Delta versions of a group that exports in flight read."""
    with store.registry.reading() as connection:
        exports = [each for each in intents.every(connection) if each.kind == "export"]
    paths = StorePaths(store.location)
    pinned = set()
    for export in exports:
        for source in _sources_in_flight(os.path.join(paths.stage(export.run_id), _FILE)):
            if (source["featuregroup"], source["version"]) == (name, version):
                pinned.add(source["delta_version"])
    return pinned


def _sources_in_flight(file: str) -> list[dict[str, Any]]:
    """Return what an export said that it reads.

    Nothing when it has just ended, or not begun to read.
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
            f"The file {file!r} is not what an export writes.",
            hint="wait for the export, or remove it",
        ) from error


def pinned_by(store: Store, name: str, version: int) -> list[PinnedVersion]:
    """Return what pins a group.

    By the registry, and by the manifests that the registry does not know yet.

    Raises:
        DatasetDamaged: A manifest that the registry does not know names the group and cannot be
            read.
    """
    with store.registry.reading() as connection:
        registered = {(each.name, each.version) for each in training_datasets.every(connection)}
        pinned = {
            PinnedVersion(*each) for each in training_datasets.pinning(connection, name, version)
        }
    for dataset, number in _finished(store):
        if (dataset, number) not in registered:
            directory = StorePaths(store.location).training_dataset(dataset, number)
            pinned |= _in_manifest(directory, name, version)
    return sorted(pinned)


def _finished(store: Store) -> Iterator[tuple[str, int]]:
    """Yield name and version of every dataset that has a manifest."""
    root = StorePaths(store.location).training_datasets
    for name in files.list_directory(root):
        for entry in files.list_directory(os.path.join(root, name)):
            version = version_of(entry)
            if version is not None and is_finished(os.path.join(root, name, entry)):
                yield name, version


def _in_manifest(directory: str, name: str, version: int) -> set[PinnedVersion]:
    try:
        manifest = read_manifest(directory)
    except (DatasetDamaged, TrainingDatasetNotFound):
        # What a damaged manifest pins is not known; groups that it does not name are none of it.
        if f'"{name}"'.encode() in files.read_bytes(manifest_path(directory)):
            raise
        return set()
    return {
        PinnedVersion(manifest.name, manifest.version, source["delta_version"])
        for source in manifest.sources
        if (source["featuregroup"], source["version"]) == (name, version)
    }
