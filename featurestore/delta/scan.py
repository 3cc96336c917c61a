"""Scans: the version, the data files and the columns of a table read, before an engine reads rows.

Every engine plans its reads here. Otherwise the engines could check different files, return
different types for one table, or differ in their errors and warnings.

If a file of the latest version is missing, the table is damaged. If a file of an older version is
missing, a vacuum (possibly of another program) has deleted it; then the error lists the readable
versions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import feature_schema
from featurestore.arrow.untyped import format_sql_casts, refuse_untyped
from featurestore.delta import log
from featurestore.delta.checksums import file_checksums
from featurestore.delta.datafile import DataFile, file_path
from featurestore.delta.log import FileState, damaged_file, unreadable_file
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import FeatureStoreError, SchemaMismatch, VersionVacuumed, listing
from featurestore.model.arguments import warn_caller
from featurestore.model.times import NaiveTimeWarning
from featurestore.storage import storage_for
from featurestore.storage.location import make_absolute

_SHOWN_RANGES = 10


@dataclass(frozen=True)
class TableScan:
    """A pinned table version and the feature types of the columns to read.

    Columns of ``schema`` that the version lacks are null. ``is_partial`` scans read only some files
    of the version, which are those of ``snapshot``.
    """

    snapshot: Snapshot
    schema: pa.Schema
    is_partial: bool = False


def plan_scan(
    path: str,
    *,
    version: int | None = None,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    data_files: Sequence[str] | None = None,
) -> TableScan:
    """Pin a version of a table, check its data files, and determine the columns to read.

    A warning is issued for times without a time zone, which are read as UTC.

    Args:
        path: The table directory.
        version: The Delta version; by default the latest one.
        schema: The feature types to restore; by default those of the table schema.
        columns: The columns to read; by default all. The types of other columns are not checked.
        data_files: The absolute paths of the files to read; by default all. Other files are not
            checked.

    Raises:
        VersionNotFound: The version does not exist.
        VersionVacuumed: A vacuum has removed files of the version.
        TableDamaged: The log or a data file is missing or damaged.
        UnsupportedTable: The table uses unsupported features.
        SchemaMismatch: A requested column does not exist.
        UnsupportedType: Columns have unsupported types; the message lists the columns.
    """
    snapshot = read_snapshot(path, version)
    if data_files is not None:
        selected = set(data_files)
        selected_files = tuple(file for file in snapshot.files if file.path in selected)
        # Without the cached bounds, which belong to all files.
        snapshot = replace(snapshot, files=selected_files, _bounds={})
    # Engines open the files only when rows are read. This check reports a missing or truncated file
    # at the call, and names the versions that can still be read.
    check_files(snapshot)
    feature_types = _requested_schema(snapshot, schema, columns)
    _warn_about_naive_times(snapshot, feature_types)
    return TableScan(snapshot, feature_types, is_partial=data_files is not None)


def _requested_schema(
    snapshot: Snapshot, schema: pa.Schema | None, columns: Sequence[str] | None
) -> pa.Schema:
    """Return the feature types of the requested columns, from ``schema`` or the table schema."""
    selected = snapshot.schema if schema is None else schema
    if columns is not None:
        missing_columns = [column for column in columns if column not in selected.names]
        if missing_columns:
            raise SchemaMismatch(
                f"Unknown columns {listing(missing_columns)} of {snapshot.path}. "
                f"Available: {listing(selected.names, limit=50)}."
            )
        selected = pa.schema([selected.field(column) for column in columns])
    if schema is not None:
        return selected
    feature_types = feature_schema(selected)
    refuse_untyped(feature_types, subject=f"The table {snapshot.path}", hint=_cast_hint)
    return feature_types


def _cast_hint(columns: pa.Schema) -> str:
    return (
        "omit them with columns=, or cast them where the table is written: "
        f"{format_sql_casts(columns)}"
    )


def _warn_about_naive_times(snapshot: Snapshot, feature_types: pa.Schema) -> None:
    naive = [
        field.name
        for field in snapshot.schema
        if pat.is_timestamp(field.type)
        and field.type.tz is None
        and field.name in feature_types.names
    ]
    if naive:
        noun = "Columns" if len(naive) > 1 else "Column"
        warn_caller(
            f"{noun} {listing(naive)} of {snapshot.path} have no time zone and are read as UTC",
            NaiveTimeWarning,
            once=True,
        )


# -- data files ---------------------------------------------------------------------------


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
        listed_sizes = storage_for(snapshot.path).list_sizes(snapshot.path)
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
    if path is None or storage_for(file).exists(file):
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
    storage = storage_for(path)
    listed = log.list_log(path)
    missing = set()
    # The missing files are updated commit by commit, so that each file is checked once and not once
    # per version.
    for file in read_snapshot(path, listed.earliest).files:
        if not storage.exists(file.path):
            missing.add(file.log_path)
    readable = []
    for version in range(listed.earliest, listed.latest + 1):
        if version > listed.earliest:
            actions = log.read_commit(log.commit_path(path, version))
            for removed in log.actions_of_kind(actions, "remove"):
                missing.discard(removed["path"])
            for added in log.actions_of_kind(actions, "add"):
                if not storage.exists(file_path(path, added["path"])):
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
