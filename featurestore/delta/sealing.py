"""Commits with checksums: the next link of the chain in a log."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from featurestore.delta import log
from featurestore.delta.checksums import CommitChecksums, checksums_of, file_checksums, seal
from featurestore.storage import files, storage_for

# A checkpoint of a version is written after its commit, so the next commit may precede it.
_COMMITS_BEFORE = 2


def seal_commit(
    path: str,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    *,
    before: log.FileState | None = None,
) -> bytes:
    """Return the commit file of a version with its checksums.

    Args:
        path: The table.
        version: The version of the commit.
        actions: The actions without checksums.
        before: The file of the commit before, if it is known, which saves a request.

    Raises:
        TableDamaged: The commit before is damaged, so that no commit may follow.
    """
    previous = log.commit_digest(path, version - 1, before) if version > 0 else None
    return seal(actions, CommitChecksums(previous, _new_checkpoints(path, version)))


def _new_checkpoints(path: str, version: int) -> dict[str, str]:
    """Return the checksums of the last checkpoints that no commit has recorded, by file name."""
    # In an object store, the search would take a request per commit.
    if not storage_for(path).is_local:
        return {}
    checkpoint_files = []
    for number in range(max(version - _COMMITS_BEFORE, 0), version):
        file = log.checkpoint_path(path, number)
        if files.exists(file):
            checkpoint_files.append(file)
    recorded: Mapping[str, str] = {}
    if checkpoint_files and log.has_commit(path, version - 1):
        info = log.commit_info(log.read_commit(log.commit_path(path, version - 1)))
        before = checksums_of(info)
        recorded = {} if before is None else before.checkpoints
    unrecorded = [file for file in checkpoint_files if os.path.basename(file) not in recorded]
    names = map(os.path.basename, unrecorded)
    return dict(zip(names, file_checksums(unrecorded), strict=True))
