"""What is left to say of a table that was deleted: when, and by whom."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress

from featurestore.errors import FeatureGroupNotFound, StorageError
from featurestore.model.times import utc_now
from featurestore.storage import files

_ENDING = ".deleted"


def note_deletion(path: str) -> None:
    """Write down beside a table that it is deleted now; what cannot be written is left out."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    by = f"{user} on {socket.gethostname()}, process {os.getpid()}"
    with suppress(StorageError):
        files.write_json(path + _ENDING, {"at": utc_now().isoformat(timespec="seconds"), "by": by})


def deletion_of(path: str) -> FeatureGroupNotFound | None:
    """Return the error for a table that was deleted, None where no deletion is known."""
    if files.exists(path) or not files.exists(path + _ENDING):
        return None
    try:
        found = files.read_json(path + _ENDING)
    except StorageError:
        found = None
    at = by = "unknown"
    if isinstance(found, dict):
        at, by = str(found.get("at")), str(found.get("by"))
    version, name = os.path.basename(path), os.path.basename(os.path.dirname(path))
    return FeatureGroupNotFound(
        f"Feature group {name!r} {version} was deleted at {at} by {by}.",
        hint="get its data anew from a version that is there",
    )
