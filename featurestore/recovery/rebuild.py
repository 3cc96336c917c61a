"""Rebuild of the registry from Delta tables, manifests and definition files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError

from featurestore.delta.log import latest_version
from featurestore.errors import FeatureStoreError, RegistryDamaged, RegistryError
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import check_name
from featurestore.model.paths import parse_version_directory
from featurestore.model.times import utc_now
from featurestore.recovery import liveness, record_files
from featurestore.recovery.datasets import DATASETS
from featurestore.recovery.groups import GROUPS
from featurestore.recovery.liveness import versions_in_flight
from featurestore.recovery.models import MODELS
from featurestore.recovery.recover import recover
from featurestore.recovery.versioned import VersionedObjects
from featurestore.recovery.views import VIEWS
from featurestore.registry import Registry, featuregroups, open_registry, origins, search_documents
from featurestore.registry.opening import REGISTRY_FILE
from featurestore.registry.tables import metadata
from featurestore.storage import StorePaths, storage_for

Restore = Callable[[Connection, FeatureGroupSpec, str], None]


@dataclass(frozen=True)
class Restoration:
    """What a rebuild restores of the rows of one table.

    Attributes:
        source: The files from which rows are restored, None if all rows are lost.
        lost: The information that is lost with the registry, None if all rows are restored.
        is_cleared: Whether an existing table is cleared before its rows are restored. Rows of other
            tables are retained as long as the registry exists.
        condition: The SQL condition of the rows that are restored, None for all rows.
        columns: The columns whose values are not restored, or only approximately.
    """

    source: str | None = None
    lost: str | None = None
    is_cleared: bool = False
    condition: str | None = None
    columns: frozenset[str] = frozenset()


_TABLES = "tables of feature groups"
_ACCESS = "access.json"
_ORIGINS = "files in _origins"
_MANIFESTS = "manifests of training datasets"
_ALL_METADATA = "tables, manifests, definitions of views, run records and model files"

# In the order of the page about recovery.
RESTORATIONS: Mapping[str, Restoration] = {
    "featuregroups": Restoration(
        _TABLES,
        "the time of the last change of a definition, which is that of the newest commit",
        is_cleared=True,
        columns=frozenset({"changed"}),
    ),
    "features": Restoration(_TABLES, is_cleared=True),
    "lineage": Restoration(_ALL_METADATA, is_cleared=True),
    "tags": Restoration(_ALL_METADATA, is_cleared=True),
    "window_features": Restoration(_ALL_METADATA, is_cleared=True),
    # Whether a text is in the index of trigrams depends on the database.
    "search_documents": Restoration(_ALL_METADATA, is_cleared=True, columns=frozenset({"indexed"})),
    "training_datasets": Restoration(_MANIFESTS, is_cleared=True),
    "training_dataset_pins": Restoration(_MANIFESTS, is_cleared=True),
    "feature_views": Restoration("definitions of views", is_cleared=True),
    "experiment_runs": Restoration("run records", is_cleared=True),
    "models": Restoration("model files", is_cleared=True),
    "sources": Restoration("files in sources"),
    "online_stores": Restoration("files in online_stores"),
    "origins": Restoration(_ORIGINS),
    "origin_edges": Restoration(_ORIGINS),
    "users": Restoration(_ACCESS),
    "tokens": Restoration(_ACCESS),
    "group_roles": Restoration(_ACCESS),
    "private_groups": Restoration(_ACCESS),
    "runs": Restoration(
        _TABLES,
        "failed runs, and runs that wrote no feature group; logs, memory, transaction ids and "
        "definition versions of other runs",
        condition="run_id in (select run_id from lineage)",
        columns=frozenset(
            {
                "started",
                "ended",
                "job_version",
                "owner",
                "memory",
                "log",
                "inputs",
                # Recovery needs them only for runs that have not ended.
                "transaction_app",
                "transaction_number",
            }
        ),
    ),
    "job_definitions": Restoration(lost="job definitions: register the jobs again"),
    "job_states": Restoration(
        lost="pauses and leases of jobs; registering a job restores its progress"
    ),
    "windows": Restoration(
        lost="windows of jobs: registering a job restores those with rows in a feature group"
    ),
    "stream_offsets": Restoration(
        lost="offsets of stream jobs: registering a job restores them from its commits"
    ),
    "stream_progress": Restoration(lost="rates of stream jobs"),
    "project_definitions": Restoration(
        lost="the projects that own objects: apply the projects again"
    ),
    "validation_reports": Restoration(lost="validation reports"),
    "monitor_results": Restoration(lost="monitor reports: check the windows again"),
    "monitor_acceptances": Restoration(lost="accepted monitor windows"),
    "alert_channels": Restoration(
        lost="alert channels: featurestore alert add NAME URI for each channel"
    ),
    "incidents": Restoration(lost="open incidents"),
    "outbox": Restoration(lost="alert messages that were not sent, and the history of messages"),
    "audit_log": Restoration(lost="the audit log"),
    "sign_ins": Restoration(lost="signed-in browsers: users sign in again"),
    "failed_sign_ins": Restoration(lost="counts of wrong passwords"),
    "intents": Restoration(
        lost="intents of writes that had not ended: featurestore td clean removes their files"
    ),
    "owners": Restoration(lost="heartbeats of processes, which send them again"),
}
NOT_RESTORED = tuple(entry.lost for entry in RESTORATIONS.values() if entry.lost is not None)
CLEARED_TABLES = frozenset(name for name, entry in RESTORATIONS.items() if entry.is_cleared)


def as_markdown() -> str:
    """Return the table of restorations for the documentation."""
    lines = ["| registry table | restored from | lost with the registry |", "| --- | --- | --- |"]
    lines += [
        f"| `{name}` | {entry.source or ''} | {entry.lost or ''} |"
        for name, entry in RESTORATIONS.items()
    ]
    return "\n".join(lines)


@dataclass
class RebuildReport:
    """The result of a rebuild.

    Contains the references of restored groups, datasets, views and models, the names of sources and
    online stores, run ids, the number of restored users, (path, reason) for unreadable files, the
    tables, columns and indexes that the registry lacked, and the new name of a damaged SQLite file.
    """

    featuregroups: list[str] = field(default_factory=list)
    training_datasets: list[str] = field(default_factory=list)
    feature_views: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    online_stores: list[str] = field(default_factory=list)
    experiment_runs: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    users: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    moved_away: str | None = None
    not_restored: tuple[str, ...] = NOT_RESTORED


@dataclass(frozen=True)
class _Store:
    location: str
    registry: Registry


def rebuild(
    location: str, *, url: str | None = None, restore: Restore | None = None
) -> RebuildReport:
    """Recreate the registry from the tables, manifests and definition files in a location.

    Each object is restored independently; unreadable objects are listed in the report. Writes of
    dead processes are resolved first; writes of live processes are not affected. A damaged SQLite
    file is renamed. Content that exists only in the registry is not restored; see
    ``RebuildReport.not_restored``.

    Args:
        location: The directory of the store.
        url: The registry database, if it is not the SQLite file in the location.
        restore: Called for every group with the path of its table, to restore registrations of
            other packages.

    Raises:
        RegistryTooNew: The registry was written by a newer release. RegistryError: The database
        cannot be used, or the SQLite file is damaged and other processes
            are using it.
    """
    registry, moved_to = _open_registry(location, url)
    try:
        return _restore_all(location, registry, moved_to, restore)
    except RegistryDamaged:
        # Damage that opening the file has not shown.
        if url is not None or moved_to is not None:
            raise
    finally:
        registry.close()
    moved_to = _move_away(location)
    registry = open_registry(location, adopt=True)
    try:
        return _restore_all(location, registry, moved_to, restore)
    finally:
        registry.close()


def _restore_all(
    location: str, registry: Registry, moved_to: str | None, restore: Restore | None
) -> RebuildReport:
    """Resolve writes of dead processes, clear the index, and restore it from files."""
    report = RebuildReport(moved_away=moved_to, repaired=list(registry.repair.created))
    # Intents are only in the registry, so they are resolved before its other tables are
    # cleared.
    recover(_Store(location, registry))
    with registry.transaction() as connection:
        # Tables with foreign keys are cleared before the tables that they refer to.
        for table in reversed(metadata.sorted_tables):
            if table.name in CLEARED_TABLES:
                connection.execute(table.delete())
        search_documents.clear(connection)
        # Access rights must be restored first, and errors must not be caught, because private
        # groups must not become public.
        emptied = registry.repair.emptied
        report.users = record_files.restore_access(connection, location, emptied=emptied)
        # Before the objects, which otherwise would have only the origins in their files.
        report.unreadable += origins.restore(connection, location)
        _restore_versions(connection, location, report, GROUPS, restore)
        _restore_versions(connection, location, report, DATASETS)
        _restore_versions(connection, location, report, VIEWS)
        paths = StorePaths(location)
        for name, path in record_files.iterate_definitions(paths.sources):
            with _rollback_on_error(connection, path, report):
                report.sources.append(record_files.register_source(connection, name, path).name)
        for name, path in record_files.iterate_definitions(paths.online_stores):
            with _rollback_on_error(connection, path, report):
                record_files.register_online_store(connection, name, path)
                report.online_stores.append(name)
        for name, directory in record_files.run_directories(paths):
            with _rollback_on_error(connection, directory, report):
                run_id = record_files.register_run(connection, name, directory)
                report.experiment_runs.append(run_id)
        _restore_versions(connection, location, report, MODELS)
    return report


def _restore_versions(
    connection: Connection,
    location: str,
    report: RebuildReport,
    objects: VersionedObjects[object],
    restore: Restore | None = None,
) -> None:
    """Register all published versions of objects, and report the incomplete versions."""
    references: list[str] = getattr(report, objects.folder)
    for name, version, path in _iterate_versions(
        getattr(StorePaths(location), objects.folder), report
    ):
        with _rollback_on_error(connection, path, report):
            if objects.is_published(path):
                spec = objects.register(connection, path, name, version)
                if restore is not None and isinstance(spec, FeatureGroupSpec):
                    featuregroups.rewind(
                        connection, name, version, delta_version=latest_version(path)
                    )
                    restore(connection, spec, path)
                references.append(f"{name}@v{version}")
            elif version not in versions_in_flight(connection, location, objects.creation, name):
                report.unreadable.append((path, objects.unpublished))


@contextmanager
def _rollback_on_error(connection: Connection, path: str, report: RebuildReport) -> Iterator[None]:
    """Roll back the changes of a ``with`` block that fails, and report the path as unreadable."""
    # On Postgres, a failed statement aborts the entire transaction unless there is a savepoint.
    savepoint = connection.begin_nested()
    try:
        yield
    except DatabaseError as error:
        # A damaged database is not the damage of this object.
        if not isinstance(error, DataError | IntegrityError):
            raise
        savepoint.rollback()
        report.unreadable.append((path, f"its values do not fit into the registry: {error.orig}"))
    except FeatureStoreError as error:
        savepoint.rollback()
        report.unreadable.append((path, error.message))
    except Exception as error:  # an error of one object must not prevent the restore of others
        savepoint.rollback()
        report.unreadable.append((path, f"{type(error).__name__}: {error}"))
    else:
        savepoint.commit()


def _iterate_versions(root: str, report: RebuildReport) -> Iterator[tuple[str, int, str]]:
    """Yield (name, n, path) for all directories ``<root>/<name>/v<n>``, ordered by name and n."""
    storage = storage_for(root)
    for name in storage.list_directory(root):
        folder = os.path.join(root, name)
        entries = map(parse_version_directory, storage.list_directory(folder))
        numbers = sorted(number for number in entries if number is not None)
        try:
            check_name(name)
        except FeatureStoreError as error:
            if numbers:
                report.unreadable.append((folder, error.message))
            continue
        for number in numbers:
            yield name, number, os.path.join(folder, f"v{number}")


def _open_registry(location: str, url: str | None) -> tuple[Registry, str | None]:
    """Open the registry; a damaged SQLite file is renamed, and its new path returned."""
    try:
        registry = open_registry(location, url=url, adopt=True)
    except RegistryDamaged:
        if url is not None:
            raise
    else:
        if url is not None or not registry.damage():
            return registry, None
        registry.close()
    moved_to = _move_away(location)
    return open_registry(location, url=url, adopt=True), moved_to


def _move_away(location: str) -> str:
    """Rename the damaged SQLite file of a location, and return its new path."""
    storage = storage_for(location)
    writers = liveness.other_processes(location)
    if writers:
        raise RegistryError(
            f"The registry of {location!r} is damaged, and processes are using it: "
            f"{', '.join(writers)}.",
            hint="end these processes first, or their registrations would be lost",
        )
    file = os.path.join(location, REGISTRY_FILE)
    moved_to = f"{file}.damaged-{utc_now():%Y%m%dT%H%M%S}"
    # SQLite would apply a write-ahead log that remains under the old name to the new database.
    for suffix in ("", "-wal", "-shm"):
        if storage.exists(file + suffix):
            storage.rename(file + suffix, moved_to + suffix)
    return moved_to
