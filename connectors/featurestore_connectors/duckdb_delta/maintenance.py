"""Vacuum: removal of unneeded data files and of the files of abandoned writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime

from featurestore.delta.maintenance import modified, orphaned_before, remove_unneeded_files
from featurestore.storage import files as storage
from featurestore_connectors.duckdb_delta.files import WRITING


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> list[str]:
    """Remove files that neither versions since ``retain`` nor ``keep_versions`` need.

    Returns their paths.
    """
    removed = remove_unneeded_files(path, keep_versions=keep_versions, retain=retain)
    _remove_abandoned_writes(path, orphaned_before(retain))
    return removed


def _remove_abandoned_writes(path: str, abandoned: float) -> None:
    writing = os.path.join(path, WRITING)
    for name in storage.list_directory(writing):
        folder = os.path.join(writing, name)
        if modified(folder) < abandoned:
            storage.remove(folder, below=path)
