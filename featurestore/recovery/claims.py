"""Claims: which registry makes a version of a group or view in an object store.

Processes that share a registry exclude one another in it. Several registries may serve one place in
an object store, one SQLite file on each machine, say: there a version belongs to the registry that
has put its claim beside it first, and only that one cleans up what a creator has left half made.

The version of a training dataset is claimed by one export. Its claim stays when that export is
taken for dead, so that no other one ever writes among shards that a late answer may still change.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import timedelta

from sqlalchemy.engine import Connection

from featurestore.storage import files, machine
from featurestore.storage.location import is_uri

_ENDING = ".claim"
# Longer than the clocks of machines are apart, and than a write takes between two files.
_SILENCE = timedelta(days=1)


def claim(connection: Connection, path: str) -> bool:
    """Claim the directory of a version for a registry; False when another one has it.

    On a disk every registry of a place lies in it, so there is nothing to claim.
    """
    if not is_uri(path):
        return True
    own = _identity(connection).encode()
    return files.write_new(path + _ENDING, own) or files.read_bytes(path + _ENDING) == own


def claim_once(connection: Connection, path: str) -> bool:
    """Claim the directory of a version for one export; False when any has claimed it before."""
    if not is_uri(path):
        return True
    data = f"{_identity(connection)} {uuid.uuid4().hex}".encode()
    return files.write_new(path + _ENDING, data)


def may_clean(connection: Connection, path: str) -> bool:
    """Tell whether a registry may remove what lies half made in a directory.

    It may where it made the claim, since it knows which of its processes live. What others claimed
    is taken for dead when nothing was written there for a day.
    """
    if not is_uri(path):
        return True
    if not files.exists(path + _ENDING):
        return is_long_untouched(path)
    owner = files.read_bytes(path + _ENDING).split(b" ")[0]
    return owner == _identity(connection).encode() or is_long_untouched(path)


def is_long_untouched(path: str) -> bool:
    """Tell whether nothing was written below a URI for so long that no process is at work there."""
    return files.is_untouched(path, age=_SILENCE)


def claimed(entry: str) -> str:
    """Return the name of the directory that a claim stands beside; another name as it is.

    >>> claimed("v3.claim"), claimed("v3")
    ('v3', 'v3')
    """
    return entry.removesuffix(_ENDING)


def release(path: str, *, below: str) -> None:
    """Give up the claim of a directory whose version is gone."""
    if is_uri(path):
        files.remove(path + _ENDING, below=below)


def _identity(connection: Connection) -> str:
    """Return what tells a registry from others, and nothing else of it."""
    url = connection.engine.url
    place = f"{url.host}:{url.port}/{url.database}"
    if url.get_backend_name() == "sqlite":
        place = f"{machine.host_name()}:{url.database}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]
