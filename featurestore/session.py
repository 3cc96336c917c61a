"""The session of a store connection, shared by all handles: location, engine and registry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from featurestore.model.paths import FEATUREGROUPS, STAGING, TRAININGDATASETS, StorePaths
from featurestore.plugins.engine import DeferredEngine

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine
    from featurestore.registry import Registry

__all__ = ["FEATUREGROUPS", "STAGING", "TRAININGDATASETS", "Session"]


@dataclass(frozen=True)
class Session:
    """A connection to a store."""

    location: str
    engine_source: Engine | DeferredEngine = field(repr=False)
    registry: Registry = field(repr=False)

    @property
    def engine(self) -> Engine:
        """The engine, which is created now if no call has needed it before."""
        if isinstance(self.engine_source, DeferredEngine):
            return self.engine_source.open()
        return self.engine_source

    def close(self) -> None:
        """Close the connections of the registry and the engine."""
        self.registry.close()
        self.engine_source.close()

    @property
    def paths(self) -> StorePaths:
        """The paths of the store."""
        return StorePaths(self.location)

    def featuregroup_path(self, name: str, version: int) -> str:
        """Return the path of a group's Delta table."""
        return self.paths.featuregroup(name, version)

    def quarantine_path(self, name: str, version: int) -> str:
        """Return the path of a group's quarantine table."""
        return self.paths.quarantine(name, version)

    def training_dataset_path(self, name: str, version: int) -> str:
        """Return the path of a training dataset."""
        return self.paths.training_dataset(name, version)

    @property
    def logs_path(self) -> str:
        """Return the path of the job log directory."""
        return self.paths.logs
