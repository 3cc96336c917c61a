"""Process liveness: owners with heartbeats, job leases, and leases of writes to object stores.

An owner is a process that writes to a store. Its name is ``<host>.<pid>.<machine>.<random>``. While
the process lives, it holds a lock on the file of this name in ``<location>/_owners`` (in a local
folder for object stores). On the same machine (one kernel and file system, including containers),
an owner is alive as long as it has the lock. An owner on another machine is considered dead after
``HEARTBEAT_TIMEOUT`` without a heartbeat. Heartbeat times are taken from the clock of the registry,
so clock differences between hosts have no effect.

Job leases are stored in the registry and belong to an owner. The lease of a write to an object
store is an object that is rewritten regularly.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from sqlalchemy.engine import Connection

from featurestore.errors import JobLeased, RegistryError, StorageError
from featurestore.model.runtime import call_after_fork
from featurestore.model.threads import start_thread
from featurestore.registry import Registry, intents
from featurestore.storage import StorePaths, locks, storage_for

if TYPE_CHECKING:
    import filelock

HEARTBEAT_TIMEOUT = timedelta(seconds=60)
# Three heartbeats may be missed before an owner is considered dead.
HEARTBEAT_SECONDS = HEARTBEAT_TIMEOUT.total_seconds() / 4
RENEWAL_SECONDS = 15.0
# The time of forty renewals, and longer than all retries of a storage request.
LEASE_TIMEOUT = timedelta(minutes=10)
_JOIN_SECONDS = 5.0
_LEASES = "_leases"
_NAME = re.compile(r"[A-Za-z0-9-]{1,40}\.[0-9]{1,10}\.([0-9a-f]{8})\.[0-9a-f]{8}")
_log = logging.getLogger("featurestore.recovery")


class Store(Protocol):
    """The attributes of a store that recovery needs."""

    @property
    def location(self) -> str:
        """The directory of the store."""

    @property
    def registry(self) -> Registry:
        """The registry of the store."""


@dataclass(eq=False)
class _Owner:
    """The owner state of this process for one store."""

    name: str
    location: str
    pid: int
    handle: int | filelock.BaseFileLock
    writes: int = 0
    is_locked: bool = True
    stop: threading.Event = field(default_factory=threading.Event)


_process_owners: dict[str, _Owner] = {}
# Owners that this process no longer uses, until the last of their writes has ended.
_released_owners: list[_Owner] = []
_owners_lock = threading.Lock()


def _reset_after_fork() -> None:
    """Reset the state in a forked child, which does not own the locks of its parent."""
    global _owners_lock
    _owners_lock = threading.Lock()
    _process_owners.clear()
    _released_owners.clear()


call_after_fork(_reset_after_fork)


def owner_of_this_process(location: str) -> str:
    """Return the owner name of this process; the first call for a store creates the lock file.

    Raises:
        StorageError: The location is not writable.
    """
    with _owners_lock:
        return _current_owner(location).name


def is_alive(connection: Connection, location: str, owner: str) -> bool:
    """Return True if an owner is alive, or may be alive on another machine."""
    match = _NAME.fullmatch(owner)
    if match is None:
        return False  # not a valid owner name
    with _owners_lock:
        # A process does not see its own POSIX lock, and closing a second handle of the file would
        # release it.
        if _is_this_process(owner):
            return True
    # The kernel releases the lock when the process ends, also in a container. Process ids are not
    # valid across containers.
    if match[1] == _machine_id(location):
        return locks.is_locked(_lock_file(location, owner))
    last_heartbeat = intents.last_heartbeat(connection, owner)
    return (
        last_heartbeat is not None
        and intents.current_time(connection) - last_heartbeat < HEARTBEAT_TIMEOUT
    )


def is_on_this_machine(location: str, owner: str) -> bool:
    """Return True if an owner is on this machine, in which case ``is_alive`` is exact."""
    match = _NAME.fullmatch(owner)
    return match is not None and match[1] == _machine_id(location)


def is_on_another_machine(location: str, owner: str) -> bool:
    """Return True if an owner is on another machine, where it may be suspended and not dead."""
    match = _NAME.fullmatch(owner)
    return match is not None and match[1] != _machine_id(location)


@contextmanager
def heartbeat(registry: Registry, location: str) -> Iterator[str]:
    """Send heartbeats during a ``with`` block, and yield the owner name.

    Raises:
        LocationNotWritable: The store is read-only.
    """
    registry.check_writable()
    with _owners_lock:
        owner = _current_owner(location)
        if owner.writes == 0:
            # The event of an earlier thread is set; if it were cleared, that thread could continue.
            owner.stop = threading.Event()
            start_thread(_send_heartbeats, registry, owner.name, owner.stop, name="heartbeat")
        # Counted after the thread has started, so that the next write tries to start it again.
        owner.writes += 1
    try:
        yield owner.name
    finally:
        with _owners_lock:
            owner.writes -= 1
            if owner.writes == 0:
                owner.stop.set()
                if owner in _released_owners:
                    _released_owners.remove(owner)
                    _remove_lock_file(owner)


def release_owner(location: str) -> None:
    """Let any process recover the intents that this process could not resolve.

    Without this, they would remain until this process ends. The owner counts as dead when its
    active writes have ended; later writes of this process have another owner.
    """
    with _owners_lock:
        owner = _process_owners.get(location)
        if owner is None or owner.pid != os.getpid():
            return
        del _process_owners[location]
        if owner.writes:
            _released_owners.append(owner)
        else:
            _remove_lock_file(owner)


def remove_dead_owners(connection: Connection, location: str) -> None:
    """Remove the lock files and heartbeats of dead owners.

    Their intents must be resolved first.
    """
    folder = _lock_folder(location)
    storage = storage_for(folder)
    machine_id = _machine_id(location)
    for name in storage.list_directory(folder):
        match = _NAME.fullmatch(name)
        # Locks are visible only on the owner's machine.
        if (
            match is not None
            and match[1] == machine_id
            and not is_alive(connection, location, name)
        ):
            try:
                storage.remove(_lock_file(location, name), below=folder)
            except StorageError as error:  # a remaining unlocked file is harmless
                _log.debug("could not remove the lock file of a dead owner: %s", error)
    # Heartbeats also belong to owners on other machines, whose lock files are not visible here.
    for name in intents.owner_names(connection):
        if not is_alive(connection, location, name):
            intents.remove_owner(connection, name)


def versions_in_flight(
    connection: Connection, location: str, operation: str, name: str
) -> list[int]:
    """Return the versions of a name for which a live process has an intent of this operation."""
    pending = intents.find_by_name(connection, operation, name)
    return [intent.version for intent in pending if is_alive(connection, location, intent.owner)]


def other_processes(location: str) -> list[str]:
    """Return the owner names of other live processes on this machine."""
    machine_id, folder = _machine_id(location), _lock_folder(location)
    names = []
    for name in storage_for(folder).list_directory(folder):
        match = _NAME.fullmatch(name)
        if match is None or match[1] != machine_id or _is_this_process(name):
            continue
        if locks.is_locked(_lock_file(location, name)):
            names.append(name)
    return names


def _is_this_process(name: str) -> bool:
    return any(
        owner.name == name and owner.pid == os.getpid()
        for owner in (*_process_owners.values(), *_released_owners)
    )


def _current_owner(location: str) -> _Owner:
    """Return the owner of this process for a store; create its lock file if needed."""
    # Without its file, for example after the store was deleted, the owner would be considered dead.
    current = _process_owners.get(location)
    if current is not None and current.pid == os.getpid():
        lock_file = _lock_file(location, current.name)
        if storage_for(lock_file).exists(lock_file):
            return current
    host = re.sub(r"[^A-Za-z0-9-]", "-", locks.host_name())[:40] or "host"
    name = f"{host}.{os.getpid()}.{_machine_id(location)}.{secrets.token_hex(4)}"
    handle = locks.acquire_lock(_lock_file(location, name))
    owner = _Owner(name, location, os.getpid(), handle)
    _process_owners[location] = owner
    atexit.register(_remove_lock_file, owner)
    return owner


def _remove_lock_file(owner: _Owner) -> None:
    """Remove the lock file once, at the latest at exit; a forked child does nothing."""
    if owner.pid != os.getpid() or not owner.is_locked:
        return
    owner.is_locked = False
    try:
        path = _lock_file(owner.location, owner.name)
        locks.remove_lock_file(owner.handle, path, below=_lock_folder(owner.location))
    except StorageError as error:
        _log.debug("could not remove the lock file of %s: %s", owner.name, error)


def _send_heartbeats(registry: Registry, name: str, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        try:
            with registry.transaction() as connection:
                intents.record_heartbeat(connection, name)
        except RegistryError:
            _log.warning("the heartbeat of %s failed and will be retried", name, exc_info=True)


def _lock_file(location: str, name: str) -> str:
    return os.path.join(_lock_folder(location), name)


def _machine_id(location: str) -> str:
    return locks.machine_id(location if storage_for(location).is_local else _lock_folder(location))


def _lock_folder(location: str) -> str:
    """Return the folder of lock files: in the store, or a local folder for object stores."""
    if not storage_for(location).is_local:
        return locks.lock_folder(location)
    return StorePaths(location).owners


@contextmanager
def hold_job_lease(store: Store, job: str) -> Iterator[str]:
    """Hold a job lease during a ``with`` block, and yield the name of the holder.

    Raises:
        JobNotFound: The job does not exist.
        JobLeased: Another process or another thread is running the job.
    """
    # Writes without a job do not need the model of jobs.
    from featurestore.registry import jobs

    registry, location = store.registry, store.location
    with heartbeat(registry, location) as owner:
        # The threads of a process are different holders, so that two threads cannot run the same
        # job.
        holder = f"{owner}/{threading.get_ident()}"
        with registry.transaction() as connection:
            jobs.check_exists(connection, job)
            intents.record_heartbeat(connection, owner)
            current_holder = acquire_job_lease(connection, location, job, holder)
        if current_holder is not None:
            raise JobLeased(
                f"Job {job!r} is currently run by {current_holder}.",
                hint="retry after this run has ended",
            )
        try:
            yield holder
        finally:
            with registry.transaction() as connection:
                # This has no effect if another owner has taken over the lease.
                jobs.drop_lease(connection, job, holder)


def acquire_job_lease(connection: Connection, location: str, job: str, holder: str) -> str | None:
    """Acquire a job lease; return None on success, otherwise the current holder.

    The lease of a dead owner is replaced.
    """
    from featurestore.registry import jobs

    # The row is locked, so that only one process replaces a dead holder.
    current_holder = jobs.lease_owner(connection, job, locked=True)
    if current_holder is not None and current_holder != holder:
        owner = current_holder.partition("/")[0]
        if is_alive(connection, location, owner):
            return current_holder
    jobs.set_lease(connection, job, holder)
    return None


@contextmanager
def hold_write_lease(location: str, run: str) -> Iterator[None]:
    """Renew the lease of a write to an object store during a ``with`` block."""
    storage = storage_for(location)
    if not storage.needs_claims:
        yield
        return
    path = _lease_path(location, run)
    # A write that ends before the first renewal creates no lease object.
    stop, has_renewed = threading.Event(), threading.Event()
    thread = start_thread(_renew_lease, path, stop, has_renewed, name="lease")
    try:
        yield
    finally:
        stop.set()
        thread.join(_JOIN_SECONDS)
        if has_renewed.is_set():
            with suppress(StorageError):  # the lease expires anyway
                storage.remove(path, below=location)


def is_lease_expired(location: str, run: str, *paths: str, now: datetime | None = None) -> bool:
    """Return True if the lease of a write has expired.

    Args:
        location: The URI of the store.
        run: The id of the write.
        paths: Objects and folders of the write; recent changes count as renewals.
        now: The current time of the storage server; None to request it.
    """
    storage = storage_for(location)
    last_written = storage.last_write_time(_lease_path(location, run))
    for path in paths:
        written_at = storage_for(path).last_write_time(path)
        if written_at is not None and (last_written is None or written_at > last_written):
            last_written = written_at
    if last_written is None:
        return True
    # Both times are from the clock of the storage server, so the clock of this machine has no
    # effect.
    return (now or storage.current_time(location)) - last_written > LEASE_TIMEOUT


def remove_expired_leases(location: str) -> None:
    """Remove all expired leases of writes."""
    storage = storage_for(location)
    if not storage.needs_claims:
        return
    folder = os.path.join(location, _LEASES)
    runs = storage.list_directory(folder)
    if not runs:
        return
    now = storage.current_time(location)
    for run in runs:
        if is_lease_expired(location, run, now=now):
            storage.remove(_lease_path(location, run), below=location)


def _lease_path(location: str, run: str) -> str:
    return os.path.join(location, _LEASES, run)


def _renew_lease(path: str, stop: threading.Event, has_renewed: threading.Event) -> None:
    while not stop.wait(RENEWAL_SECONDS):
        try:
            storage_for(path).write_atomically(path, b"renewed")
            has_renewed.set()
        except StorageError as error:
            _log.warning("could not renew the lease of a write: %s", error.message)
