"""Checks that the data files of a version exist, and the errors for missing files.

A missing file of the latest version is damage. A missing file that a later commit removed from the
table was deleted by a vacuum, maybe of another program; the error then lists the readable versions.
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

_SHOWN_RANGES = 10


def check_files(snapshot: Snapshot, data_files: Iterable[DataFile] | None = None) -> None:
    """Check that data files of a version exist with their size in the log.

    Args:
        snapshot: The version.
        data_files: Some of its files; None checks all.

    Raises:
        VersionVacuumed: A vacuum removed files; the message lists the readable versions.
        TableDamaged: A file of the latest version is missing, or a file has another size.
        StorageError: The status of a file cannot be read.
    """
    checked_files = snapshot.files if data_files is None else list(data_files)
    listed_sizes: Mapping[str, int] = {}
    if len(checked_files) > 1:
        listed_sizes = files.listed_sizes(snapshot.path)
    for file in checked_files:
        try:
            size = listed_sizes.get(file.path)
            if size is None:
                size = FileState.from_path(file.path).size
        except OSError as error:
            raise unreadable_data_file(file.path, error, version=snapshot.version) from error
        if size != file.bytes:
            raise damaged_file(file.path, f"has {size} bytes, but {file.bytes} in the log")


def unreadable_data_file(
    file: str, error: OSError, *, version: int | None = None
) -> FeatureStoreError:
    """Return the error for an unreadable data file of a version, if the version is known."""
    if isinstance(error, FileNotFoundError):
        vacuumed = vacuumed_file(file, version=version)
        if vacuumed is not None:
            return vacuumed
    return unreadable_file(file, error)


def vacuumed_file(file: str, *, version: int | None = None) -> VersionVacuumed | None:
    """Return the error for a file that a vacuum removed, None for existing or damaged files."""
    path = _table_of(file)
    if path is None or files.exists(file):
        return None
    try:
        latest = read_snapshot(path)
        if any(each.path == file for each in latest.files):
            return None
        readable = readable_versions(path)
    except FeatureStoreError:  # the log is damaged, too
        return None
    if not readable or version in readable:
        return None
    version_name, next_one = "An old Delta version", readable[-1]
    if version is not None:
        version_name = f"Delta version {version}"
        next_one = next((each for each in readable if each > version), next_one)
    return VersionVacuumed(
        f"{version_name} of {path} cannot be read any more: a vacuum removed its data files. "
        f"Versions that can be read: {_ranges(readable)}.",
        hint=f"as_of={next_one}; a longer retain= of vacuum keeps more versions",
    )


def readable_versions(path: str) -> list[int]:
    """Return the versions of a table whose data files all exist, ascending."""
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
    """Return the directory of the table of a data file, if any."""
    folder = os.path.dirname(absolute(file))
    while folder != os.path.dirname(folder):
        if log.is_delta_table(folder):
            return folder
        folder = os.path.dirname(folder)
    return None


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text with ranges, at most the last ranges.

    >>> _ranges([0, 4, 5, 6])
    '0, 4 to 6'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [
        str(first) if first == last else f"{first} to {last}"
        for first, last in ranges[-_SHOWN_RANGES:]
    ]
    if len(ranges) > _SHOWN_RANGES:
        texts.insert(0, "...")
    return ", ".join(texts)
