"""Owners: the processes that write to a store, and whether they are alive.

An owner is named ``<host>.<pid>.<machine>.<random>`` and holds the file of that name in
``<location>/_owners`` (for a URI in a folder of this machine) as long as its process lives. For
processes of one machine (one kernel and one file system, containers included) that lock decides at
once. For others the heartbeat does: an owner that sent none for ``PATIENCE`` is taken for dead.
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
from featurestore.storage.location import is_uri

PATIENCE = timedelta(seconds=60)
BEAT_SECONDS = PATIENCE.total_seconds() / 4

_NAME = re.compile(r"[A-Za-z0-9-]{1,40}\.[0-9]{1,10}\.([0-9a-f]{8})\.[0-9a-f]{8}")
_log = logging.getLogger("featurestore.recovery")


class Store(Protocol):
    """What recovery needs of a session: where the store is, and its registry."""

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


_mine: dict[str, _Owner] = {}
_guard = threading.Lock()


def _forget_parent() -> None:
    """Let a child made by ``fork`` begin without its parent's locks, whatever thread held them."""
    global _guard
    _guard = threading.Lock()
    _mine.clear()


os.register_at_fork(after_in_child=_forget_parent)


def this_process(location: str) -> str:
    """Return the name of this process as an owner in a store; the first call makes its lock file.

    Raises:
        StorageError: The location cannot be written.
    """
    with _guard:
        return _this(location).name


def is_alive(connection: Connection, location: str, owner: str) -> bool:
    """Tell whether an owner may still be at work."""
    match = _NAME.fullmatch(owner)
    if match is None:
        return False  # no name that a process of a store ever had
    with _guard:
        if _is_mine(owner):
            return True
    if match[1] == _machine(location):
        return locks.is_held(_lock_file(location, owner))
    seen = owners.seen(connection, owner)
    return seen is not None and owners.time_of(connection) - seen < PATIENCE


def is_here(location: str, owner: str) -> bool:
    """Tell whether an owner is of this machine, so that ``is_alive`` is certain of it."""
    match = _NAME.fullmatch(owner)
    return match is not None and match[1] == _machine(location)


@contextmanager
def heartbeat(registry: Registry, location: str) -> Iterator[str]:
    """Send a heartbeat while the block runs, and give the owner's name.

    Raises:
        LocationNotWritable: The store is open for reading only.
    """
    registry.check_writable()
    with _guard:
        owner = _this(location)
        owner.writes += 1
        if owner.writes == 1:
            owner.stop = threading.Event()
            threading.Thread(
                target=_beat, args=(registry, owner.name, owner.stop), name="heartbeat", daemon=True
            ).start()
    try:
        yield owner.name
    finally:
        with _guard:
            owner.writes -= 1
            if owner.writes == 0:
                owner.stop.set()


def forget_dead(connection: Connection, location: str) -> None:
    """Remove the lock files and the heartbeats of owners that are dead.

    Call when their intents are settled.
    """
    here = _machine(location)
    for name in files.list_directory(_lock_folder(location)):
        match = _NAME.fullmatch(name)
        # Only the machine of an owner knows whether its lock is held.
        if match is not None and match[1] == here and not is_alive(connection, location, name):
            try:
                files.remove(_lock_file(location, name), below=_lock_folder(location))
            except StorageError as error:  # it stays free, and says nothing
                _log.debug("the lock file of a dead owner stays: %s", error)
    for name in owners.every(connection):
        if not is_alive(connection, location, name):
            owners.forget(connection, name)


def versions_in_flight(connection: Connection, location: str, kind: str, name: str) -> list[int]:
    """Return the versions of a name on which living processes have a write of a kind in flight."""
    found = []
    for intent in intents.of_name(connection, kind, name):
        if is_alive(connection, location, intent.owner):
            found.append(intent.version)
    return found


def others(location: str) -> list[str]:
    """Return the other processes of this machine that write, or wrote and are still there."""
    here = _machine(location)
    found = []
    for name in files.list_directory(_lock_folder(location)):
        match = _NAME.fullmatch(name)
        if match is None or match[1] != here or _is_mine(name):
            continue
        if locks.is_held(_lock_file(location, name)):
            found.append(name)
    return found


def _is_mine(name: str) -> bool:
    return any(each.name == name and each.pid == os.getpid() for each in _mine.values())


def _this(location: str) -> _Owner:
    known = _mine.get(location)
    if known is not None and known.pid == os.getpid() and files.exists(_file_of(known)):
        return known
    host = re.sub(r"[^A-Za-z0-9-]", "-", machine.host_name())[:40] or "host"
    name = f"{host}.{os.getpid()}.{_machine(location)}.{secrets.token_hex(4)}"
    handle = locks.hold(_lock_file(location, name))
    owner = _Owner(name, location, os.getpid(), handle)
    _mine[location] = owner
    atexit.register(_leave, owner)
    return owner


def _leave(owner: _Owner) -> None:
    """Remove the lock file of this process; a child made by ``fork`` leaves its parent's alone."""
    if owner.pid != os.getpid():
        return
    try:
        files.remove(_file_of(owner), below=_lock_folder(owner.location))
    except StorageError as error:
        _log.debug("the lock file of %s stays: %s", owner.name, error)


def _beat(registry: Registry, name: str, stop: threading.Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        try:
            with registry.transaction() as connection:
                owners.record(connection, name)
        except RegistryError:
            _log.warning("the heartbeat of %s failed; tried again", name, exc_info=True)


def _file_of(owner: _Owner) -> str:
    return _lock_file(owner.location, owner.name)


def _lock_file(location: str, name: str) -> str:
    return os.path.join(_lock_folder(location), name)


def _machine(location: str) -> str:
    return machine.machine_id(_lock_folder(location) if is_uri(location) else location)


def _lock_folder(location: str) -> str:
    """Return the folder of the lock files: beside the store, or on this machine for a URI."""
    if is_uri(location):
        return machine.lock_folder(location)
    return StorePaths(location).owners
