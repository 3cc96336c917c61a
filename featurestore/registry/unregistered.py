"""Objects in a location that its registry lacks: an empty registry is not an empty store.

A registry that was deleted, truncated or restored from an older backup does not contain objects
whose tables and manifests still exist. Their names are refused with the command that registers
them, instead of the advice to create them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.delta.log import LOG_FOLDER
from featurestore.model.feature_view import VIEW_FILE
from featurestore.model.manifest import MANIFEST_FILE
from featurestore.model.paths import StorePaths, parse_version_directory
from featurestore.model.registered_model import MODEL_FILE
from featurestore.registry import tables
from featurestore.registry.hidden import HIDDEN
from featurestore.registry.rows import location_of
from featurestore.storage import files

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
    if files.exists(paths.access):
        return True
    for folder in (paths.sources, paths.online_stores):
        if any(name.endswith(".json") for name in files.list_directory(folder)):
            return True
    if any(
        files.list_directory(os.path.join(paths.experiments, name))
        for name in files.list_directory(paths.experiments)
    ):
        return True
    return any(True for kind in _VERSIONED for _ in _stored_versions(paths, kind))


def is_unregistered(connection: Connection, kind: str, name: str, version: int | None) -> bool:
    """Return whether a published version (None: any) exists that the registry does not contain.

    A registry that is filtered for a reader hides versions that exist, so the result is False.
    """
    if HIDDEN in connection.info or kind not in _VERSIONED:
        return False
    versions = [
        number
        for _, number in _stored_versions(StorePaths(location_of(connection)), kind, names=[name])
        if version in (None, number)
    ]
    return bool(_without_registered(connection, kind, [(name, number) for number in versions]))


def unregistered_versions(connection: Connection, kind: str) -> list[tuple[str, int]]:
    """Return the published versions of a kind that the registry does not contain."""
    # The location is listed first: versions that are published meanwhile are registered.
    stored_versions = list(_stored_versions(StorePaths(location_of(connection)), kind))
    return _without_registered(connection, kind, stored_versions)


def unregistered_objects(connection: Connection) -> list[str]:
    """Return all unregistered versions, such as "featuregroup rides@v1"."""
    return [
        f"{kind.replace('_', ' ')} {name}@v{version}"
        for kind in _VERSIONED
        for name, version in unregistered_versions(connection, kind)
    ]


def _stored_versions(
    paths: StorePaths, kind: str, names: list[str] | None = None
) -> Iterator[tuple[str, int]]:
    """Yield (name, version) of the published versions of a kind in a location."""
    folder_property, _, entry = _VERSIONED[kind]
    root: str = getattr(paths, folder_property)
    for name in files.list_directory(root) if names is None else names:
        folder = os.path.join(root, name)
        for directory in files.list_directory(folder):
            version = parse_version_directory(directory)
            if version is not None and files.exists(os.path.join(folder, directory, entry)):
                yield name, version


def _without_registered(
    connection: Connection, kind: str, versions: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return the versions that are neither registered nor being written."""
    if not versions:
        return []
    table = _VERSIONED[kind][1]
    known_versions: set[tuple[str, int]] = set()
    for source in (table, tables.intents):
        query = sa.select(source.c.name, source.c.version)
        if len(versions) == 1:
            query = query.where(source.c.name == versions[0][0])
        known_versions.update((row.name, row.version) for row in connection.execute(query))
    return [version for version in versions if version not in known_versions]
