"""Rebuilding the index from what is true: the Delta tables and the manifests of training datasets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, RegistryError, RegistryTooNew
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import utc_now
from featurestore.registry import heal, manifests
from featurestore.registry.database import REGISTRY_FILE, Registry, open_registry
from featurestore.registry.tables import metadata
from featurestore.storage import files
from featurestore.storage.manifests import is_finished, manifest_path, read_manifest

FEATUREGROUPS, TRAININGDATASETS = "featuregroups", "trainingdatasets"
NOT_RESTORED = (
    "failed runs",
    "pauses and leases of jobs",
    "job definitions: register the jobs again",
    "validation reports of refused writes",
)
_VERSION = re.compile(r"v([1-9]\d*)")
# Tables that the Delta tables and manifests can restore; what jobs know beyond that is left as it is.
_RESTORED = (
    "featuregroups",
    "features",
    "tags",
    "lineage",
    "training_datasets",
    "training_dataset_pins",
    "intents",
)


@dataclass
class Rebuilt:
    """What a rebuild found: references of groups and datasets, and (path, reason) of what it could not read."""

    featuregroups: list[str] = field(default_factory=list)
    training_datasets: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    moved_away: str | None = None
    not_restored: tuple[str, ...] = NOT_RESTORED


def rebuild(
    location: str,
    *,
    url: str | None = None,
    restore: Callable[[Connection, FeatureGroupSpec, str], None] | None = None,
) -> Rebuilt:
    """Write the index anew from the tables and manifests of a location.

    A SQLite file that cannot be opened is moved away first. What the tables do not know is not restored; see
    ``Rebuilt.not_restored``.

    Args:
        location: The directory of the store.
        url: Another database than SQLite in the location.
        restore: Called for every group with its table's path, for what other rooms keep in the registry.
    """
    registry, moved = _opened(location, url)
    result = Rebuilt(moved_away=moved)
    try:
        with registry.transaction() as connection:
            for table in reversed(metadata.sorted_tables):
                if table.name in _RESTORED:
                    connection.execute(table.delete())
            for path in _versions(os.path.join(location, FEATUREGROUPS)):
                _restore_group(connection, location, path, result, restore)
            for path in _versions(os.path.join(location, TRAININGDATASETS)):
                _restore_dataset(connection, path, result)
    finally:
        registry.close()
    return result


def _restore_group(
    connection: Connection,
    location: str,
    path: str,
    result: Rebuilt,
    restore: Callable[[Connection, FeatureGroupSpec, str], None] | None,
) -> None:
    if not heal.is_group(path):
        return
    try:
        spec = heal.register_table(connection, location, path)
    except FeatureStoreError as error:
        result.unreadable.append((path, error.message))
        return
    if restore is not None:
        restore(connection, spec, path)
    result.featuregroups.append(f"{spec.name}@v{spec.version}")


def _restore_dataset(connection: Connection, path: str, result: Rebuilt) -> None:
    if not is_finished(path):
        return
    try:
        manifest = read_manifest(path)
    except FeatureStoreError as error:
        result.unreadable.append((manifest_path(path), error.message))
        return
    manifests.register(connection, manifest, path=path)
    result.training_datasets.append(f"{manifest.name}@v{manifest.version}")


def _versions(root: str) -> Iterator[str]:
    """Yield the directories ``<root>/<name>/v<n>``, by name and number."""
    for name in files.list_directory(root):
        folder = os.path.join(root, name)
        numbers = [
            int(match[1])
            for entry in files.list_directory(folder)
            if (match := _VERSION.fullmatch(entry))
        ]
        for number in sorted(numbers):
            yield os.path.join(folder, f"v{number}")


def _opened(location: str, url: str | None) -> tuple[Registry, str | None]:
    try:
        return open_registry(location, url=url), None
    except RegistryTooNew:
        raise
    except RegistryError:
        if url is not None:
            raise
    file = os.path.join(location, REGISTRY_FILE)
    moved = f"{file}.damaged-{utc_now():%Y%m%dT%H%M%S}"
    for ending in ("", "-wal", "-shm"):
        if files.exists(file + ending):
            files.rename(file + ending, moved + ending)
    return open_registry(location, url=url), moved
