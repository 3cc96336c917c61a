"""Writes of feature groups: creation under a name, and inserts.

Both operations are one ``GroupWrite``. Creation also decides what happens to an existing name, and
defines the group.
"""

from __future__ import annotations

import time

from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    FeatureGroupExists,
    FeatureViewWarning,
    InvalidArgument,
    did_you_mean,
)
from featurestore.external import grant_rows
from featurestore.featuregroups import table
from featurestore.featuregroups.comparison import check_same_definition, compare_definitions
from featurestore.featuregroups.existing import notify, reuse_notice, version_notice
from featurestore.featuregroups.group_write import GroupWrite
from featurestore.featuregroups.write_request import WriteRequest
from featurestore.featuregroups.writers import warn_of_writers
from featurestore.ingest import count_known_rows, schema_of
from featurestore.model.arguments import check_version, warn_caller
from featurestore.model.feature_view import incompatible_features
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.group_options import check_primary_key
from featurestore.model.names import check_name
from featurestore.recovery.liveness import versions_in_flight
from featurestore.registry import featuregroups
from featurestore.registry.artifacts import feature_views
from featurestore.session import Session

_POLL_SECONDS = 0.05
IF_EXISTS = ("version", "error", "return")


def create_named(
    session: Session, df: object, request: WriteRequest, *, if_exists: str = "version"
) -> FeatureGroupSpec:
    """Create a group for a caller, who decides by ``if_exists`` what happens to an existing name.

    Raises:
        FeatureGroupExists: A version exists, and ``if_exists`` is "error".
        DefinitionMismatch: The group has another definition, and ``if_exists`` is "return".
    """
    name, version = check_name(request.name), request.version
    if if_exists not in IF_EXISTS:
        raise InvalidArgument(
            f"Unknown if_exists={if_exists!r}. 'version' creates the next version, unless the "
            "group has this definition and these rows; 'error' raises an error; 'return' returns "
            "the group without writing.",
            hint=did_you_mean(if_exists, IF_EXISTS, write="if_exists={!r}")
            or "if_exists='version'",
        )
    if if_exists == "return":
        return get_or_create(session, df, request)
    if if_exists == "error" and version is None:
        with session.registry.reading() as connection:
            registered = featuregroups.find(connection, name)
        if registered is not None:
            raise FeatureGroupExists(
                f"Feature group {name!r} exists, with version {registered.version}.",
                hint=f"insert_into_featuregroup(df, {name!r}) adds rows; if_exists='version' "
                "creates the next version",
            )
        # If another process creates this version first, creation raises FeatureGroupExists.
        version = table.next_version(session, name)
    spec, _ = create(session, df, request, version=version, reuse=version is None)
    return spec


def create(
    session: Session,
    df: object,
    request: WriteRequest,
    *,
    version: int | None = None,
    reuse: bool = False,
) -> tuple[FeatureGroupSpec, Commit]:
    """Create a new version of a group from rows, and return its definition and first commit.

    ``version`` is the number to use if the request has none; None: the next one. With ``reuse``, the
    latest version is returned instead if it has the same definition and rows. The commit is then the
    last one of this version, with ``applied`` False.

    Raises:
        FeatureGroupExists: The version exists, or another process is creating it.
        ValidationFailed: The rows do not meet the expectations; nothing was created.
    """
    name, options = check_name(request.name), request.options
    check_primary_key(options)
    version = request.version if version is None else version
    if version is not None:
        version = check_version(version)
    existing = table.find_existing(session, name) if reuse else None
    differences: list[str] = []
    with GroupWrite(session, df, request, version=version) as write:
        spec = write.define()
        _warn_views(session, spec)
        write.audit()
        if existing is not None:
            comparison = compare_definitions(existing.spec, spec, options.types)
            differences = [difference.conflict for difference in comparison.differences]
            if not differences and write.has_rows_of(existing):
                notify(reuse_notice(existing, options))
                return existing.spec, table.repeated_commit(existing.path, existing.delta_version)
        if spec.external is not None:
            grant_rows(session, spec)
        write.create_table()
        write.commit()
        commit = write.register()
    if existing is not None:
        notify(version_notice(session, spec, existing, differences))
    return spec, commit


def get_or_create(session: Session, df: object, request: WriteRequest) -> FeatureGroupSpec:
    """Return the definition of an existing group, or create the group.

    Rows are written only if the group is created.

    Raises:
        DefinitionMismatch: The group exists with a different definition.
    """
    name, version = check_name(request.name), request.version
    with session.registry.reading() as connection:
        registered = featuregroups.find(connection, name, version)
    number = version
    if registered is None and version is None:
        number = _version_to_create(session, name)
    if registered is None and number is not None:
        try:
            return create(session, df, request, version=number)[0]
        except FeatureGroupExists:
            # The other process has created the group, or has failed and released the version.
            if _wait_for_creator(session, name, number):
                return get_or_create(session, df, request)
    stored_spec = table.open_group(session, name, version).spec
    batch_schema = schema_of(df, engine=session.engine, like=stored_spec.schema)
    batch_schema = request.options.types.schema(batch_schema)
    check_same_definition(request.options, stored_spec, batch_schema=batch_schema)
    return stored_spec


def _wait_for_creator(session: Session, name: str, version: int) -> bool:
    """Wait while another process creates a version; return False if no process was creating it."""
    waited = False
    while True:
        with session.registry.reading() as connection:
            if version not in versions_in_flight(connection, session.location, "create", name):
                return waited
        waited = True
        time.sleep(_POLL_SECONDS)


def _version_to_create(session: Session, name: str) -> int | None:
    """Return the next version, or the version that another process is creating.

    Return None if a version is already registered.
    """
    number = table.next_version(session, name, claimed=False)
    # The registry is read after the folders: the creator of each listed folder is still running or
    # has already registered the version.
    with session.registry.reading() as connection:
        if featuregroups.find(connection, name, None) is not None:
            return None
        return min(versions_in_flight(connection, session.location, "create", name), default=number)


def _warn_views(session: Session, spec: FeatureGroupSpec) -> None:
    """Warn about feature views that read features which a new definition lacks.

    A view reads a fixed version of the group. If a later version lacks a feature, the view cannot
    be updated to it; if the version is recreated without a feature, the view cannot be read.
    """
    with session.registry.reading() as connection:
        reading = feature_views.views_reading(connection, spec.name)
    for view in reading:
        features = [feature for feature in view.features if feature.group == spec.name]
        missing_features = incompatible_features(features, spec)
        if missing_features:
            consequence = "It continues to read its pinned version."
            if (spec.name, spec.version) in view.groups:
                consequence = "It can no longer be read."
            warn_caller(
                f"Feature view {view.name!r} version {view.version} reads feature group "
                f"{spec.name!r}: in version {spec.version} {', '.join(missing_features)}. "
                f"{consequence}",
                FeatureViewWarning,
            )


def insert(session: Session, df: object, request: WriteRequest) -> Commit:
    """Write rows into an existing group and return the commit.

    Raises:
        SchemaMismatch: The columns do not fit the group; nothing was written.
        ValidationFailed: The rows do not meet the group's expectations; nothing was written.
        DuplicateKeys: The rows have duplicate keys; nothing was written.
        WriteConflict: Every attempt conflicted with other writers; nothing was written.
    """
    group = table.open_stored(session, request.name, request.version, to="write rows")
    request.check(group.spec)
    # A write without rows adds columns.
    if not request.is_from_job and count_known_rows(df) != 0:
        warn_of_writers(group)
    # A repeated transaction is detected before any row is read; the engine checks it again during
    # the commit.
    transaction = request.transaction
    if transaction is not None and read_snapshot(group.path).has_committed(transaction):
        return table.repeated_commit(group.path, group.delta_version)
    with GroupWrite(session, df, request, group=group) as write:
        write.convert()
        write.audit()
        write.commit()
        commit = write.register()
        if commit.applied:
            write.maintain(commit)
        return commit
