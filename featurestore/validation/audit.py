"""The gate: audit staged rows, then refuse them, report on them, or part the good from the failing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from featurestore.errors import (
    DuplicateKeys,
    InvalidArgument,
    InvalidExpectation,
    ValidationFailed,
    listing,
)
from featurestore.model.featuregroup import VALIDATION_POLICIES, FeatureGroupSpec
from featurestore.model.times import utc_now
from featurestore.model.validation import ExpectationResult, ValidationReport, describe
from featurestore.plugins.validator import Validator, find_validator
from featurestore.validation.checks import (
    DUPLICATE_KEYS,
    RowCheck,
    duplicates_result,
    row_check_result,
    row_checks,
)
from featurestore.validation.messages import failure_message
from featurestore.validation.quarantine import part
from featurestore.validation.rows import RowAccumulator, RowExpectations
from featurestore.validation.subject import Subject
from featurestore.validation.tables import check_table

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation


@dataclass(frozen=True)
class AuditOutcome:
    """What an audit lets through.

    ``good`` are the rows that may land, ``quarantined`` those that may not, with a column ``reasons`` (None when
    there are none, or under another policy). ``unique`` tells whether no key occurs twice among the good rows;
    None when there is no key or it was not looked at.
    """

    report: ValidationReport
    good: Relation
    quarantined: Relation | None = None
    unique: bool | None = None


@dataclass(frozen=True)
class _Audit:
    """One audit under way."""

    subject: Subject
    engine: Engine
    validator: Validator | None
    checks: tuple[RowCheck, ...]
    by_row: tuple[Mapping[str, Any], ...]
    by_table: tuple[Mapping[str, Any], ...]


def audit(
    relation: Relation,
    *,
    spec: FeatureGroupSpec | Subject,
    policy: str,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]] = (),
    validator: Validator | None = None,
    mode: str = "append",
    now: datetime | None = None,
    event_time_tolerance: timedelta = timedelta(0),
    directory: str | None = None,
    run_id: str | None = None,
) -> AuditOutcome:
    """Audit rows that are staged and not yet visible.

    Built-in checks: null keys and times, duplicate keys, event times in the future (a warning). Row-level
    expectations are checked where the rows are, in chunks of the columns that they name; the others load these
    columns here.

    Args:
        relation: The staged rows; must be readable more than once.
        spec: The group (or another subject) that they are for.
        policy: "strict", "warn", "quarantine" or "off" (no audit).
        engine: The engine that holds the rows.
        expectations: Plain dicts; empty: built-in checks only.
        validator: Knows the expectations; found among the entry points when None.
        mode: "append", "upsert", "overwrite" or "replace"; an upsert cannot take duplicate keys under any policy.
        now: The present, for event times in the future.
        event_time_tolerance: How far ahead an event time may lie.
        directory: Where parted rows are staged; without it they are marked anew at each read.
        run_id: The run that writes, for the report.

    Raises:
        ValidationFailed: Under "strict" something failed; under "quarantine" something about the whole table.
        DuplicateKeys: Nothing but duplicate keys failed, or an upsert has them.
        InvalidExpectation: An expectation names absent columns or cannot be computed.
    """
    subject = spec if isinstance(spec, Subject) else Subject.of(spec)
    if policy not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"validation={policy!r} is not a policy.",
            hint=f"one of {', '.join(VALIDATION_POLICIES)}",
        )
    now = now or utc_now()
    report = ValidationReport(
        subject.name, subject.version, policy, now, 0, run_id=run_id, details={"mode": mode}
    )
    if policy == "off":
        return AuditOutcome(report, relation)
    if expectations and validator is None:
        validator = find_validator()
    run = _prepare(
        subject,
        engine,
        expectations,
        validator,
        row_checks(subject, now=now, tolerance=event_time_tolerance),
    )
    results, rows = _check_rows(run, relation)
    duplicated = next(
        (each for each in results if _is(each, DUPLICATE_KEYS) and not each.success), None
    )
    unique = (duplicated is None) if subject.key else None
    good, quarantined = relation, None
    failed = [each for each in results if not each.success and not each.warning]
    if policy == "quarantine" and failed:
        good, quarantined = _part(run, relation, failed, directory)
        unique = True if subject.key else None
    results = [*results, *_check_table(run, good)]
    report = replace(report, rows=rows, results=tuple(results))
    if quarantined is not None:
        report = replace(report, rows_quarantined=engine.count(quarantined))
    _refuse(report, mode=mode, row_failures=failed)
    return AuditOutcome(report, good, quarantined, unique)


def _prepare(
    subject: Subject,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]],
    validator: Validator | None,
    checks: tuple[RowCheck, ...],
) -> _Audit:
    by_row: list[Mapping[str, Any]] = []
    by_table: list[Mapping[str, Any]] = []
    if validator is None:
        return _Audit(subject, engine, None, checks, (), ())
    # They come from the table's definition, which another program may have written: read them anew.
    for expectation in validator.normalise(expectations):
        absent = [
            name for name in validator.columns(expectation) if name not in subject.schema.names
        ]
        if absent:
            raise InvalidExpectation(
                f"{describe(expectation)} names columns that {subject.name!r} does not have: {listing(absent)}; "
                f"it has {listing(subject.schema.names)}."
            )
        (by_row if validator.is_row_level(expectation) else by_table).append(expectation)
    return _Audit(subject, engine, validator, checks, tuple(by_row), tuple(by_table))


def _check_rows(run: _Audit, relation: Relation) -> tuple[list[ExpectationResult], int]:
    """Return the results of all checks of rows, and the number of rows."""
    rules = RowExpectations(run.by_row, run.validator, run.subject.key)
    needed = [*run.subject.key, *(name for check in run.checks for name in check.columns)]
    needed += [
        name
        for each in run.by_row
        if run.validator is not None
        for name in run.validator.columns(each)
    ]
    results: list[ExpectationResult] = []
    if needed:
        names = dict.fromkeys(needed)
        columns = run.engine.select(
            relation, {name: name for name in run.subject.schema.names if name in names}
        )
        state = run.engine.aggregate(columns, RowAccumulator(run.checks, rules))
        rows = state.rows
        results += [
            row_check_result(check, found)
            for check, found in zip(run.checks, state.checks, strict=True)
        ]
    else:
        rows = run.engine.count(relation)
    if run.subject.key:
        duplicated, examples = run.engine.duplicates(relation, run.subject.key)
        results.append(
            duplicates_result(run.subject.key, rows=rows, duplicated=duplicated, samples=examples)
        )
    if needed and run.validator is not None:
        for expectation, found in zip(run.by_row, state.found, strict=True):
            results.append(
                ExpectationResult(
                    expectation=expectation,
                    success=run.validator.holds(
                        expectation, checked=found.checked, unexpected=found.unexpected
                    ),
                    rows=found.rows,
                    unexpected=found.unexpected,
                    samples=tuple(found.samples),
                    warning=found.warning,
                )
            )
    return results, rows


def _check_table(run: _Audit, relation: Relation) -> list[ExpectationResult]:
    if not run.by_table or run.validator is None:
        return []
    return check_table(
        relation, run.subject, engine=run.engine, expectations=run.by_table, validator=run.validator
    )


def _part(
    run: _Audit, relation: Relation, failed: Sequence[ExpectationResult], directory: str | None
) -> tuple[Relation, Relation]:
    types = {str(each.expectation["type"]) for each in failed}
    parted = part(
        relation,
        run.subject,
        engine=run.engine,
        checks=[check for check in run.checks if check.type in types],
        expectations=[each.expectation for each in failed if each.expectation in run.by_row],
        validator=run.validator,
        duplicates=next((each.expectation for each in failed if _is(each, DUPLICATE_KEYS)), None),
        directory=directory,
    )
    return parted.good, parted.quarantined


def _refuse(
    report: ValidationReport, *, mode: str, row_failures: Sequence[ExpectationResult]
) -> None:
    """Raise when nothing may land."""
    if report.policy == "strict":
        refused = report.failed
    elif report.policy == "quarantine":
        refused = tuple(each for each in report.failed if each not in row_failures)
    else:
        refused = tuple(
            each for each in report.failed if mode == "upsert" and _is(each, DUPLICATE_KEYS)
        )
    if not refused:
        return
    message, hint = failure_message(report, refused)
    if all(_is(each, DUPLICATE_KEYS) for each in refused):
        raise DuplicateKeys(message, report=report, hint=hint)
    raise ValidationFailed(message, report=report, hint=hint)


def _is(result: ExpectationResult, kind: str) -> bool:
    return bool(result.expectation["type"] == kind)
