"""Write-audit-publish.

Audit staged rows, then refuse them, report on them, or let only the good ones through.
"""

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
from featurestore.model.column_lines import unique_line
from featurestore.model.featuregroup import VALIDATION_POLICIES, FeatureGroupSpec
from featurestore.model.times import utc_now
from featurestore.model.validation import (
    ExpectationResult,
    ValidationReport,
    describe,
    outcome_text,
    plain_json,
)
from featurestore.plugins.observers import observed_part
from featurestore.plugins.validator import Validator, find_validator
from featurestore.validation.checks import (
    DUPLICATE_KEYS,
    CheckCounts,
    RowCheck,
    duplicates_result,
    row_check_result,
    row_checks,
)
from featurestore.validation.quarantine import QuarantineSplit, split_rows
from featurestore.validation.rows import RowAccumulator, RowExpectations
from featurestore.validation.subject import Subject
from featurestore.validation.tables import check_table

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

_SHOWN_SAMPLES = 3


@dataclass(frozen=True)
class AuditOutcome:
    """What an audit lets through.

    ``good`` are the rows that may land, ``quarantined`` those that may not, with a column
    ``reasons`` (None when there are none, or under another policy). ``unique`` tells whether no key
    occurs twice among the good rows; None when there is no key or it was not looked at.
    """

    report: ValidationReport
    good: Relation
    quarantined: Relation | None = None
    unique: bool | None = None


@dataclass(frozen=True)
class _Audit:
    """What one audit checks."""

    subject: Subject
    engine: Engine
    validator: Validator | None
    checks: tuple[RowCheck, ...]
    by_row: tuple[Mapping[str, Any], ...]
    by_table: tuple[Mapping[str, Any], ...]

    def columns(self) -> list[str]:
        """Return the columns that checks of rows need, in the order of the table."""
        needed = set(self.subject.key)
        for check in self.checks:
            needed.update(check.columns)
        if self.validator is not None:
            for expectation in self.by_row:
                needed.update(self.validator.columns(expectation))
        return [name for name in self.subject.schema.names if name in needed]


def audit(
    relation: Relation,
    *,
    spec: FeatureGroupSpec | Subject,
    validation: str,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]] = (),
    validator: Validator | None = None,
    mode: str = "append",
    now: datetime | None = None,
    event_time_tolerance: timedelta = timedelta(0),
    directory: str | None = None,
    run_id: str | None = None,
    library: str = "pandas",
) -> AuditOutcome:
    """Audit rows that are staged and not yet visible.

    Built-in checks: null keys and times, duplicate keys, event times in the future (a warning).
    Row-level expectations are checked where the rows are, in chunks of the columns that they name;
    the others load these columns here.

    Args:
        relation: The staged rows; must be readable more than once.
        spec: The group (or another subject) that they are for.
        validation: "strict", "warn", "quarantine" or "off" (no audit).
        engine: The engine that holds the rows.
        expectations: Plain dicts; empty: built-in checks only.
        validator: Knows the expectations; found among the entry points when None.
        mode: "create", "append", "upsert", "overwrite" or "replace"; an upsert takes no duplicate
            keys whatever is asked for.
        now: The present, for event times in the future.
        event_time_tolerance: How far ahead an event time may lie.
        directory: Where marked rows are staged; without it they are marked anew at each read.
        run_id: The run that writes, for the report.
        library: The kind of dataframe that the rows came with, whose words hints use.

    Raises:
        ValidationFailed: Under "strict" something failed; under "quarantine" something about the
            whole table.
        DuplicateKeys: Nothing but duplicate keys failed, or an upsert has them.
        InvalidExpectation: An expectation names absent columns or cannot be computed.
    """
    subject = spec if isinstance(spec, Subject) else Subject.of(spec)
    if validation not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"validation={validation!r} is not a policy.",
            hint=f"one of {', '.join(VALIDATION_POLICIES)}",
        )
    now = now or utc_now()
    report = ValidationReport(
        subject.name, subject.version, validation, now, 0, run_id=run_id, details={"mode": mode}
    )
    if validation == "off":
        return AuditOutcome(report, relation)
    if expectations and validator is None:
        validator = find_validator()
    checks = row_checks(subject, now=now, tolerance=event_time_tolerance)
    run = _prepare(subject, engine, expectations, validator, checks)
    with observed_part("validate", subject.name, version=subject.version) as work:
        outcome = _audited(run, relation, report, directory, library=library)
        work.report = outcome.report
    return outcome


def _audited(
    run: _Audit,
    relation: Relation,
    report: ValidationReport,
    directory: str | None,
    *,
    library: str,
) -> AuditOutcome:
    """Check rows, put aside or refuse those that fail, and return what may land."""
    results, rows = _check_rows(run, relation)
    failed = [each for each in results if not each.success and not each.warning]
    good, quarantined = relation, None
    if report.validation == "quarantine" and failed:
        split = _split(run, relation, failed, directory)
        good, quarantined = split.good, split.quarantined
    results += _check_table(run, good)
    report = replace(report, rows=rows, results=tuple(results))
    if quarantined is not None:
        report = replace(report, rows_quarantined=run.engine.count(quarantined))
    _refuse(report, mode=report.details["mode"], row_failures=failed, library=library)
    unique = None
    if run.subject.key:
        # All copies of a key go to the quarantine.
        unique = quarantined is not None or _failure(failed, DUPLICATE_KEYS) is None
    return AuditOutcome(report, good, quarantined, unique)


def _prepare(
    subject: Subject,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]],
    validator: Validator | None,
    checks: tuple[RowCheck, ...],
) -> _Audit:
    """Return what is to be checked, after each expectation has been read anew."""
    by_row: list[Mapping[str, Any]] = []
    by_table: list[Mapping[str, Any]] = []
    if validator is None:
        return _Audit(subject, engine, None, checks, (), ())
    known = subject.schema.names
    # They come from the table's definition, which another program may have written.
    for expectation in validator.normalize(expectations):
        absent = [name for name in validator.columns(expectation) if name not in known]
        if absent:
            raise InvalidExpectation(
                f"{describe(expectation)} names columns that {subject.name!r} does not have: "
                f"{listing(absent)}; "
                f"it has {listing(known)}."
            )
        if validator.is_row_level(expectation):
            by_row.append(expectation)
        else:
            by_table.append(expectation)
    return _Audit(subject, engine, validator, checks, tuple(by_row), tuple(by_table))


def _check_rows(run: _Audit, relation: Relation) -> tuple[list[ExpectationResult], int]:
    """Return the results of all checks of rows, and the number of rows."""
    needed = run.columns()
    results: list[ExpectationResult] = []
    by_row: list[CheckCounts] = []
    if needed:
        rules = RowExpectations(run.by_row, run.validator, run.subject.key)
        columns = run.engine.select(relation, dict(zip(needed, needed, strict=True)))
        state = run.engine.aggregate(columns, RowAccumulator(run.checks, rules))
        rows, by_row = state.rows, state.found
        for check, counts in zip(run.checks, state.checks, strict=True):
            if check.is_reported or counts.unexpected:
                results.append(row_check_result(check, counts))
    else:
        rows = run.engine.count(relation)
    if run.subject.key:
        duplicated, examples = run.engine.duplicates(relation, run.subject.key)
        results.append(
            duplicates_result(run.subject.key, rows=rows, duplicated=duplicated, samples=examples)
        )
    if run.validator is not None:
        for expectation, found in zip(run.by_row, by_row, strict=True):
            results.append(_row_result(expectation, found, run.validator))
    return results, rows


def _row_result(
    expectation: Mapping[str, Any], found: CheckCounts, validator: Validator
) -> ExpectationResult:
    return ExpectationResult(
        expectation=expectation,
        success=validator.holds(expectation, checked=found.checked, unexpected=found.unexpected),
        rows=found.rows,
        unexpected=found.unexpected,
        samples=tuple(found.samples),
        warning=found.warning,
    )


def _check_table(run: _Audit, relation: Relation) -> list[ExpectationResult]:
    if not run.by_table or run.validator is None:
        return []
    return check_table(
        relation, run.subject, engine=run.engine, expectations=run.by_table, validator=run.validator
    )


def _split(
    run: _Audit, relation: Relation, failed: Sequence[ExpectationResult], directory: str | None
) -> QuarantineSplit:
    types = set()
    expectations = []
    for each in failed:
        types.add(str(each.expectation["type"]))
        if each.expectation in run.by_row:
            expectations.append(each.expectation)
    checks = [check for check in run.checks if check.type in types]
    duplicates = _failure(failed, DUPLICATE_KEYS)
    return split_rows(
        relation,
        run.subject,
        engine=run.engine,
        checks=checks,
        expectations=expectations,
        validator=run.validator,
        duplicates=None if duplicates is None else duplicates.expectation,
        directory=directory,
    )


def _refuse(
    report: ValidationReport,
    *,
    mode: str,
    row_failures: Sequence[ExpectationResult],
    library: str,
) -> None:
    """Raise when nothing may land."""
    refused = []
    for each in report.failed:
        if report.validation == "strict":
            refused.append(each)
        elif report.validation == "quarantine":
            if each not in row_failures:
                refused.append(each)
        elif mode == "upsert" and _is(each, DUPLICATE_KEYS):
            refused.append(each)
    if not refused:
        return
    message = _message(report, refused)
    if all(_is(each, DUPLICATE_KEYS) for each in refused):
        hint = "on_duplicates='last' keeps the last row of each key"
        if mode == "create":  # which has no such argument
            hint = unique_line(library, refused[0].expectation["kwargs"]["columns"])
        raise DuplicateKeys(message, report=report, hint=hint)
    hint = (
        "fix the rows, or validation='quarantine' lands the good ones and keeps the others with "
        "their reasons"
    )
    if report.validation == "quarantine":
        hint = (
            "an expectation about the whole table cannot be met by leaving rows out; "
            "validation='warn' lands them all"
        )
    raise ValidationFailed(message, report=report, hint=hint)


def _message(report: ValidationReport, refused: Sequence[ExpectationResult]) -> str:
    """Return what a person reads: counts and sample rows of each failed check."""
    many = "1 check" if len(refused) == 1 else f"{len(refused)} checks"
    lines = [
        f"{report.name!r} version {report.version}: {many} of {len(report.results)} failed; "
        "nothing was written."
    ]
    for result in refused:
        lines.append(f"  {describe(result.expectation)}: {outcome_text(result)}")
        for sample in result.samples[:_SHOWN_SAMPLES]:
            lines.append(f"    {plain_json(sample)}")
    return "\n".join(lines)


def _failure(results: Sequence[ExpectationResult], kind: str) -> ExpectationResult | None:
    """Return the failed result of a kind, None when there is none."""
    for each in results:
        if _is(each, kind):
            return each
    return None


def _is(result: ExpectationResult, kind: str) -> bool:
    return bool(result.expectation["type"] == kind)
