"""Recovery of feature views: registration, removal and claims of versions."""

from __future__ import annotations

import os

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureViewDamaged, FeatureViewExists
from featurestore.model.arguments import check_version
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.paths import VIEW_FILE, StorePaths, parse_version_directory
from featurestore.recovery import claims
from featurestore.recovery.liveness import versions_in_flight
from featurestore.registry.artifacts import feature_views
from featurestore.registry.rows import lock
from featurestore.storage import files

DEFINE, UNDEFINE = "define", "undefine"


def view_file(directory: str) -> str:
    """Return the path of the view file in a version directory."""
    return os.path.join(directory, VIEW_FILE)


def is_view(directory: str) -> bool:
    """Return True if a version directory contains a view file."""
    return files.exists(view_file(directory))


def read(directory: str, name: str, version: int) -> FeatureViewSpec:
    """Read the view definition in a version directory.

    Raises:
        FeatureViewDamaged: The view is missing, damaged, or has another name or version.
    """
    path = view_file(directory)
    spec = FeatureViewSpec.from_bytes(files.read_bytes(path), path=path)
    if (spec.name, spec.version) != (name, version):
        raise FeatureViewDamaged(
            f"{directory!r} contains the feature view {spec.name!r} version {spec.version}.",
            hint="restore the directory, or delete the view and create it again",
        )
    return spec


def register(connection: Connection, spec: FeatureViewSpec) -> None:
    """Register a view definition."""
    feature_views.add(connection, spec)


def register_from_files(connection: Connection, directory: str, name: str, version: int) -> None:
    """Register the view in a version directory."""
    register(connection, read(directory, name, version))


def unregister(connection: Connection, name: str, version: int) -> None:
    """Remove a view version from the registry."""
    feature_views.remove(connection, name, version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove the files of a version, starting with the view file.

    After a crash, a directory without a view file is not mistaken for a view.
    """
    directory = paths.feature_view(name, version)
    files.remove(view_file(directory), below=paths.location)
    files.remove(directory, below=paths.location)
    claims.release(directory, below=paths.location)


def claim(connection: Connection, location: str, name: str, version: int | None) -> int:
    """Claim a view version, by default the next free version, and return it.

    The next version follows all versions of views and training datasets of this name.

    Raises:
        FeatureViewExists: The version exists, or another process is writing it.
    """
    if version is not None:
        check_version(version)
    lock(connection, f"featureview/{name}")
    existing = set(feature_views.versions(connection, name))
    for operation in (DEFINE, UNDEFINE):
        existing.update(versions_in_flight(connection, location, operation, name))
    paths = StorePaths(location)
    for entry in files.list_directory(paths.feature_view_versions(name)):
        number = parse_version_directory(entry)
        # A directory without a view file was left by a crash, so its number is free.
        if number is not None and is_view(paths.feature_view(name, number)):
            existing.add(number)
    used_versions = {*existing, *feature_views.used_versions(connection, name)}
    candidate = max(used_versions, default=0) + 1 if version is None else version
    directory = paths.feature_view(name, candidate)
    if candidate in existing or not claims.claim(connection, directory):
        raise FeatureViewExists(
            f"Version {candidate} of feature view {name!r} exists or is being written.",
            hint="omit version= to create the next one",
        )
    return candidate
