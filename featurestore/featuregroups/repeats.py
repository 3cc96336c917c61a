"""Warnings of batches that were appended twice to a group without a key."""

from __future__ import annotations

from featurestore.delta.datafile import DataFile
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import DataWarning, FeatureStoreError
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.callers import warn_caller
from featurestore.storage import files

# Reading many large files again would cost more than the write.
_MOST_BYTES = 256 * 1024 * 1024


def warn_of_repeats(group: OpenGroup, delta_version: int) -> None:
    """Warn if all files of a commit equal earlier files of the group byte for byte.

    Only files of equal size, rows and statistics are read. The rows are committed, so nothing is
    raised.
    """
    before: dict[tuple[int, int], list[DataFile]] = {}
    for file in group.state.files:
        before.setdefault((file.bytes, file.rows), []).append(file)
    if not before:
        return
    try:
        earlier_paths = {file.path for file in group.state.files}
        added = [
            file
            for file in read_snapshot(group.path, delta_version).files
            if file.path not in earlier_paths
        ]
        if sum(file.bytes for file in added) > _MOST_BYTES:
            return
        is_repeat = bool(added) and all(_has_copy(file, before) for file in added)
    except (FeatureStoreError, OSError):
        return  # without the files the rows cannot be compared
    rows = sum(file.rows for file in added)
    if is_repeat and rows > 1:
        warn_caller(
            f"the same {rows:,} rows were in feature group {group.spec.name!r} already and are "
            "there twice now; transaction=('name', number) makes a write happen once, and a group "
            "with primary_key= takes mode='upsert'",
            DataWarning,
        )


def _has_copy(file: DataFile, before: dict[tuple[int, int], list[DataFile]]) -> bool:
    for candidate in before.get((file.bytes, file.rows), ()):
        is_similar = (candidate.statistics, candidate.partition) == (
            file.statistics,
            file.partition,
        )
        if is_similar and files.sha256(candidate.path) == files.sha256(file.path):
            return True
    return False
