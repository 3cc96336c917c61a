"""The write path of feature groups: creation and inserts.

Both operations record an intent in the registry, convert the rows to the group's columns, prepare
the rows (staging and audit), and publish them in one Delta commit. Creation also defines the group,
and creates the table before the rows are published.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    DuplicateKeys,
    FeatureGroupExists,
    FeatureViewWarning,
    InvalidArgument,
    KeyRequired,
    OutOfRange,
    RegistryError,
    ValidationFailed,
    did_you_mean,
)
from featurestore.external import grant_rows
from featurestore.featuregroups.checks import (
    check_time_numbers,
    check_time_types,
    warn_about_repeated_batch,
)
from featurestore.featuregroups.commit import create_table, prepare_rows, publish_rows
from featurestore.featuregroups.conform import Batch, convert_to_group_columns
from featurestore.featuregroups.definition import (
    build_spec,
    check_same_definition,
    check_validation_policy,
    convert_relation,
    definition_differences,
)
from featurestore.featuregroups.existing import (
    contains_rows,
    find_existing,
    notify,
    reuse_notice,
    version_notice,
)
from featurestore.featuregroups.maintenance import compact_when_due
from featurestore.featuregroups.records import RecordOrder
from featurestore.featuregroups.schema_change import (
    declare_columns,
    widen_spec_for_rows,
    widen_table,
)
from featurestore.featuregroups.table import open_group, open_stored
from featurestore.featuregroups.writers import warn_of_writers
from featurestore.ingest import (
    can_be_native,
    count_known_rows,
    open_relation,
    peek_language,
    schema_of,
)
from featurestore.model.arguments import MAX_INT64, check_version, warn_caller
from featurestore.model.feature_view import incompatible_features
from featurestore.model.featuregroup import WRITE_MODES, Commit, FeatureGroupSpec
from featurestore.model.group_options import GroupOptions, check_primary_key
from featurestore.model.names import check_name
from featurestore.model.paths import parse_version_directory
from featurestore.model.source import SourceRead
from featurestore.model.suggestions import SIMILAR_VALUES
from featurestore.model.validation import ValidationReport
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.recovery import claims, groups
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.recovery.liveness import versions_in_flight
from featurestore.registry import artifacts, featuregroups
from featurestore.registry.artifacts import feature_views
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.provenance import existing_inputs
from featurestore.session import FEATUREGROUPS, Session
from featurestore.storage import files

_POLL_SECONDS = 0.05
IF_EXISTS = ("version", "error", "return")


@dataclass(frozen=True)
class Write:
    """The request of one write: an insert, or the first rows of a new group.

    Attributes:
        mode: "append", "upsert", "overwrite", or "replace" to replace the rows of ``replace``.
        replace: The time range to replace.
        schema_change: "add" allows new columns and wider decimals.
        on_duplicates: "error", or "last" to write only the last row of each key.
        transaction: Name and number that make a repeated write a no-op.
        validation: The validation policy; None for the group's policy.
        run_id: The id of the run in commits and logs.
        inputs: Lineage sources: objects with ``source`` or ``featuregroup``, ``version`` and
            ``delta_version``.
        window: The windows of a job run: ``job``, ``start``, ``end``, ``count``.
        deletes: The keys of stored rows that an upsert deletes in the same commit.
        staged: Whether the rows are already in staged files, which the caller removes.
        reads: The reads of registered sources, complete after the rows were read.
        offsets: The new offsets of stream partitions (see ``TableWrite``).
        stream: Metadata of the stream records, for the commit.
        plan: The retrieval plan that produced the rows.
        rows: The number of rows, if known before they are read.
        order: The options for duplicate keys in stream records.
        has_checked_values: Whether the ranges of times and sizes of values are already checked.
        library: The dataframe library of the rows, for code in hints.
    """

    mode: str = "append"
    replace: TimeRange | None = None
    schema_change: str | None = None
    on_duplicates: str = "error"
    transaction: tuple[str, int] | None = None
    validation: str | None = None
    run_id: str | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    window: Mapping[str, Any] | None = None
    deletes: Relation | None = None
    staged: bool = False
    reads: Sequence[SourceRead] | None = None
    offsets: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    stream: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    rows: int | None = None
    order: RecordOrder | None = None
    has_checked_values: bool = False
    library: str = "pandas"


def create_named(
    session: Session,
    df: object,
    name: str,
    *,
    declared: GroupOptions,
    version: int | None = None,
    write: Write | None = None,
    if_exists: str = "version",
) -> FeatureGroupSpec:
    """Create a group for a caller, who decides by ``if_exists`` what happens to an existing name.

    Raises:
        FeatureGroupExists: A version exists, and ``if_exists`` is "error".
        DefinitionMismatch: The group has another definition, and ``if_exists`` is "return".
    """
    check_name(name)
    if if_exists not in IF_EXISTS:
        raise InvalidArgument(
            f"Unknown if_exists={if_exists!r}. 'version' creates the next version, unless the "
            "group has this definition and these rows; 'error' raises an error; 'return' returns "
            "the group without writing.",
            hint=did_you_mean(if_exists, IF_EXISTS, write="if_exists={!r}")
            or "if_exists='version'",
        )
    if if_exists == "return":
        return get_or_create(session, df, name, declared=declared, version=version, write=write)
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
        version = next_version(session, name)
    spec, _ = create(
        session, df, name, declared=declared, version=version, write=write, reuse=version is None
    )
    return spec


def create(
    session: Session,
    df: object,
    name: str,
    *,
    declared: GroupOptions,
    version: int | None = None,
    write: Write | None = None,
    reuse: bool = False,
) -> tuple[FeatureGroupSpec, Commit]:
    """Create a new version of a group from rows, and return its definition and first commit.

    With ``reuse``, the latest version is returned instead if it has the same definition and rows.
    The commit is then the last one of this version, with ``applied`` False.

    Raises:
        FeatureGroupExists: The version exists, or another process is creating it.
        ValidationFailed: The rows do not meet the expectations; nothing was created.
    """
    check_name(name)
    check_primary_key(declared)
    if version is not None:
        version = check_version(version)
    existing = find_existing(session, name) if reuse else None
    differences: list[str] = []
    write = replace(write or Write(), mode="create", replace=None)
    df, write = _describe_rows(session, df, write)
    with ExitStack() as stack:
        run = _claim_version(stack, session, name, version, write)
        rows = stack.enter_context(open_relation(df, engine=session.engine))
        batch_schema = rows.schema
        rows = convert_relation(
            rows, declared.types, name=name, engine=session.engine, library=write.library
        )
        check_time_types(rows, declared, df=df, engine=session.engine)
        spec = build_spec(declared, name=name, version=run.version, schema=rows.schema)
        _warn_views(session, spec)
        batch = Batch(rows, spec, unchecked=rows.schema != batch_schema)
        batch = prepare_rows(session, batch, write, run)
        if existing is not None:
            differences = definition_differences(existing.spec, spec, declared.types)
            if not differences:
                if batch.relation.single_use:
                    staged = session.engine.stage(batch.relation, run.rows)
                    batch = replace(batch, relation=staged)
                if contains_rows(session, existing, batch, row_count=write.rows):
                    notify(reuse_notice(existing, declared))
                    commit = commits.commit_of(existing.path, existing.delta_version)
                    return existing.spec, replace(commit, applied=False)
        if spec.external is not None:
            grant_rows(session, spec)
        group = create_table(session, spec, declared, run)
        commit = publish_rows(session, batch, group, write, run, declared)
    if existing is not None:
        notify(version_notice(session, spec, existing, differences))
    return spec, commit


def _claim_version(
    stack: ExitStack, session: Session, name: str, version: int | None, write: Write
) -> InFlight:
    """Record the intent to create a version, by default the next free one."""
    while True:
        number = version if version is not None else next_version(session, name)
        creation = in_flight(session, kind="create", name=name, version=number, run_id=write.run_id)
        try:
            # Another process may claim the number first. Without a requested version, the next
            # number is used then.
            return stack.enter_context(creation)
        except FeatureGroupExists:
            if version is not None:
                raise


def get_or_create(
    session: Session,
    df: object,
    name: str,
    *,
    declared: GroupOptions,
    version: int | None = None,
    write: Write | None = None,
) -> FeatureGroupSpec:
    """Return the definition of an existing group, or create the group.

    Rows are written only if the group is created.

    Raises:
        DefinitionMismatch: The group exists with a different definition.
    """
    check_name(name)
    with session.registry.reading() as connection:
        registered = featuregroups.find(connection, name, version)
    number = version
    if registered is None and version is None:
        number = _version_to_create(session, name)
    if registered is None and number is not None:
        try:
            return create(session, df, name, declared=declared, version=number, write=write)[0]
        except FeatureGroupExists:
            # The other process has created the group, or has failed and released the version.
            if _wait_for_creator(session, name, number):
                return get_or_create(
                    session, df, name, declared=declared, version=version, write=write
                )
    stored_spec = open_group(session, name, version).spec
    df, language = peek_language(df)
    batch_schema = schema_of(df, engine=session.engine, like=stored_spec.schema)
    batch_schema = declared.types.schema(batch_schema, library=language)
    check_same_definition(declared, stored_spec, batch_schema=batch_schema)
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
    number = next_version(session, name, claimed=False)
    # The registry is read after the folders: the creator of each listed folder is still running or
    # has already registered the version.
    with session.registry.reading() as connection:
        if featuregroups.find(connection, name, None) is not None:
            return None
        return min(versions_in_flight(connection, session.location, "create", name), default=number)


def next_version(session: Session, name: str, *, claimed: bool = True) -> int:
    """Return the version after the last one that is registered, on disk or being created."""
    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, name)
        if claimed:
            versions += versions_in_flight(connection, session.location, "create", name)
    folder = os.path.join(session.location, FEATUREGROUPS, name)
    # Folders are listed as well, because a lost registry does not contain all versions. A folder
    # without data is the rest of a failed creation.
    for entry in files.list_directory(folder):
        directory = claims.version_entry_name(entry)
        number, path = parse_version_directory(directory), os.path.join(folder, directory)
        if number is not None and (groups.is_group(path) or claims.is_abandoned(path)):
            versions.append(number)
    return max(versions, default=0) + 1


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


def insert(
    session: Session, df: object, name: str, *, version: int | None = None, write: Write
) -> Commit:
    """Write rows into an existing group and return the commit.

    Raises:
        SchemaMismatch: The columns do not fit the group; nothing was written.
        ValidationFailed: The rows do not meet the group's expectations; nothing was written.
        DuplicateKeys: The rows have duplicate keys; nothing was written.
        WriteConflict: Every attempt conflicted with other writers; nothing was written.
    """
    group = open_stored(session, name, version, to="write rows")
    spec = group.spec
    _check_write(write, spec)
    df, write = _describe_rows(session, df, write)
    # Only jobs write windows, stream records and ordered records; a write without rows adds columns.
    is_from_job = (write.window, write.stream, write.order) != (None, None, None)
    if not is_from_job and write.rows != 0:
        warn_of_writers(group)
    # A repeated transaction is detected before any row is read; the engine checks it again during
    # the commit.
    if write.transaction is not None and read_snapshot(group.path).has_committed(write.transaction):
        return replace(commits.commit_of(group.path, group.delta_version), applied=False)
    record_columns = () if write.order is None else tuple(write.order.columns)
    known_columns = pa.schema([*spec.schema, *record_columns])
    with (
        in_flight(
            session, kind="write", name=spec.name, version=spec.version, run_id=write.run_id
        ) as run,
        open_relation(df, engine=session.engine, like=known_columns) as rows,
    ):
        check_time_numbers(rows, spec, df=df, engine=session.engine)
        if write.schema_change == "add":
            rows, spec = widen_spec_for_rows(
                rows, spec, engine=session.engine, run=run, is_staged=write.staged
            )
        batch = convert_to_group_columns(
            rows,
            spec,
            engine=session.engine,
            schema_change=write.schema_change,
            library=write.library,
            extra_columns=record_columns,
        )
        try:
            batch = prepare_rows(session, batch, write, run, group)
            # These changes are compatible with other writers and readers, so a crash before the
            # commit leaves only wider decimals and unused columns.
            widen_table(session, group, batch.spec)
            declare_columns(session, group, batch.added)
            commit = publish_rows(session, batch, group, write, run)
        except (ValidationFailed, DuplicateKeys) as error:
            _record_failed_validation(session, error)
            raise
        if commit.applied:
            is_idempotent = write.transaction is not None or bool(write.offsets)
            # No other write duplicates rows if it is repeated.
            if write.mode == "append" and not spec.primary_key and not is_idempotent:
                warn_about_repeated_batch(group, commit.delta_version)
            compact_when_due(session, batch.spec, group.path, run=run)
        return commit


def _describe_rows(session: Session, df: object, write: Write) -> tuple[object, Write]:
    """Return the dataframe in a form that engines can read, and the write with row properties.

    The properties are the library and the number of rows, or plan and inputs of a ``FeatureFrame``.
    """
    if not isinstance(df, FeatureFrame):
        write = replace(write, rows=count_known_rows(df))
        if not write.inputs:
            write = replace(write, inputs=existing_inputs(session, df))
    else:
        if df.plan is not None:
            write = replace(write, plan=df.plan.to_json())
        if not write.inputs:
            write = replace(write, inputs=df.inputs)
        if df.reads is not None:
            write = replace(write, reads=df.reads)
    # Rows of other libraries are converted by ingestion, which checks times and sizes.
    if not can_be_native(df):
        write = replace(write, has_checked_values=True)
    df, library = peek_language(df)
    return df, replace(write, library=library)


def _check_write(write: Write, spec: FeatureGroupSpec) -> None:
    """Reject invalid arguments of a write, and modes that require a primary key."""
    if write.mode not in WRITE_MODES and not (write.mode == "replace" and write.replace):
        raise InvalidArgument(
            f"Unknown mode={write.mode!r}. 'append' adds the rows; 'upsert' replaces rows with "
            "the same key and adds the others; 'overwrite' replaces all rows.",
            hint=_suggest_mode(write.mode),
        )
    if write.on_duplicates not in ("error", "last"):
        raise InvalidArgument(
            f"Unknown on_duplicates={write.on_duplicates!r}.", hint="'error' or 'last'"
        )
    check_validation_policy(write.validation)
    if (write.mode == "upsert" or write.on_duplicates == "last") and not spec.primary_key:
        raise KeyRequired(
            f"Feature group {spec.name!r} version {spec.version} has no primary key, "
            "so rows cannot be matched.",
            hint="mode='append', or create the group with primary_key=",
        )
    if write.transaction is not None:
        _check_transaction(write.transaction)


def _suggest_mode(mode: object) -> str:
    mode_name = SIMILAR_VALUES["mode"].get(str(mode).lower())
    if mode_name is not None:
        return f"did you mean mode={mode_name!r}?"
    return did_you_mean(mode, WRITE_MODES, write="mode={!r}") or "mode='append'"


def _check_transaction(transaction: object) -> None:
    """Reject a transaction that is not a pair of a name and a non-negative integer."""
    if isinstance(transaction, tuple) and len(transaction) == 2:
        app, number = transaction
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if isinstance(app, str) and app and is_number and number >= 0:
            if number > MAX_INT64:
                raise OutOfRange(
                    f"transaction=({app!r}, n): n is above {MAX_INT64}.",
                    hint=f"transaction=({app!r}, 42)",
                )
            return
    raise InvalidArgument(
        f"transaction={transaction!r} is not (app, n).", hint="transaction=('nightly', 42)"
    )


def _record_failed_validation(session: Session, error: ValidationFailed | DuplicateKeys) -> None:
    report = getattr(error, "report", None)
    if isinstance(report, ValidationReport):
        # The caller needs the validation error, not an error about storing the report.
        with suppress(RegistryError), session.registry.transaction() as connection:
            artifacts.add_validation_report(connection, featuregroups.KIND, report.to_json())
