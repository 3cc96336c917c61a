"""Temporary directories of this process."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress

from featurestore.errors import StorageError
from featurestore.storage import storage_for
from featurestore.storage.failures import translate_write_errors

# The process that made each temporary directory.
_temporary_directories: dict[str, int] = {}


def temporary_directory() -> str:
    """Create a temporary directory for this process; ``remove_temporary`` removes it."""
    with translate_write_errors(tempfile.gettempdir()):
        directory = tempfile.mkdtemp(prefix="featurestore-")
    _temporary_directories[directory] = os.getpid()
    return directory


def remove_temporary(directory: str) -> None:
    """Remove a directory made by ``temporary_directory``; ignore files that cannot be removed.

    A forked child does not remove the directories of its parent.
    """
    if _temporary_directories.pop(directory, os.getpid()) != os.getpid():
        return
    with suppress(StorageError):
        storage_for(directory).remove(directory, below=os.path.dirname(directory))
