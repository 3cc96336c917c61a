"""Opening of a group: versions, history and partitions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from featurestore.delta import commits
from featurestore.delta.history import version_as_of
from featurestore.delta.log import cached_listing, commit_path, is_delta_table, latest_version
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import (
    ExternalRowsError,
    FeatureStoreError,
    InvalidArgument,
    TableDamaged,
    VersionNotFound,
)
from featurestore.model.arguments import check_count, check_version, parse_version
from featurestore.model.display import Listing
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.names import check_name
from featurestore.model.paths import parse_version_directory
from featurestore.registry import featuregroups
from featurestore.session import FEATUREGROUPS, Session

# The type of ``as_of=``: a Delta version, or an instant that selects the latest version at that
# time.
TableVersion = datetime | str | int


@dataclass(frozen=True)
class OpenGroup:
    """One version of a group at one Delta version."""

    spec: FeatureGroupSpec
    path: str
    state: Snapshot
    # The result of ``base_metadata``, if the group was opened for a write.
    writer_view: Mapping[str, Any] | None = None

    @property
    def delta_version(self) -> int:
        """The Delta version that was opened."""
        return self.state.version

    def metadata_for_next_commit(self) -> Mapping[str, Any]:
        """Return metadata about this version, for the next commit."""
        if self.writer_view is None:
            return commits.base_metadata(self.path, self.delta_version)
        return self.writer_view


def version_title(spec: FeatureGroupSpec, delta_version: int) -> str:
    """Describe a commit for warnings."""
    return f"Delta version {delta_version} of feature group {spec.name!r} version {spec.version}"


def open_group(
    session: Session, name: str, version: int | None = None, *, as_of: TableVersion | None = None
) -> OpenGroup:
    """Open a group at its latest Delta version, or at the version that ``as_of`` selects.

    Raises:
        FeatureGroupNotFound: The group or version does not exist.
        VersionNotFound: The Delta version does not exist, or the group had no data at the instant.
        TableDamaged: The log of the table cannot be read; the message names the file.
    """
    name, version = resolve(session, name, version)
    path = session.featuregroup_path(name, version)
    with cached_listing(path):
        group = _read_group(path, f"{name!r} version {version}", as_of=as_of)
    if as_of is None:
        _check_end_of_log(session, group)
    return group


def _check_end_of_log(session: Session, group: OpenGroup) -> None:
    """Raise TableDamaged if the registry has a Delta version after the end of the log.

    The chain of checksums in a log does not show that its last commits are missing.
    """
    with session.registry.reading() as connection:
        registered = featuregroups.find(connection, group.spec.name, group.spec.version)
    if registered is None or registered.table_id != group.state.table_id:
        return
    expected = registered.delta_version
    # A commit after the snapshot was read may already be registered.
    if expected <= group.delta_version or latest_version(group.path) >= expected:
        return
    raise TableDamaged(
        f"The file {commit_path(group.path, expected)} is missing: the registry has Delta version "
        f"{expected}, but the log ends at {group.delta_version}.",
        hint="restore it from a copy; 'featurestore registry rebuild' accepts the older version",
    )


def open_stored(session: Session, name: str, version: int | None = None, *, to: str) -> OpenGroup:
    """Open a group whose rows are in the store; ``to`` is the purpose, for the error message.

    Raises:
        ExternalRowsError: The group is external.
    """
    name, version = resolve(session, name, version)
    path = session.featuregroup_path(name, version)
    with cached_listing(path):
        group = _read_group(path, f"{name!r} version {version}", is_for_write=True)
    _check_end_of_log(session, group)
    if group.spec.external is not None:
        raise ExternalRowsError(
            f"Feature group {group.spec.name!r} version {group.spec.version} is external: its rows "
            f"are in {group.spec.external}, and the store cannot {to}.",
            hint=f"change the source, or copy the rows with create_featuregroup("
            f"store.get_featuregroup({group.spec.name!r}), name)",
        )
    return group


def _read_group(
    path: str, title: str, *, as_of: TableVersion | None = None, is_for_write: bool = False
) -> OpenGroup:
    """Read the snapshot and the definition of a registered group."""
    if not is_delta_table(path):
        raise TableDamaged(
            f"Feature group {title} is registered, but there is no Delta table at {path}.",
            hint="restore the folder, or run 'featurestore registry rebuild' to unregister it",
        )
    state = read_snapshot(path, None if as_of is None else delta_version(path, as_of))
    # The metadata for the next commit is read with the same listing of the log.
    writer_view = commits.base_metadata(path, state.version) if is_for_write else None
    return OpenGroup(commits.spec_of(state), path, state, writer_view)


def repeated_commit(path: str, delta_version: int) -> Commit:
    """Return a commit as the result of a write that was not applied again."""
    return replace(commits.commit_of(path, delta_version), applied=False)


def resolve(session: Session, name: str, version: int | None) -> tuple[str, int]:
    """Return the name and version of a registered group; the name may be ``name@v2``."""
    name, version_argument = parse_requested_version(name, version)
    with session.registry.reading() as connection:
        number = featuregroups.get(connection, name, version_argument).version
    # Not only tables are read: files of a version, its log and statistics contain values, too.
    session.record_read(featuregroups.KIND, name, number)
    return name, number


def parse_requested_version(name: str, version: int | None) -> tuple[str, int | None]:
    """Return the group name and the requested version, None for the latest version.

    >>> parse_requested_version("weather@v2", None)
    ('weather', 2)

    Raises:
        InvalidArgument: The version is invalid, or the name includes another one.
    """
    base_name, mark, suffix = str(name).partition("@v")
    spelled = None
    # isdigit() accepts digits of all scripts, and int() would convert them.
    if mark and suffix.isascii() and suffix.isdigit():
        name, spelled = check_name(base_name), parse_version(suffix)
    else:
        check_name(name)
    if version is not None:
        version = check_version(version)
    if spelled is not None and version is not None and spelled != version:
        raise InvalidArgument(f"{name}@v{spelled} and version={version} are different versions.")
    return name, spelled if version is None else version


def delta_version(path: str, as_of: TableVersion) -> int:
    """Return the Delta version that ``as_of`` selects; the first version with data is 1."""
    number = version_as_of(path, as_of)
    if number < 1:
        raise VersionNotFound(
            f"as_of={as_of!s}: the group had no data yet.", hint="its first Delta version is 1"
        )
    return number


def history(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    limit: int = 100,
    before: int | None = None,
) -> list[Commit]:
    """Return the last ``limit`` data commits of a group before a Delta version, newest first."""
    check_count(limit, argument="limit", minimum=1)
    if before is not None:
        check_count(before, argument="before", minimum=1)
    name, version = resolve(session, name, version)
    path = session.featuregroup_path(name, version)
    return Listing(commits.history(path, limit=limit, before=before))


def list_partitions(
    session: Session, name: str, *, version: int | None = None, as_of: TableVersion | None = None
) -> list[dict[str, Any]]:
    """Return the partition values of a group, sorted, without reading data files."""
    group = open_group(session, name, version, as_of=as_of)
    columns = group.spec.partition_by
    if not columns:
        return []
    partitions = (tuple(map(file.partition.get, columns)) for file in group.state.files)
    # The log has partition values as strings. They are converted first, so that 10 follows 9.
    distinct = list(dict.fromkeys(partitions))
    arrays = {}
    for position, column in enumerate(columns):
        values = pa.array([texts[position] for texts in distinct], pa.string())
        arrays[column] = values.cast(group.spec.schema.field(column).type)
    ordered = [(column, "ascending") for column in columns]
    rows: list[dict[str, Any]] = pa.table(arrays).sort_by(ordered).to_pylist()
    return rows


def find_existing(session: Session, name: str) -> OpenGroup | None:
    """Open the latest version of a group; None if the group is new or unreadable."""
    with suppress(FeatureStoreError, OSError):
        with session.registry.reading() as connection:
            is_new = featuregroups.find(connection, name) is None
        if not is_new:
            return open_group(session, name)
    return None


def next_version(session: Session, name: str, *, claimed: bool = True) -> int:
    """Return the version after the last one that is registered, on disk or being created."""
    # Recovery imports the definitions of views and models, which a list of groups does not need.
    from featurestore.recovery import claims
    from featurestore.recovery.groups import GROUPS
    from featurestore.recovery.liveness import versions_in_flight

    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, name)
        if claimed:
            versions += versions_in_flight(connection, session.location, "create", name)
    folder = os.path.join(session.location, FEATUREGROUPS, name)
    # Folders are listed as well, because a lost registry does not contain all versions. A folder
    # without data is the rest of a failed creation.
    for entry in session.storage.list_directory(folder):
        directory = claims.version_entry_name(entry)
        number, path = parse_version_directory(directory), os.path.join(folder, directory)
        if number is not None and (GROUPS.is_published(path) or claims.is_abandoned(path)):
            versions.append(number)
    return max(versions, default=0) + 1
