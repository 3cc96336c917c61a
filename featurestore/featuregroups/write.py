"""The one write path.

Conform, stage when something has to be checked, audit, commit, statistics, registry.
"""

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
    LandedRows,
    audit_staged,
    quarantine,
    transaction_of,
)
from featurestore.featuregroups.conform import Conformed, conform
from featurestore.featuregroups.definition import check_policy
from featurestore.featuregroups.maintenance import compact_when_due
from featurestore.featuregroups.records import RecordOrder, prepare_records, ranges_of_places
from featurestore.featuregroups.registration import register, write_rows
from featurestore.featuregroups.repeats import warn_of_repeats
from featurestore.featuregroups.table import OpenGroup, open_stored
from featurestore.featuregroups.times import check_time_numbers, warn_of_odd_times
from featurestore.featuregroups.widening import widen, with_needed_digits
from featurestore.ingest import handed_over, known_rows, may_be_native, with_language
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
    """One write as a caller asks for it.

    ``mode`` "replace" empties ``replace`` in the same commit (jobs). ``inputs`` are the sources for
    lineage: objects with ``source`` or ``featuregroup``, ``version``, ``delta_version``. ``window``
    says which windows of a job the rows are: ``job``, ``start``, ``end``, ``count``. ``staged``
    rows lie in files of the engine already, which the caller removes. ``reads`` fills with what is
    read of registered sources while the rows come; None where they come from elsewhere. ``offsets``
    moves the numbers of a stream's partitions (``TableWrite``), ``stream`` says which records the
    rows are, and ``order`` how rows of one key become one. ``plan`` is that of the retrieval whose
    rows these are. ``rows`` is how many they are, where that is known before they come.
    ``has_checked_values``: their times are known to lie in the years 1 to 9999, and their cells to
    keep to the bound.
    ``library`` is the kind of dataframe that the rows came with, whose words hints use.
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
        ValidationFailed: The rows broke the group's expectations; nothing was written.
        DuplicateKeys: One batch holds a key more than once.
        WriteConflict: Other writers kept winning; nothing was written.
    """
    group = open_stored(session, name, version, to="write them")
    _check(write, group.spec)
    write = with_reads(write, df)
    if not may_be_native(df):
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
        handed_over(df, engine=session.engine, like=_known_columns(group.spec, write)) as rows,
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
            beside=() if write.order is None else tuple(write.order.columns),
        )
        try:
            return commit(session, conformed, group, write, run)
        except (ValidationFailed, DuplicateKeys) as error:
            _record_refusal(session, error)
            raise


def _known_columns(spec: FeatureGroupSpec, write: Write) -> pa.Schema:
    """Return the columns whose types are known before the rows come."""
    if write.order is None:
        return spec.schema
    return pa.schema([*spec.schema, *write.order.columns])


def with_reads(write: Write, df: object) -> Write:
    """Return a write that tells how many its rows are, or what a frame of the store is made of."""
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
        _announce_columns(session, group, conformed)
    unique = keys.claim(session.engine, audited.relation, group, mode, unique_batch=audited.unique)
    how = TableWrite(
        mode=mode,  # type: ignore[arg-type]
        key=conformed.spec.upsert_key if mode == "upsert" else (),
        replace=write.replace,
        add_columns=_added(conformed),
        note=note(write, run, group.spec, validation=audited.outcome, claim=unique),
        transaction=transaction_of(audited, write, run),
        offsets=write.offsets,
        deletes=audited.deletes,
    )
    if write.order is None or write.order.landed is None:
        quarantine(session, audited, conformed.spec, how)
    written = write_rows(session, group, audited.relation, how, run)
    if written is None:
        state = read_snapshot(group.path)
        return replace(commits.commit_of(group.path, state.version), applied=False)
    landed = LandedRows(group, conformed.spec, written, mode, audited)
    committed = register(session, landed, run=run)
    if write.mode == "append" and not group.spec.primary_key and not _is_marked(write):
        warn_of_repeats(group, written)
    compact_when_due(session, conformed.spec, group.path, run=run)
    return committed


def _is_marked(write: Write) -> bool:
    """Tell whether a write says by itself that it is no repeat of another."""
    return write.transaction is not None or bool(write.offsets)


def prepare(session: Session, conformed: Conformed, write: Write, run: InFlight) -> AuditedRows:
    """Return the rows that may be committed.

    Staged and audited where there is something to check.
    """
    spec, relation, engine = conformed.spec, conformed.relation, session.engine
    work = observers.current()
    if work is not None:
        work.plan = write.plan
    validation = write.validation or spec.validation
    has_rules = bool(spec.primary_key or spec.event_time or spec.expectations)
    checked = validation != "off" and has_rules
    is_plain = not checked and write.mode != "upsert" and write.on_duplicates != "last"
    # What was read of a source is known when its rows are here, which is before the commit.
    is_plain = is_plain and write.reads is None
    rules = stored_values.ValueRules.of(spec, has_checked_values=write.has_checked_values)
    if is_plain and not conformed.unchecked:
        return AuditedRows(stored_values.refuse_while_written(relation, rules, engine=engine))
    if write.on_duplicates == "last":
        # Before the rows are staged: files come back in another order on a cluster.
        relation = engine.last_per_key(relation, spec.upsert_key)
    counted = None
    if not write.staged or conformed.unchecked or write.on_duplicates == "last":
        relation, counted = _staged(session, relation, spec, run, write)
    stored_values.check_staged(relation, rules, engine=engine)
    if checked:
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
        if audited.relation is relation:  # and no row was put aside
            audited = replace(audited, counted=counted)
        return audited
    if write.mode == "upsert":
        keys.refuse_duplicates(relation, spec, engine=engine)
    return AuditedRows(relation, counted=counted)


def _staged(
    session: Session,
    relation: Relation,
    spec: FeatureGroupSpec,
    run: InFlight,
    write: Write,
) -> tuple[Relation, StatisticsState | None]:
    """Return staged rows, and their statistics where the engine counts them in the same pass.

    Whether these can be merged with those stored is seen after the commit.
    """
    engine = session.engine
    wanted = spec.statistics and write.mode in ("create", "append", "overwrite")
    if not wanted or not isinstance(engine, AggregatesWhileStaging):
        return engine.stage(relation, run.rows), None
    accumulator = statistics_accumulator(spec, rows=write.rows)
    staged, state = engine.stage_and_aggregate(relation, run.rows, accumulator)
    if state is not None and is_sample_short(accumulator, state):
        state = None
    return staged, state


def note(
    write: Write,
    run: InFlight,
    spec: FeatureGroupSpec,
    *,
    validation: str | None,
    claim: Mapping[str, Any],
    operation: str | None = None,
) -> dict[str, Any]:
    """Return what the commit's info tells: who wrote it, from what, and what is known about it."""
    told: dict[str, Any] = {"operation": operation or write.mode, "run": run.run_id, **claim}
    if spec.job is not None:
        told["job"] = spec.job
    inputs = list(map(dict, write.inputs))
    for read in write.reads or ():
        inputs.append(read.to_json())
    if inputs:
        told["inputs"] = inputs
    if write.window is not None:
        told["window"] = dict(write.window)
    if write.stream is not None:
        told["stream"] = dict(write.stream)
    if write.order is not None and write.order.landed:
        told["replayed"] = ranges_of_places(write.order.landed[0])
    if validation is not None:
        told["validation"] = validation
    return told


def _record_refusal(session: Session, error: ValidationFailed | DuplicateKeys) -> None:
    report = getattr(error, "report", None)
    if isinstance(report, ValidationReport):
        # The refusal is what the caller has to see, not that it could not be stored.
        with suppress(RegistryError), session.registry.transaction() as connection:
            reports.add_validation(connection, featuregroups.KIND, report.to_json())


def _check(write: Write, spec: FeatureGroupSpec) -> None:
    if write.mode not in WRITE_MODES and not (write.mode == "replace" and write.replace):
        raise InvalidArgument(
            f"mode={write.mode!r} is not known. 'append' adds the rows; 'upsert' replaces rows of "
            "the same key and adds the others; 'overwrite' replaces everything.",
            hint=_nearest_mode(write.mode),
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


# What other libraries call them.
_MODES = {
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


def _nearest_mode(mode: object) -> str:
    meant = _MODES.get(str(mode).lower())
    if meant is not None:
        return f"did you mean mode={meant!r}?"
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


def _announce_columns(session: Session, group: OpenGroup, conformed: Conformed) -> None:
    """Put new columns into the definition, one writer after the other.

    The definition first: readers leave out columns that the table does not have yet, so a writer
    that dies here has changed nothing.
    """
    name, version = group.spec.name, group.spec.version
    with session.registry.transaction() as connection:
        groups.lock(connection, name, version)
        stored = commits.announced_spec(read_snapshot(group.path))
        new = _not_announced(conformed.added, stored)
        if new:
            properties = commits.properties(stored.with_columns(new), commits.Meta())
            session.engine.set_properties(group.path, {commits.SPEC: properties[commits.SPEC]})


def _not_announced(added: Sequence[pa.Field], stored: FeatureGroupSpec) -> list[pa.Field]:
    """Return the columns that the definition does not have yet.

    Raises:
        SchemaMismatch: Another writer has announced one of them with another type.
    """
    known = {column.name: column.type for column in stored.schema}
    new, conflicts = [], []
    for column in added:
        kind = known.get(column.name)
        if kind is None:
            new.append(column)
        elif kind != column.type:
            conflicts.append(f"{column.name!r} is {column.type}, there {kind}")
    if conflicts:
        raise SchemaMismatch(
            f"Another writer has just given new columns of {stored.name!r} other types: "
            f"{', '.join(conflicts)}.",
            hint="cast the columns",
        )
    return new


def _added(conformed: Conformed) -> pa.Schema | None:
    if not conformed.added:
        return None
    return pa.schema(conformed.added)
