"""Access to the files of a store, on local disks or at a URI.

All files are opened through a ``Storage``: ``LocalStorage`` for local paths, ``RemoteStorage`` for
URIs. ``Session.storage`` is the storage of a store; for other paths, ``storage_for`` selects one.
``files`` reads and writes JSON and computes hashes, ``location`` parses URIs, and ``connections``
connects to their buckets. Code outside this package never calls ``open``.

Every path in a store is built by ``StorePaths`` from a valid name and version, never from a stored
path, so that a store can be moved or copied and a foreign registry cannot refer to other
directories.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from featurestore.errors import InvalidArgument
from featurestore.model.arguments import check_version
from featurestore.model.names import check_name
from featurestore.model.paths import (
    ACCESS_FILE,
    ERASURES,
    EXPERIMENTS,
    FEATUREGROUPS,
    FEATUREVIEWS,
    LOGS,
    MODELS,
    ONLINE_STORES,
    ORIGINS,
    OWNERS,
    SOURCES,
    STAGING,
    TRAININGDATASETS,
)
from featurestore.storage.base import Storage
from featurestore.storage.local import LocalStorage
from featurestore.storage.remote import RemoteStorage

__all__ = ["Storage", "StorePaths", "storage_for"]

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}")
_LOCAL = LocalStorage()
_REMOTE = RemoteStorage()


def storage_for(path: str) -> Storage:
    """Return the storage that contains a path.

    >>> storage_for("/data/store").is_local, storage_for("s3://models/features").is_local
    (True, False)
    """
    return _REMOTE if "://" in path else _LOCAL


@dataclass(frozen=True)
class StorePaths:
    """The directories of one store.

    >>> StorePaths("/data/store").featuregroup("weather", 2)
    '/data/store/featuregroups/weather/v2'
    """

    # Paths are built with ``os.path.join``, which preserves the ``s3://`` of a location; ``PurePath``
    # and ``normpath`` would shorten it to ``s3:/``.
    location: str

    @property
    def storage(self) -> Storage:
        """The storage of the location."""
        return storage_for(self.location)

    @property
    def featuregroups(self) -> str:
        """The directory of all feature groups."""
        return os.path.join(self.location, FEATUREGROUPS)

    @property
    def training_datasets(self) -> str:
        """The directory of all training datasets."""
        return os.path.join(self.location, TRAININGDATASETS)

    @property
    def feature_views(self) -> str:
        """The directory of all feature views."""
        return os.path.join(self.location, FEATUREVIEWS)

    @property
    def sources(self) -> str:
        """The directory of the definitions of registered sources."""
        return os.path.join(self.location, SOURCES)

    def source(self, name: str) -> str:
        """Return the file of the definition of a registered source."""
        return os.path.join(self.sources, f"{check_name(name, noun='source')}.json")

    def source_decisions(self, name: str) -> str:
        """Return the directory of stored decisions about the tables of a registered source."""
        return os.path.join(self.sources, f"{check_name(name, noun='source')}.decisions")

    @property
    def online_stores(self) -> str:
        """The directory of the definitions of registered online stores."""
        return os.path.join(self.location, ONLINE_STORES)

    def online_store(self, name: str) -> str:
        """Return the file of the definition of a registered online store."""
        return os.path.join(self.online_stores, f"{check_name(name, noun='online store')}.json")

    @property
    def embedded_online_store(self) -> str:
        """The database of the embedded online store."""
        return os.path.join(self.location, "online", "embedded.db")

    @property
    def access(self) -> str:
        """The backup of access rules, in case the registry is lost."""
        return os.path.join(self.location, ACCESS_FILE)

    @property
    def experiments(self) -> str:
        """The directory of all experiments."""
        return os.path.join(self.location, EXPERIMENTS)

    @property
    def staging(self) -> str:
        """The directory of the staging directories of runs."""
        return os.path.join(self.location, STAGING)

    @property
    def logs(self) -> str:
        """The directory of job log files."""
        return os.path.join(self.location, LOGS)

    @property
    def erasures(self) -> str:
        """The directory of the certificates of erasures, and of the key of their digests."""
        return os.path.join(self.location, ERASURES)

    @property
    def owners(self) -> str:
        """The directory of the lock files of writing processes."""
        return os.path.join(self.location, OWNERS)

    @property
    def origins(self) -> str:
        """The directory of the origins of derived objects."""
        return os.path.join(self.location, ORIGINS)

    def origin_file(self, object_kind: str, name: str, version: int) -> str:
        """Return the file with the origins of an object; ``name`` may be the id of a run."""
        if not _RUN_ID.fullmatch(name):
            check_name(name)
        file_name = f"{name}@v{check_version(version)}.json"
        return os.path.join(self.origins, check_name(object_kind), file_name)

    def featuregroup(self, name: str, version: int) -> str:
        """Return the directory of a group's Delta table."""
        return os.path.join(self.featuregroups, check_name(name), f"v{check_version(version)}")

    def quarantine(self, name: str, version: int) -> str:
        """Return the directory of a group's quarantine table."""
        return f"{self.featuregroup(name, version)}_quarantine"

    def statistics(self, name: str, version: int) -> str:
        """Return the directory of a group's statistics."""
        return f"{self.featuregroup(name, version)}_statistics"

    def training_dataset(self, name: str, version: int) -> str:
        """Return the directory of a training dataset version."""
        return os.path.join(self.training_dataset_versions(name), f"v{check_version(version)}")

    def training_dataset_versions(self, name: str) -> str:
        """Return the parent directory of all versions of a training dataset."""
        return os.path.join(self.training_datasets, check_name(name, noun="training dataset"))

    def feature_view(self, name: str, version: int) -> str:
        """Return the directory of a feature view version."""
        return os.path.join(self.feature_view_versions(name), f"v{check_version(version)}")

    def feature_view_versions(self, name: str) -> str:
        """Return the parent directory of all versions of a feature view."""
        return os.path.join(self.feature_views, check_name(name, noun="feature view"))

    def experiment(self, name: str) -> str:
        """Return the directory of the runs of an experiment."""
        return os.path.join(self.experiments, check_name(name, noun="experiment"))

    @property
    def models(self) -> str:
        """The directory of all registered models."""
        return os.path.join(self.location, MODELS)

    def model_versions(self, name: str) -> str:
        """Return the parent directory of all versions of a model."""
        return os.path.join(self.models, check_name(name, noun="model"))

    def model(self, name: str, version: int) -> str:
        """Return the directory of a model version."""
        return os.path.join(self.model_versions(name), f"v{check_version(version)}")

    def stage(self, run_id: str) -> str:
        """Return the staging directory of a run.

        Raises:
            InvalidArgument: ``run_id`` is not a valid run ID.
        """
        if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
            raise InvalidArgument(f"run_id={run_id!r} is not a valid run ID.")
        return os.path.join(self.staging, run_id)
