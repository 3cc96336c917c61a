"""Rebuild of the registry from the Delta tables and the manifests of training datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, RegistryError, RegistryTooNew
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import check_name
from featurestore.model.paths import StorePaths, parse_version_directory
from featurestore.model.times import utc_now
from featurestore.recovery import liveness, record_files
from featurestore.recovery.liveness import versions_in_flight
from featurestore.recovery.recover import (
    DATASETS,
    GROUPS,
    MODELS,
    VIEWS,
    VersionKind,
    recover,
)
from featurestore.registry import Registry, open_registry, search_documents
from featurestore.registry.database import REGISTRY_FILE
from featurestore.registry.tables import metadata
from featurestore.storage import files

NOT_RESTORED = (
    "failed runs",
    "pauses and leases of jobs",
    "job definitions: register the jobs again",
    "validation reports of refused writes",
    "the audit log",
)
# Registry tables that are restored from Delta tables and manifests. Tables of jobs and writes in
# flight are kept, and so are access rights, which are restored from access.json if they are
# missing.
_RESTORED_TABLES = (
    "featuregroups",
    "features",
    "tags",
    "lineage",
    "training_datasets",
    "training_dataset_pins",
    "feature_views",
    "window_features",
    "experiment_runs",
    "models",
)

Restore = Callable[[Connection, FeatureGroupSpec, str], None]


@dataclass
class RebuildReport:
    """The result of a rebuild.

    It has the references of groups, datasets, views and models, the names of sources, the ids of
    runs, the number of restored users, and (path, reason) of unreadable files.
    """

    featuregroups: list[str] = field(default_factory=list)
    training_datasets: list[str] = field(default_factory=list)
    feature_views: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    experiment_runs: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    users: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    moved_away: str | None = None
    not_restored: tuple[str, ...] = NOT_RESTORED


@dataclass(frozen=True)
class _Store:
    location: str
    registry: Registry


def rebuild(
    location: str, *, url: str | None = None, restore: Restore | None = None
) -> RebuildReport:
    """Recreate the registry from the tables and manifests of a location.

    Groups and datasets are restored independently: unreadable ones are listed. Writes of live
    processes continue; those of dead ones are resolved first. A damaged SQLite file is moved away.
    Content that only the registry has is not restored; see ``RebuildReport.not_restored``.

    Args:
        location: The directory of the store.
        url: Another database than SQLite in the location.
        restore: Called for every group with the path of its table, to restore registrations of
            other packages.

    Raises:
        RegistryTooNew: A newer release wrote the registry.
        RegistryError: The database of ``url`` cannot be used, or processes are writing with a
            damaged SQLite file.
    """
    registry, moved_to = _open_registry(location, url)
    report = RebuildReport(moved_away=moved_to)
    try:
        recover(_Store(location, registry))
        with registry.transaction() as connection:
            for table in reversed(metadata.sorted_tables):
                if table.name in _RESTORED_TABLES:
                    connection.execute(table.delete())
            search_documents.clear(connection)
            # First, and without catching errors: a private group must not become public.
            report.users = record_files.restore_access(connection, location)
            _restore_versions(connection, location, report, GROUPS, restore)
            _restore_versions(connection, location, report, DATASETS)
            _restore_versions(connection, location, report, VIEWS)
            for name, path in record_files.source_definitions(location):
                with _isolated(connection, path, report):
                    report.sources.append(record_files.register_source(connection, name, path).name)
            for name, directory in record_files.run_directories(StorePaths(location)):
                with _isolated(connection, directory, report):
                    run_id = record_files.register_run(connection, name, directory)
                    report.experiment_runs.append(run_id)
            _restore_versions(connection, location, report, MODELS)
    finally:
        registry.close()
    return report


def _restore_versions(
    connection: Connection,
    location: str,
    report: RebuildReport,
    kind: VersionKind,
    restore: Restore | None = None,
) -> None:
    """Register all published versions of a kind; list those that no live process is writing."""
    references: list[str] = getattr(report, kind.folder)
    for name, version, path in _versions(getattr(StorePaths(location), kind.folder), report):
        with _isolated(connection, path, report):
            if kind.is_published(path):
                spec = kind.register(connection, path, name, version)
                if restore is not None and isinstance(spec, FeatureGroupSpec):
                    restore(connection, spec, path)
                references.append(f"{name}@v{version}")
            elif version not in versions_in_flight(connection, location, kind.intents[0], name):
                report.unreadable.append((path, kind.unpublished))


@contextmanager
def _isolated(connection: Connection, path: str, report: RebuildReport) -> Iterator[None]:
    """Roll back a failing block, and list the path with the reason."""
    savepoint = connection.begin_nested()
    try:
        yield
    except FeatureStoreError as error:
        savepoint.rollback()
        report.unreadable.append((path, error.message))
    except Exception as error:  # an error of one object must not prevent the restore of others
        savepoint.rollback()
        report.unreadable.append((path, f"{type(error).__name__}: {error}"))
    else:
        savepoint.commit()


def _versions(root: str, report: RebuildReport) -> Iterator[tuple[str, int, str]]:
    """Yield (name, n, path) of the directories ``<root>/<name>/v<n>``, ordered by name and n."""
    for name in files.list_directory(root):
        folder = os.path.join(root, name)
        entries = map(parse_version_directory, files.list_directory(folder))
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
    try:
        return open_registry(location, url=url, adopt=True), None
    except RegistryTooNew:
        raise
    except RegistryError:
        if url is not None:
            raise
    writers = liveness.other_processes(location)
    if writers:
        raise RegistryError(
            f"The registry of {location!r} is damaged, and processes are using it: "
            f"{', '.join(writers)}.",
            hint="end them first: their registrations would go into the moved file",
        )
    file = os.path.join(location, REGISTRY_FILE)
    moved_to = f"{file}.damaged-{utc_now():%Y%m%dT%H%M%S}"
    for suffix in ("", "-wal", "-shm"):
        if files.exists(file + suffix):
            files.rename(file + suffix, moved_to + suffix)
    return open_registry(location, url=url), moved_to
