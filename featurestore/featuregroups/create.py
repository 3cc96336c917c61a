"""Creation of a group: check the rows, create the empty table, commit the rows.

A renamed feature is a new version, so it is created here, too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featurestore.arrow.column_names import check_feature_names
from featurestore.delta import commits
from featurestore.delta.log import latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    FeatureGroupExists,
    FeatureNotFound,
    InvalidArgument,
    did_you_mean,
    listing,
)
from featurestore.featuregroups import keys
from featurestore.featuregroups.audit import CommittedRows, quarantine, transaction_of
from featurestore.featuregroups.conform import Conformed
from featurestore.featuregroups.declared_types import typed_relation
from featurestore.featuregroups.definition import Declaration, check_key, check_same, define
from featurestore.featuregroups.maintenance import warn_views
from featurestore.featuregroups.read import read
from featurestore.featuregroups.registration import register, write_rows
from featurestore.featuregroups.table import OpenGroup, open_group, open_stored
from featurestore.featuregroups.write import Write, commit_metadata, prepare, with_reads
from featurestore.featuregroups.write_checks import check_time_types
from featurestore.ingest import as_relation, can_be_native, schema_of, with_language
from featurestore.model.counts import check_version
from featurestore.model.durations import format_ttl
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.names import check_name
from featurestore.model.paths import version_of
from featurestore.plugins.engine import TableWrite
from featurestore.recovery import groups
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.recovery.owners import versions_in_flight
from featurestore.registry import featuregroups
from featurestore.retrieval import FeatureFrame
from featurestore.session import FEATUREGROUPS, Session
from featurestore.storage import files

# Arguments of expectations that name columns.
_NAMING = ("column", "column_A", "column_B", "column_list", "column_set")
_POLL_SECONDS = 0.05


def create(
    session: Session,
    df: object,
    name: str,
    *,
    declared: Declaration,
    version: int | None = None,
    write: Write | None = None,
) -> tuple[FeatureGroupSpec, Commit]:
    """Create a new version of a group from rows; return its definition and first commit.

    Raises:
        FeatureGroupExists: The version exists, or another process is creating it.
        ValidationFailed: The rows break the expectations; nothing was created.
    """
    check_name(name)
    check_key(declared)
    if version is not None:
        version = check_version(version)
    requested_write = write or Write()
    write = with_reads(
        replace(requested_write, mode="create", validation=requested_write.validation), df
    )
    if not can_be_native(df):
        write = replace(write, has_checked_values=True)
    df, language = with_language(df)
    write = replace(write, library=language)
    while True:
        number = version if version is not None else next_version(session, name)
        with ExitStack() as stack:
            try:
                run = stack.enter_context(
                    in_flight(
                        session, kind="create", name=name, version=number, run_id=write.run_id
                    )
                )
            except FeatureGroupExists:
                # Without an explicit version the next one is tried.
                if version is not None:
                    raise
                continue
            rows = stack.enter_context(as_relation(df, engine=session.engine))
            batch_schema = rows.schema
            rows = typed_relation(
                rows, declared.types, name=name, engine=session.engine, library=language
            )
            unchecked = rows.schema != batch_schema
            check_time_types(rows, declared, df=df, engine=session.engine)
            spec = define(declared, name=name, version=number, schema=rows.schema)
            warn_views(session, spec)
            conformed = Conformed(rows, spec, unchecked=unchecked)
            return spec, _define_and_commit(session, conformed, declared, write, run)


def get_or_create(
    session: Session, df: object, name: str, *, declared: Declaration, version: int | None = None
) -> FeatureGroupSpec:
    """Return an existing group with the same definition, else create it.

    Rows are written only if the group is created.

    Raises:
        DefinitionMismatch: The group exists with another definition.
    """
    check_name(name)
    with session.registry.reading() as connection:
        registered = featuregroups.find(connection, name, version)
    number = version
    if registered is None and version is None:
        number = _version_to_create(session, name)
    if registered is None and number is not None:
        try:
            return create(session, df, name, declared=declared, version=number)[0]
        except FeatureGroupExists:
            if _wait_for_creator(session, name, number):
                return get_or_create(session, df, name, declared=declared, version=version)
    stored_spec = open_group(session, name, version).spec
    df, language = with_language(df)
    batch_schema = schema_of(df, engine=session.engine, like=stored_spec.schema)
    batch_schema = declared.types.schema(batch_schema, library=language)
    check_same(declared, stored_spec, batch_schema=batch_schema)
    return stored_spec


def _wait_for_creator(session: Session, name: str, version: int) -> bool:
    """Wait while another process creates a version; return True if one was creating it."""
    waited = False
    while True:
        with session.registry.reading() as connection:
            if version not in versions_in_flight(connection, session.location, "create", name):
                return waited
        waited = True
        time.sleep(_POLL_SECONDS)


def _version_to_create(session: Session, name: str) -> int | None:
    """Return the first version to create, or the one that another process is creating.

    None if it exists by now.
    """
    number = next_version(session, name, claimed=False)
    # Read after the folders: the creator of each visible folder is still running or has
    # registered its version.
    with session.registry.reading() as connection:
        if featuregroups.find(connection, name, None) is not None:
            return None
        return min(versions_in_flight(connection, session.location, "create", name), default=number)


def next_version(session: Session, name: str, *, claimed: bool = True) -> int:
    """Return the version after the last one in the registry, the folders or running creations."""
    with session.registry.reading() as connection:
        versions = featuregroups.versions(connection, name)
        if claimed:
            versions += versions_in_flight(connection, session.location, "create", name)
    folder = os.path.join(session.location, FEATUREGROUPS, name)
    for entry in files.list_directory(folder):
        number = version_of(entry)
        if number is not None and groups.is_group(os.path.join(folder, entry)):
            versions.append(number)
    return max(versions, default=0) + 1


def _define_and_commit(
    session: Session,
    conformed: Conformed,
    declared: Declaration,
    write: Write,
    run: InFlight,
) -> Commit:
    spec = conformed.spec
    audited = prepare(session, conformed, write, run)
    path = session.featuregroup_path(spec.name, spec.version)
    meta = commits.Meta(
        declared.description, dict(declared.tags), dict(declared.descriptions or {})
    )
    session.engine.create_table(
        path,
        schema=spec.schema,
        partition_by=spec.partition_by,
        properties=commits.properties(spec, meta),
        commit_metadata={"operation": "define", "run": run.run_id},
    )
    group = OpenGroup(spec, path, read_snapshot(path))
    claim = keys.claim(
        session.engine, audited.relation, group, "append", unique_batch=audited.unique
    )
    table_write = TableWrite(
        mode="append",
        commit_metadata=commit_metadata(
            write, run, spec, validation=audited.outcome, claim=claim, operation="create"
        ),
        transaction=transaction_of(audited, write, run),
    )
    quarantine(session, audited, spec, table_write)
    run.check_intent()
    committed_version = write_rows(session, group, audited.relation, table_write, run)
    delta_version = latest_version(path) if committed_version is None else committed_version
    committed_rows = CommittedRows(group, spec, delta_version, "create", audited, declared)
    return register(session, committed_rows, run=run)


def rename_feature(session: Session, name: str, old: str, new: str) -> FeatureGroupSpec:
    """Create the next version of a group with a renamed column; return its definition.

    Keys, times, partitions, expectations, tags and descriptions use the new name. All rows are
    copied in one commit, which records their Delta version; the previous version keeps its history.

    Raises:
        FeatureNotFound: The group has no such column.
        InvalidName: The new name is invalid, or exists already.
    """
    group = open_stored(session, name, to="rename their columns: sql= can")
    spec = group.spec
    columns = spec.schema.names
    if old not in columns:
        raise FeatureNotFound(
            f"Feature group {spec.name!r} version {spec.version} has no feature {old!r}; "
            f"it has {listing(columns, limit=20)}.",
            hint=did_you_mean(old, columns, write="{!r}"),
        )
    renamed = [new if column == old else column for column in columns]
    check_feature_names(renamed)
    if new == old:
        raise InvalidArgument(f"{old!r} is the name that the feature has.", hint="give another one")
    source = {
        "featuregroup": spec.name,
        "version": spec.version,
        "delta_version": group.delta_version,
    }
    # The rows were checked at their first write.
    write = Write(validation="off", inputs=(source,), has_checked_values=True)
    frame = read(session, spec.name, version=spec.version, as_of=group.delta_version)
    new_spec, _ = create(
        session,
        _renamed_frame(session, frame, old, new),
        spec.name,
        declared=_declared(group, old, new),
        version=spec.version + 1,
        write=write,
    )
    return new_spec


def _renamed_frame(session: Session, frame: FeatureFrame, old: str, new: str) -> FeatureFrame:
    columns = {}
    for column in frame.columns:
        columns[new if column == old else column] = column
    schema = pa.schema(
        [frame.schema.field(source).with_name(name) for name, source in columns.items()]
    )
    engine = session.engine
    return FeatureFrame(session, lambda: engine.select(frame.relation, columns), schema=schema)


def _declared(group: OpenGroup, old: str, new: str) -> Declaration:
    spec, meta = group.spec, commits.meta_of(group.state)

    def new_name(column: str | None) -> str | None:
        return new if column == old else column

    expectations = [_renamed_expectation(each, old, new) for each in spec.expectations]
    descriptions = {str(new_name(column)): text for column, text in meta.features.items()}
    return Declaration(
        primary_key=_renamed(spec.primary_key, old, new),
        event_time=new_name(spec.event_time),
        created_time=new_name(spec.created_time),
        partition_by=_renamed(spec.partition_by, old, new),
        ttl=format_ttl(spec.ttl),
        expectations=expectations,
        validation=spec.validation,
        statistics=spec.statistics,
        description=meta.description,
        descriptions=descriptions,
        tags=dict(meta.tags),
        job=spec.job,
        event_time_tolerance=spec.event_time_tolerance,
        compact=spec.compact,
    )


def _renamed(columns: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if column == old else column for column in columns)


def _renamed_expectation(expectation: Mapping[str, Any], old: str, new: str) -> Mapping[str, Any]:
    kwargs = dict(expectation["kwargs"])
    for argument in _NAMING:
        value = kwargs.get(argument)
        if value == old:
            kwargs[argument] = new
        elif isinstance(value, list):
            kwargs[argument] = list(_renamed(tuple(value), old, new))
    condition = kwargs.get("row_condition")
    if condition is not None and re.search(rf"\b{re.escape(old)}\b", str(condition)):
        raise InvalidArgument(
            f"The expectation {expectation['type']} has a row_condition that names {old!r}: "
            f"{condition!r}.",
            hint="make the next version with create_featuregroup(...), its condition rewritten",
        )
    return {**expectation, "kwargs": kwargs}
