"""Claims of versions in an object store that several registries share.

Processes that share a registry exclude one another through it. Several registries may use one
location in an object store, for example one SQLite file on each machine. There a version belongs to
the registry that writes its claim object first, and only this registry removes incomplete versions.

The version of a training dataset is claimed by one export. The claim remains when the export is
considered dead, so that no other export writes among shards that a late request may still change.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from datetime import timedelta

from sqlalchemy.engine import Connection

from featurestore.recovery import liveness
from featurestore.storage import files, locks, storage_for

_SUFFIX = ".claim"
_OUTCOME = ".end"
_PUBLISHED, _REVOKED = "published", "given up"
# Longer than any request can be pending.
_MAX_REQUEST_TIME = timedelta(days=1)


def claim(connection: Connection, path: str) -> bool:
    """Claim the directory of a version for a registry; False if another registry has it.

    On a disk the registry is part of the location, so that no claim is needed.
    """
    if not storage_for(path).needs_claims:
        return True
    identity = _identity(connection).encode()
    return files.write_new(path + _SUFFIX, identity) or files.read_bytes(path + _SUFFIX) == identity


def claim_once(connection: Connection, path: str, run: str) -> bool:
    """Claim the directory of a version for one export; False if it was claimed before."""
    if not storage_for(path).needs_claims:
        return True
    return files.write_new(path + _SUFFIX, f"{_identity(connection)} {run}".encode())


def can_clean(connection: Connection, location: str, path: str) -> bool:
    """Return True if a registry may remove an incomplete version.

    It may do so for its own claims, since it knows which of its processes are alive. Versions of
    other registries are considered dead if neither the lease nor the files were written recently.
    """
    if not storage_for(path).needs_claims:
        return True
    if not files.exists(path + _SUFFIX):
        return liveness.is_expired(location, os.path.basename(path), path)
    owner, _, run = files.read_bytes(path + _SUFFIX).decode("utf-8", "replace").partition(" ")
    if owner == _identity(connection):
        return True
    return liveness.is_expired(location, run or "-", path, path + _SUFFIX)


def try_publish(path: str) -> bool:
    """Begin the publication of a claimed version; False if the export was revoked.

    A dead export is revoked before its files are removed, so that it cannot publish later.
    """
    return not storage_for(path).needs_claims or files.write_new(
        path + _OUTCOME, _outcome_content(_PUBLISHED)
    )


def revoke(path: str, *, certain: bool) -> bool:
    """Revoke the export of a version; False if its publication has begun.

    In this case the manifest may still appear, so nothing may be removed, unless the process is dead
    for ``certain``, or a day has passed.
    """
    if not storage_for(path).needs_claims or files.write_new(
        path + _OUTCOME, _outcome_content(_REVOKED)
    ):
        return True
    if files.read_bytes(path + _OUTCOME).decode("utf-8", "replace").startswith(_REVOKED):
        return True
    if certain:
        return True
    published_at = files.last_write_time(path + _OUTCOME)
    return published_at is not None and files.current_time(path) - published_at > _MAX_REQUEST_TIME


def directory_of_claim(entry: str) -> str:
    """Return the directory name of a claim object; other names are unchanged.

    >>> directory_of_claim("v3.claim"), directory_of_claim("v3")
    ('v3', 'v3')
    """
    return entry.removesuffix(_SUFFIX)


def release(path: str, *, below: str) -> None:
    """Release the claim on a deleted version."""
    if storage_for(path).needs_claims:
        files.remove(path + _OUTCOME, below=below)
        files.remove(path + _SUFFIX, below=below)


def _outcome_content(word: str) -> bytes:
    return f"{word} {uuid.uuid4().hex}".encode()


def _identity(connection: Connection) -> str:
    """Return a hash that identifies a registry without revealing its address."""
    url = connection.engine.url
    address = f"{url.host}:{url.port}/{url.database}"
    if url.get_backend_name() == "sqlite":
        address = f"{locks.host_name()}:{url.database}"
    return hashlib.sha256(address.encode()).hexdigest()[:32]
