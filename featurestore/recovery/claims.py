"""Claims: which registry makes a version of a group or view in an object store.

Processes that share a registry exclude one another in it. Several registries may serve one place in
an object store, one SQLite file on each machine, say: there a version belongs to the registry that
has put its claim beside it first, and only that one cleans up what a creator has left half made.
"""

from __future__ import annotations

import hashlib

from sqlalchemy.engine import Connection

from featurestore.storage import files, machine
from featurestore.storage.location import is_uri

_ENDING = ".claim"


def claim(connection: Connection, path: str) -> bool:
    """Claim the directory of a version for a registry; False when another one has it.

    On a disk every registry of a place lies in it, so there is nothing to claim.
    """
    if not is_uri(path):
        return True
    own = _identity(connection).encode()
    return files.write_new(path + _ENDING, own) or files.read_bytes(path + _ENDING) == own


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
