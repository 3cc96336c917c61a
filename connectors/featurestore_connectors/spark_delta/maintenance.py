"""Data files that no Delta version needs any more; Spark's own VACUUM knows of no versions to keep."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime

from featurestore.delta.history import added_files, version_at
from featurestore.delta.log import latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import VersionNotFound
from featurestore.storage import files as storage


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> Sequence[str]:
    """Remove data files that neither a version at or after ``retain`` nor one of ``keep_versions`` needs.

    Files younger than ``retain`` stay: a writer may be about to commit them.
    """
    needed = _needed(path, keep_versions, retain)
    removed = []
    for file in _data_files(os.path.abspath(path)):
        try:
            old = storage.status(file).modified_ns / 1e9 < retain.timestamp()
        except FileNotFoundError:
            continue  # another vacuum was faster
        if file not in needed and old and storage.remove(file, below=os.path.abspath(path)):
            removed.append(file)
    return removed


def _needed(path: str, keep_versions: Sequence[int], retain: datetime) -> set[str]:
    try:
        first = version_at(path, retain)
    except VersionNotFound:
        first = 0  # every version is younger
    needed = {
        file.path
        for version in {first, *keep_versions}
        for file in read_snapshot(path, version).files
    }
    for version in range(first + 1, latest_version(path) + 1):
        needed.update(added_files(path, version))
    return needed


def _data_files(path: str) -> Iterator[str]:
    """Yield the Parquet files below a table."""
    for file in storage.walk(path, enter=_holds_data):
        if file.endswith(".parquet") and os.path.basename(file)[0] not in "_.":
            yield file


def _holds_data(folder: str) -> bool:
    # Hidden folders (the log) hold no data, folders of partitions do.
    return "=" in folder or not folder.startswith(("_", "."))
