"""Recovery of feature views: registration, removal and claims of versions."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureViewDamaged, FeatureViewExists
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.paths import VIEW_FILE
from featurestore.recovery.versioned import VersionedObjects
from featurestore.registry.artifacts import feature_views
from featurestore.storage import StorePaths, storage_for


class FeatureViews(VersionedObjects[FeatureViewSpec]):
    """Definitions of views; training datasets of the same name may refer to a version."""

    table = feature_views
    creation, removal = "define", "undefine"
    folder = "feature_views"
    file_name = VIEW_FILE
    exists_error = FeatureViewExists
    registered_from = "file"
    unpublished = f"it has no {VIEW_FILE}"

    def read(self, directory: str, name: str, version: int) -> FeatureViewSpec:
        path = self.published_file(directory)
        spec = FeatureViewSpec.from_bytes(storage_for(path).read_bytes(path), path=path)
        if (spec.name, spec.version) != (name, version):
            raise FeatureViewDamaged(
                f"{directory!r} contains the feature view {spec.name!r} version {spec.version}.",
                hint="restore the directory, or delete the view and create it again",
            )
        return spec

    def register(
        self, connection: Connection, directory: str, name: str, version: int
    ) -> FeatureViewSpec:
        spec = self.read(directory, name, version)
        feature_views.add(connection, spec)
        return spec

    def versions_on_disk(self, paths: StorePaths, name: str) -> list[int]:
        """Return the published versions: the number of a directory that a crash left is free."""
        return [
            version
            for version in super().versions_on_disk(paths, name)
            if self.is_published(self.directory(paths, name, version))
        ]

    def _reserved_versions(self, connection: Connection, name: str) -> set[int]:
        return set(feature_views.used_versions(connection, name))


VIEWS = FeatureViews()
