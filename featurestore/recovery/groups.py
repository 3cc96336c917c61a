"""Feature groups as their tables tell of them: registered, forgotten, removed, claimed."""

from __future__ import annotations

import os

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.delta.log import LOG_FOLDER, is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureGroupExists, TableDamaged
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.paths import StorePaths
from featurestore.model.window_lineage import windows_of_inputs
from featurestore.recovery import claims
from featurestore.recovery.owners import versions_in_flight
from featurestore.registry import (
    featuregroups,
    lineage,
    locking,
    reports,
    tags,
    window_features,
)
from featurestore.storage import files


def is_group(path: str) -> bool:
    """Tell whether a directory holds a feature group: a Delta table with a commit of data."""
    return is_delta_table(path) and latest_version(path) >= 1


def register(connection: Connection, path: str, name: str, version: int) -> FeatureGroupSpec:
    """Register a table as the version of a group, or bring what is registered up to date with it.

    Raises:
        TableDamaged: The table cannot be read, or says that it is another group.
    """
    state = read_snapshot(path)
    spec, meta = commits.spec_of(state), commits.meta_of(state)
    if (spec.name, spec.version) != (name, version):
        raise TableDamaged(
            f"The table {path!r} says that it is {spec.name}@v{spec.version}.",
            hint="move it to the directory of that name",
        )
    known = featuregroups.find(connection, name, version)
    if known is not None and known.table_id != state.table_id:
        forget(connection, name, version)
        known = None
    found = commits.history(path)[::-1]
    if known is None:
        featuregroups.add(
            connection,
            spec,
            table_id=state.table_id,
            delta_version=state.version,
            description=meta.description,
            created=found[0].timestamp if found else None,
            changed=found[-1].timestamp if found else None,
        )
    else:
        written = found[-1].timestamp if found else None
        featuregroups.advance(
            connection, name, version, delta_version=state.version, spec=spec, at=written
        )
    describe(connection, name, version, meta)
    for commit in found:
        if known is None or commit.delta_version > known.delta_version:
            add_lineage(connection, spec, commit)
    return spec


def describe(connection: Connection, name: str, version: int, meta: commits.Meta) -> None:
    """Register what a table says of a group: description, descriptions of features, tags."""
    featuregroups.describe(connection, name, version, meta.description, descriptions=meta.features)
    tags.replace(connection, featuregroups.KIND, name, version, meta.tags)


def add_lineage(connection: Connection, spec: FeatureGroupSpec, commit: Commit) -> None:
    """Record the inputs that a commit's note states."""
    if commit.inputs:
        lineage.add(
            connection,
            featuregroups.KIND,
            spec.name,
            spec.version,
            delta_version=commit.delta_version,
            inputs=commit.inputs.values(),
            job=spec.job,
            run_id=commit.run_id,
        )
    windows = windows_of_inputs(commit.inputs.values())
    if windows:
        window_features.replace(connection, featuregroups.KIND, spec.name, spec.version, windows)


def forget(connection: Connection, name: str, version: int) -> None:
    """Remove everything that is recorded about a version of a group."""
    featuregroups.remove(connection, name, version)
    lineage.remove(connection, featuregroups.KIND, name, version)
    reports.remove(connection, featuregroups.KIND, name, version)
    window_features.remove(connection, featuregroups.KIND, name, version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove a version of a group with its quarantine and statistics, the log first.

    Without its log a directory is no table any more, whatever happens next.
    """
    path = paths.featuregroup(name, version)
    files.remove(os.path.join(path, LOG_FOLDER), below=paths.location)
    for directory in (path, paths.quarantine(name, version), paths.statistics(name, version)):
        files.remove(directory, below=paths.location)
    claims.release(path, below=paths.location)


def claim(connection: Connection, location: str, name: str, version: int) -> int:
    """Make this process the only creator of a version and return it.

    What a dead one left is removed.

    Raises:
        FeatureGroupExists: The version exists, or another process is creating it.
    """
    lock(connection, name, version)
    paths = StorePaths(location)
    path = paths.featuregroup(name, version)
    taken = featuregroups.find(connection, name, version) is not None
    busy = version in versions_in_flight(connection, location, "create", name)
    if not taken and not busy:
        own = claims.claim(connection, path)
        if not is_group(path):
            if not own:
                raise FeatureGroupExists(
                    f"Feature group {name!r} version {version} is being created through another "
                    "registry, or a process there was killed at it.",
                    hint="leave version=None for the next version; connecting with that registry "
                    "cleans up",
                )
            if is_delta_table(path):
                remove_files(paths, name, version)
            return version
        register(connection, path, name, version)
    state = "is being created by another process" if busy else "exists already"
    raise FeatureGroupExists(
        f"Feature group {name!r} version {version} {state}.",
        hint="leave version=None for the next version, or use insert_into_featuregroup",
    )


def lock(connection: Connection, name: str, version: int) -> None:
    """Let no other process change what a version is until this transaction ends."""
    locking.lock(connection, f"featuregroup/{name}/{version}")
