"""Registered definitions and pinned sources, which the planner needs, and checks of their files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from featurestore.delta import commits
from featurestore.delta.datafile import DataFile
from featurestore.delta.history import version_as_of, version_at
from featurestore.delta.scan import check_contents
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    FeatureGroupNotFound,
    FeatureStoreError,
    InvalidArgument,
    VersionNotFound,
    listing,
)
from featurestore.external import LiveSource, check_snapshot
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import parse_group_reference
from featurestore.model.plan import FeaturePlan, Source
from featurestore.model.requests import AsOf
from featurestore.model.times import parse_moment
from featurestore.registry import featuregroups
from featurestore.retrieval.resolve import Specs
from featurestore.session import Session

SAMPLE, ALL = "sample", "all"
# A sample is a small fraction of the time of a read. Repeated reads check other files.
_SAMPLED_FILES, _SAMPLED_BYTES = 4, 32 << 20


class RegisteredSpecs(Mapping[str, Mapping[int, FeatureGroupSpec]]):
    """The group definitions of a store by name and version, which are loaded on first use.

    References without a version read ``current_versions``, and of other groups the latest version.
    """

    def __init__(
        self, session: Session, *, current_versions: Mapping[str, int] | None = None
    ) -> None:
        self._session = session
        self.current_versions = current_versions or {}
        self._specs_by_name: dict[str, Mapping[int, FeatureGroupSpec]] = {}

    def __getitem__(self, name: str) -> Mapping[int, FeatureGroupSpec]:
        if name not in self._specs_by_name:
            with self._session.registry.reading() as connection:
                groups = featuregroups.list_versions(connection, name)
            self._specs_by_name[name] = {group.version: group.spec for group in groups}
        if not self._specs_by_name[name]:
            raise KeyError(name)
        return self._specs_by_name[name]

    def __iter__(self) -> Iterator[str]:
        with self._session.registry.reading() as connection:
            return iter(featuregroups.names(connection))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def unregistered_error(self, name: str, version: int | None) -> FeatureStoreError | None:
        """Return the error for a group whose table exists, but is missing in the registry."""
        with self._session.registry.reading() as connection:
            return featuregroups.unregistered_error(connection, name, version)

    def list_features(self) -> list[tuple[str, str]]:
        """Return (group, feature) for the latest version of each group, without definitions."""
        with self._session.registry.reading() as connection:
            return featuregroups.latest_feature_names(connection)

    def groups_with(self, column: str) -> list[str]:
        """Return the names of the groups that have this column in any version."""
        with self._session.registry.reading() as connection:
            return featuregroups.groups_with_column(connection, column)


class SpecsAt(Mapping[str, Mapping[int, FeatureGroupSpec]]):
    """The definitions of the groups that had data at an instant, which are loaded lazily."""

    def __init__(self, specs: Specs, version_at: Callable[[str, int], int]) -> None:
        self._specs = specs
        self._version_at = version_at

    def __getitem__(self, name: str) -> Mapping[int, FeatureGroupSpec]:
        specs_by_version = {}
        for version, spec in self._specs[name].items():
            # A group was known at an instant only if it had a commit with rows; later groups must
            # not be suggested or read.
            with suppress(VersionNotFound):
                if self._version_at(name, version) > 0:  # commit 0 is an empty table
                    specs_by_version[version] = spec
        if not specs_by_version:
            raise KeyError(name)
        return specs_by_version

    def not_yet_created_error(self, name: str) -> VersionNotFound | None:
        """Return the error for a group whose first commit came after the instant."""
        for version in sorted(self._specs.get(name, {}), reverse=True):
            try:
                self._version_at(name, version)
            except VersionNotFound as error:
                return error
        return None

    def __iter__(self) -> Iterator[str]:
        for name in self._specs:
            if name in self:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Pins:
    """The Delta version of each group in a retrieval: the latest, or as of ``as_of=``.

    Each group is pinned once, so that all steps of a plan read the same version.
    """

    def __init__(self, session: Session, specs: Specs, *, as_of: AsOf | None = None) -> None:
        self._session = session
        self._specs = specs
        self._sources: dict[tuple[str, int], Source] = {}
        self._timestamp: datetime | None = None
        self._by_group: dict[str, int | datetime | str] = {}
        if isinstance(as_of, Mapping):
            self._by_group = dict(as_of)
        elif as_of is not None:
            self._timestamp = parse_moment(as_of, argument="as_of")
        for group in self._by_group:
            if parse_group_reference(group)[0] not in specs:
                raise FeatureGroupNotFound(
                    f"Unknown feature group {group!r} in as_of. Available: {listing(sorted(specs))}."
                )

    def specs(self) -> Specs:
        """Return the definitions at the time of ``as_of=``."""
        timestamp = self._timestamp
        if timestamp is None:
            return self._specs

        def delta_version_at(name: str, version: int) -> int:
            return version_at(self._session.featuregroup_path(name, version), timestamp)

        return SpecsAt(self._specs, delta_version_at)

    def source(self, group: tuple[str, int]) -> Source:
        """Return a group pinned to the Delta version that this retrieval reads."""
        # Resolved once per retrieval: a second lookup could read a later version.
        if group not in self._sources:
            name, version = group
            self._session.record_read(featuregroups.KIND, name, version)
            path = self._session.featuregroup_path(name, version)
            delta_version = self._pinned_version(name, version, path=path)
            self._sources[group] = group_source(self._session, path, delta_version=delta_version)
        return self._sources[group]

    def check_used(self) -> None:
        """Refuse ``as_of=`` if it names a group that the retrieval does not read."""
        read_groups = {name for name, _ in self._sources}
        unused = [
            group for group in self._by_group if parse_group_reference(group)[0] not in read_groups
        ]
        # An unused entry is probably a typing error, and the group would silently be read at its
        # latest version.
        if unused:
            raise InvalidArgument(
                f"as_of= pins {listing(unused)}, which this retrieval does not read. "
                f"It reads {listing(sorted(read_groups))}."
            )

    def _pinned_version(self, name: str, version: int, *, path: str) -> int | None:
        # A reference with a version takes precedence over the name of the group.
        for key in (f"{name}@v{version}", name):
            if key in self._by_group:
                return version_as_of(path, self._by_group[key], argument=f"as_of[{key!r}]")
        if self._timestamp is None:
            return None
        return version_at(path, self._timestamp)


def group_source(session: Session, path: str, *, delta_version: int | None = None) -> Source:
    """Return the group of a Delta table, pinned to a version; None means the latest.

    An external group is read at its source; its versions are snapshots in the store.

    Raises:
        VersionNotFound: An external group has no snapshot at that version.
    """
    source = pinned_source(path, delta_version=delta_version)
    if source.spec.external is None:
        return source
    if delta_version is not None:
        check_snapshot(path, source.spec, delta_version)
        return source
    return LiveSource(
        session, source.spec, table_id=source.table_id, defined_at=source.delta_version
    )


def pinned_source(path: str, *, delta_version: int | None = None) -> Source:
    """Return the group of a Delta table, pinned to a version; None means the latest.

    Unlike ``group_source``, it does not resolve an external group to its source.
    """
    state = read_snapshot(path, delta_version)
    return Source(
        # The definition comes from the snapshot, not from the registry: a later schema change must
        # not affect pinned rows.
        spec=commits.spec_of(state),
        path=path,
        delta_version=state.version,
        table_id=state.table_id,
        unique=commits.is_unique_at(path, state.version),
        rows=state.rows,
        bytes=state.bytes,
    )


def check_verify(verify: str | None) -> None:
    """Raise InvalidArgument if ``verify=`` is neither None nor a mode."""
    if verify not in (None, SAMPLE, ALL):
        raise InvalidArgument(
            f"verify={verify!r} is invalid.", hint=f"one of {listing((SAMPLE, ALL))}, or None"
        )


def check_sources(plan: FeaturePlan | None, *, verify: str | None) -> None:
    """Compare files of the groups in a plan with their checksums.

    Raises:
        TableDamaged: A file differs from its checksum, or is missing.
    """
    if plan is None or verify is None:
        return
    for source in plan.sources:
        if not isinstance(source, LiveSource):
            snapshot = read_snapshot(source.path, source.delta_version)
            checked = snapshot.files if verify == ALL else _sample_files(snapshot.files)
            check_contents(snapshot, checked)


def _sample_files(data_files: Sequence[DataFile]) -> list[DataFile]:
    """Return random files, at least one, up to a number of files and bytes."""
    sample: list[DataFile] = []
    size = 0
    for file in random.sample(data_files, min(_SAMPLED_FILES, len(data_files))):
        size += file.bytes
        if sample and size > _SAMPLED_BYTES:
            break
        sample.append(file)
    return sample
