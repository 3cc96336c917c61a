"""Objects in a location that its registry lacks: an empty registry is not an empty store.

A registry that was deleted, truncated or restored from an older backup does not contain objects
whose tables and manifests still exist. Their names are refused with the command that registers
them, instead of the advice to create them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.delta.log import LOG_FOLDER
from featurestore.errors import listing
from featurestore.model.paths import MANIFEST_FILE, MODEL_FILE, VIEW_FILE, parse_version_directory
from featurestore.registry import tables
from featurestore.registry.hidden import HIDDEN
from featurestore.registry.rows import existing_values, location_of
from featurestore.storage import StorePaths, storage_for

if TYPE_CHECKING:
    from featurestore.registry.database import Registry

# For each kind of versioned objects: the property of StorePaths with its folder, the table, and the
# entry that the directory of each published version contains.
_VERSIONED: Mapping[str, tuple[str, sa.Table, str]] = {
    "featuregroup": ("featuregroups", tables.featuregroups, LOG_FOLDER),
    "training_dataset": ("training_datasets", tables.training_datasets, MANIFEST_FILE),
    "feature_view": ("feature_views", tables.feature_views, VIEW_FILE),
    "model": ("models", tables.models, MODEL_FILE),
}


def contains_objects(location: str) -> bool:
    """Return whether a location contains objects or access rights that a registry must contain."""
    paths = StorePaths(location)
    storage = paths.storage
    if storage.exists(paths.access):
        return True
    for folder in (paths.sources, paths.online_stores):
        if any(name.endswith(".json") for name in storage.list_directory(folder)):
            return True
    if any(
        storage.list_directory(os.path.join(paths.experiments, name))
        for name in storage.list_directory(paths.experiments)
    ):
        return True
    return any(True for object_kind in _VERSIONED for _ in _stored_versions(paths, object_kind))


def is_unregistered(
    connection: Connection, object_kind: str, name: str, version: int | None
) -> bool:
    """Return whether a published version (None: any) exists that the registry does not contain.

    A registry that is filtered for a reader hides versions that exist, so the result is False.
    """
    if HIDDEN in connection.info or object_kind not in _VERSIONED:
        return False
    versions = [
        number
        for _, number in _stored_versions(
            StorePaths(location_of(connection)), object_kind, names=[name]
        )
        if version in (None, number)
    ]
    return bool(
        _without_registered(connection, object_kind, [(name, number) for number in versions])
    )


def has_definition(connection: Connection, object_kind: str, name: str) -> bool:
    """Return whether the location has a definition file of a "source" or an "online_store"."""
    if HIDDEN in connection.info:
        return False
    paths = StorePaths(location_of(connection))
    folder = paths.sources if object_kind == "source" else paths.online_stores
    return f"{name}.json" in storage_for(folder).list_directory(folder)


def has_run(connection: Connection, run_id: str) -> bool:
    """Return whether the location has the directory of an experiment run."""
    if HIDDEN in connection.info:
        return False
    root = StorePaths(location_of(connection)).experiments
    storage = storage_for(root)
    return any(
        run_id in storage.list_directory(os.path.join(root, name))
        for name in storage.list_directory(root)
    )


def unregistered_objects(connection: Connection, *, is_complete: bool = True) -> list[str]:
    """Return the published versions that the registry lacks, such as "featuregroup rides@v1".

    Args:
        connection: A connection to a registry that is not filtered for a reader.
        is_complete: False examines only the versions of names that the registry lacks: it lists one
            directory per kind, instead of one per name.
    """
    paths = StorePaths(location_of(connection))
    objects = []
    for object_kind, (folder_property, table, _) in _VERSIONED.items():
        # The location is listed first: versions that are published meanwhile are registered.
        names = storage_for(getattr(paths, folder_property)).list_directory(
            getattr(paths, folder_property)
        )
        if not is_complete:
            known_names = existing_values(connection, table.c.name, names)
            names = [name for name in names if name not in known_names]
        versions = list(_stored_versions(paths, object_kind, names=names))
        objects += [
            f"{object_kind.replace('_', ' ')} {name}@v{version}"
            for name, version in _without_registered(connection, object_kind, versions)
        ]
    return objects


def loss_of(registry: Registry) -> str | None:
    """Return a sentence with the objects of a local location that its registry lacks, or None."""
    # Listing the directories of an object store would take most of the time of a connection.
    if not storage_for(registry.location).is_local:
        return None
    with registry.reading() as connection:
        objects = unregistered_objects(connection, is_complete=False)
    return f"The registry lacks {listing(objects)} in {registry.location!r}." if objects else None


def _stored_versions(
    paths: StorePaths, object_kind: str, names: list[str] | None = None
) -> Iterator[tuple[str, int]]:
    """Yield (name, version) of the published versions of a kind in a location."""
    folder_property, _, entry = _VERSIONED[object_kind]
    root: str = getattr(paths, folder_property)
    storage = storage_for(root)
    for name in storage.list_directory(root) if names is None else names:
        folder = os.path.join(root, name)
        for directory in storage.list_directory(folder):
            version = parse_version_directory(directory)
            if version is not None and storage.exists(os.path.join(folder, directory, entry)):
                yield name, version


def _without_registered(
    connection: Connection, object_kind: str, versions: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return the versions that are neither registered nor being written."""
    if not versions:
        return []
    table = _VERSIONED[object_kind][1]
    known_versions: set[tuple[str, int]] = set()
    for source in (table, tables.intents):
        query = sa.select(source.c.name, source.c.version)
        if len(versions) == 1:
            query = query.where(source.c.name == versions[0][0])
        known_versions.update((row.name, row.version) for row in connection.execute(query))
    return [version for version in versions if version not in known_versions]
