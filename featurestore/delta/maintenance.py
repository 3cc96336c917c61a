"""Table maintenance: detection of small files, and removal of unneeded files.

Writers, readers and other vacuums may run concurrently. A vacuum does not remove files of commits
after the latest version at its start, or files that a running write may still commit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from featurestore.delta.history import added_files, version_at
from featurestore.delta.log import (
    commit_path,
    latest_version,
)
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import VersionNotFound
from featurestore.model.times import utc_now
from featurestore.storage import storage_for
from featurestore.storage.location import make_absolute

# Tiers end at 16 KiB, 128 KiB, ... 64 MiB. Eight files of a tier become about one file of the next
# tier, so a row is rewritten once per tier, and a table with any number of commits has a few dozen
# small files.
_FILES_PER_TIER = 8
_TIERS = tuple((1 << 14) * _FILES_PER_TIER**number for number in range(5))
# Newer files without a commit may belong to a running write.
_LONGEST_WRITE = timedelta(days=1)


def find_merge_size_limit(snapshot: Snapshot) -> int | None:
    """Return the size below which files should be merged, or None if no size tier is full."""
    if len(snapshot.files) < _FILES_PER_TIER:
        return None
    counts: Counter[tuple[object, int]] = Counter()
    for file in snapshot.files:
        tier = _tier_of(file.bytes)
        if tier < len(_TIERS):
            # Files of different partitions cannot be merged.
            counts[(tuple(file.partition.values()), tier)] += 1
    full_tiers = [tier for (_, tier), count in counts.items() if count >= _FILES_PER_TIER]
    if not full_tiers:
        return None
    return _TIERS[max(full_tiers)]


def _tier_of(size: int) -> int:
    """Return the size tier of a file; large files are above the last tier.

    >>> _tier_of(100), _tier_of(20_000), _tier_of(1 << 30)
    (0, 1, 5)
    """
    for tier, below in enumerate(_TIERS):
        if size < below:
            return tier
    return len(_TIERS)


def remove_unneeded_files(
    path: str, *, keep_versions: Sequence[int], retain: datetime
) -> list[str]:
    """Remove files that neither versions since ``retain`` nor ``keep_versions`` need.

    Return the paths of the removed files.

    Raises:
        StorageError: A file cannot be removed.
    """
    storage = storage_for(path)
    latest = latest_version(path)
    candidates = _find_unneeded_files(path, latest, keep_versions=keep_versions, retain=retain)
    # A write that took longer than _LONGEST_WRITE may just have been committed.
    candidates -= _files_added_between(path, latest + 1, latest_version(path))
    # A concurrent vacuum may already have removed some of the files.
    removed = [
        file for file in sorted(candidates) if storage.remove(file, below=make_absolute(path))
    ]
    orphaned = datetime.fromtimestamp(orphan_cutoff_time(retain), UTC)
    storage.remove_unfinished(path, before=orphaned)
    return removed


def _find_unneeded_files(
    path: str, latest: int, *, keep_versions: Sequence[int], retain: datetime
) -> set[str]:
    """Return the files that no retained version needs, except for recent uncommitted files."""
    needed = _find_needed_files(path, latest, keep_versions=keep_versions, retain=retain)
    committed = _files_added_between(path, 0, latest)
    abandoned = orphan_cutoff_time(retain)
    return {
        file
        for file in storage_for(path).walk(make_absolute(path), enter=_is_data_folder)
        if file.endswith(".parquet")
        and file not in needed
        and (file in committed or modification_time(file) < abandoned)
    }


def _find_needed_files(
    path: str, latest: int, *, keep_versions: Sequence[int], retain: datetime
) -> set[str]:
    """Return the files of all versions since ``retain`` and of ``keep_versions``."""
    try:
        first = version_at(path, retain)
    except VersionNotFound:
        # The table is younger than ``retain``, so all of its versions are retained.
        first = 0
    needed = _files_added_between(path, first, latest)
    for version in {first, *keep_versions}:
        needed |= {file.path for file in read_snapshot(path, version).files}
    return needed


def _files_added_between(path: str, first: int, last: int) -> set[str]:
    """Return the files added in a version range; commits removed from the log are ignored."""
    added: set[str] = set()
    for version in range(first, last + 1):
        if storage_for(path).exists(commit_path(path, version)):
            added.update(added_files(path, version))
    return added


def _is_data_folder(folder: str) -> bool:
    # A partition folder starts with an underscore if the column name does.
    return "=" in folder or not folder.startswith(("_", "."))


def orphan_cutoff_time(retain: datetime) -> float:
    """Return the modification time (seconds since 1970) before which uncommitted files are orphans."""
    return min(retain, utc_now() - _LONGEST_WRITE).timestamp()


def modification_time(file: str) -> float:
    """Return the modification time of a file in seconds since 1970, infinity if it is missing."""
    try:
        return storage_for(file).status(file).modified_ns / 1e9
    except FileNotFoundError:  # removed by another vacuum or by a failed writer
        return math.inf
