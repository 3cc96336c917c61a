"""Recovery of feature groups: registration, removal and claims of versions."""

from __future__ import annotations

import os
from datetime import datetime

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.delta.log import LOG_FOLDER, is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureGroupExists, TableDamaged
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.paths import StorePaths
from featurestore.model.window_features import parse_input_windows
from featurestore.recovery import claims
from featurestore.recovery.liveness import versions_in_flight
from featurestore.registry import (
    artifacts,
    featuregroups,
    jobs,
    lineage,
    runs,
)
from featurestore.storage import files


def is_group(path: str) -> bool:
    """Return True if a directory contains a Delta table with at least one data commit."""
    return is_delta_table(path) and latest_version(path) >= 1


def register(connection: Connection, path: str, name: str, version: int) -> FeatureGroupSpec:
    """Register a table as a group version, or update the existing registration.

    Raises:
        TableDamaged: The table is damaged or belongs to another group.
    """
    lock(connection, name, version)  # a concurrent change of the definition is registered later
    table = read_snapshot(path)
    spec, meta = commits.spec_of(table), commits.meta_of(table)
    if (spec.name, spec.version) != (name, version):
        raise TableDamaged(
            f"The table {path!r} belongs to {spec.name}@v{spec.version}.",
            hint="move it to the directory of that name",
        )
    registered_group = featuregroups.find(connection, name, version)
    # Another table with the same name has another id, for example after the directory was replaced.
    # Commits and tags of the earlier table must not remain registered.
    if registered_group is not None and registered_group.table_id != table.table_id:
        unregister(connection, name, version)
        registered_group = None
    history = commits.history(path)[::-1]
    if registered_group is None:
        add(
            connection,
            spec,
            meta,
            table_id=table.table_id,
            delta_version=table.version,
            created=history[0].timestamp if history else None,
            changed=history[-1].timestamp if history else None,
        )
    else:
        last_commit_time = history[-1].timestamp if history else None
        featuregroups.advance(
            connection,
            name,
            version,
            delta_version=table.version,
            changed=last_commit_time,
        )
        featuregroups.redefine(connection, spec)
        describe(connection, name, version, meta)
    for commit in history:
        # The lineage of earlier commits is already registered.
        if registered_group is None or commit.delta_version > registered_group.delta_version:
            add_lineage(connection, spec, commit)
    return spec


def add(
    connection: Connection,
    spec: FeatureGroupSpec,
    meta: commits.Meta,
    *,
    table_id: str,
    delta_version: int,
    created: datetime | None,
    changed: datetime | None = None,
) -> None:
    """Register a new group version with its description, feature descriptions and tags."""
    featuregroups.add(
        connection,
        spec,
        table_id=table_id,
        delta_version=delta_version,
        description=meta.description,
        created=created,
        changed=changed,
    )
    describe(connection, spec.name, spec.version, meta)


def register_definition(connection: Connection, path: str, name: str, version: int) -> None:
    """Register the changed definition, descriptions and tags of a table.

    The lock makes the last registration that of the newest definition.
    """
    lock(connection, name, version)
    table = read_snapshot(path)
    featuregroups.advance(connection, name, version, delta_version=table.version)
    featuregroups.redefine(connection, commits.spec_of(table))
    describe(connection, name, version, commits.meta_of(table))


def describe(connection: Connection, name: str, version: int, meta: commits.Meta) -> None:
    """Register the description, feature descriptions and tags of a group."""
    featuregroups.describe(connection, name, version, meta.description, descriptions=meta.features)
    artifacts.replace_tags(connection, featuregroups.KIND, name, version, meta.tags)


def add_lineage(connection: Connection, spec: FeatureGroupSpec, commit: Commit) -> None:
    """Register the inputs of a commit as lineage."""
    if not commit.inputs:
        return
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
    windows = parse_input_windows(commit.inputs.values())
    if windows:
        lineage.replace_windows(connection, featuregroups.KIND, spec.name, spec.version, windows)


def unregister(connection: Connection, name: str, version: int) -> None:
    """Remove a group version, and the windows that jobs computed for it, from the registry."""
    featuregroups.remove(connection, name, version)
    for job in jobs.writers_of(connection, name):
        runs.forget_windows(connection, job.spec.name, target_version=version)


def remove_files(paths: StorePaths, name: str, version: int) -> None:
    """Remove the files of a group version, its quarantine and statistics, starting with the log.

    After a crash, a directory without a log is not mistaken for a table.
    """
    path = paths.featuregroup(name, version)
    files.remove(os.path.join(path, LOG_FOLDER), below=paths.location)
    for directory in (path, paths.quarantine(name, version), paths.statistics(name, version)):
        files.remove(directory, below=paths.location)
    claims.release(path, below=paths.location)


def claim(connection: Connection, location: str, name: str, version: int) -> int:
    """Claim a version for creation by this process, and return it.

    Files left by a creation that crashed are removed.

    Raises:
        FeatureGroupExists: The version exists, or another process is creating it.
    """
    lock(connection, name, version)
    paths = StorePaths(location)
    path = paths.featuregroup(name, version)
    is_registered = featuregroups.find(connection, name, version) is not None
    is_in_flight = version in versions_in_flight(connection, location, "create", name)
    if not is_registered and not is_in_flight:
        has_claim = claims.claim(connection, path)
        if not is_group(path):
            if not has_claim:
                raise FeatureGroupExists(
                    f"Feature group {name!r} version {version} is being created through another "
                    "registry, or its process there was killed.",
                    hint="omit version= to create the next one; connecting with the other registry "
                    "cleans up",
                )
            # A creation that died before its first commit of rows left an empty table.
            if is_delta_table(path):
                remove_files(paths, name, version)
            return version
        # The process that created the group died after the commit and before the registration.
        register(connection, path, name, version)
    state = "is being created by another process" if is_in_flight else "exists already"
    raise FeatureGroupExists(
        f"Feature group {name!r} version {version} {state}.",
        hint="omit version= to create the next one, or use insert_into_featuregroup",
    )


def lock(connection: Connection, name: str, version: int) -> None:
    """Lock a group version until the transaction ends."""
    featuregroups.lock_version(connection, name, version)
