"""Versions of an object: reads, registration, claims and removal.

A version is a directory. It is published when its directory contains a specific file, such as the
manifest of a dataset; the registry only indexes published versions. ``groups``, ``datasets``, ``views``
and ``models`` have a subclass for each kind of objects.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError
from featurestore.model.arguments import check_version
from featurestore.model.names import check_name
from featurestore.model.paths import parse_version_directory
from featurestore.recovery import claims
from featurestore.recovery.liveness import versions_in_flight
from featurestore.registry.artifacts import VersionedTable
from featurestore.registry.rows import lock
from featurestore.storage import StorePaths, storage_for

Record_co = TypeVar("Record_co", covariant=True)


class VersionedObjects(ABC, Generic[Record_co]):
    """The versions of one kind of objects in a store.

    Attributes:
        table: The registry table of the versions.
        creation: The kind of the intent that creates a version.
        writes: The kinds of intents that write to an existing version.
        removal: The kind of the intent that removes a version.
        folder: The property of ``StorePaths`` with the folder of all versions.
        file_name: The file that publishes a version, in its directory.
        exists_error: The error for a version that exists or is being written.
        registered_from: The source of the registration, for messages.
        content: The content that publishes a version, for messages.
        unpublished: The reason why a rebuild does not register a directory, for messages.
        is_revocable: Whether a version is claimed by a single export, which is revoked before its
            files are removed.
    """

    table: ClassVar[VersionedTable]
    creation: ClassVar[str]
    writes: ClassVar[tuple[str, ...]] = ()
    removal: ClassVar[str]
    folder: ClassVar[str]
    file_name: ClassVar[str]
    exists_error: ClassVar[type[FeatureStoreError]]
    registered_from: ClassVar[str]
    content: ClassVar[str] = "file"
    unpublished: ClassVar[str]
    is_revocable: ClassVar[bool] = False

    @abstractmethod
    def read(self, directory: str, name: str, version: int) -> Record_co:
        """Read the definition of a published version; raise an error if it has another name."""

    @abstractmethod
    def register(
        self, connection: Connection, directory: str, name: str, version: int
    ) -> Record_co:
        """Register the published version in a directory, and return its definition."""

    def unregister(self, connection: Connection, name: str, version: int) -> None:
        """Remove a version from the registry."""
        self.table.remove(connection, name, version)

    def directory(self, paths: StorePaths, name: str, version: int) -> str:
        """Return the directory of a version."""
        return os.path.join(self._folder(paths, name), f"v{check_version(version)}")

    def published_file(self, directory: str) -> str:
        """Return the path of the file that publishes the version in a directory."""
        return os.path.join(directory, self.file_name)

    def is_published(self, directory: str) -> bool:
        """Return True if a directory contains a published version."""
        path = self.published_file(directory)
        return storage_for(path).exists(path)

    def claim(
        self, connection: Connection, location: str, name: str, version: int | None, *, run: str
    ) -> int:
        """Claim a version for a write, by default the next free version, and return it.

        Raises:
            FeatureStoreError: ``exists_error``: the version exists, or is being written.
        """
        if version is not None:
            check_version(version)
        lock(connection, f"{self.table.object_kind}/{name}")
        paths = StorePaths(location)
        used_versions = self._used_versions(connection, paths, name)
        candidate = version
        if candidate is None:
            reserved = self._reserved_versions(connection, name)
            candidate = max(used_versions | reserved, default=0) + 1
        while candidate not in used_versions:
            if self._claim_directory(connection, self.directory(paths, name, candidate), run):
                return candidate
            # Another registry has claimed this version in the meantime.
            used_versions.add(candidate)
            if version is None:
                candidate += 1
        raise self.exists_error(
            f"Version {candidate} of {self.table.noun} {name!r} exists or is being written.",
            hint="omit version= to create the next one",
        )

    def remove(self, paths: StorePaths, name: str, version: int) -> None:
        """Remove the files of a version, and release its claim."""
        self.remove_files(paths, name, version)
        claims.release(self.directory(paths, name, version), below=paths.location)

    def remove_files(self, paths: StorePaths, name: str, version: int) -> None:
        """Remove the files of a version, starting with the file that publishes it.

        After a crash, a directory without this file is not mistaken for a published version.
        """
        directory = self.directory(paths, name, version)
        storage = storage_for(directory)
        storage.remove(self.published_file(directory), below=paths.location)
        storage.remove(directory, below=paths.location)

    def versions_on_disk(self, paths: StorePaths, name: str) -> list[int]:
        """Return the versions with a directory or a claim object, in ascending order."""
        folder = self._folder(paths, name)
        entries = map(claims.version_entry_name, storage_for(folder).list_directory(folder))
        versions = set(map(parse_version_directory, entries))
        return sorted(version for version in versions if version is not None)

    def _folder(self, paths: StorePaths, name: str) -> str:
        folder: str = getattr(paths, self.folder)
        return os.path.join(folder, check_name(name))

    def _used_versions(self, connection: Connection, paths: StorePaths, name: str) -> set[int]:
        """Return the versions that are registered, on disk, or being written or removed."""
        used_versions = {*self.table.versions(connection, name)}
        for operation in (self.creation, self.removal):
            used_versions.update(versions_in_flight(connection, paths.location, operation, name))
        # Directories without a registration are left by crashes or by a lost registry.
        return used_versions.union(self.versions_on_disk(paths, name))

    def _reserved_versions(self, connection: Connection, name: str) -> set[int]:
        """Return free versions to which other objects refer: only a request for one gets it."""
        return set()

    def _claim_directory(self, connection: Connection, directory: str, run: str) -> bool:
        return claims.claim(connection, directory)
