"""Owners of published views: the checks of readers and publishers, and the publisher's lease.

A state record has the name of its view. The same name may be that of another view: in another
feature store that uses the same online store, or with a group that was deleted and created again.

One process at a time publishes a version of a view: the owner of the lease in the state record,
which extends it with heartbeats. Another process takes the lease over after it expires, or at once
if the owner was a process of this machine that has ended. The former owner may still write values,
but none that a reader prefers: values of a group are ordered by their Delta version, each full
publication has its own generation, and the state record changes only for the owner of the current
lease. Owners and generations are random: a server that was emptied, or has an older record, does not
repeat them.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from featurestore.errors import (
    NotPublished,
    OnlineWritesLost,
    PublicationSuperseded,
    PublishedStateDamaged,
    PublishedValueMismatch,
)
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.online_store import EMBEDDED
from featurestore.model.threads import translate_thread_errors
from featurestore.plugins.online import OnlineStore
from featurestore.registry import featuregroups, online_stores
from featurestore.serving.state import Lease, Origin, PublishedView, ViewState
from featurestore.serving.stores import OnlineReads, StoreClock, open_online_store, server_identity
from featurestore.session import Session
from featurestore.storage.locks import process_namespace

_DURATION = timedelta(seconds=30)
_POLL_SECONDS = 0.2
# JSON numbers of the state record have 63 bits.
_MAX_TOKEN = 2**62
# The owners of this process. The lease of another one has ended, also if the server was not available
# at its end, or has an older record since.
_active_owners: set[str] = set()


def read_state(session: Session, spec: FeatureViewSpec, online: str | None) -> ViewState:
    """Return the state of a published view; see ``read_server_state``."""
    state, _ = read_server_state(session, spec, online)
    return state


def read_server_state(
    session: Session, spec: FeatureViewSpec, online: str | None
) -> tuple[ViewState, bool]:
    """Return the state of a published view, and whether its server may have lost values since.

    Raises:
        NotPublished: The view is not published to the online store.
        PublishedValueMismatch: The values are those of other tables.
        PublishedStateDamaged: The state differs from what was written.
    """
    with closing(open_online_store(session, online)) as store:
        view = PublishedView(spec.name, spec.version, store.config.name)
        reads = OnlineReads(store)
        (content,) = reads.read([view.key])
        state = ViewState.parse(content, view)
        check_published(session, state, view)
        return state, reads.server_identity() not in (None, state.server)


def check_published(session: Session, state: ViewState, view: PublishedView) -> None:
    """Check that a view has published values, and that they are those of its tables.

    Raises:
        NotPublished: The view is not published to the online store.
        PublishedValueMismatch: Another feature store published the values, or a group was deleted
            and created again since.
    """
    if state.generation == 0:
        raise NotPublished(
            f"{view.subject} is not published to the online store {view.online!r}.",
            hint=view.publish_line(),
        )
    _check_origin(session, state, view)
    for name, version in _replaced_groups(session, state):
        raise PublishedValueMismatch(
            f"{view.subject} was published to the online store {view.online!r} from another "
            f"feature group {name!r} version {version}, which was deleted.",
            hint=view.publish_line(),
        )


def find_origin(session: Session, online: str) -> Origin:
    """Return the origin of the values that this feature store publishes to an online store."""
    with session.registry.reading() as connection:
        created = {store.name: store.created for store in online_stores.list_all(connection)}
    # Several feature stores may have the same path, for example in containers.
    return Origin(session.location, created.get(online, 0))


def is_own_state(session: Session, state: ViewState, *, online: str) -> bool:
    """Return whether this feature store wrote the state record of a view."""
    # The embedded online store is a file of the feature store, and is moved with it.
    if online == EMBEDDED or state.origin in (None, find_origin(session, online)):
        return True
    assert state.origin is not None
    # The registration of the online store may have been removed and added again.
    is_same_place = state.origin.location == session.location
    return is_same_place and (_has_own_tables(session, state) or not state.groups)


def check_publisher(session: Session, state: ViewState, *, view: PublishedView, full: bool) -> None:
    """Check that this feature store may change a state record.

    ``full`` also allows records with the tables of this store, since a store can be moved.

    Raises:
        PublishedValueMismatch: Another feature store publishes a view with the same name.
    """
    if not (full and _has_own_tables(session, state)):
        _check_origin(session, state, view)


def _check_origin(session: Session, state: ViewState, view: PublishedView) -> None:
    online = view.online
    if is_own_state(session, state, online=online):
        return
    hint = (
        "use another database of the server: "
        "featurestore.add_online_store('cache2', 'redis://localhost:6379/1')"
    )
    if _has_own_tables(session, state):
        hint += f"; if the store was moved: {view.publish_line(full=True)}"
    mismatch = PublishedValueMismatch(
        f"The online store {online!r} has the values of {view} of another feature store.", hint=hint
    )
    # A note is shown in tracebacks only: responses of servers and errors of job runs have the
    # message, and must not reveal paths of other stores.
    mismatch.add_note(f"The other feature store is at {state.origin}.")
    raise mismatch


def _has_own_tables(session: Session, state: ViewState) -> bool:
    """Return whether a published group has its registered table."""
    return len(_replaced_groups(session, state)) < len(state.groups)


def _replaced_groups(session: Session, state: ViewState) -> list[tuple[str, int]]:
    """Return the published groups whose table is not the registered one."""
    with session.registry.reading() as connection:
        registered = {group: featuregroups.find(connection, *group) for group in state.groups}
    return [
        group
        for group, published in state.groups.items()
        if (table := registered[group]) is None or table.table_id != published.table_id
    ]


class PublisherLease:
    """The lease of this process, as a context manager that waits for the current owner.

    ``state`` is the state record after the last update, ``server`` the identity of the server when
    the lease began. ``origin`` is this feature store; ``check`` raises for a state that it must not
    change. A damaged record is replaced if ``replaces_damaged``. Methods may be called from one
    thread.
    """

    state: ViewState
    server: str | None

    def __init__(
        self,
        store: OnlineStore,
        clock: StoreClock,
        view: PublishedView,
        *,
        origin: Origin,
        check: Callable[[ViewState], None],
        replaces_damaged: bool = False,
    ) -> None:
        self._store, self._clock, self._view = store, clock, view
        self._origin, self._check, self._replaces_damaged = origin, check, replaces_damaged
        self._owner = f"{process_namespace()}/{os.getpid()}/{uuid.uuid4().hex}"
        self._token = 1 + secrets.randbelow(_MAX_TOKEN)
        self._renewal, self._is_removed = 0, False
        # The heartbeat and the owner's updates must not replace each other's record.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        _active_owners.add(self._owner)
        try:
            while not self._try_acquire():
                time.sleep(_POLL_SECONDS)
            with translate_thread_errors():
                self._heartbeat.start()
        except BaseException:
            _active_owners.discard(self._owner)
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._heartbeat.join()
        try:
            # After an error, the next publication removes the generation that was not completed.
            if not self._is_removed:
                self.update(lambda state: self._retire_unfinished(state).with_lease(None))
        except Exception:
            # For other processes, the lease expires.
            if error is None:
                raise
        finally:
            _active_owners.discard(self._owner)

    @property
    def token(self) -> int:
        """The number of the lease, which is also that of the generation that its owner writes."""
        return self._token

    def update(self, change: Callable[[ViewState], ViewState]) -> ViewState:
        """Replace the state record by the result of a function, and extend the lease.

        Raises:
            PublicationSuperseded: Another process has taken over the lease.
            OnlineWritesLost: The server has an older record than this process wrote.
        """
        with self._lock:
            while True:
                content, state, lease = self._read_own(self._store)
                renewal = lease.renewal + 1
                lease = replace(lease, expires=self._clock.now() + _DURATION, renewal=renewal)
                changed = change(state.with_lease(lease))
                if self._write(content, changed):
                    self._renewal = renewal
                    return changed

    def check_record(self, store: OnlineStore) -> None:
        """Check that a server has the last record that this process wrote, or a later one.

        Raises:
            PublicationSuperseded: Another process has taken over the lease.
            OnlineWritesLost: The server has an older record, or is another server.
        """
        self._read_own(store)
        if server_identity(store) != self.server:
            raise self.lost_writes_error()

    def retire(self, generation: int) -> bool:
        """Record that no reader needs a generation, also after the lease has ended.

        The next publication then removes its values. The published generation remains.

        Returns:
            False if the state record is missing, so that no publication would remove the values.
        """
        while True:
            (content,) = self._store.read([self._view.key])
            if content is None:
                return False
            state = ViewState.parse(content, self._view)
            retired = state.with_retired(generation, self._clock.now())
            key = self._view.key
            if self._store.compare_and_set(key, content, retired.to_bytes(key)):
                return True

    def remove_record(self) -> None:
        """Remove the state record; the lease then ends without another update."""
        self._is_removed = True
        self._stopped.set()
        self._heartbeat.join()
        self._store.delete([self._view.key])

    def lost_writes_error(self) -> OnlineWritesLost:
        """Return the error for a server that lost writes of this process."""
        return OnlineWritesLost(
            f"The online store {self._view.online!r} lost writes during the publication of "
            f"{self._view}: its server was restarted, emptied or replaced.",
            hint=f"{self._view.publish_line()}; the settings that can lose writes: "
            f"featurestore online check {self._view.online}",
        )

    def _read_own(self, store: OnlineStore) -> tuple[bytes | None, ViewState, Lease]:
        """Return the state record of a server, its content, and the lease of this process in it."""
        (content,) = store.read([self._view.key])
        state = ViewState.parse(content, self._view)
        lease = state.lease
        if lease is not None and lease.owner == self._owner:
            if lease.renewal < self._renewal:
                raise self.lost_writes_error()
            return content, state, lease
        # A server that was emptied or replaced has no record, or one of an earlier lease.
        if content is None or server_identity(store) != self.server:
            raise self.lost_writes_error()
        raise PublicationSuperseded(
            f"Another process has taken over the publication of {self._view}.",
            hint="publish again if its publication fails",
        )

    def _try_acquire(self) -> bool:
        # Before the record is read: a server that replaces this one afterwards is noticed.
        self.server = server_identity(self._store)
        (content,) = self._store.read([self._view.key])
        try:
            state = ViewState.parse(content, self._view)
        except PublishedStateDamaged:
            if not self._replaces_damaged:
                raise
            state = ViewState()
        self._check(state)
        now = self._clock.now()
        if is_held(state.lease, now):
            return False
        lease = Lease(self._owner, self._token, now + _DURATION)
        acquired = self._retire_unfinished(state).with_lease(lease, self._origin)
        return self._write(content, acquired)

    def _retire_unfinished(self, state: ViewState) -> ViewState:
        """Return the state with the generation of the current lease retired if it is unfinished."""
        generation = None if state.lease is None else state.lease.generation
        return state.with_retired(generation or 0, self._clock.now())

    def _write(self, expected: bytes | None, state: ViewState) -> bool:
        key = self._view.key
        if not self._store.compare_and_set(key, expected, state.to_bytes(key)):
            return False
        self.state = state
        return True

    def _beat(self) -> None:
        while not self._stopped.wait(_DURATION.total_seconds() / 3):
            try:
                self.update(lambda state: state)
            except (PublicationSuperseded, OnlineWritesLost):
                # The next update of the owner raises the error.
                return
            except Exception:
                # A transient error of the server; the lease lasts for two more heartbeats.
                continue


def is_held(lease: Lease | None, now: datetime) -> bool:
    """Return whether a lease has an owner, so that no other process may take it over."""
    # A lease that ends later than any owner sets it was not written by one.
    is_running = lease is not None and now < lease.expires <= now + 2 * _DURATION
    return lease is not None and is_running and not _has_ended(lease)


def _has_ended(lease: Lease) -> bool:
    """Return whether the owner was a process of this machine, or a call of this one, that has ended."""
    host, pid, _ = lease.owner.split("/")
    if host != process_namespace():
        return False
    if int(pid) == os.getpid():
        return lease.owner not in _active_owners
    # On Windows, ``os.kill`` would end the process, so only the expiry of the lease counts.
    if not hasattr(os, "killpg"):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
