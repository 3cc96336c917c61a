"""Recorded reads: what a job or run has read is stored as its origins before the first row.

A recorder belongs to the session that a job gets, and to the thread that calls its function, so
that reads of a store that the function opens itself are recorded, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from featurestore import _current
from featurestore.model.run_record import RUN_FILE, RunRecord
from featurestore.model.runtime import ForkSafeLock
from featurestore.registry import origins
from featurestore.registry.origins import RUN, Object
from featurestore.storage import storage_for

if TYPE_CHECKING:
    from featurestore.model.plan import FeaturePlan
    from featurestore.plugins.engine import Engine
    from featurestore.registry import Registry


class ReadRecorder:
    """Records the reads of a job or run as origins of its readers and of the objects it writes.

    Args:
        location: The store of the job or run; reads of other stores are not recorded.
        readers: The job, or the run and its study.
        registry: The registry of the store; a worker process of a run has none before it connects.
    """

    def __init__(
        self, location: str, readers: Iterable[Object], *, registry: Registry | None = None
    ) -> None:
        self.location = location
        self.registry = registry
        self._readers = tuple(readers)
        self._lock = ForkSafeLock()
        self._reads: dict[Object, None] = {}
        self._outputs: list[Object] = []
        self._engines: dict[int, tuple[Engine, Engine]] = {}

    @property
    def reads(self) -> tuple[Object, ...]:
        """The objects that were read, oldest read first."""
        with self._lock:
            return tuple(self._reads)

    def connect(self, registry: Registry) -> None:
        """Set the registry of a run, and store what the run read before; raise like ``record``."""
        self.registry = registry
        _current.run_recorder = self
        while _current.earlier_paths:
            self.record_path(_current.earlier_paths.pop())

    def record(self, *versions: Object) -> None:
        """Store reads in the registry; the caller delivers no row before this returns.

        Raises:
            RegistryError: The reads cannot be stored, so the rows must not be read.
        """
        registry = self.registry
        # A read-only registry has no jobs; a run of another machine cannot store its reads there.
        if registry is None or registry.is_copy:
            return
        updated_objects: set[Object] = set()
        while True:
            with self._lock:
                new_reads = [version for version in versions if version not in self._reads]
                pending = {*self._readers, *self._outputs} - updated_objects
                # A write of another thread may have begun meanwhile.
                if not pending:
                    self._reads.update(dict.fromkeys(new_reads))
                if not new_reads or not pending:
                    return
            # Not under the lock: a write with the lock of the registry may wait for this lock.
            _store(registry, pending, new_reads)
            updated_objects |= pending

    def record_inputs(self, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Store the reads of a frame, which are its lineage inputs."""
        if self.registry is not None and inputs:
            with self.registry.reading() as connection:
                objects = origins.find_objects(connection, inputs)
            self.record(*objects)

    def record_path(self, path: str) -> None:
        """Store a read of the table, quarantine, statistics or files at a path."""
        below = path.removeprefix(f"{self.location.rstrip('/')}/")
        parsed = None if below == path else origins.parse_path(below)
        if parsed is not None:
            object_kind, name, version = parsed
            self.record(Object(object_kind, name, version or 1))

    def add_output(self, connection: Connection, output: Object) -> None:
        """Store earlier and later reads as origins of an object to be written."""
        with self._lock:
            origins.record(connection, output, self._reads)
            self._outputs.append(output)

    def remove_output(self, output: Object) -> None:
        """Stop adding origins to an object whose write has ended."""
        with self._lock:
            if output in self._outputs:
                self._outputs.remove(output)

    def engine(self, engine: Engine) -> Engine:
        """Return an engine with the same state that records the tables it reads."""
        with self._lock:
            if id(engine) not in self._engines:
                recording = _recording_engine(engine, self.record_path)
                # The engine is stored as well, because its id could otherwise be used again.
                self._engines[id(engine)] = engine, recording
            return self._engines[id(engine)][1]


def _store(registry: Registry, derived: Iterable[Object], reads: Collection[Object]) -> None:
    """Store the origins of several objects; a transaction is needed only for new origins."""
    with registry.reading() as connection:
        missing = [
            reader for reader in derived if not origins.are_recorded(connection, reader, reads)
        ]

    def write(connection: Connection) -> None:
        for reader in sorted(missing):
            origins.record(connection, reader, reads)

    if missing:
        registry.write_joined(write)


@lru_cache(maxsize=1)
def recorder_of_run(directory: str) -> ReadRecorder:
    """Return the recorder of the experiment run in a directory of the store."""
    record = RunRecord.from_bytes(
        storage_for(directory).read_bytes(os.path.join(directory, RUN_FILE))
    )
    # A study displays the results of its trials.
    run_ids = [record.id] if record.parent is None else [record.id, record.parent]
    location = os.path.dirname(os.path.dirname(os.path.dirname(directory)))
    return ReadRecorder(location, [Object(RUN, run_id) for run_id in run_ids])


@contextmanager
def recording(recorder: ReadRecorder) -> Iterator[ReadRecorder]:
    """Record the reads of all sessions of this thread in the ``with`` block."""
    token = _current.recorder.set(recorder)
    try:
        yield recorder
    finally:
        _current.recorder.reset(token)


def _recording_engine(engine: Engine, record_path: Callable[[str], None]) -> Engine:
    """Return an engine that shares the attributes of another, and records paths before reading."""

    # A subclass instead of a wrapper: engines are tested for the optional protocols of their class.
    class Recording(type(engine)):  # type: ignore[misc]
        def read_table(self, path: str, **options: Any) -> Any:
            record_path(path)
            return super().read_table(path, **options)

        def read_files(self, paths: Any, **options: Any) -> Any:
            paths = list(paths)
            for path in paths:
                record_path(path)
            return super().read_files(paths, **options)

        def retrieve(self, plan: FeaturePlan, **options: Any) -> Any:
            for source in plan.sources:
                record_path(source.path)
            return super().retrieve(plan, **options)

    Recording.__name__ = type(engine).__name__
    recording_engine: Engine = object.__new__(Recording)
    recording_engine.__dict__ = engine.__dict__
    return recording_engine
