"""The second half of a write: stage and audit the rows, commit them, register the commit.

Before, ``write.create`` and ``write.insert`` record an intent in the registry and convert the rows
to the group's columns. After an error before the Delta commit no rows are visible. An error after
the Delta commit is reported as a warning, and recovery registers the commit later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.fitting import widened_schema
from featurestore.delta import commits, iceberg
from featurestore.delta.commits import next_offsets
from featurestore.delta.log import cached_listing, is_delta_table, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError
from featurestore.featuregroups import checks
from featurestore.featuregroups.checks import warn_about_implausible_times
from featurestore.featuregroups.conform import Batch
from featurestore.featuregroups.quality import store_commit_statistics
from featurestore.featuregroups.records import prepare_records, ranges_of_positions
from featurestore.featuregroups.table import OpenGroup, version_title
from featurestore.featuregroups.writers import writer_properties
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.group_options import GroupOptions
from featurestore.model.times import utc_now
from featurestore.plugins import observers
from featurestore.plugins.engine import AggregatesWhileStaging, Relation, TableWrite
from featurestore.recovery import groups
from featurestore.recovery.in_flight import InFlight
from featurestore.registry import artifacts, featuregroups
from featurestore.retrieval.compared_features import ComparedFeatures
from featurestore.session import Session
from featurestore.statistics import StatisticsState, is_sample_short, statistics_accumulator
from featurestore.storage.failures import warn_after_publication, warn_published
from featurestore.validation import audit, quarantine_schema
from featurestore.validation.checks import NULL_KEYS

if TYPE_CHECKING:
    from featurestore.featuregroups.write import Write

# The value of ``Commit.rows`` if the log cannot be read after the commit.
UNKNOWN = -1


def prepare_rows(
    session: Session, batch: Batch, write: Write, run: InFlight, group: OpenGroup | None = None
) -> Batch:
    """Stage and audit rows if checks are required, and return the rows to commit.

    ``group`` is the existing group of an insert, None for a new group.

    Raises:
        ValidationFailed: The rows fail a check under the policy "strict".
        DuplicateKeys: The rows have duplicate keys and pass all other checks.
    """
    validation = write.validation or batch.spec.validation
    if write.order is not None and group is not None:
        return prepare_records(
            session, batch, group, order=write.order, validation=validation, run=run
        )
    spec, relation, engine = batch.spec, batch.relation, session.engine
    work = observers.current()
    if work is not None:
        work.plan = write.plan
    has_rules = bool(spec.primary_key or spec.event_time or spec.expectations)
    is_audited = validation != "off" and has_rules
    is_plain = not is_audited and write.mode != "upsert" and write.on_duplicates != "last"
    # All reads of a source are recorded once its rows are staged, which is before the commit.
    is_plain = is_plain and write.reads is None
    rules = checks.ValueRules.for_group(spec, has_checked_values=write.has_checked_values)
    # Only checks of all rows require staging; other rows are streamed into the table files.
    if is_plain and not batch.unchecked:
        relation = checks.check_while_writing(relation, rules, engine=engine)
        return replace(batch, relation=relation)
    if write.on_duplicates == "last":
        # This must precede staging, because a cluster returns staged files in a different order.
        relation = engine.last_per_key(relation, spec.upsert_key)
    # Rows that the caller has staged are staged again if they are converted or reduced, because
    # later steps read them repeatedly.
    statistics_state = None
    if not write.staged or batch.unchecked or write.on_duplicates == "last":
        relation, statistics_state = _stage_rows(session, relation, spec, run, write)
    checks.check_staged_rows(relation, rules, engine=engine)
    batch = replace(batch, relation=relation, statistics_state=statistics_state)
    if is_audited:
        return _audit_staged_rows(session, batch, write, run, validation)
    if write.mode == "upsert":
        # A merge with duplicate keys has no defined result.
        checks.check_unique_keys(relation, spec, engine=engine)
    return batch


def _stage_rows(
    session: Session, relation: Relation, spec: FeatureGroupSpec, run: InFlight, write: Write
) -> tuple[Relation, StatisticsState | None]:
    """Return staged rows, and their statistics if the engine computes them in the same pass.

    After the commit the statistics are merged with the stored ones if possible.
    """
    engine = session.engine
    counts_statistics = spec.statistics and write.mode in ("create", "append", "overwrite")
    if not counts_statistics or not isinstance(engine, AggregatesWhileStaging):
        return engine.stage(relation, run.rows), None
    accumulator = statistics_accumulator(spec, rows=write.rows)
    staged, state = engine.stage_and_aggregate(relation, run.rows, accumulator)
    # If duplicates make the sample too small, the statistics are recomputed after the commit.
    if state is not None and is_sample_short(accumulator, state):
        state = None
    return staged, state


def _audit_staged_rows(
    session: Session, batch: Batch, write: Write, run: InFlight, validation: str
) -> Batch:
    """Audit staged rows, and return the rows to commit and the rows to quarantine."""
    spec = batch.spec
    outcome = audit(
        batch.relation,
        spec=spec,
        validation=validation,
        engine=session.engine,
        expectations=spec.expectations,
        mode=write.mode,
        event_time_tolerance=spec.event_time_tolerance,
        directory=os.path.join(run.rows, "parted"),
        run_id=run.run_id,
        library=write.library,
        open_feature=ComparedFeatures(
            session, spec, with_stored_rows=write.mode not in ("create", "overwrite")
        ),
    )
    # Keys with nulls are not compared with each other, so their uniqueness is unknown.
    has_null_keys = any(
        result.expectation["type"] == NULL_KEYS and not result.success
        for result in outcome.report.results
    )
    is_quarantining = outcome.quarantined is not None
    warn_about_implausible_times(outcome.report, spec)
    return replace(
        batch,
        relation=outcome.good,
        report=outcome.report,
        quarantined=outcome.quarantined,
        unique=None if has_null_keys and not is_quarantining else outcome.unique,
        # Statistics of all staged rows are not usable if some rows are quarantined.
        statistics_state=None if is_quarantining else batch.statistics_state,
    )


def create_table(
    session: Session, spec: FeatureGroupSpec, declared: GroupOptions, run: InFlight
) -> OpenGroup:
    """Create the empty table of a new group and open it."""
    path = session.featuregroup_path(spec.name, spec.version)
    properties = commits.properties(spec, _declared_metadata(declared))
    if declared.job is not None:
        with session.registry.reading() as connection:
            properties |= writer_properties(connection, spec.name)
    # Commit 0 contains the definition, but no rows. A crash before the first data commit leaves a
    # table that is not a group yet.
    session.engine.create_table(
        path,
        schema=spec.schema,
        partition_by=spec.partition_by,
        properties=properties,
        commit_metadata={"operation": "define", "run": run.run_id},
    )
    return OpenGroup(spec, path, read_snapshot(path))


def publish_rows(
    session: Session,
    batch: Batch,
    group: OpenGroup,
    write: Write,
    run: InFlight,
    declared: GroupOptions | None = None,
) -> Commit:
    """Commit prepared rows to a group's table, register the commit and return it.

    ``declared`` is the declaration of a new group, None for an existing group.
    """
    batch = replace(batch, mode=batch.mode or write.mode)
    mode = "append" if declared is not None else batch.mode
    claim = checks.uniqueness_metadata(session.engine, batch, group, mode)
    table_write = TableWrite(
        mode=mode,  # type: ignore[arg-type]
        key=batch.spec.upsert_key if mode == "upsert" else (),
        replace=write.replace,
        add_columns=pa.schema(batch.added) if batch.added else None,
        commit_metadata=_commit_metadata(write, run, batch, claim),
        transaction=_choose_transaction(write, run, batch),
        offsets=write.offsets,
        deletes=write.deletes if batch.deletes is None else batch.deletes,
    )
    # The failing records of a replay are in the quarantine already.
    is_replay = write.order is not None and write.order.written_positions is not None
    if batch.quarantined is not None and not is_replay:
        # Quarantined rows are committed first. Both commits have the same transaction or stream
        # offsets, so a repeated write appends to neither table.
        add_to_quarantine(session, batch.quarantined, batch.spec, table_write)
    if declared is not None:
        # If this process was considered dead, recovery may have removed the table and released the
        # version.
        run.check_intent()
    delta_version = _write_table(session, group, batch.relation, table_write, run)
    if delta_version is None:
        delta_version = latest_version(group.path)
        if declared is None:  # the transaction was committed before
            return replace(commits.commit_of(group.path, delta_version), applied=False)
    # The following steps read the log several times; on an object store, a single listing suffices.
    with cached_listing(group.path):
        return _register_commit(session, batch, group, delta_version, run, declared)


def _commit_metadata(
    write: Write, run: InFlight, batch: Batch, claim: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the commit metadata: operation, run, job, inputs, window, uniqueness, validation."""
    metadata: dict[str, Any] = {"operation": write.mode, "run": run.run_id, **claim}
    if batch.spec.job is not None:
        metadata["job"] = batch.spec.job
    inputs = [*map(dict, write.inputs), *(read.to_json() for read in write.reads or ())]
    if inputs:
        metadata["inputs"] = inputs
    if write.window is not None:
        metadata["window"] = dict(write.window)
    if write.stream is not None:
        metadata["stream"] = dict(write.stream)
    if write.order is not None and write.order.written_positions:
        metadata["replayed"] = ranges_of_positions(write.order.written_positions[0])
    if batch.outcome is not None:
        metadata["validation"] = batch.outcome
    return metadata


def _choose_transaction(write: Write, run: InFlight, batch: Batch) -> tuple[str, int] | None:
    """Return the caller's transaction, or a new transaction if two tables are written.

    Writes with stream offsets need no transaction.
    """
    if write.transaction is not None or batch.quarantined is None or write.offsets:
        return write.transaction
    return f"write/{run.run_id}", 0


def add_to_quarantine(
    session: Session, rows: Relation, spec: FeatureGroupSpec, table_write: TableWrite
) -> None:
    """Append rows to the quarantine table of a group, and create the table if it is missing.

    Raises:
        StreamOvertaken: Another process has already quarantined records of these partitions.
    """
    path = session.quarantine_path(spec.name, spec.version)
    if not is_delta_table(path):
        with suppress(FileExistsError):  # another process was faster
            session.engine.create_table(
                path,
                schema=quarantine_schema(spec.schema),
                partition_by=(),
                properties={"featurestore.quarantine": f"{spec.name}@v{spec.version}"},
                commit_metadata={"operation": "create"},
            )
    state = read_snapshot(path)
    offsets = next_offsets(state, table_write.offsets)
    if offsets is None:
        return
    if widened_schema(state.schema, rows.schema) != state.schema:
        # Decimal columns of the group may have been widened since the quarantine table was created.
        session.engine.widen_columns(path, rows.schema)
    stored_columns = set(state.schema.names)
    new_columns = pa.schema([field for field in rows.schema if field.name not in stored_columns])
    quarantine_write = TableWrite(
        mode="append",
        add_columns=new_columns or None,
        commit_metadata={
            "operation": "quarantine",
            "run": table_write.commit_metadata["run"],
        },
        transaction=table_write.transaction,
        offsets=offsets,
    )
    session.engine.write(path, rows, quarantine_write)


def _write_table(
    session: Session, group: OpenGroup, relation: Relation, table_write: TableWrite, run: InFlight
) -> int | None:
    """Write one commit and return its Delta version, or None for a repeated transaction.

    After an error the log is checked: if the write was committed, only a warning is issued.
    """
    try:
        run.committed_version = session.engine.write(group.path, relation, table_write)
    except BaseException as error:
        # An error may occur after the commit became visible. The version is determined even for an
        # interrupt, so that the error can state that the rows are committed.
        run.committed_version = commits.version_of_run(
            group.path, run.run_id, after=group.delta_version
        )
        if run.committed_version is None or not isinstance(error, Exception):
            raise
        warn_published(version_title(group.spec, run.committed_version), error)
    return run.committed_version


def _register_commit(
    session: Session,
    batch: Batch,
    group: OpenGroup,
    delta_version: int,
    run: InFlight,
    declared: GroupOptions | None,
) -> Commit:
    """Update registry and statistics after a commit, and return the commit.

    No errors are raised, because the rows are already visible.
    """
    title = version_title(batch.spec, delta_version)
    try:
        commit = commits.commit_of(group.path, delta_version)
    except (FeatureStoreError, OSError, ValueError) as error:
        warn_published(title, error)
        return Commit(delta_version, UNKNOWN, utc_now(), str(batch.mode), run_id=run.run_id)
    with warn_after_publication(title):
        _update_registry(session, batch, group, commit, declared)
        run.registered = True
    if batch.spec.statistics:
        with warn_after_publication(title):
            # The rows are registered already; missing statistics are computed on request.
            store_commit_statistics(session, batch, group, commit)
    if batch.spec.iceberg:
        with warn_after_publication(title):
            # Iceberg clients read the previous version until the next commit repairs this.
            iceberg.publish(group.path)
    return commit


def _update_registry(
    session: Session,
    batch: Batch,
    group: OpenGroup,
    commit: Commit,
    declared: GroupOptions | None,
) -> None:
    """Register the Delta version, new columns, lineage and validation report of a commit."""
    spec, latest, changed_spec = batch.spec, commit.delta_version, None
    if spec.schema != group.spec.schema:
        # Register the current columns of the table, since other writers may have changed columns
        # concurrently.
        state = read_snapshot(group.path)
        latest, changed_spec = state.version, commits.spec_of(state)
    with session.registry.transaction() as connection:
        if declared is None:
            featuregroups.advance(
                connection, spec.name, spec.version, delta_version=latest, spec=changed_spec
            )
        else:
            featuregroups.add(
                connection,
                spec,
                table_id=group.state.table_id,
                delta_version=commit.delta_version,
                description=declared.description,
                created=commit.timestamp,
            )
            groups.describe(connection, spec.name, spec.version, _declared_metadata(declared))
        groups.add_lineage(connection, spec, commit)
        if batch.report is not None:
            report = replace(batch.report, delta_version=commit.delta_version)
            artifacts.add_validation_report(connection, featuregroups.KIND, report.to_json())


def _declared_metadata(declared: GroupOptions) -> commits.Meta:
    return commits.Meta(
        declared.description, dict(declared.tags), dict(declared.descriptions or {})
    )
