"""The write path: conform, stage if there are checks, audit, commit, statistics, registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    DuplicateKeys,
    InvalidArgument,
    KeyRequired,
    OutOfRange,
    RegistryError,
    SchemaMismatch,
    ValidationFailed,
    did_you_mean,
)
from featurestore.featuregroups import keys, stored_values
from featurestore.featuregroups.audit import (
    AuditedRows,
    CommittedRows,
    audit_staged,
    quarantine,
    transaction_of,
)
from featurestore.featuregroups.conform import Conformed, conform
from featurestore.featuregroups.definition import check_policy
from featurestore.featuregroups.maintenance import compact_when_due
from featurestore.featuregroups.records import RecordOrder, prepare_records, ranges_of_positions
from featurestore.featuregroups.registration import register, write_rows
from featurestore.featuregroups.table import OpenGroup, open_stored
from featurestore.featuregroups.widening import widen, with_needed_digits
from featurestore.featuregroups.write_checks import (
    check_time_numbers,
    warn_of_odd_times,
    warn_of_repeats,
)
from featurestore.ingest import as_relation, can_be_native, known_rows, with_language
from featurestore.model.counts import MAX_INT64
from featurestore.model.featuregroup import WRITE_MODES, Commit, FeatureGroupSpec
from featurestore.model.source import SourceRead
from featurestore.model.validation import ValidationReport
from featurestore.plugins import observers
from featurestore.plugins.engine import AggregatesWhileStaging, Relation, TableWrite, TimeRange
from featurestore.recovery import groups
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.registry import featuregroups, reports
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.statistics import StatisticsState, is_sample_short, statistics_accumulator


@dataclass(frozen=True)
class Write:
    """The request of one write.

    Attributes:
        mode: "append", "upsert", "overwrite", or "replace": empty ``replace`` in the same commit.
        replace: The time range that a job replaces.
        schema_change: "add" allows new columns and more digits of decimals.
        on_duplicates: "error", or "last": keep the last row of each key.
        transaction: The name and number that make a repeated write a no-op.
        validation: The policy of the audit; None: that of the group.
        run_id: The run, in the commit and in logs.
        inputs: The sources for lineage: objects with ``source`` or ``featuregroup``, ``version``,
            ``delta_version``.
        window: The windows of a job: ``job``, ``start``, ``end``, ``count``.
        staged: Whether the rows are in files of the engine already, which the caller removes.
        reads: The reads of registered sources, complete once the rows were read.
        offsets: The new offsets of a stream's partitions (``TableWrite``).
        stream: The records of the rows, for the commit.
        plan: The retrieval that produced the rows.
        rows: The number of rows, if known before they are read.
        order: The resolution of several records of one key.
        has_checked_values: Whether times and cells are known to be within their bounds.
        library: The dataframe library of the rows, for the code in hints.
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
    staged: bool = False
    reads: Sequence[SourceRead] | None = None
    offsets: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    stream: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    rows: int | None = None
    order: RecordOrder | None = None
    has_checked_values: bool = False
    library: str = "pandas"


def insert(
    session: Session, df: object, name: str, *, version: int | None = None, write: Write
) -> Commit:
    """Write rows into an existing group and return the commit.

    Raises:
        SchemaMismatch: The columns do not fit; nothing was written.
        ValidationFailed: The rows break the group's expectations; nothing was written.
        DuplicateKeys: The batch has duplicate keys.
        WriteConflict: Every attempt conflicted with other writers; nothing was written.
    """
    group = open_stored(session, name, version, to="write them")
    _check_write(write, group.spec)
    write = with_reads(write, df)
    if not can_be_native(df):
        write = replace(write, has_checked_values=True)
    df, language = with_language(df)
    if write.transaction is not None and read_snapshot(group.path).holds(write.transaction):
        return replace(commits.commit_of(group.path, group.delta_version), applied=False)
    with (
        in_flight(
            session,
            kind="write",
            name=group.spec.name,
            version=group.spec.version,
            run_id=write.run_id,
        ) as run,
        as_relation(df, engine=session.engine, like=_known_columns(group.spec, write)) as rows,
    ):
        check_time_numbers(rows, group.spec, df=df, engine=session.engine)
        spec = group.spec
        if write.schema_change == "add":
            rows, spec = with_needed_digits(
                rows, spec, engine=session.engine, run=run, is_staged=write.staged
            )
        conformed = conform(
            rows,
            spec,
            engine=session.engine,
            schema_change=write.schema_change,
            library=language,
            extra_columns=() if write.order is None else tuple(write.order.columns),
        )
        try:
            return commit(session, conformed, group, write, run)
        except (ValidationFailed, DuplicateKeys) as error:
            _record_failed_validation(session, error)
            raise


def _known_columns(spec: FeatureGroupSpec, write: Write) -> pa.Schema:
    """Return the columns whose types are known before the rows are read."""
    if write.order is None:
        return spec.schema
    return pa.schema([*spec.schema, *write.order.columns])


def with_reads(write: Write, df: object) -> Write:
    """Return a write with the number of its rows, or with the inputs of a frame of the store."""
    if not isinstance(df, FeatureFrame):
        return replace(write, rows=known_rows(df))
    if df.plan is not None:
        write = replace(write, plan=df.plan.to_json())
    if not write.inputs:
        write = replace(write, inputs=df.inputs)
    if df.reads is None:
        return write
    return replace(write, reads=df.reads)


def commit(
    session: Session, conformed: Conformed, group: OpenGroup, write: Write, run: InFlight
) -> Commit:
    """Stage, audit, commit and register conformed rows; the group's table exists."""
    if write.order is None:
        audited = prepare(session, conformed, write, run)
    else:
        audited = prepare_records(
            session,
            conformed.relation,
            conformed.spec,
            group,
            order=write.order,
            validation=write.validation or group.spec.validation,
            run=run,
        )
    mode = audited.mode or write.mode
    widen(session, group, conformed.spec)
    if conformed.added:
        _declare_new_columns(session, group, conformed)
    unique = keys.claim(session.engine, audited.relation, group, mode, unique_batch=audited.unique)
    table_write = TableWrite(
        mode=mode,  # type: ignore[arg-type]
        key=conformed.spec.upsert_key if mode == "upsert" else (),
        replace=write.replace,
        add_columns=_added_schema(conformed),
        commit_metadata=commit_metadata(
            write, run, group.spec, validation=audited.outcome, claim=unique
        ),
        transaction=transaction_of(audited, write, run),
        offsets=write.offsets,
        deletes=audited.deletes,
    )
    if write.order is None or write.order.written_positions is None:
        quarantine(session, audited, conformed.spec, table_write)
    delta_version = write_rows(session, group, audited.relation, table_write, run)
    if delta_version is None:
        state = read_snapshot(group.path)
        return replace(commits.commit_of(group.path, state.version), applied=False)
    committed_rows = CommittedRows(group, conformed.spec, delta_version, mode, audited)
    committed = register(session, committed_rows, run=run)
    if write.mode == "append" and not group.spec.primary_key and not _has_idempotency_mark(write):
        warn_of_repeats(group, delta_version)
    compact_when_due(session, conformed.spec, group.path, run=run)
    return committed


def _has_idempotency_mark(write: Write) -> bool:
    """Return True if a write has a transaction or offsets, which exclude repeats."""
    return write.transaction is not None or bool(write.offsets)


def prepare(session: Session, conformed: Conformed, write: Write, run: InFlight) -> AuditedRows:
    """Return the rows that may be committed, staged and audited if there are checks."""
    spec, relation, engine = conformed.spec, conformed.relation, session.engine
    work = observers.current()
    if work is not None:
        work.plan = write.plan
    validation = write.validation or spec.validation
    has_rules = bool(spec.primary_key or spec.event_time or spec.expectations)
    is_audited = validation != "off" and has_rules
    is_plain = not is_audited and write.mode != "upsert" and write.on_duplicates != "last"
    # The reads of a source are known once its rows are staged, before the commit.
    is_plain = is_plain and write.reads is None
    rules = stored_values.ValueRules.for_group(spec, has_checked_values=write.has_checked_values)
    if is_plain and not conformed.unchecked:
        return AuditedRows(stored_values.refuse_while_written(relation, rules, engine=engine))
    if write.on_duplicates == "last":
        # Before staging: a cluster returns files in another order.
        relation = engine.last_per_key(relation, spec.upsert_key)
    statistics_state = None
    if not write.staged or conformed.unchecked or write.on_duplicates == "last":
        relation, statistics_state = _stage_rows(session, relation, spec, run, write)
    stored_values.check_staged(relation, rules, engine=engine)
    if is_audited:
        audited = audit_staged(
            session,
            relation,
            spec,
            validation=validation,
            run=run,
            mode=write.mode,
            library=write.library,
        )
        warn_of_odd_times(audited, spec)
        if audited.relation is relation:  # no row was quarantined
            audited = replace(audited, statistics_state=statistics_state)
        return audited
    if write.mode == "upsert":
        keys.refuse_duplicates(relation, spec, engine=engine)
    return AuditedRows(relation, statistics_state=statistics_state)


def _stage_rows(
    session: Session,
    relation: Relation,
    spec: FeatureGroupSpec,
    run: InFlight,
    write: Write,
) -> tuple[Relation, StatisticsState | None]:
    """Return staged rows, and their statistics if the engine counts them in the same pass.

    After the commit these are merged with the stored ones where possible.
    """
    engine = session.engine
    counts_statistics = spec.statistics and write.mode in ("create", "append", "overwrite")
    if not counts_statistics or not isinstance(engine, AggregatesWhileStaging):
        return engine.stage(relation, run.rows), None
    accumulator = statistics_accumulator(spec, rows=write.rows)
    staged, state = engine.stage_and_aggregate(relation, run.rows, accumulator)
    if state is not None and is_sample_short(accumulator, state):
        state = None
    return staged, state


def commit_metadata(
    write: Write,
    run: InFlight,
    spec: FeatureGroupSpec,
    *,
    validation: str | None,
    claim: Mapping[str, Any],
    operation: str | None = None,
) -> dict[str, Any]:
    """Return the commit's metadata: operation, run, job, inputs, window, claims and validation."""
    metadata: dict[str, Any] = {"operation": operation or write.mode, "run": run.run_id, **claim}
    if spec.job is not None:
        metadata["job"] = spec.job
    inputs = list(map(dict, write.inputs))
    for read in write.reads or ():
        inputs.append(read.to_json())
    if inputs:
        metadata["inputs"] = inputs
    if write.window is not None:
        metadata["window"] = dict(write.window)
    if write.stream is not None:
        metadata["stream"] = dict(write.stream)
    if write.order is not None and write.order.written_positions:
        metadata["replayed"] = ranges_of_positions(write.order.written_positions[0])
    if validation is not None:
        metadata["validation"] = validation
    return metadata


def _record_failed_validation(session: Session, error: ValidationFailed | DuplicateKeys) -> None:
    report = getattr(error, "report", None)
    if isinstance(report, ValidationReport):
        # The caller needs the refusal, not an error about storing the report.
        with suppress(RegistryError), session.registry.transaction() as connection:
            reports.add_validation(connection, featuregroups.KIND, report.to_json())


def _check_write(write: Write, spec: FeatureGroupSpec) -> None:
    if write.mode not in WRITE_MODES and not (write.mode == "replace" and write.replace):
        raise InvalidArgument(
            f"mode={write.mode!r} is not known. 'append' adds the rows; 'upsert' replaces rows of "
            "the same key and adds the others; 'overwrite' replaces everything.",
            hint=_suggest_mode(write.mode),
        )
    if write.on_duplicates not in ("error", "last"):
        raise InvalidArgument(
            f"on_duplicates={write.on_duplicates!r} is not known.", hint="'error' or 'last'"
        )
    check_policy(write.validation)
    if (write.mode == "upsert" or write.on_duplicates == "last") and not spec.primary_key:
        raise KeyRequired(
            f"Feature group {spec.name!r} version {spec.version} has no primary key, "
            "so nothing can be matched.",
            hint="mode='append', or create the group with primary_key=",
        )
    if write.transaction is not None:
        _check_transaction(write.transaction)


# The names of modes in other libraries.
_MODE_ALIASES = {
    "replace": "overwrite",
    "w": "overwrite",
    "write": "overwrite",
    "truncate": "overwrite",
    "merge": "upsert",
    "update": "upsert",
    "insert": "append",
    "add": "append",
    "a": "append",
}


def _suggest_mode(mode: object) -> str:
    mode_name = _MODE_ALIASES.get(str(mode).lower())
    if mode_name is not None:
        return f"did you mean mode={mode_name!r}?"
    return did_you_mean(mode, WRITE_MODES, write="mode={!r}") or "mode='append'"


def _check_transaction(transaction: object) -> None:
    if isinstance(transaction, tuple) and len(transaction) == 2:
        app, number = transaction
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if isinstance(app, str) and app and is_number and number >= 0:
            if number > MAX_INT64:
                raise OutOfRange(
                    f"transaction=({app!r}, n) has an n above {MAX_INT64}.",
                    hint=f"transaction=({app!r}, 42)",
                )
            return
    raise InvalidArgument(
        f"transaction={transaction!r} is not (app, n).", hint="transaction=('nightly', 42)"
    )


def _declare_new_columns(session: Session, group: OpenGroup, conformed: Conformed) -> None:
    """Add new columns to the definition, one writer after the other.

    The definition comes first: readers ignore columns that the table does not have yet, so a writer
    that dies here has changed nothing.
    """
    name, version = group.spec.name, group.spec.version
    with session.registry.transaction() as connection:
        groups.lock(connection, name, version)
        declared_spec = commits.announced_spec(read_snapshot(group.path))
        new_columns = _undeclared_columns(conformed.added, declared_spec)
        if new_columns:
            properties = commits.properties(declared_spec.with_columns(new_columns), commits.Meta())
            session.engine.set_properties(group.path, {commits.SPEC: properties[commits.SPEC]})


def _undeclared_columns(
    added: Sequence[pa.Field], declared_spec: FeatureGroupSpec
) -> list[pa.Field]:
    """Return the columns that the definition does not have yet.

    Raises:
        SchemaMismatch: Another writer has declared one of them with another type.
    """
    types_by_name = {column.name: column.type for column in declared_spec.schema}
    new_columns, conflicts = [], []
    for column in added:
        kind = types_by_name.get(column.name)
        if kind is None:
            new_columns.append(column)
        elif kind != column.type:
            conflicts.append(f"{column.name!r} is {column.type}, there {kind}")
    if conflicts:
        raise SchemaMismatch(
            f"Another writer has just given new columns of {declared_spec.name!r} other types: "
            f"{', '.join(conflicts)}.",
            hint="cast the columns",
        )
    return new_columns


def _added_schema(conformed: Conformed) -> pa.Schema | None:
    if not conformed.added:
        return None
    return pa.schema(conformed.added)
