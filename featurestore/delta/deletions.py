"""Records of deleted Delta tables, next to the directory of the table."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress

from featurestore.errors import FeatureGroupNotFound, StorageError
from featurestore.model.times import utc_now
from featurestore.storage import files, storage_for

_DELETION_SUFFIX = ".deleted"


def record_deletion(path: str) -> None:
    """Write a deletion record next to a table, if the storage is writable."""
    # A user id in a container may have no entry in the user database.
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    user_and_host = f"{user} on {socket.gethostname()}, process {os.getpid()}"
    # The record only improves a later error message, so a deletion does not fail without it.
    with suppress(StorageError):
        files.write_json(
            path + _DELETION_SUFFIX,
            {"at": utc_now().isoformat(timespec="seconds"), "by": user_and_host},
        )


def deletion_error(path: str) -> FeatureGroupNotFound | None:
    """Return the error for a deleted table, or None without a deletion record."""
    storage = storage_for(path)
    # A new table may have been created at the same path.
    if storage.exists(path) or not storage.exists(path + _DELETION_SUFFIX):
        return None
    try:
        record = files.read_json(path + _DELETION_SUFFIX)
    except StorageError:
        record = None
    deleted_at = deleted_by = "unknown"
    if isinstance(record, dict):
        deleted_at, deleted_by = str(record.get("at")), str(record.get("by"))
    version, name = os.path.basename(path), os.path.basename(os.path.dirname(path))
    return FeatureGroupNotFound(
        f"Feature group {name!r} {version} was deleted at {deleted_at} by {deleted_by}.",
        hint="read its data from another version",
    )
