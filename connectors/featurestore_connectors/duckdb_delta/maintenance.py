"""Vacuum: removal of data files that no wanted version of a table needs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from featurestore.delta.history import added_files, version_at
from featurestore.delta.log import commit_path, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import VersionNotFound
from featurestore.model.times import utc_now
from featurestore.storage import files as storage
from featurestore_connectors.duckdb_delta.files import WRITING

# A file that no commit names may belong to a write that is under way.
_LONGEST_WRITE = timedelta(days=1)


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> list[str]:
    """Remove the files that neither versions since ``retain`` nor ``keep_versions`` need.

    Return their paths.

    Writers and readers may be at work. Everything is decided for the version that is the latest
    when this begins: what later commits add is not touched.
    """
    latest = latest_version(path)
    candidates = _unneeded(path, latest, keep_versions=keep_versions, retain=retain)
    candidates -= _added_between(path, latest + 1, latest_version(path))
    removed = []
    for file in sorted(candidates):
        if storage.remove(file, below=os.path.abspath(path)):  # else another vacuum took it
            removed.append(file)
    _remove_abandoned_writes(path, _abandoned_before(retain))
    return removed


def _unneeded(
    path: str, latest: int, *, keep_versions: Sequence[int], retain: datetime
) -> set[str]:
    """Return the files that no wanted version up to ``latest`` has and no writer has just made."""
    needed = _needed(path, latest, keep_versions=keep_versions, retain=retain)
    known = _added_between(path, 0, latest)
    abandoned = _abandoned_before(retain)
    found = set()
    for file in _data_files(path):
        if file in needed:
            continue
        if file in known or _modified(file) < abandoned:
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
        if storage.exists(commit_path(path, version)):
            added.update(added_files(path, version))
    return added


def _abandoned_before(retain: datetime) -> float:
    return min(retain, utc_now() - _LONGEST_WRITE).timestamp()


def _modified(file: str) -> float:
    try:
        return storage.status(file).modified_ns / 1e9
    except FileNotFoundError:  # another vacuum, or a writer that failed, took it
        return math.inf


def _data_files(path: str) -> Iterator[str]:
    for file in storage.walk(os.path.abspath(path), enter=_holds_data):
        if file.endswith(".parquet"):
            yield file


def _holds_data(folder: str) -> bool:
    # Partition folders may begin with an underscore, as their column does; others that do are not
    # data.
    return "=" in folder or not folder.startswith(("_", "."))


def _remove_abandoned_writes(path: str, abandoned: float) -> None:
    writing = os.path.join(path, WRITING)
    for name in storage.list_directory(writing):
        folder = os.path.join(writing, name)
        if _modified(folder) < abandoned:
            storage.remove(folder, below=path)
