"""Table maintenance: detection of small files, removal of unneeded files, checks for missing files.

Writers, readers and other vacuums may run concurrently. A vacuum does not remove files of commits
after the latest version at its start, or files that a running write may still commit.

If a file of the latest version is missing, the table is damaged. If a file of an older version is
missing, a vacuum (possibly of another program) has deleted it; then the error lists the readable
versions.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from featurestore.delta import log
from featurestore.delta.checksums import file_checksums
from featurestore.delta.datafile import DataFile, file_path
from featurestore.delta.history import added_files, version_at
from featurestore.delta.log import (
    FileState,
    commit_path,
    damaged_file,
    latest_version,
    unreadable_file,
)
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import FeatureStoreError, VersionNotFound, VersionVacuumed
from featurestore.model.times import utc_now
from featurestore.storage import files, storage_for
from featurestore.storage.location import make_absolute

_SHOWN_RANGES = 10
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
    latest = latest_version(path)
    candidates = _find_unneeded_files(path, latest, keep_versions=keep_versions, retain=retain)
    # A write that took longer than _LONGEST_WRITE may just have been committed.
    candidates -= _files_added_between(path, latest + 1, latest_version(path))
    # A concurrent vacuum may already have removed some of the files.
    removed = [file for file in sorted(candidates) if files.remove(file, below=make_absolute(path))]
    orphaned = datetime.fromtimestamp(orphan_cutoff_time(retain), UTC)
    storage_for(path).remove_unfinished(path, before=orphaned)
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
        for file in files.walk(make_absolute(path), enter=_is_data_folder)
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
        if files.exists(commit_path(path, version)):
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
        return files.status(file).modified_ns / 1e9
    except FileNotFoundError:  # removed by another vacuum or by a failed writer
        return math.inf


def check_files(snapshot: Snapshot, data_files: Iterable[DataFile] | None = None) -> None:
    """Check that the data files of a version exist and have the sizes in the log.

    Args:
        snapshot: The table version.
        data_files: The files to check; None checks all files of the version.

    Raises:
        VersionVacuumed: A vacuum has removed files; the message lists the readable versions.
        TableDamaged: A file of the latest version is missing, or a file has a different size.
        StorageError: The status of a file cannot be read.
    """
    checked_files = snapshot.files if data_files is None else list(data_files)
    listed_sizes: Mapping[str, int] = {}
    # In an object store, one listing replaces a request per file. It is empty for a local
    # directory.
    if len(checked_files) > 1:
        listed_sizes = files.list_sizes(snapshot.path)
    for file in checked_files:
        try:
            size = listed_sizes.get(file.path)
            if size is None:
                size = FileState.from_path(file.path).size
        except OSError as error:
            raise unreadable_data_file_error(file.path, error, version=snapshot.version) from error
        if size != file.bytes:
            raise damaged_file(file.path, f"has {size} bytes, but {file.bytes} in the log")


def check_contents(snapshot: Snapshot, data_files: Sequence[DataFile]) -> None:
    """Compare data files with their sizes and checksums in the log, before they are rewritten.

    Files without checksums, which other programs wrote, are only compared with their sizes.

    Raises:
        TableDamaged: A file is missing or differs; the message names it.
        StorageError: A file cannot be read.
    """
    check_files(snapshot, data_files)
    with_checksums = [file for file in data_files if file.checksum is not None]
    checksums = file_checksums([file.path for file in with_checksums])
    for file, checksum in zip(with_checksums, checksums, strict=True):
        if file.checksum != checksum:
            raise damaged_file(file.path, "differs from its checksum")


@contextmanager
def translate_read_errors(path: str) -> Iterator[None]:
    """Convert errors of a block that reads a data file to feature store errors."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise damaged_file(path, f"is not a readable Parquet file: {error}") from error
    except OSError as error:
        raise unreadable_data_file_error(path, error) from error


def unreadable_data_file_error(
    file: str, error: OSError, *, version: int | None = None
) -> FeatureStoreError:
    """Return the error for an unreadable data file; ``version`` is its table version, if known."""
    if isinstance(error, FileNotFoundError):
        vacuumed = vacuumed_file_error(file, version=version)
        if vacuumed is not None:
            return vacuumed
    return unreadable_file(file, error)


def vacuumed_file_error(file: str, *, version: int | None = None) -> VersionVacuumed | None:
    """Return the error for a file that a vacuum removed, or None in other cases."""
    path = _find_table_directory(file)
    if path is None or files.exists(file):
        return None
    try:
        latest = read_snapshot(path)
        # No vacuum removes files of the latest version, so its missing file is damage.
        if any(readable_version.path == file for readable_version in latest.files):
            return None
        readable = readable_versions(path)
    except FeatureStoreError:  # the log is damaged, too
        return None
    if not readable or version in readable:
        return None
    version_name, next_readable = "An old Delta version", readable[-1]
    if version is not None:
        version_name = f"Delta version {version}"
        next_readable = next(
            (readable_version for readable_version in readable if readable_version > version),
            next_readable,
        )
    return VersionVacuumed(
        f"{version_name} of {path} can no longer be read: a vacuum removed its data files. "
        f"Readable versions: {_ranges(readable)}.",
        hint=f"as_of={next_readable}; a longer retain= of vacuum keeps more versions",
    )


def _find_table_directory(file: str) -> str | None:
    """Return the table directory of a data file, or None if it is not in a table."""
    folder = os.path.dirname(make_absolute(file))
    while folder != os.path.dirname(folder):
        if log.is_delta_table(folder):
            return folder
        folder = os.path.dirname(folder)
    return None


def readable_versions(path: str) -> list[int]:
    """Return the table versions for which all data files exist, in ascending order."""
    listed = log.list_log(path)
    missing = set()
    # The missing files are updated commit by commit, so that each file is checked once and not once
    # per version.
    for file in read_snapshot(path, listed.earliest).files:
        if not files.exists(file.path):
            missing.add(file.log_path)
    readable = []
    for version in range(listed.earliest, listed.latest + 1):
        if version > listed.earliest:
            actions = log.read_commit(log.commit_path(path, version))
            for removed in log.actions_of_kind(actions, "remove"):
                missing.discard(removed["path"])
            for added in log.actions_of_kind(actions, "add"):
                if not files.exists(file_path(path, added["path"])):
                    missing.add(added["path"])
        if not missing:
            readable.append(version)
    return readable


def _ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges, limited to the last ranges.

    >>> _ranges([0, 4, 5, 6])
    '0, 4 to 6'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    range_strings = [
        str(first) if first == last else f"{first} to {last}"
        for first, last in ranges[-_SHOWN_RANGES:]
    ]
    if len(ranges) > _SHOWN_RANGES:
        range_strings.insert(0, "...")
    return ", ".join(range_strings)
