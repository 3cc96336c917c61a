"""Version claims in an object store that is shared by several registries.

Processes with the same registry use the registry for mutual exclusion. Several registries may use
the same location in an object store, for example one SQLite file on each machine. Then a version
belongs to the registry that first writes its claim object, and only this registry removes the
version if it is incomplete.

A training dataset version is claimed by one export. The claim is retained if the export is
considered dead, so that no other export writes to a directory where a delayed request may still
change files.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from datetime import timedelta

from sqlalchemy.engine import Connection

from featurestore.recovery import liveness
from featurestore.storage import locks, storage_for

_SUFFIX = ".claim"
_OUTCOME = ".end"
_ABANDONED = ".abandoned"
_PUBLISHED, _REVOKED = "published", "given up"
# An upper bound for the duration of a storage request.
_MAX_REQUEST_TIME = timedelta(days=1)


def claim(connection: Connection, path: str) -> bool:
    """Claim a version directory for a registry; return False if another registry has claimed it.

    Local file systems need no claims, because the registry is stored in the location.
    """
    storage = storage_for(path)
    if not storage.needs_claims:
        return True
    # The registry that has claimed a version may create it again after a failed creation.
    identity = _registry_id(connection).encode()
    return (
        storage.write_new(path + _SUFFIX, identity)
        or storage.read_bytes(path + _SUFFIX) == identity
    )


def claim_once(connection: Connection, path: str, run: str) -> bool:
    """Claim a version directory for one export; return False if it is already claimed."""
    storage = storage_for(path)
    if not storage.needs_claims:
        return True
    return storage.write_new(path + _SUFFIX, f"{_registry_id(connection)} {run}".encode())


def can_remove_incomplete(connection: Connection, location: str, path: str) -> bool:
    """Return True if a registry may remove an incomplete version.

    A registry may remove versions that it has claimed, since it knows which of its processes are
    alive. Versions of other registries may be removed if neither the lease nor the files were
    written recently.
    """
    storage = storage_for(path)
    if not storage.needs_claims:
        return True
    # Files without a claim are not assigned to a registry, so only their age counts.
    if not storage.exists(path + _SUFFIX):
        return liveness.is_lease_expired(location, os.path.basename(path), path)
    owner, _, run = storage.read_bytes(path + _SUFFIX).decode("utf-8", "replace").partition(" ")
    if owner == _registry_id(connection):
        return True
    return liveness.is_lease_expired(location, run or "-", path, path + _SUFFIX)


def begin_publication(path: str) -> bool:
    """Mark a claimed version as being published; return False if the export was revoked.

    An export that is considered dead is revoked before its files are removed, so that it cannot
    publish them later.
    """
    # Publication and revocation create the same object, so only one can succeed. A lease could not
    # guarantee this, because it may expire while the export is alive.
    storage = storage_for(path)
    return not storage.needs_claims or storage.write_new(
        path + _OUTCOME, _make_outcome_content(_PUBLISHED)
    )


def revoke(path: str, *, is_certainly_dead: bool) -> bool:
    """Revoke the export of a version; return False if its publication has begun.

    After False no files may be removed, because the manifest may still appear. This is impossible
    if the process is certainly dead or a day has passed, so the function returns True.
    """
    storage = storage_for(path)
    if not storage.needs_claims or storage.write_new(
        path + _OUTCOME, _make_outcome_content(_REVOKED)
    ):
        return True
    # An earlier recovery may have revoked the export and died before it removed the files.
    if storage.read_bytes(path + _OUTCOME).decode("utf-8", "replace").startswith(_REVOKED):
        return True
    if is_certainly_dead:
        return True
    # The process may be alive on another machine, and its request for the manifest still pending.
    published_at = storage.last_write_time(path + _OUTCOME)
    return (
        published_at is not None and storage.current_time(path) - published_at > _MAX_REQUEST_TIME
    )


def abandon(path: str) -> None:
    """Mark the version of a creation whose process may only be suspended on another machine.

    When the process resumes, it commits to this directory, where its data files are missing.
    Therefore creations without ``version=`` choose another version.
    """
    storage_for(path).write_new(path + _ABANDONED, b"")


def is_abandoned(path: str) -> bool:
    """Return True if the process that created a version may still resume; it has a day for it."""
    storage = storage_for(path)
    abandoned_at = storage.last_write_time(path + _ABANDONED)
    return (
        abandoned_at is not None and storage.current_time(path) - abandoned_at < _MAX_REQUEST_TIME
    )


def version_entry_name(entry: str) -> str:
    """Return the directory name for a claim object name; other names are returned unchanged.

    >>> version_entry_name("v3.claim"), version_entry_name("v3.abandoned"), version_entry_name("v3")
    ('v3', 'v3', 'v3')
    """
    return entry.removesuffix(_SUFFIX).removesuffix(_ABANDONED)


def release(path: str, *, below: str) -> None:
    """Release the claim of a deleted version."""
    storage = storage_for(path)
    if storage.needs_claims:
        # The claim is removed last: until then, no other export can begin with this version.
        storage.remove(path + _OUTCOME, below=below)
        storage.remove(path + _SUFFIX, below=below)


def _make_outcome_content(word: str) -> bytes:
    return f"{word} {uuid.uuid4().hex}".encode()


def _registry_id(connection: Connection) -> str:
    """Return a hash that identifies a registry without revealing its address."""
    url = connection.engine.url
    address = f"{url.host}:{url.port}/{url.database}"
    if url.get_backend_name() == "sqlite":
        address = f"{locks.host_name()}:{url.database}"
    return hashlib.sha256(address.encode()).hexdigest()[:32]
