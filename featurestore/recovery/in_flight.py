"""Writes in flight: each records an intent before it begins, which is always resolved."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from featurestore.errors import FeatureStoreError, StorageError, WriteConflict
from featurestore.model.paths import StorePaths
from featurestore.plugins.engine import Engine
from featurestore.plugins.observers import Work, WorkKind, observed
from featurestore.recovery import datasets, groups, liveness, models, views
from featurestore.recovery.liveness import Store
from featurestore.recovery.recover import resolve
from featurestore.registry import Registry, intents
from featurestore.storage import files, storage_for

# Kinds that are reported to observers; the other intents are parts of these, or change no rows.
_WORK_KINDS: Mapping[str, WorkKind] = {
    "create": "create",
    "write": "write",
    "delete": "delete",
    "export": "export",
    "remove": "remove",
}
# Intents of ended writes of this process that are not resolved, by registry.
_pending_intents: set[tuple[str, str]] = set()


class Writer(Store, Protocol):
    """The session of a write; its engine determines where staged rows are read."""

    @property
    def engine(self) -> Engine:
        """The engine of the session."""


@dataclass
class InFlight:
    """A write between its intent and its registration.

    ``run_id`` is the id of the run in commits and manifests, ``stage`` the staging directory,
    ``version`` the claimed version. ``committed_version`` is the published version, once it is
    known; ``registered`` is True once the registry has the result, ``publishing`` once a crash would
    leave unknown whether a version was published.
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
        """The staging directory in the store; it is removed at the end."""
        self.is_staged = True
        return self.stage

    @property
    def rows(self) -> str:
        """The directory of staged rows.

        Below a URI it is a local directory, unless other machines read the rows.
        """
        if self._rows is None:
            if self.stages_locally() and not storage_for(self.stage).is_local:
                self._rows = files.temporary_directory()
            else:
                self._rows = self.staging
        return self._rows

    def remove_rows(self) -> None:
        """Remove the rows staged on this machine."""
        if self._rows is not None and self._rows != self.stage:
            files.remove_temporary(self._rows)

    def check_intent(self) -> None:
        """Check before publication that no other process has resolved the intent.

        Raises:
            WriteConflict: Another process considered this one dead; nothing was published.
        """
        with self.registry.reading() as connection:
            has_intent = intents.find(connection, self.intent) is not None
        if not has_intent:
            raise WriteConflict(
                "Another process considered this write dead and cleaned up after it: "
                f"no heartbeat was recorded for {liveness.HEARTBEAT_TIMEOUT.total_seconds():.0f} seconds.",
                hint="write again",
            )
        self.publishing = True


def new_run_id() -> str:
    """Return an id for a run."""
    return uuid.uuid4().hex


@contextmanager
def in_flight(
    store: Writer, *, kind: str, name: str, version: int | None, run_id: str | None = None
) -> Iterator[InFlight]:
    """Record the intent of a write while the block runs.

    Afterwards remove the stage, and resolve the intent if the write was not registered. An intent
    that cannot be resolved (the registry is locked, the disk is full) remains, and is resolved
    before the next write of this process, or at a connect after its end.

    Args:
        store: The session.
        kind: A kind of ``registry.intents.Intent``.
        name: The name of the group or dataset.
        version: The version; None for the next one of a training dataset or feature view.
        run_id: The id of a run that writes more than once; None: the id of the intent.

    Raises:
        FeatureGroupExists: The version to create exists, or another process is creating it.
        FeatureViewExists: The version to define exists, or another process is writing it.
        TrainingDatasetExists: The version to export exists, or another process is exporting it.
    """
    # A job's run may write more than once with the same run id, so the intent has its own id.
    intent_id = new_run_id()
    write: InFlight | None = None
    try:
        with (
            liveness.heartbeat(store.registry, store.location) as owner,
            liveness.renewed_lease(store.location, intent_id),
        ):
            claimed_version = _begin(store, intent_id, owner, kind=kind, name=name, version=version)
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
                if kind == "export":
                    datasets.make_directory(store.location, name, claimed_version)
                with _notify_observers(store, write, kind, name):
                    yield write
            except BaseException:
                is_resolved = _finish(store, write, unregistered=True)
                if kind == datasets.EXPORT and is_resolved and not write.publishing:
                    with suppress(StorageError):  # the version is not used again then
                        datasets.release(StorePaths(store.location), name, claimed_version)
                raise
            # If the registration of a commit has just failed, it is not retried here.
            _finish(store, write, unregistered=write.committed_version is None)
    except BaseException as error:
        if write is not None and write.committed_version is not None:
            error.add_note(
                f"The rows of this write were committed as version {write.committed_version}: "
                "do not write them again."
            )
        raise


@contextmanager
def _notify_observers(store: Store, write: InFlight, kind: str, name: str) -> Iterator[None]:
    """Notify observers of a write, by the id of its intent."""
    if kind not in _WORK_KINDS:
        yield
        return
    work = Work(_WORK_KINDS[kind], name, write.intent, store.location, write.version)
    with observed(work):
        try:
            yield
        finally:
            work.committed_version = write.committed_version


def _begin(
    store: Store, intent_id: str, owner: str, *, kind: str, name: str, version: int | None
) -> int:
    _resolve_pending(store)
    with store.registry.transaction() as connection:
        if kind == "create" and version is not None:
            claimed_version = groups.claim(connection, store.location, name, version)
        elif kind == "export":
            claimed_version = datasets.claim(
                connection, store.location, name, version, run=intent_id
            )
        elif kind == views.DEFINE:
            claimed_version = views.claim(connection, store.location, name, version)
        elif kind == models.REGISTER:
            claimed_version = models.claim(connection, store.location, name, version)
        else:
            claimed_version = version or 1
        intents.record_heartbeat(connection, owner)
        intents.begin(
            connection, run_id=intent_id, kind=kind, name=name, version=claimed_version, owner=owner
        )
    return claimed_version


def _finish(store: Store, write: InFlight, *, unregistered: bool) -> bool:
    """End an intent, and return True if it has ended.

    Errors are suppressed, since the write already has its result or its error.
    """
    key = store.registry.url, write.intent
    _pending_intents.add(key)
    write.remove_rows()
    try:
        if write.is_staged:
            files.remove(write.stage, below=store.location)
        if write.registered:
            with store.registry.transaction() as connection:
                intents.end(connection, write.intent)
        elif unregistered:
            _resolve(store, write.intent)
        else:
            return False
    except (FeatureStoreError, OSError, SQLAlchemyError):
        return False
    _pending_intents.discard(key)
    return True


def _resolve_pending(store: Store) -> None:
    """Resolve the pending intents of ended writes of this process."""
    for url, intent_id in list(_pending_intents):
        if url != store.registry.url:
            continue
        with suppress(FeatureStoreError, OSError):
            _resolve(store, intent_id)
            _pending_intents.discard((url, intent_id))


def _resolve(store: Store, intent_id: str) -> None:
    with store.registry.transaction() as connection:
        intent = intents.find(connection, intent_id)
        if intent is not None:  # else another process has resolved it
            resolve(connection, store.location, intent)
