"""Vacuum.

Which files of a table no wanted version needs, decided once for every engine, and their removal.

Writers, readers and other vacuums may be at work. Everything is decided for the version that is the
latest when a
vacuum begins: what later commits add is not touched, and neither is a file that a writer may be
about to commit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from featurestore.delta.history import added_files, version_at
from featurestore.delta.log import commit_path, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import VersionNotFound
from featurestore.model.times import utc_now
from featurestore.storage import files
from featurestore.storage.connections import object_store_for
from featurestore.storage.location import absolute, is_uri

# A file that no commit names may belong to a write that is under way.
_LONGEST_WRITE = timedelta(days=1)


def remove_unneeded_files(
    path: str, *, keep_versions: Sequence[int], retain: datetime
) -> list[str]:
    """Remove files that neither versions since ``retain`` nor ``keep_versions`` need.

    Returns their paths.

    Raises:
        StorageError: A file cannot be removed.
    """
    latest = latest_version(path)
    candidates = _unneeded(path, latest, keep_versions=keep_versions, retain=retain)
    # A writer may have taken longer than any is expected to, and committed just now.
    candidates -= _added_between(path, latest + 1, latest_version(path))
    removed = []
    for file in sorted(candidates):
        if files.remove(file, below=absolute(path)):  # else another vacuum took it
            removed.append(file)
    if is_uri(path):
        storage, folder = object_store_for(path)
        abandoned = datetime.fromtimestamp(abandoned_before(retain), UTC)
        storage.remove_unfinished(folder, before=abandoned)
    return removed


def abandoned_before(retain: datetime) -> float:
    """Return since when (seconds since 1970) an uncommitted file may be a living writer's."""
    return min(retain, utc_now() - _LONGEST_WRITE).timestamp()


def modified(file: str) -> float:
    """Return when a file was written last (seconds since 1970); never, when it is gone."""
    try:
        return files.status(file).modified_ns / 1e9
    except FileNotFoundError:  # another vacuum, or a writer that failed, took it
        return math.inf


def _unneeded(
    path: str, latest: int, *, keep_versions: Sequence[int], retain: datetime
) -> set[str]:
    """Return the files that no wanted version up to ``latest`` has and no writer has just made."""
    needed = _needed(path, latest, keep_versions=keep_versions, retain=retain)
    known = _added_between(path, 0, latest)
    abandoned = abandoned_before(retain)
    found = set()
    for file in _data_files(path):
        if file in needed:
            continue
        if file in known or modified(file) < abandoned:
            found.add(file)
    return found


def _needed(path: str, latest: int, *, keep_versions: Sequence[int], retain: datetime) -> set[str]:
    """Return the files of every version since ``retain``, and of those that are kept."""
    try:
        first = version_at(path, retain)
    except VersionNotFound:
        first = 0
    needed = _added_between(path, first, latest)
    for version in {first, *keep_versions}:
        needed |= {file.path for file in read_snapshot(path, version).files}
    return needed


def _added_between(path: str, first: int, last: int) -> set[str]:
    """Return the files that the commits of a range of versions added, as far as they are there."""
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
    # Partition folders may begin with an underscore, as their column does; others are not data.
    return "=" in folder or not folder.startswith(("_", "."))
