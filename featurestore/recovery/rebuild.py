"""Rebuilding the registry from what is true.

The Delta tables and the manifests of training datasets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, RegistryError, RegistryTooNew
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import check_name
from featurestore.model.paths import StorePaths, version_of
from featurestore.model.times import utc_now
from featurestore.recovery import (
    access,
    datasets,
    experiments,
    groups,
    models,
    owners,
    sources,
    views,
)
from featurestore.recovery.owners import versions_in_flight
from featurestore.recovery.recover import recover
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
# Tables that the Delta tables and manifests can restore; what else jobs and writes in flight know
# is left as it is, and so is who may read what, which comes from access.json where it is gone.
_RESTORED = (
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
class Rebuilt:
    """What a rebuild found.

    References of groups, datasets, views and models, names of sources, ids of runs, how many users
    came back, and (path, reason) of what it could not read.
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


def rebuild(location: str, *, url: str | None = None, restore: Restore | None = None) -> Rebuilt:
    """Write the index anew from the tables and manifests of a location.

    Each group and each dataset stands alone: one that cannot be read is listed, and the others are
    restored. Writes of living processes go on meanwhile; those of dead ones are settled first. A
    SQLite file that cannot be opened is moved away. What the tables do not know is not restored;
    see ``Rebuilt.not_restored``.

    Args:
        location: The directory of the store.
        url: Another database than SQLite in the location.
        restore: Called for every group with its table's path, for what other packages keep in the
            registry.

    Raises:
        RegistryTooNew: A newer release wrote the registry.
        RegistryError: The database of ``url`` cannot be used, or processes are writing with a
            damaged SQLite file.
    """
    registry, moved = _opened(location, url)
    result = Rebuilt(moved_away=moved)
    try:
        recover(_Store(location, registry))
        with registry.transaction() as connection:
            for table in reversed(metadata.sorted_tables):
                if table.name in _RESTORED:
                    connection.execute(table.delete())
            search_documents.clear(connection)
            # First, and with no leave to fail: a private group must not become one of everybody.
            result.users = access.restore(connection, location)
            _restore_groups(connection, location, result, restore)
            _restore_datasets(connection, location, result)
            _restore_views(connection, location, result)
            _restore_sources(connection, location, result)
            _restore_experiments(connection, location, result)
            _restore_models(connection, location, result)
    finally:
        registry.close()
    return result


def _restore_groups(
    connection: Connection, location: str, result: Rebuilt, restore: Restore | None
) -> None:
    for name, version, path in _versions(StorePaths(location).featuregroups, result):
        with _alone(connection, path, result):
            if not groups.is_group(path):
                if version not in versions_in_flight(connection, location, "create", name):
                    result.unreadable.append((path, "it is no Delta table with a commit of data"))
            else:
                spec = groups.register(connection, path, name, version)
                if restore is not None:
                    restore(connection, spec, path)
                result.featuregroups.append(f"{name}@v{version}")


def _restore_datasets(connection: Connection, location: str, result: Rebuilt) -> None:
    for name, version, path in _versions(StorePaths(location).training_datasets, result):
        with _alone(connection, path, result):
            if not datasets.is_finished(path):
                if version not in versions_in_flight(connection, location, "export", name):
                    result.unreadable.append((path, "it has no manifest"))
            else:
                datasets.register_found(connection, path, name, version)
                result.training_datasets.append(f"{name}@v{version}")


def _restore_views(connection: Connection, location: str, result: Rebuilt) -> None:
    for name, version, path in _versions(StorePaths(location).feature_views, result):
        with _alone(connection, path, result):
            if views.is_view(path):
                views.register(connection, views.read(path, name, version))
                result.feature_views.append(f"{name}@v{version}")
            elif version not in versions_in_flight(connection, location, views.DEFINE, name):
                result.unreadable.append((path, "it has no view.json"))


def _restore_sources(connection: Connection, location: str, result: Rebuilt) -> None:
    for name, path in sources.defined(location):
        with _alone(connection, path, result):
            result.sources.append(sources.register(connection, name, path).name)


def _restore_experiments(connection: Connection, location: str, result: Rebuilt) -> None:
    for name, directory in experiments.every(StorePaths(location)):
        with _alone(connection, directory, result):
            result.experiment_runs.append(experiments.register_found(connection, name, directory))


def _restore_models(connection: Connection, location: str, result: Rebuilt) -> None:
    for name, version, path in _versions(StorePaths(location).models, result):
        with _alone(connection, path, result):
            if models.is_model(path):
                models.register(connection, path, name, version)
                result.models.append(f"{name}@v{version}")
            elif version not in versions_in_flight(connection, location, models.ENTER, name):
                result.unreadable.append((path, "it has no model.json"))


@contextmanager
def _alone(connection: Connection, path: str, result: Rebuilt) -> Iterator[None]:
    """Undo what the block wrote when it fails, and list the path with the reason."""
    nested = connection.begin_nested()
    try:
        yield
    except FeatureStoreError as error:
        nested.rollback()
        result.unreadable.append((path, error.message))
    except Exception as error:  # whatever is wrong with one of many must not hide the others
        nested.rollback()
        result.unreadable.append((path, f"{type(error).__name__}: {error}"))
    else:
        nested.commit()


def _versions(root: str, result: Rebuilt) -> Iterator[tuple[str, int, str]]:
    """Yield name, number and path of the directories ``<root>/<name>/v<n>``, by name and number."""
    for name in files.list_directory(root):
        folder = os.path.join(root, name)
        numbers = []
        for entry in files.list_directory(folder):
            number = version_of(entry)
            if number is not None:
                numbers.append(number)
        try:
            check_name(name)
        except FeatureStoreError as error:
            if numbers:
                result.unreadable.append((folder, error.message))
            continue
        for number in sorted(numbers):
            yield name, number, os.path.join(folder, f"v{number}")


def _opened(location: str, url: str | None) -> tuple[Registry, str | None]:
    try:
        return open_registry(location, url=url, adopt=True), None
    except RegistryTooNew:
        raise
    except RegistryError:
        if url is not None:
            raise
    writing = owners.others(location)
    if writing:
        raise RegistryError(
            f"The registry of {location!r} is damaged, and processes are using it: "
            f"{', '.join(writing)}.",
            hint="end them first: what they register goes into the file that is moved away",
        )
    file = os.path.join(location, REGISTRY_FILE)
    moved = f"{file}.damaged-{utc_now():%Y%m%dT%H%M%S}"
    for ending in ("", "-wal", "-shm"):
        if files.exists(file + ending):
            files.rename(file + ending, moved + ending)
    return open_registry(location, url=url), moved
