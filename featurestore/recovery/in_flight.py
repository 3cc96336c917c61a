"""Writes in flight: each write records an intent, which is resolved even after a crash."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from featurestore.errors import FeatureStoreError, StorageError, WriteConflict
from featurestore.plugins.engine import Engine
from featurestore.plugins.observers import Work, WorkKind, observed
from featurestore.recovery import claims, liveness
from featurestore.recovery.datasets import DATASETS
from featurestore.recovery.groups import GROUPS
from featurestore.recovery.liveness import Store
from featurestore.recovery.recover import VERSIONED, resolve
from featurestore.registry import Registry, intents, origins
from featurestore.registry.origins import Object
from featurestore.registry.recorded_reads import ReadRecorder
from featurestore.storage import StorePaths, storage_for
from featurestore.storage.temporary import remove_temporary, temporary_directory

# Intents reported to observers. The other intents are steps of these or do not change rows.
_WORK_KINDS: Mapping[str, WorkKind] = {
    "create": "create",
    "write": "write",
    "delete": "delete",
    "export": "export",
    "remove": "remove",
}
# The objects that intents create, or to which they add rows.
_CREATED_OBJECTS = {objects.creation: objects for objects in VERSIONED}
_WRITTEN_OBJECTS = {**_CREATED_OBJECTS, "write": GROUPS}
# (location, intent id) of writes that ended in this process and are not resolved yet.
_pending_intents: set[tuple[str, str]] = set()


class WritingStore(Store, Protocol):
    """A session that writes; its engine determines where staged rows are stored."""

    @property
    def engine(self) -> Engine:
        """The engine of the session."""

    @property
    def recorder(self) -> ReadRecorder | None:
        """The recorder of the job or run that writes."""


@dataclass
class InFlight:
    """A write that has an intent and is not registered yet.

    ``run_id`` is the run id in commits and manifests, ``stage`` the staging directory, and
    ``version`` the claimed version. ``publishing`` becomes True when publication begins, after
    which a crash leaves the outcome unknown. ``committed_version`` is the published version, None
    until it is known. ``registered`` becomes True when the registry contains the result.
    """

    run_id: str
    stage: str
    version: int
    intent: str
    registry: Registry
    registered: bool = False
    committed_version: int | None = None
    publishing: bool = False
    stages_locally: Callable[[], bool] = field(default=lambda: False, repr=False)
    is_staged: bool = False
    _rows: str | None = None

    @property
    def staging(self) -> str:
        """The staging directory in the store, which is removed at the end of the write."""
        self.is_staged = True
        return self.stage

    @property
    def rows(self) -> str:
        """The directory for staged rows.

        For object stores it is a local directory, unless other machines read the rows.
        """
        if self._rows is None:
            # Rows that only this machine reads need not be uploaded and downloaded again.
            if self.stages_locally() and not storage_for(self.stage).is_local:
                self._rows = temporary_directory()
            else:
                self._rows = self.staging
        return self._rows

    def remove_rows(self) -> None:
        """Remove the rows that were staged in a local directory."""
        if self._rows is not None and self._rows != self.stage:
            remove_temporary(self._rows)

    def check_intent(self) -> None:
        """Check before publication that the intent was not resolved by another process.

        Raises:
            WriteConflict: Another process considered this process dead; nothing was published.
        """
        with self.registry.reading() as connection:
            has_intent = intents.find(connection, self.intent) is not None
        if not has_intent:
            raise WriteConflict(
                "Another process considered this write dead and cleaned up after it: "
                f"no heartbeat was recorded for {liveness.HEARTBEAT_TIMEOUT.total_seconds():.0f} seconds.",
                hint="repeat the write",
            )
        self.publishing = True


def new_run_id() -> str:
    """Return a new random run id."""
    return uuid.uuid4().hex


@contextmanager
def in_flight(
    store: WritingStore,
    *,
    operation: str,
    name: str,
    version: int | None,
    run_id: str | None = None,
) -> Iterator[InFlight]:
    """Record the intent of a write for the duration of a ``with`` block.

    At the end, the staged files are removed, and the intent is resolved if the write was not
    registered. If this fails (locked registry, full disk), the intent is resolved before the next
    write of this process, or at the next connect of any process.

    Args:
        store: The session.
        operation: A kind of ``registry.intents.Intent``.
        name: The name of the group or dataset.
        version: The version; None for the next version of a training dataset, view or model.
        run_id: The id of a run with several writes; None for the id of the intent.

    Raises:
        FeatureGroupExists: The version to create exists, or another process is creating it.
        FeatureViewExists: The version to define exists, or another process is writing it.
        TrainingDatasetExists: The version to export exists, or another process is exporting it.
    """
    # A job run may write several times with the same run id, so the intent has a separate id.
    intent_id = new_run_id()
    write: InFlight | None = None
    try:
        with (
            liveness.heartbeat(store.registry, store.location) as owner,
            liveness.hold_write_lease(store.location, intent_id),
        ):
            claimed_version = _record_intent(
                store, intent_id, owner, operation=operation, name=name, version=version
            )
            # The intent is recorded before any file is written, so that recovery knows all files of
            # the write.
            staging = StorePaths(store.location).stage(intent_id)
            write = InFlight(
                run_id or intent_id,
                staging,
                claimed_version,
                intent_id,
                store.registry,
                stages_locally=lambda: not store.engine.is_distributed,
            )
            try:
                if operation == DATASETS.creation:
                    DATASETS.make_directory(StorePaths(store.location), name, claimed_version)
                with _notify_observers(store, write, operation, name):
                    yield write
            except BaseException:
                is_resolved = _end_intent(store, write, needs_resolution=True)
                # Once publication has begun, a delayed request could still write the manifest. The
                # claim then remains, and the version number is not used again.
                if operation == DATASETS.creation and is_resolved and not write.publishing:
                    directory = DATASETS.directory(
                        StorePaths(store.location), name, claimed_version
                    )
                    with suppress(StorageError):  # the version is not used again then
                        claims.release(directory, below=store.location)
                raise
            # A failed registration of a committed write is not retried immediately.
            _end_intent(store, write, needs_resolution=write.committed_version is None)
    except BaseException as error:
        if write is not None and write.committed_version is not None:
            error.add_note(
                f"The rows of this write were committed as version {write.committed_version}: "
                "do not write them again."
            )
        raise
    finally:
        if intent_id in {pending_id for _, pending_id in _pending_intents}:
            liveness.release_owner(store.location)
        if write is not None and store.recorder is not None and operation in _WRITTEN_OBJECTS:
            object_kind = _WRITTEN_OBJECTS[operation].table.object_kind
            store.recorder.remove_output(Object(object_kind, name, write.version))


@contextmanager
def _notify_observers(store: Store, write: InFlight, operation: str, name: str) -> Iterator[None]:
    """Notify observers of the start and end of a write."""
    if operation not in _WORK_KINDS:
        yield
        return
    # The intent id is unique, whereas several writes of a job run have the same run id.
    work = Work(_WORK_KINDS[operation], name, write.intent, store.location, write.version)
    with observed(work):
        try:
            yield
        finally:
            work.committed_version = write.committed_version


def _record_intent(
    store: WritingStore,
    intent_id: str,
    owner: str,
    *,
    operation: str,
    name: str,
    version: int | None,
) -> int:
    """Claim the version of a write and record its intent in one transaction."""
    # Earlier writes of this process whose intents could not be resolved when they ended.
    for location, pending_id in list(_pending_intents):
        if location == store.location:
            with suppress(FeatureStoreError, OSError):
                _resolve_intent(store, pending_id)
                _pending_intents.discard((location, pending_id))
    with store.registry.transaction() as connection:
        claimed_version = version or 1
        if operation in _CREATED_OBJECTS:
            claimed_version = _CREATED_OBJECTS[operation].claim(
                connection, store.location, name, version, run=intent_id
            )
        # The heartbeat thread starts with a pause. Without this heartbeat, other machines would
        # consider the owner dead until then.
        intents.record_heartbeat(connection, owner)
        intents.begin(
            connection,
            run_id=intent_id,
            kind=operation,
            name=name,
            version=claimed_version,
            owner=owner,
        )
        # Stored before the write, since recovery after a crash cannot determine the reads of the job.
        if operation in _WRITTEN_OBJECTS:
            object_kind = _WRITTEN_OBJECTS[operation].table.object_kind
            output = Object(object_kind, name, claimed_version)
            if operation in _CREATED_OBJECTS:
                origins.begin(connection, output)
            if store.recorder is not None:
                store.recorder.add_output(connection, output)
    return claimed_version


def _end_intent(store: Store, write: InFlight, *, needs_resolution: bool) -> bool:
    """End or resolve the intent of a write, and return True on success.

    Errors are suppressed, since the write already has a result or an error.
    """
    key = store.location, write.intent
    # Added first, so that the intent remains pending even if Ctrl-C interrupts its resolution.
    _pending_intents.add(key)
    write.remove_rows()
    try:
        if write.is_staged:
            storage_for(write.stage).remove(write.stage, below=store.location)
        if write.registered:
            with store.registry.transaction() as connection:
                intents.end(connection, write.intent)
        elif needs_resolution:
            _resolve_intent(store, write.intent)
        else:
            return False
    except (FeatureStoreError, OSError, SQLAlchemyError):
        return False
    _pending_intents.discard(key)
    return True


def _resolve_intent(store: Store, intent_id: str) -> None:
    with store.registry.transaction() as connection:
        intent = intents.find(connection, intent_id)
        if intent is not None:  # else another process has resolved it
            resolve(connection, store.location, intent)
