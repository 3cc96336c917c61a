"""Whether the data files of a version are there, and what is said when they are not.

A file that the latest version needs and that is missing is damage. One that a later commit has
removed from the table was taken by a vacuum, ours or another program's, which is no damage: then
the versions that can still be read are named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from featurestore.delta import log
from featurestore.delta.datafile import DataFile, file_path
from featurestore.delta.log import FileState, damaged_file, unreadable_file
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import FeatureStoreError, VersionVacuumed
from featurestore.storage import files
from featurestore.storage.location import absolute

_MOST_RANGES = 10


def check_files(snapshot: Snapshot, wanted: Iterable[DataFile] | None = None) -> None:
    """Make sure that data files of a version are there, in the size that the log says.

    Args:
        snapshot: The version.
        wanted: Some of its files; None for all.

    Raises:
        VersionVacuumed: A vacuum removed some; says which versions can be read.
        TableDamaged: One is missing that the latest version needs, or has another size.
        StorageError: One could not be looked at.
    """
    looked_for = snapshot.files if wanted is None else list(wanted)
    listed: Mapping[str, int] = {}
    if len(looked_for) > 1:
        listed = files.sizes_below(snapshot.path)
    for file in looked_for:
        try:
            size = listed.get(file.path)
            if size is None:
                size = FileState.of(file.path).size
        except OSError as error:
            raise unreadable_data_file(file.path, error, version=snapshot.version) from error
        if size != file.bytes:
            raise damaged_file(file.path, f"has {size} bytes where the log says {file.bytes}")


def unreadable_data_file(
    file: str, error: OSError, *, version: int | None = None
) -> FeatureStoreError:
    """Return the error for a data file that could not be read, of a version where it is known."""
    if isinstance(error, FileNotFoundError):
        vacuumed = vacuumed_file(file, version=version)
        if vacuumed is not None:
            return vacuumed
    return unreadable_file(file, error)


def vacuumed_file(file: str, *, version: int | None = None) -> VersionVacuumed | None:
    """Return the error for a file that a vacuum took; None for one that is there or is missed."""
    path = _table_of(file)
    if path is None or files.exists(file):
        return None
    try:
        latest = read_snapshot(path)
        if any(each.path == file for each in latest.files):
            return None
        readable = readable_versions(path)
    except FeatureStoreError:  # the log has damage of its own
        return None
    if not readable or version in readable:
        return None
    asked, next_one = "An old Delta version", readable[-1]
    if version is not None:
        asked = f"Delta version {version}"
        next_one = next((each for each in readable if each > version), next_one)
    return VersionVacuumed(
        f"{asked} of {path} cannot be read any more: a vacuum removed its data files. "
        f"Versions that can be read: {_ranges(readable)}.",
        hint=f"as_of={next_one}; a longer retain= of vacuum keeps more versions",
    )


def readable_versions(path: str) -> list[int]:
    """Return the versions of a table whose data files are all there, ascending."""
    listed = log.list_log(path)
    missing = set()
    for file in read_snapshot(path, listed.earliest).files:
        if not files.exists(file.path):
            missing.add(file.log_path)
    readable = []
    for version in range(listed.earliest, listed.latest + 1):
        if version > listed.earliest:
            actions = log.read_commit(log.commit_path(path, version))
            for removed in log.actions_of(actions, "remove"):
                missing.discard(removed["path"])
            for added in log.actions_of(actions, "add"):
                if not files.exists(file_path(path, added["path"])):
                    missing.add(added["path"])
        if not missing:
            readable.append(version)
    return readable


def _table_of(file: str) -> str | None:
    """Return the directory of the table that a data file lies in, None when there is none."""
    folder = os.path.dirname(absolute(file))
    while folder != os.path.dirname(folder):
        if log.is_delta_table(folder):
            return folder
        folder = os.path.dirname(folder)
    return None


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, the last ones where they are many.

    >>> _ranges([0, 4, 5, 6])
    '0, 4 to 6'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = []
    for first, last in ranges[-_MOST_RANGES:]:
        texts.append(str(first) if first == last else f"{first} to {last}")
    if len(ranges) > _MOST_RANGES:
        texts.insert(0, "...")
    return ", ".join(texts)
