"""Maintenance of tables: when to merge small files, and removal of unneeded ones.

Writers, readers and other vacuums may run concurrently. A vacuum considers the version that is the
latest at its start: files of later commits are not removed, and neither are files that a writer may
be about to commit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from featurestore.delta.history import added_files, version_at
from featurestore.delta.log import commit_path, latest_version
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import VersionNotFound
from featurestore.model.times import utc_now
from featurestore.storage import files
from featurestore.storage.location import absolute
from featurestore.storage.selection import storage_for

_FILES_PER_TIER = 8
_TIERS = tuple((1 << 14) * _FILES_PER_TIER**number for number in range(5))


# A file without a commit may belong to a running write.
_LONGEST_WRITE = timedelta(days=1)


def size_to_merge_below(snapshot: Snapshot) -> int | None:
    """Return the size below which files should be merged, None if no tier is full."""
    if len(snapshot.files) < _FILES_PER_TIER:
        return None
    counts: Counter[tuple[object, int]] = Counter()
    for file in snapshot.files:
        tier = _tier_of(file.bytes)
        if tier < len(_TIERS):
            counts[(tuple(file.partition.values()), tier)] += 1
    full_tiers = [tier for (_, tier), count in counts.items() if count >= _FILES_PER_TIER]
    if not full_tiers:
        return None
    return _TIERS[max(full_tiers)]


def _tier_of(size: int) -> int:
    """Return the tier of a file; the number of tiers for large files.

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

    Returns their paths.

    Raises:
        StorageError: A file cannot be removed.
    """
    latest = latest_version(path)
    candidates = _unneeded_files(path, latest, keep_versions=keep_versions, retain=retain)
    # A writer may have taken longer than _LONGEST_WRITE and have committed just now.
    candidates -= _added_between(path, latest + 1, latest_version(path))
    removed = []
    for file in sorted(candidates):
        if files.remove(file, below=absolute(path)):  # else another vacuum removed it
            removed.append(file)
    orphaned = datetime.fromtimestamp(orphaned_before(retain), UTC)
    storage_for(path).remove_unfinished(path, before=orphaned)
    return removed


def orphaned_before(retain: datetime) -> float:
    """Return the time (seconds since 1970) before which an uncommitted file is an orphan file."""
    return min(retain, utc_now() - _LONGEST_WRITE).timestamp()


def modified(file: str) -> float:
    """Return the modification time of a file (seconds since 1970), infinity if it is missing."""
    try:
        return files.status(file).modified_ns / 1e9
    except FileNotFoundError:  # removed by another vacuum or by a failed writer
        return math.inf


def _unneeded_files(
    path: str, latest: int, *, keep_versions: Sequence[int], retain: datetime
) -> set[str]:
    """Return the files that no retained version up to ``latest`` needs, without new files."""
    needed = _needed_files(path, latest, keep_versions=keep_versions, retain=retain)
    committed = _added_between(path, 0, latest)
    abandoned = orphaned_before(retain)
    return {
        file
        for file in _data_files(path)
        if file not in needed and (file in committed or modified(file) < abandoned)
    }


def _needed_files(
    path: str, latest: int, *, keep_versions: Sequence[int], retain: datetime
) -> set[str]:
    """Return the files of every version since ``retain`` and of ``keep_versions``."""
    try:
        first = version_at(path, retain)
    except VersionNotFound:
        first = 0
    needed = _added_between(path, first, latest)
    for version in {first, *keep_versions}:
        needed |= {file.path for file in read_snapshot(path, version).files}
    return needed


def _added_between(path: str, first: int, last: int) -> set[str]:
    """Return the files that a range of versions added, without commits removed from the log."""
    added: set[str] = set()
    for version in range(first, last + 1):
        if files.exists(commit_path(path, version)):
            added.update(added_files(path, version))
    return added


def _data_files(path: str) -> Iterator[str]:
    for file in files.walk(absolute(path), enter=_holds_data):
        if file.endswith(".parquet"):
            yield file


def _holds_data(folder: str) -> bool:
    # Partition folders may start with an underscore, if the name of their column does.
    return "=" in folder or not folder.startswith(("_", "."))
