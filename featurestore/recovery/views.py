"""Feature views as their files tell of them: registered, forgotten, removed, claimed."""

from __future__ import annotations

import os

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureViewDamaged, FeatureViewExists
from featurestore.model.counts import check_version
from featurestore.model.feature_view import VIEW_FILE, FeatureViewSpec
from featurestore.model.paths import StorePaths, version_of
from featurestore.recovery import claims
from featurestore.recovery.owners import versions_in_flight
from featurestore.registry import feature_views
from featurestore.registry.locking import lock
from featurestore.storage import files

DEFINE, UNDEFINE = "define", "undefine"


def view_file(directory: str) -> str:
    """Return the path of the file that makes a directory a view."""
    return os.path.join(directory, VIEW_FILE)


def is_view(directory: str) -> bool:
    """Tell whether a version's directory holds a view."""
    return files.exists(view_file(directory))


def read(directory: str, name: str, version: int) -> FeatureViewSpec:
    """Return the view of the directory of a version.

    Raises:
        FeatureViewDamaged: It cannot be read, or is another view.
    """
    path = view_file(directory)
    spec = FeatureViewSpec.from_bytes(files.read_bytes(path), path=path)
    if (spec.name, spec.version) != (name, version):
        raise FeatureViewDamaged(
            f"{directory!r} holds the feature view {spec.name!r} version {spec.version}.",
            hint="restore the directory, or delete the view and make it again",
        )
    return spec


def register(connection: Connection, spec: FeatureViewSpec) -> None:
    """Register a view as its file says it."""
    feature_views.add(connection, spec)


def forget(connection: Connection, name: str, version: int) -> None:
    """Remove everything that is recorded about a version of a view."""
    feature_views.remove(connection, name, version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove a version, its file first: without it a directory is no view."""
    directory = paths.feature_view(name, version)
    files.remove(view_file(directory), below=paths.location)
    files.remove(directory, below=paths.location)
    claims.release(directory, below=paths.location)


def claim(connection: Connection, location: str, name: str, version: int | None) -> int:
    """Make this process the only one that defines a version, and return it.

    None takes the next one: after those that exist and those that training datasets remember.

    Raises:
        FeatureViewExists: The version exists, or another process is writing it.
    """
    if version is not None:
        check_version(version)
    lock(connection, f"featureview/{name}")
    taken = set(feature_views.versions(connection, name))
    for kind in (DEFINE, UNDEFINE):
        taken.update(versions_in_flight(connection, location, kind, name))
    taken.update(_versions_on_disk(StorePaths(location), name))
    used = {*taken, *feature_views.remembered(connection, name)}
    chosen = max(used, default=0) + 1 if version is None else version
    free = chosen not in taken
    if not free or not claims.claim(connection, StorePaths(location).feature_view(name, chosen)):
        raise FeatureViewExists(
            f"Version {chosen} of feature view {name!r} exists or is being written.",
            hint="leave version= out to make the next one",
        )
    return chosen


def _versions_on_disk(paths: StorePaths, name: str) -> list[int]:
    found = []
    for entry in files.list_directory(paths.feature_view_versions(name)):
        version = version_of(entry)
        if version is not None and is_view(paths.feature_view(name, version)):
            found.append(version)
    return found
