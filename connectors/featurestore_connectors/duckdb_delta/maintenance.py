"""Vacuum: removal of data files that no wanted version of a table needs."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from featurestore.delta import deltalog
from featurestore.errors import StorageError, VersionNotFound
from featurestore.model.times import utc_now
from featurestore_connectors.duckdb_delta.files import WRITING

# A file that no commit names may belong to a write that is under way.
_LONGEST_WRITE = timedelta(days=1)


def vacuum(path: str, *, keep_versions: Sequence[int], retain: datetime) -> list[str]:
    """Remove the files that neither versions since ``retain`` nor ``keep_versions`` need; return their paths."""
    needed, known = _needed(path, keep_versions, retain), _ever_added(path)
    abandoned = min(retain, utc_now() - _LONGEST_WRITE).timestamp()
    removed = []
    for file in _data_files(path):
        if file not in needed and (file in known or os.stat(file).st_mtime < abandoned):
            try:
                os.unlink(file)
            except OSError as error:
                raise StorageError(f"{file} could not be removed: {error}.") from error
            removed.append(file)
    _remove_abandoned_writes(path, abandoned)
    return removed


def _needed(path: str, keep_versions: Sequence[int], retain: datetime) -> set[str]:
    try:
        first = deltalog.version_at(path, retain)
    except VersionNotFound:
        first = 0
    latest = deltalog.latest_version(path)
    needed = {
        file.path
        for version in {first, *keep_versions}
        for file in deltalog.table_state(path, version).files
    }
    for version in range(first, latest + 1):
        needed.update(deltalog.added_files(path, version))
    return needed


def _ever_added(path: str) -> set[str]:
    latest = deltalog.latest_version(path)
    present = (
        version
        for version in range(latest + 1)
        if os.path.exists(deltalog.commit_path(path, version))
    )
    return {file for version in present for file in deltalog.added_files(path, version)}


def _data_files(path: str) -> Iterator[str]:
    for folder, inner, names in os.walk(os.path.abspath(path)):
        # Partition folders may begin with an underscore, as their column does; others that do are not data.
        inner[:] = [name for name in inner if "=" in name or not name.startswith(("_", "."))]
        yield from (os.path.join(folder, name) for name in names if name.endswith(".parquet"))


def _remove_abandoned_writes(path: str, abandoned: float) -> None:
    writing = os.path.join(path, WRITING)
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(writing)):
            if entry.stat().st_mtime < abandoned:
                shutil.rmtree(entry.path, ignore_errors=True)
