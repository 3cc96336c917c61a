"""Writes in flight: an intent recorded before the write begins, settled whatever becomes of it."""

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
from featurestore.recovery import datasets, groups, lease_objects, models, owners, views
from featurestore.recovery.owners import Store
from featurestore.recovery.settle import settle
from featurestore.registry import Registry, intents
from featurestore.registry import owners as heartbeats
from featurestore.storage import files
from featurestore.storage.location import is_uri

# What observers are told of; the other intents are parts of these, or change no rows.
_WORK: Mapping[str, WorkKind] = {
    "create": "create",
    "write": "write",
    "delete": "delete",
    "export": "export",
    "remove": "remove",
}
# Intents of this process, by registry, whose writes have ended without being settled.
_unsettled: set[tuple[str, str]] = set()


class Writer(Store, Protocol):
    """What a write needs of a session: its engine says who reads the rows that it stages."""

    @property
    def engine(self) -> Engine:
        """The engine of the session."""


@dataclass
class InFlight:
    """One write between its intent and its registration.

    ``run_id`` names the run in commits and manifests, ``stage`` is the directory of what it stages,
    ``version`` is what was claimed. ``landed`` is the version that it published, as soon as it is
    known that there is one; ``registered`` says that the registry knows the result, ``publishing``
    that nobody can tell from here on whether a version was published.
    """

    run_id: str
    stage: str
    version: int
    intent: str
    registry: Registry
    registered: bool = False
    landed: int | None = None
    publishing: bool = False
    stages_here: Callable[[], bool] = field(default=lambda: False, repr=False)
    is_staged: bool = False
    _rows: str | None = None

    @property
    def staging(self) -> str:
        """The directory in the store for what the write stages; it is removed at the end."""
        self.is_staged = True
        return self.stage

    @property
    def rows(self) -> str:
        """The directory for its staged rows: below a URI it is one of this machine.

        In the store only where other machines read them.
        """
        if self._rows is None:
            if is_uri(self.stage) and self.stages_here():
                self._rows = files.temporary_directory()
            else:
                self._rows = self.staging
        return self._rows

    def remove_rows(self) -> None:
        """Remove what was staged on this machine."""
        if self._rows is not None and self._rows != self.stage:
            files.remove_temporary(self._rows)

    def check_held(self) -> None:
        """Make sure, just before publication, that nobody took this process for dead.

        Raises:
            WriteConflict: Another process did; nothing was published.
        """
        with self.registry.reading() as connection:
            held = intents.find(connection, self.intent) is not None
        if not held:
            raise WriteConflict(
                "Another process took this write for dead and cleaned up after it: "
                f"no heartbeat came through for {owners.PATIENCE.total_seconds():.0f} seconds.",
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
    """Record an intent.

    Afterwards remove the stage, and settle what the write left if it did not register itself.

    What cannot be settled (the registry is locked, the disk is full) keeps its intent, and is
    settled before the next write of this process, or at a connect after its end.

    Args:
        store: The session.
        kind: One of those that ``registry.intents.Intent`` lists.
        name: The group or dataset.
        version: Its version; None for the next one of a training dataset or feature view.
        run_id: The id of a run that writes more than once; else the intent gives its own.

    Raises:
        FeatureGroupExists: The version to create exists, or another process is creating it.
        FeatureViewExists: The version to define exists, or another process is writing it.
        TrainingDatasetExists: The version to export exists, or another process is exporting it.
    """
    # The id of a run may come from a job that writes more than once; the intent has its own.
    own = new_run_id()
    write: InFlight | None = None
    try:
        with (
            owners.heartbeat(store.registry, store.location) as owner,
            lease_objects.renewed(store.location, own),
        ):
            number = _begin(store, own, owner, kind=kind, name=name, version=version)
            staging = StorePaths(store.location).stage(own)
            write = InFlight(
                run_id or own,
                staging,
                number,
                own,
                store.registry,
                stages_here=lambda: not store.engine.is_distributed,
            )
            try:
                if kind == "export":
                    datasets.make_directory(store.location, name, number)
                with _observed(store, write, kind, name):
                    yield write
            except BaseException:
                settled = _finish(store, write, unregistered=True)
                if kind == datasets.EXPORT and settled and not write.publishing:
                    with suppress(StorageError):  # the number is not used again then
                        datasets.release(StorePaths(store.location), name, number)
                raise
            # Where the registry has just refused to register what landed, it is not asked again.
            _finish(store, write, unregistered=write.landed is None)
    except BaseException as error:
        if write is not None and write.landed is not None:
            error.add_note(
                f"The rows of this write had landed as version {write.landed}: "
                "do not write them again."
            )
        raise


@contextmanager
def _observed(store: Store, write: InFlight, kind: str, name: str) -> Iterator[None]:
    """Tell observers of a write, by the id of its intent: a job's run may write more than once."""
    if kind not in _WORK:
        yield
        return
    work = Work(_WORK[kind], name, write.intent, store.location, write.version)
    with observed(work):
        try:
            yield
        finally:
            work.landed = write.landed


def _begin(store: Store, own: str, owner: str, *, kind: str, name: str, version: int | None) -> int:
    _settle_left(store)
    with store.registry.transaction() as connection:
        if kind == "create" and version is not None:
            number = groups.claim(connection, store.location, name, version)
        elif kind == "export":
            number = datasets.claim(connection, store.location, name, version, run=own)
        elif kind == views.DEFINE:
            number = views.claim(connection, store.location, name, version)
        elif kind == models.ENTER:
            number = models.claim(connection, store.location, name, version)
        else:
            number = version or 1
        heartbeats.record(connection, owner)
        intents.begin(connection, run_id=own, kind=kind, name=name, version=number, owner=owner)
    return number


def _finish(store: Store, write: InFlight, *, unregistered: bool) -> bool:
    """End an intent, and tell whether it has ended.

    No error leaves, since the write has its result, or its error, already.
    """
    left = store.registry.url, write.intent
    _unsettled.add(left)
    write.remove_rows()
    try:
        if write.is_staged:
            files.remove(write.stage, below=store.location)
        if write.registered:
            with store.registry.transaction() as connection:
                intents.end(connection, write.intent)
        elif unregistered:
            _settle(store, write.intent)
        else:
            return False
    except (FeatureStoreError, OSError, SQLAlchemyError):
        return False
    _unsettled.discard(left)
    return True


def _settle_left(store: Store) -> None:
    """Settle the writes of this process that could not be settled when they ended."""
    for url, own in list(_unsettled):
        if url != store.registry.url:
            continue
        with suppress(FeatureStoreError, OSError):
            _settle(store, own)
            _unsettled.discard((url, own))


def _settle(store: Store, own: str) -> None:
    with store.registry.transaction() as connection:
        intent = intents.find(connection, own)
        if intent is not None:  # else another process took this one for dead
            settle(connection, store.location, intent)
