"""Claims: which registry makes a version of a group or view in an object store.

Processes that share a registry exclude one another in it. Several registries may serve one place in
an object store, one SQLite file on each machine, say: there a version belongs to the registry that
has put its claim beside it first, and only that one cleans up what a creator has left half made.

The version of a training dataset is claimed by one export. Its claim stays when that export is
taken for dead, so that no other one ever writes among shards that a late answer may still change.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from datetime import timedelta

from sqlalchemy.engine import Connection

from featurestore.recovery import lease_objects
from featurestore.storage import files, machine
from featurestore.storage.location import is_uri

_ENDING = ".claim"
_GATE = ".end"
_PASSED, _CLOSED = "published", "given up"
# Longer than any request is on its way.
_ANSWERS_END = timedelta(days=1)


def claim(connection: Connection, path: str) -> bool:
    """Claim the directory of a version for a registry; False when another one has it.

    On a disk every registry of a place lies in it, so there is nothing to claim.
    """
    if not is_uri(path):
        return True
    own = _identity(connection).encode()
    return files.write_new(path + _ENDING, own) or files.read_bytes(path + _ENDING) == own


def claim_once(connection: Connection, path: str, run: str) -> bool:
    """Claim the directory of a version for one export; False when any has claimed it before."""
    if not is_uri(path):
        return True
    return files.write_new(path + _ENDING, f"{_identity(connection)} {run}".encode())


def may_clean(connection: Connection, location: str, path: str) -> bool:
    """Tell whether a registry may take what lies half made in a directory for left.

    It may where it made the claim, since it knows which of its processes live. What others claimed
    is taken for dead when its lease and its files are silent.
    """
    if not is_uri(path):
        return True
    if not files.exists(path + _ENDING):
        return lease_objects.is_silent(location, os.path.basename(path), path)
    owner, _, run = files.read_bytes(path + _ENDING).decode("utf-8", "replace").partition(" ")
    if owner == _identity(connection):
        return True
    return lease_objects.is_silent(location, run or "-", path, path + _ENDING)


def pass_gate(path: str) -> bool:
    """Begin the publication of a claimed version; False when the export was given up meanwhile.

    Whoever takes an export for dead closes the gate before anything is removed, so that one that
    comes back publishes nothing.
    """
    return not is_uri(path) or files.write_new(path + _GATE, _gate_of(_PASSED))


def give_up(path: str, *, certain: bool) -> bool:
    """Close the gate of a version whose export is dead; False when it had passed there before.

    Then its manifest may come yet, and nothing may be removed, unless the process is dead for
    ``certain``, or nothing was written there for a day.
    """
    if not is_uri(path) or files.write_new(path + _GATE, _gate_of(_CLOSED)):
        return True
    if files.read_bytes(path + _GATE).decode("utf-8", "replace").startswith(_CLOSED):
        return True
    if certain:
        return True
    passed = files.last_written(path + _GATE)
    return passed is not None and files.time_of_store(path) - passed > _ANSWERS_END


def claimed(entry: str) -> str:
    """Return the name of the directory that a claim stands beside; another name as it is.

    >>> claimed("v3.claim"), claimed("v3")
    ('v3', 'v3')
    """
    return entry.removesuffix(_ENDING)


def release(path: str, *, below: str) -> None:
    """Give up the claim of a directory whose version is gone."""
    if is_uri(path):
        files.remove(path + _GATE, below=below)
        files.remove(path + _ENDING, below=below)


def _gate_of(word: str) -> bytes:
    return f"{word} {uuid.uuid4().hex}".encode()


def _identity(connection: Connection) -> str:
    """Return what tells a registry from others, and nothing else of it."""
    url = connection.engine.url
    place = f"{url.host}:{url.port}/{url.database}"
    if url.get_backend_name() == "sqlite":
        place = f"{machine.host_name()}:{url.database}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]
