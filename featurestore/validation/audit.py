"""Write-audit-publish: the audit of staged rows before a commit.

Depending on the policy, failing rows reject the write, are reported, or go to the quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from featurestore.arrow.column_lines import deduplicate_line
from featurestore.errors import (
    DuplicateKeys,
    InvalidArgument,
    InvalidExpectation,
    ValidationFailed,
    listing,
)
from featurestore.model.featuregroup import VALIDATION_POLICIES, FeatureGroupSpec
from featurestore.model.times import utc_now
from featurestore.model.validation import (
    ExpectationResult,
    ValidationReport,
    describe,
    format_outcome,
    to_plain_json,
)
from featurestore.plugins.observers import observed_part
from featurestore.plugins.validator import Validator, find_validator
from featurestore.validation.checks import (
    DUPLICATE_KEYS,
    CheckCounts,
    RowAccumulator,
    RowCheck,
    RowExpectations,
    Subject,
    duplicates_result,
    row_check_result,
    row_checks,
)
from featurestore.validation.quarantine import QuarantineSplit, split_rows
from featurestore.validation.tables import check_table

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

_MAX_SHOWN_SAMPLES = 3


@dataclass(frozen=True)
class AuditOutcome:
    """The outcome of an audit.

    ``good`` are the rows to commit, ``quarantined`` the failing rows with a column ``reasons``
    (None without failing rows, or under another policy). ``unique`` is True if the keys of the good
    rows are unique, None without a checked key.
    """

    report: ValidationReport
    good: Relation
    quarantined: Relation | None = None
    unique: bool | None = None


@dataclass(frozen=True)
class _Audit:
    """The checks of an audit."""

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
    """Audit staged rows before they become visible.

    Built-in checks: null keys and times, duplicate keys, event times in the future (a warning).
    Row-level expectations are checked by the engine in chunks of the columns that they use; other
    expectations load these columns to the driver.

    Args:
        relation: The staged rows; must be readable more than once.
        spec: The group (or another subject) that they are for.
        validation: "strict", "warn", "quarantine" or "off" (no audit).
        engine: The engine that holds the rows.
        expectations: Plain dicts; empty: built-in checks only.
        validator: Evaluates the expectations; None for the validator of the entry points.
        mode: "create", "append", "upsert", "overwrite" or "replace"; an upsert refuses
            duplicate keys under every policy.
        now: The present, for event times in the future.
        event_time_tolerance: How far event times may be in the future.
        directory: Where marked rows are staged; None computes the marks at each read.
        run_id: The run that writes the rows, for the report.
        library: The kind of dataframe that the rows came with, whose words hints use.

    Raises:
        ValidationFailed: Under "strict" something failed; under "quarantine" something about the
            whole table.
        DuplicateKeys: Nothing but duplicate keys failed, or an upsert has them.
        InvalidExpectation: An expectation uses unknown columns or cannot be computed.
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
        outcome = _run_audit(run, relation, report, directory, library=library)
        work.report = outcome.report
    return outcome


def _run_audit(
    run: _Audit,
    relation: Relation,
    report: ValidationReport,
    directory: str | None,
    *,
    library: str,
) -> AuditOutcome:
    """Check rows, quarantine or reject failing ones, and return the rows to commit."""
    results, rows = _check_rows(run, relation)
    failed = [each for each in results if not each.success and not each.warning]
    good, quarantined = relation, None
    if report.validation == "quarantine" and failed:
        split = _split_failed(run, relation, failed, directory)
        good, quarantined = split.good, split.quarantined
    if run.by_table and run.validator is not None:
        results += check_table(
            good, run.subject, engine=run.engine, expectations=run.by_table, validator=run.validator
        )
    report = replace(report, rows=rows, results=tuple(results))
    if quarantined is not None:
        report = replace(report, rows_quarantined=run.engine.count(quarantined))
    _raise_if_rejected(report, mode=report.details["mode"], row_failures=failed, library=library)
    unique = None
    if run.subject.key:
        # All copies of a key go to the quarantine.
        unique = quarantined is not None or _find_result(failed, DUPLICATE_KEYS) is None
    return AuditOutcome(report, good, quarantined, unique)


def _prepare(
    subject: Subject,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]],
    validator: Validator | None,
    checks: tuple[RowCheck, ...],
) -> _Audit:
    """Normalize the expectations again and return the checks of an audit."""
    by_row: list[Mapping[str, Any]] = []
    by_table: list[Mapping[str, Any]] = []
    if validator is None:
        return _Audit(subject, engine, None, checks, (), ())
    schema_names = subject.schema.names
    # They come from the table's definition, which another program may have written.
    for expectation in validator.normalize(expectations):
        missing_columns = [
            name for name in validator.columns(expectation) if name not in schema_names
        ]
        if missing_columns:
            raise InvalidExpectation(
                f"{describe(expectation)} names columns that {subject.name!r} does not have: "
                f"{listing(missing_columns)}; "
                f"it has {listing(schema_names)}."
            )
        if validator.is_row_level(expectation):
            by_row.append(expectation)
        else:
            by_table.append(expectation)
    return _Audit(subject, engine, validator, checks, tuple(by_row), tuple(by_table))


def _check_rows(run: _Audit, relation: Relation) -> tuple[list[ExpectationResult], int]:
    """Return the results of all row checks, and the number of rows."""
    needed = run.columns()
    results: list[ExpectationResult] = []
    rule_counts: list[CheckCounts] = []
    if needed:
        rules = RowExpectations(run.by_row, run.validator, run.subject.key)
        columns = run.engine.select(relation, dict(zip(needed, needed, strict=True)))
        state = run.engine.aggregate(columns, RowAccumulator(run.checks, rules))
        rows, rule_counts = state.rows, state.rule_counts
        for check, check_counts in zip(run.checks, state.checks, strict=True):
            if check.is_reported or check_counts.unexpected:
                results.append(row_check_result(check, check_counts))
    else:
        rows = run.engine.count(relation)
    if run.subject.key:
        duplicated, examples = run.engine.duplicates(relation, run.subject.key)
        results.append(
            duplicates_result(run.subject.key, rows=rows, duplicated=duplicated, samples=examples)
        )
    if run.validator is not None:
        for expectation, row_counts in zip(run.by_row, rule_counts, strict=True):
            holds = run.validator.holds(
                expectation, checked=row_counts.checked, unexpected=row_counts.unexpected
            )
            results.append(
                ExpectationResult(
                    expectation=expectation,
                    success=holds,
                    rows=row_counts.rows,
                    unexpected=row_counts.unexpected,
                    samples=tuple(row_counts.samples),
                    warning=row_counts.warning,
                )
            )
    return results, rows


def _split_failed(
    run: _Audit, relation: Relation, failed: Sequence[ExpectationResult], directory: str | None
) -> QuarantineSplit:
    types = set()
    expectations = []
    for each in failed:
        types.add(str(each.expectation["type"]))
        if each.expectation in run.by_row:
            expectations.append(each.expectation)
    checks = [check for check in run.checks if check.type in types]
    duplicates = _find_result(failed, DUPLICATE_KEYS)
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


def _raise_if_rejected(
    report: ValidationReport,
    *,
    mode: str,
    row_failures: Sequence[ExpectationResult],
    library: str,
) -> None:
    """Raise an error if no row may be committed."""
    failures = []
    for each in report.failed:
        if report.validation == "strict":
            failures.append(each)
        elif report.validation == "quarantine":
            if each not in row_failures:
                failures.append(each)
        elif mode == "upsert" and _has_type(each, DUPLICATE_KEYS):
            failures.append(each)
    if not failures:
        return
    message = _message(report, failures)
    if all(_has_type(each, DUPLICATE_KEYS) for each in failures):
        hint = "on_duplicates='last' keeps the last row of each key"
        if mode == "create":  # which has no such argument
            hint = deduplicate_line(library, failures[0].expectation["kwargs"]["columns"])
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


def _message(report: ValidationReport, failures: Sequence[ExpectationResult]) -> str:
    """Return the error message: counts and sample rows of each failed check."""
    failed_checks = "1 check" if len(failures) == 1 else f"{len(failures)} checks"
    lines = [
        f"{report.name!r} version {report.version}: {failed_checks} of {len(report.results)} failed; "
        "nothing was written."
    ]
    for result in failures:
        lines.append(f"  {describe(result.expectation)}: {format_outcome(result)}")
        for sample in result.samples[:_MAX_SHOWN_SAMPLES]:
            lines.append(f"    {to_plain_json(sample)}")
    return "\n".join(lines)


def _find_result(results: Sequence[ExpectationResult], kind: str) -> ExpectationResult | None:
    """Return the first result of a type, None without one."""
    for each in results:
        if _has_type(each, kind):
            return each
    return None


def _has_type(result: ExpectationResult, kind: str) -> bool:
    return bool(result.expectation["type"] == kind)
