"""Creating a group.

Its rows are checked first, then the empty table, then the first commit of data.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace

from featurestore.delta import commits
from featurestore.delta.log import latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureGroupExists
from featurestore.featuregroups import keys
from featurestore.featuregroups.audit import LandedRows, quarantine, transaction_of
from featurestore.featuregroups.conform import Conformed
from featurestore.featuregroups.declared_types import typed_relation
from featurestore.featuregroups.definition import Declaration, check_key, check_same, define
from featurestore.featuregroups.dependents import warn_views
from featurestore.featuregroups.registration import register, write_rows
from featurestore.featuregroups.table import OpenGroup, open_group
from featurestore.featuregroups.times import check_time_types
from featurestore.featuregroups.write import Write, note, prepare, with_reads
from featurestore.ingest import handed_over, may_be_native, schema_of, with_language
from featurestore.model.counts import check_version
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.names import check_name
from featurestore.model.paths import version_of
from featurestore.plugins.engine import TableWrite
from featurestore.recovery import groups
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.recovery.owners import versions_in_flight
from featurestore.registry import featuregroups
from featurestore.session import FEATUREGROUPS, Session
from featurestore.storage import files

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
    """Make a new version of a group from rows; return its definition and first commit.

    Raises:
        FeatureGroupExists: The version exists, or another process is creating it.
        ValidationFailed: The rows broke the expectations; nothing was made.
    """
    check_name(name)
    check_key(declared)
    if version is not None:
        version = check_version(version)
    asked = write or Write()
    write = with_reads(replace(asked, mode="create", validation=asked.validation), df)
    if not may_be_native(df):
        write = replace(write, has_checked_values=True)
    df, language = with_language(df)
    write = replace(write, library=language)
    while True:
        number = version if version is not None else next_version(session, name)
        with ExitStack() as held:
            try:
                run = held.enter_context(
                    in_flight(
                        session, kind="create", name=name, version=number, run_id=write.run_id
                    )
                )
            except FeatureGroupExists:
                # Whoever leaves the choice of the version to the store takes the next one.
                if version is not None:
                    raise
                continue
            rows = held.enter_context(handed_over(df, engine=session.engine))
            given = rows.schema
            rows = typed_relation(
                rows, declared.types, name=name, engine=session.engine, library=language
            )
            unchecked = rows.schema != given
            check_time_types(rows, declared, df=df, engine=session.engine)
            spec = define(declared, name=name, version=number, schema=rows.schema)
            warn_views(session, spec)
            conformed = Conformed(rows, spec, unchecked=unchecked)
            return spec, _create(session, conformed, declared, write, run)


def get_or_create(
    session: Session, df: object, name: str, *, declared: Declaration, version: int | None = None
) -> FeatureGroupSpec:
    """Return an existing group whose definition agrees, else create it.

    Rows are written only by a creation.

    Raises:
        DefinitionMismatch: The group exists with another definition.
    """
    check_name(name)
    with session.registry.reading() as connection:
        known = featuregroups.find(connection, name, version)
    number = version
    if known is None and version is None:
        number = _version_to_create(session, name)
    if known is None and number is not None:
        try:
            return create(session, df, name, declared=declared, version=number)[0]
        except FeatureGroupExists:
            if _wait_for_creator(session, name, number):
                return get_or_create(session, df, name, declared=declared, version=version)
    stored = open_group(session, name, version).spec
    df, language = with_language(df)
    given = schema_of(df, engine=session.engine, like=stored.schema)
    given = declared.types.schema(given, library=language)
    check_same(declared, stored, given=given)
    return stored


def _wait_for_creator(session: Session, name: str, version: int) -> bool:
    """Wait while another process creates a version; return whether one did when this was called."""
    waited = False
    while True:
        with session.registry.reading() as connection:
            if version not in versions_in_flight(connection, session.location, "create", name):
                return waited
        waited = True
        time.sleep(_POLL_SECONDS)


def _version_to_create(session: Session, name: str) -> int | None:
    """Return the first version to create, or the one that somebody creates just now.

    None if it is there by now.
    """
    number = next_version(session, name, claimed=False)
    # Asked after the folders were read: whose folder was seen is at work, or has registered it.
    with session.registry.reading() as connection:
        if featuregroups.find(connection, name, None) is not None:
            return None
        return min(versions_in_flight(connection, session.location, "create", name), default=number)


def next_version(session: Session, name: str, *, claimed: bool = True) -> int:
    """Return the version after the last one that registry, folders or a creator at work know."""
    with session.registry.reading() as connection:
        known = featuregroups.versions(connection, name)
        if claimed:
            known += versions_in_flight(connection, session.location, "create", name)
    folder = os.path.join(session.location, FEATUREGROUPS, name)
    for entry in files.list_directory(folder):
        number = version_of(entry)
        if number is not None and groups.is_group(os.path.join(folder, entry)):
            known.append(number)
    return max(known, default=0) + 1


def _create(
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
        note={"operation": "define", "run": run.run_id},
    )
    group = OpenGroup(spec, path, read_snapshot(path))
    claim = keys.claim(
        session.engine, audited.relation, group, "append", unique_batch=audited.unique
    )
    how = TableWrite(
        mode="append",
        note=note(write, run, spec, validation=audited.outcome, claim=claim, operation="create"),
        transaction=transaction_of(audited, write, run),
    )
    quarantine(session, audited, spec, how)
    run.check_intent()
    written = write_rows(session, group, audited.relation, how, run)
    delta_version = latest_version(path) if written is None else written
    landed = LandedRows(group, spec, delta_version, "create", audited, declared)
    return register(session, landed, run=run)
