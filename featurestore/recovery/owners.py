"""Owners: the processes that write to a store, and their liveness.

An owner is named ``<host>.<pid>.<machine>.<random>`` and locks the file of that name in
``<location>/_owners`` (for a URI in a local folder) as long as its process lives. Between processes
of one machine (one kernel and one file system, including containers) the lock decides. Between
machines the heartbeat decides: an owner without a heartbeat for ``HEARTBEAT_TIMEOUT`` is considered
dead.
Heartbeats are recorded and judged by the clock of the registry, never by that of another host.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from sqlalchemy.engine import Connection

from featurestore.errors import RegistryError, StorageError
from featurestore.model.paths import StorePaths
from featurestore.registry import Registry, intents, owners
from featurestore.storage import files, locks, machine
from featurestore.storage.selection import storage_for

HEARTBEAT_TIMEOUT = timedelta(seconds=60)
# An owner may miss three heartbeats before it is considered dead.
HEARTBEAT_SECONDS = HEARTBEAT_TIMEOUT.total_seconds() / 4

_NAME = re.compile(r"[A-Za-z0-9-]{1,40}\.[0-9]{1,10}\.([0-9a-f]{8})\.[0-9a-f]{8}")
_log = logging.getLogger("featurestore.recovery")


class Store(Protocol):
    """The location and registry of a store, as recovery needs them."""

    @property
    def location(self) -> str:
        """The directory of the store."""

    @property
    def registry(self) -> Registry:
        """The registry of the store."""


@dataclass
class _Owner:
    """This process as the owner of writes in one store."""

    name: str
    location: str
    pid: int
    handle: int
    writes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)


_process_owners: dict[str, _Owner] = {}
_owners_lock = threading.Lock()


def _forget_parent() -> None:
    """Reset the state after ``fork``: a child does not own the locks of its parent."""
    global _owners_lock
    _owners_lock = threading.Lock()
    _process_owners.clear()


os.register_at_fork(after_in_child=_forget_parent)


def this_process(location: str) -> str:
    """Return the owner name of this process in a store; the first call creates its lock file.

    Raises:
        StorageError: The location cannot be written.
    """
    with _owners_lock:
        return _current_owner(location).name


def is_alive(connection: Connection, location: str, owner: str) -> bool:
    """Return True if an owner may be alive."""
    match = _NAME.fullmatch(owner)
    if match is None:
        return False  # not a valid owner name
    with _owners_lock:
        if _is_this_process(owner):
            return True
    if match[1] == _machine_id(location):
        return locks.is_held(_lock_file(location, owner))
    last_heartbeat = owners.seen(connection, owner)
    return (
        last_heartbeat is not None
        and owners.time_of(connection) - last_heartbeat < HEARTBEAT_TIMEOUT
    )


def is_on_this_machine(location: str, owner: str) -> bool:
    """Return True for an owner of this machine, for which ``is_alive`` is exact."""
    match = _NAME.fullmatch(owner)
    return match is not None and match[1] == _machine_id(location)


@contextmanager
def heartbeat(registry: Registry, location: str) -> Iterator[str]:
    """Send heartbeats while the block runs, and yield the owner's name.

    Raises:
        LocationNotWritable: The store is open for reading only.
    """
    registry.check_writable()
    with _owners_lock:
        owner = _current_owner(location)
        owner.writes += 1
        if owner.writes == 1:
            owner.stop = threading.Event()
            threading.Thread(
                target=_send_heartbeats,
                args=(registry, owner.name, owner.stop),
                name="heartbeat",
                daemon=True,
            ).start()
    try:
        yield owner.name
    finally:
        with _owners_lock:
            owner.writes -= 1
            if owner.writes == 0:
                owner.stop.set()


def remove_dead_owners(connection: Connection, location: str) -> None:
    """Remove the lock files and the heartbeats of dead owners.

    Their intents must be resolved first.
    """
    machine_id = _machine_id(location)
    for name in files.list_directory(_lock_folder(location)):
        match = _NAME.fullmatch(name)
        # A lock is only visible on the machine of its owner.
        if (
            match is not None
            and match[1] == machine_id
            and not is_alive(connection, location, name)
        ):
            try:
                files.remove(_lock_file(location, name), below=_lock_folder(location))
            except StorageError as error:  # a remaining unlocked file is harmless
                _log.debug("the lock file of a dead owner was not removed: %s", error)
    for name in owners.every(connection):
        if not is_alive(connection, location, name):
            owners.forget(connection, name)


def versions_in_flight(connection: Connection, location: str, kind: str, name: str) -> list[int]:
    """Return the versions of a name with a write of a kind in flight by a live process."""
    pending = intents.of_name(connection, kind, name)
    return [each.version for each in pending if is_alive(connection, location, each.owner)]


def other_processes(location: str) -> list[str]:
    """Return the other live processes of this machine that have written to the store."""
    machine_id = _machine_id(location)
    names = []
    for name in files.list_directory(_lock_folder(location)):
        match = _NAME.fullmatch(name)
        if match is None or match[1] != machine_id or _is_this_process(name):
            continue
        if locks.is_held(_lock_file(location, name)):
            names.append(name)
    return names


def _is_this_process(name: str) -> bool:
    return any(each.name == name and each.pid == os.getpid() for each in _process_owners.values())


def _current_owner(location: str) -> _Owner:
    current = _process_owners.get(location)
    if current is not None and current.pid == os.getpid() and files.exists(_file_of(current)):
        return current
    host = re.sub(r"[^A-Za-z0-9-]", "-", machine.host_name())[:40] or "host"
    name = f"{host}.{os.getpid()}.{_machine_id(location)}.{secrets.token_hex(4)}"
    handle = locks.hold(_lock_file(location, name))
    owner = _Owner(name, location, os.getpid(), handle)
    _process_owners[location] = owner
    atexit.register(_remove_lock_file, owner)
    return owner


def _remove_lock_file(owner: _Owner) -> None:
    """Remove the lock file of this process, but not in a forked child."""
    if owner.pid != os.getpid():
        return
    try:
        files.remove(_file_of(owner), below=_lock_folder(owner.location))
    except StorageError as error:
        _log.debug("the lock file of %s was not removed: %s", owner.name, error)


def _send_heartbeats(registry: Registry, name: str, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        try:
            with registry.transaction() as connection:
                owners.record(connection, name)
        except RegistryError:
            _log.warning("the heartbeat of %s failed and will be retried", name, exc_info=True)


def _file_of(owner: _Owner) -> str:
    return _lock_file(owner.location, owner.name)


def _lock_file(location: str, name: str) -> str:
    return os.path.join(_lock_folder(location), name)


def _machine_id(location: str) -> str:
    return machine.machine_id(
        location if storage_for(location).is_local else _lock_folder(location)
    )


def _lock_folder(location: str) -> str:
    """Return the folder of the lock files: in the store, or a local one for a URI."""
    if not storage_for(location).is_local:
        return machine.lock_folder(location)
    return StorePaths(location).owners
