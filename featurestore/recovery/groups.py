"""Recovery of feature groups: registration, removal and claims of versions."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.delta.log import LOG_FOLDER, is_delta_table, latest_version
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import FeatureGroupExists, TableDamaged
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.window_features import parse_input_windows
from featurestore.recovery import claims
from featurestore.recovery.liveness import versions_in_flight
from featurestore.recovery.versioned import VersionedObjects
from featurestore.registry import artifacts, featuregroups, jobs, lineage, runs
from featurestore.storage import StorePaths, storage_for


class FeatureGroups(VersionedObjects[FeatureGroupSpec]):
    """Delta tables; a version is published by its first commit of rows."""

    table = featuregroups.TABLE
    creation, writes, removal = "create", ("write", "reclaim"), "delete"
    folder = "featuregroups"
    file_name = LOG_FOLDER
    exists_error = FeatureGroupExists
    registered_from, content = "table", "rows"
    unpublished = "it is not a Delta table with a data commit"

    def read(self, directory: str, name: str, version: int) -> FeatureGroupSpec:
        return commits.spec_of(read_table(directory, name, version))

    def register(
        self, connection: Connection, directory: str, name: str, version: int
    ) -> FeatureGroupSpec:
        return register(connection, directory, name, version)

    def unregister(self, connection: Connection, name: str, version: int) -> None:
        unregister(connection, name, version)

    def is_published(self, directory: str) -> bool:
        return is_delta_table(directory) and latest_version(directory) >= 1

    def claim(
        self, connection: Connection, location: str, name: str, version: int | None, *, run: str
    ) -> int:
        """Claim a version; a published one that is not registered is registered.

        Files left by a creation that crashed are removed.
        """
        version = version or 1
        self.table.lock_version(connection, name, version)
        paths = StorePaths(location)
        directory = self.directory(paths, name, version)
        is_registered = featuregroups.find(connection, name, version) is not None
        is_in_flight = version in versions_in_flight(connection, location, self.creation, name)
        if not is_registered and not is_in_flight:
            has_claim = claims.claim(connection, directory)
            if not self.is_published(directory):
                if not has_claim:
                    raise FeatureGroupExists(
                        f"Feature group {name!r} version {version} is being created through "
                        "another registry, or its process there was killed.",
                        hint="omit version= to create the next one; connecting with the other "
                        "registry cleans up",
                    )
                # A creation that died before its first commit of rows left an empty table.
                if is_delta_table(directory):
                    self.remove_files(paths, name, version)
                return version
            # The process that created the group died after the commit and before the registration.
            self.register(connection, directory, name, version)
        state = "is being created by another process" if is_in_flight else "exists already"
        raise FeatureGroupExists(
            f"Feature group {name!r} version {version} {state}.",
            hint="omit version= to create the next one, or use insert_into_featuregroup",
        )

    def remove_files(self, paths: StorePaths, name: str, version: int) -> None:
        """Remove the files of a version with its quarantine and statistics, starting with the log."""
        super().remove_files(paths, name, version)
        for directory in (paths.quarantine(name, version), paths.statistics(name, version)):
            storage_for(directory).remove(directory, below=paths.location)


GROUPS = FeatureGroups()


def read_table(path: str, name: str, version: int) -> Snapshot:
    """Return the newest snapshot of a group version.

    Raises:
        TableDamaged: The table is damaged or belongs to another group.
    """
    table = read_snapshot(path)
    spec = commits.spec_of(table)
    if (spec.name, spec.version) != (name, version):
        raise TableDamaged(
            f"The table {path!r} belongs to {spec.name}@v{spec.version}.",
            hint="move it to the directory of that name",
        )
    return table


def register(connection: Connection, path: str, name: str, version: int) -> FeatureGroupSpec:
    """Register a table as a group version, or update the existing registration.

    Raises:
        TableDamaged: The table is damaged or belongs to another group.
    """
    # A concurrent change of the definition is registered later.
    featuregroups.lock_version(connection, name, version)
    table = read_table(path, name, version)
    spec, meta = commits.spec_of(table), commits.meta_of(table)
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
        feature_descriptions=meta.features,
        created=created,
        changed=changed,
    )
    artifacts.replace_tags(connection, featuregroups.KIND, spec.name, spec.version, meta.tags)


def register_definition(connection: Connection, path: str, name: str, version: int) -> None:
    """Register the changed definition, descriptions and tags of a table.

    The lock makes the last registration that of the newest definition.
    """
    featuregroups.lock_version(connection, name, version)
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
