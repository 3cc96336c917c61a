"""What every handle holds: location, engine and registry of one connection, frozen."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine
    from featurestore.registry import Registry

FEATUREGROUPS = "featuregroups"
TRAININGDATASETS = "trainingdatasets"
STAGING = "_staging"


@dataclass(frozen=True)
class Session:
    """One connection to a store."""

    location: str
    engine: Engine = field(repr=False)
    registry: Registry = field(repr=False)

    def featuregroup_path(self, name: str, version: int) -> str:
        """Return the directory of a group's Delta table."""
        return os.path.join(self.location, FEATUREGROUPS, name, f"v{version}")

    def quarantine_path(self, name: str, version: int) -> str:
        """Return the directory of a group's quarantine table."""
        return os.path.join(self.location, FEATUREGROUPS, name, f"v{version}_quarantine")

    def training_dataset_path(self, name: str, version: int) -> str:
        """Return the directory of a training dataset."""
        return os.path.join(self.location, TRAININGDATASETS, name, f"v{version}")

    def staging_path(self, run_id: str) -> str:
        """Return the staging directory of one run, which the run removes."""
        return os.path.join(self.location, STAGING, run_id)

    @property
    def logs_path(self) -> str:
        """Return the directory of log files of jobs."""
        return os.path.join(self.location, "_logs")
