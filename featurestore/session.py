"""The session of a store connection, shared by all handles: location, engine and registry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import sqlalchemy as sa

from featurestore import _current
from featurestore.model.paths import FEATUREGROUPS, STAGING, TRAININGDATASETS
from featurestore.model.runtime import ForkSafeLock
from featurestore.plugins import load_plugin
from featurestore.plugins.engine import find_entry_point
from featurestore.registry.origins import GROUP, JOB, Object
from featurestore.registry.recorded_reads import ReadRecorder, recorder_of_run
from featurestore.registry.tables import featuregroups, job_states
from featurestore.storage import StorePaths, storage_for

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine
    from featurestore.registry import Registry
    from featurestore.storage import Storage

__all__ = ["FEATUREGROUPS", "STAGING", "TRAININGDATASETS", "Session"]


class DeferredEngine:
    """An engine that is created on first use, since many calls read only the registry.

    The import of an engine takes a tenth of a second or more.

    Raises:
        InvalidArgument: No engine with this name is installed.
    """

    def __init__(self, name: str, *, durability: str) -> None:
        self._entry_point = find_entry_point(name)
        self._durability = durability
        self._lock = ForkSafeLock()
        self._engine: Engine | None = None
        self._is_closed = False

    def open(self) -> Engine:
        """Return the engine; all calls return the same one."""
        with self._lock:
            if self._engine is None:
                self._engine = load_plugin(self._entry_point)(durability=self._durability)
                if self._is_closed:
                    # Calls of a closed store get the error of a closed engine.
                    self._engine.close()
            return self._engine

    def close(self) -> None:
        """Close the engine if it was created."""
        with self._lock:
            self._is_closed = True
            if self._engine is not None:
                self._engine.close()


@dataclass(frozen=True)
class Session:
    """A connection to a store."""

    location: str
    engine_source: Engine | DeferredEngine = field(repr=False)
    registry: Registry = field(repr=False)
    # The recorder of the job or run that got this session.
    reads: ReadRecorder | None = field(default=None, repr=False)

    @property
    def recorder(self) -> ReadRecorder | None:
        """The recorder of the job or run that uses this session, None outside of jobs and runs."""
        recorder = self.reads or _current.recorder.get()
        if recorder is None and _current.run_directory is not None:
            recorder = recorder_of_run(_current.run_directory)
        if recorder is None or recorder.location != self.location:
            return None
        if recorder.registry is None:
            recorder.connect(self.registry)
        return recorder

    def record_read(self, object_kind: str, name: str, version: int = 1) -> None:
        """Store that a job or run reads an object, before its first row is delivered."""
        recorder = self.recorder
        if recorder is not None:
            recorder.record(Object(object_kind, name, version))

    def record_reads(self, object_kind: str, versions: Iterable[tuple[str, int]]) -> None:
        """Store that a job or run reads several objects, such as those of a list."""
        recorder = self.recorder
        if recorder is not None:
            recorder.record(*(Object(object_kind, name, version) for name, version in versions))

    def record_everything(self) -> None:
        """Store that a job or run reads figures or messages about all groups and jobs."""
        recorder = self.recorder
        if recorder is not None:
            with self.registry.reading() as connection:
                groups = connection.execute(
                    sa.select(featuregroups.c.name, featuregroups.c.version)
                )
                job_names = connection.execute(sa.select(job_states.c.name)).scalars()
                objects = [Object(GROUP, name, version) for name, version in groups]
                objects += [Object(JOB, name) for name in job_names]
            recorder.record(*objects)

    @property
    def engine(self) -> Engine:
        """The engine, which is created now if no call has needed it before.

        In a job or run, it records the tables that it reads.
        """
        engine = self.engine_source
        if isinstance(engine, DeferredEngine):
            engine = engine.open()
        recorder = self.recorder
        return engine if recorder is None else recorder.engine(engine)

    def close(self) -> None:
        """Close the connections of the registry and the engine."""
        self.registry.close()
        self.engine_source.close()

    @cached_property
    def storage(self) -> Storage:
        """The storage of the store's location."""
        return storage_for(self.location)

    @cached_property
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
