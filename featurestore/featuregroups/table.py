"""Opening of a feature group: its path from the registry, its state from the Delta log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from featurestore.delta import commits
from featurestore.delta.history import version_as_of
from featurestore.delta.log import cached_listing, is_delta_table
from featurestore.delta.snapshot import Snapshot, read_snapshot
from featurestore.errors import (
    ExternalRowsError,
    InvalidArgument,
    TableDamaged,
    VersionNotFound,
)
from featurestore.model.counts import check_version, parse_version
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import check_name
from featurestore.registry import featuregroups
from featurestore.session import Session

# The argument ``as_of=``: a Delta version, or an instant, for the latest version at that time.
TableVersion = datetime | str | int


@dataclass(frozen=True)
class OpenGroup:
    """One version of a group at one Delta version."""

    spec: FeatureGroupSpec
    path: str
    state: Snapshot
    # What ``base_metadata`` returns, where the group was opened for a write.
    writer_view: Mapping[str, Any] | None = None

    @property
    def delta_version(self) -> int:
        """The Delta version that was opened."""
        return self.state.version

    def seen_by_writer(self) -> Mapping[str, Any]:
        """Return the metadata of this version for a commit that follows it."""
        if self.writer_view is None:
            return commits.base_metadata(self.path, self.delta_version)
        return self.writer_view


def open_group(
    session: Session, name: str, version: int | None = None, *, as_of: TableVersion | None = None
) -> OpenGroup:
    """Return a group at its latest Delta version, or ``as_of`` an instant or Delta version.

    Raises:
        FeatureGroupNotFound: No such group or version.
        VersionNotFound: The group had no data yet, or has no such Delta version.
        TableDamaged: Its log cannot be read; names the file.
    """
    name, version = resolve(session, name, version)
    path = session.featuregroup_path(name, version)
    with cached_listing(path):
        return _open(path, f"{name!r} version {version}", as_of)


def open_stored(session: Session, name: str, version: int | None = None, *, to: str) -> OpenGroup:
    """Return a group whose rows are in the store; ``to`` is the purpose, for the error.

    Raises:
        ExternalRowsError: It is an external group.
    """
    name, version = resolve(session, name, version)
    path = session.featuregroup_path(name, version)
    with cached_listing(path):
        group = _open(path, f"{name!r} version {version}", None)
        group = replace(group, writer_view=commits.base_metadata(path, group.delta_version))
    if group.spec.external is not None:
        raise ExternalRowsError(
            f"Feature group {group.spec.name!r} version {group.spec.version} is external: its rows "
            f"are those of {group.spec.external}, and the store does not {to}.",
            hint=f"change them there, or create_featuregroup(store.get_featuregroup("
            f"{group.spec.name!r}), name) makes a group of the store",
        )
    return group


def _open(path: str, title: str, as_of: TableVersion | None) -> OpenGroup:
    if not is_delta_table(path):
        raise TableDamaged(
            f"Feature group {title} is registered, but there is no Delta table at {path}.",
            hint="restore the folder, or run 'featurestore registry rebuild' to forget it",
        )
    state = read_snapshot(path, None if as_of is None else delta_version(path, as_of))
    return OpenGroup(commits.spec_of(state), path, state)


def resolve(session: Session, name: str, version: int | None) -> tuple[str, int]:
    """Return name and version of a registered group; ``name@v2`` includes a version."""
    name, version_argument = requested_version(name, version)
    with session.registry.reading() as connection:
        return name, featuregroups.get(connection, name, version_argument).version


def requested_version(name: str, version: int | None) -> tuple[str, int | None]:
    """Return the name of a group and the requested version; None: the latest.

    >>> requested_version("weather@v2", None)
    ('weather', 2)

    Raises:
        InvalidArgument: The version is invalid, or the name includes another one.
    """
    name, spelled = _split_version(name)
    if version is not None:
        version = check_version(version)
    if spelled is not None and version is not None and spelled != version:
        raise InvalidArgument(f"{name}@v{spelled} and version={version} contradict each other.")
    return name, spelled if version is None else version


def delta_version(path: str, as_of: TableVersion) -> int:
    """Return the Delta version of ``as_of=`` for a table; the first with data is 1."""
    number = version_as_of(path, as_of)
    if number < 1:
        raise VersionNotFound(
            f"as_of={as_of!s}: the group held no data yet.", hint="its first Delta version is 1"
        )
    return number


def _split_version(name: str) -> tuple[str, int | None]:
    head, mark, tail = str(name).partition("@v")
    if mark and tail.isascii() and tail.isdigit():
        return check_name(head), parse_version(tail)
    return check_name(name), None
