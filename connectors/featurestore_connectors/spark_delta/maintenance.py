"""Data files that no Delta version needs any more; Spark's own VACUUM knows of no versions to keep."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime

from featurestore.delta import deltalog
from featurestore.errors import StorageError, VersionNotFound


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> Sequence[str]:
    """Remove data files that neither a version at or after ``retain`` nor one of ``keep_versions`` needs.

    Files younger than ``retain`` stay: a writer may be about to commit them.
    """
    needed = _needed(path, keep_versions, retain)
    removed = []
    for file in _data_files(os.path.abspath(path)):
        try:
            if file not in needed and os.stat(file).st_mtime < retain.timestamp():
                os.remove(file)
                removed.append(file)
        except FileNotFoundError:
            continue  # another vacuum was faster
        except OSError as error:
            raise StorageError(f"Cannot remove {file!r}: {error.strerror or error}.") from error
    return removed


def _needed(path: str, keep_versions: Sequence[int], retain: datetime) -> set[str]:
    try:
        first = deltalog.version_at(path, retain)
    except VersionNotFound:
        first = 0  # every version is younger
    needed = {
        file.path
        for version in {first, *keep_versions}
        for file in deltalog.table_state(path, version).files
    }
    for version in range(first + 1, deltalog.latest_version(path) + 1):
        needed.update(deltalog.added_files(path, version))
    return needed


def _data_files(path: str) -> Iterator[str]:
    """Yield the Parquet files below a table; hidden folders (the log) hold no data, folders of partitions do."""
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if "=" in name or not name.startswith(("_", "."))]
        yield from (
            os.path.join(folder, name)
            for name in names
            if name.endswith(".parquet") and name[0] not in "_."
        )
