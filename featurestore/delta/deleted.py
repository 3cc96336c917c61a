"""Deletion records of tables: time and user of a deletion."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress

from featurestore.errors import FeatureGroupNotFound, StorageError
from featurestore.model.times import utc_now
from featurestore.storage import files

_SUFFIX = ".deleted"


def record_deletion(path: str) -> None:
    """Write the deletion record of a table next to it, if the storage allows it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    user_and_host = f"{user} on {socket.gethostname()}, process {os.getpid()}"
    with suppress(StorageError):
        files.write_json(
            path + _SUFFIX, {"at": utc_now().isoformat(timespec="seconds"), "by": user_and_host}
        )


def deletion_error(path: str) -> FeatureGroupNotFound | None:
    """Return the error for a deleted table, None if there is no deletion record."""
    if files.exists(path) or not files.exists(path + _SUFFIX):
        return None
    try:
        record = files.read_json(path + _SUFFIX)
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
