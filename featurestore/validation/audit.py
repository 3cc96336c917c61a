"""Write-audit-publish: the audit of staged rows before a commit.

Depending on the validation policy, failing rows cause an error, are only reported, or are
quarantined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

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
    FeatureComparison,
    ValidationReport,
    describe,
    format_outcome,
    to_plain_json,
)
from featurestore.plugins.observers import observed_part
from featurestore.plugins.validator import Expectation, Validator, find_validator
from featurestore.validation.checks import (
    DUPLICATE_KEYS,
    EARLY_TIMES,
    CheckCounts,
    RowAccumulator,
    RowCheck,
    RowExpectations,
    Subject,
    built_in_row_checks,
    duplicate_keys_result,
    error_result,
)
from featurestore.validation.comparisons import OpenFeature, mark_existing_values
from featurestore.validation.duplicate_hints import DuplicateRows, duplicate_keys_hint
from featurestore.validation.quarantine import QuarantineSplit, split_rows
from featurestore.validation.tables import check_table

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

_MAX_SHOWN_SAMPLES = 3


@dataclass(frozen=True)
class AuditOutcome:
    """The outcome of an audit.

    ``good`` has the rows to commit. ``quarantined`` has the failing rows with a column ``reasons``;
    None means that no row failed or that the policy is not "quarantine". ``unique`` states whether
    the keys of the good rows are unique, with None if no key was checked.
    """

    report: ValidationReport
    good: Relation
    quarantined: Relation | None = None
    unique: bool | None = None


@dataclass(frozen=True)
class _AuditPlan:
    """The rows, subject, engine and checks of an audit.

    ``marked`` has the rows of ``relation`` with a column for each comparison with another group.
    ``errors`` has the expectations that cannot be evaluated on this table.
    """

    subject: Subject
    engine: Engine
    relation: Relation
    marked: Relation
    checks: tuple[RowCheck, ...]
    validator: Validator | None = None
    row_expectations: tuple[Expectation, ...] = ()
    table_expectations: tuple[Expectation, ...] = ()
    errors: tuple[tuple[Expectation, InvalidExpectation], ...] = ()

    def columns(self) -> list[str]:
        """Return the columns that row checks read: those of the table in order, then markers."""
        needed = set(self.subject.key)
        for check in self.checks:
            needed.update(check.columns)
        markers = []
        if self.validator is not None:
            for expectation in self.row_expectations:
                needed.update(self.validator.columns(expectation))
                comparison = FeatureComparison.from_expectation(expectation)
                if comparison is not None:
                    markers.append(comparison.marker)
        names = [name for name in self.subject.schema.names if name in needed]
        return [*names, *dict.fromkeys(markers)]


def audit(
    relation: Relation,
    *,
    spec: FeatureGroupSpec | Subject,
    validation: str,
    engine: Engine,
    expectations: Sequence[Expectation] = (),
    validator: Validator | None = None,
    mode: str = "append",
    now: datetime | None = None,
    event_time_tolerance: timedelta = timedelta(0),
    directory: str | None = None,
    run_id: str | None = None,
    open_feature: OpenFeature | None = None,
) -> AuditOutcome:
    """Audit staged rows before they become visible.

    Built-in checks detect null keys and times, duplicate keys, and implausible event times (only a
    warning). The engine evaluates row-level expectations on chunks of rows, with only the required
    columns. Other expectations are evaluated from measures, or from columns loaded to the driver.

    Args:
        relation: The staged rows; must be readable more than once.
        spec: The group or other table that the rows are written to.
        validation: "strict", "warn", "quarantine" or "off" (no audit).
        engine: The engine of the relation.
        expectations: Expectations as plain dicts, in addition to the built-in checks.
        validator: The validator of the expectations; None for the installed one.
        mode: "create", "append", "upsert", "overwrite" or "replace"; an upsert rejects
            duplicate keys under every policy. "check" audits rows that are already stored.
        now: The current time, to detect event times in the future.
        event_time_tolerance: How far event times may be in the future.
        directory: A directory to stage marked rows; None marks rows again at each read.
        run_id: The id of the run that writes the rows, for the report.
        open_feature: Opens the features of other groups that expectations name. It must exist
            until the good rows are read, unless marked rows are staged.

    Raises:
        ValidationFailed: Under "strict" a check failed; under "quarantine" a table-level
            expectation failed.
        DuplicateKeys: Only the check for duplicate keys failed, or an upsert has duplicate keys.
        InvalidExpectation: An expectation is malformed; in a write also if it uses unknown columns
            or cannot be evaluated, which is only a result under the mode "check".
    """
    subject = spec if isinstance(spec, Subject) else Subject.of(spec)
    if validation not in VALIDATION_POLICIES:
        raise InvalidArgument(
            f"validation={validation!r} is not a validation policy.",
            hint=f"one of {', '.join(VALIDATION_POLICIES)}",
        )
    now = now or utc_now()
    if validation == "off":
        report = ValidationReport(
            subject.name, subject.version, validation, now, 0, run_id=run_id, details={"mode": mode}
        )
        return AuditOutcome(report, relation)
    # Importing Great Expectations takes about three seconds, so it is imported only if there are
    # expectations.
    if expectations and validator is None:
        validator = find_validator()
    audit_plan = _plan_audit(
        relation,
        subject,
        engine=engine,
        checks=built_in_row_checks(subject, now=now, tolerance=event_time_tolerance),
        expectations=expectations,
        validator=validator,
        open_feature=open_feature,
    )
    with observed_part("validate", subject.name, version=subject.version) as work:
        results, rows, failed = _check_rows(audit_plan)
        _refuse_errors(results, subject, mode=mode)
        good, quarantined = relation, None
        if validation == "quarantine" and failed:
            split = _split_failing_rows(audit_plan, failed, directory=directory)
            good, quarantined = split.good, split.quarantined
        if audit_plan.table_expectations:
            results += _check_table(audit_plan, good, rows=rows)
        _refuse_errors(results, subject, mode=mode)
        report = ValidationReport(
            subject.name,
            subject.version,
            validation,
            now,
            rows,
            tuple(results),
            0 if quarantined is None else engine.count(quarantined),
            run_id=run_id,
            details={"mode": mode},
        )
        failures = _select_rejecting(report, mode=mode, row_failures=failed)
        if failures:
            raise _rejection(audit_plan, report, failures)
        work.report = report
    unique = None
    if subject.key:
        # All rows with a duplicate key are quarantined.
        unique = quarantined is not None or not any(map(_has_duplicate_keys, failed))
    return AuditOutcome(report, good, quarantined, unique)


def _plan_audit(
    relation: Relation,
    subject: Subject,
    *,
    engine: Engine,
    checks: tuple[RowCheck, ...],
    expectations: Sequence[Expectation],
    validator: Validator | None,
    open_feature: OpenFeature | None,
) -> _AuditPlan:
    """Normalize the expectations again, group them, and add columns of comparisons to the rows."""
    if validator is None:
        return _AuditPlan(subject, engine, relation, relation, checks)
    row_expectations: list[Expectation] = []
    table_expectations: list[Expectation] = []
    errors: list[tuple[Expectation, InvalidExpectation]] = []
    comparisons: list[FeatureComparison] = []
    # The expectations are stored in the table definition, which another program may have written.
    for expectation in validator.normalize(expectations):
        try:
            check_columns(expectation, subject, validator=validator)
        except InvalidExpectation as error:
            errors.append((expectation, error))
            continue
        if not validator.is_row_level(expectation):
            table_expectations.append(expectation)
            continue
        row_expectations.append(expectation)
        comparison = FeatureComparison.from_expectation(expectation)
        if comparison is not None and comparison not in comparisons:
            comparisons.append(comparison)
    marked = relation
    if comparisons:
        marked, refused = mark_existing_values(
            relation, comparisons, engine=engine, open_feature=open_feature
        )
        for expectation in tuple(row_expectations):
            comparison = FeatureComparison.from_expectation(expectation)
            if comparison in refused:
                row_expectations.remove(expectation)
                errors.append((expectation, refused[comparison]))
    return _AuditPlan(
        subject,
        engine,
        relation,
        marked,
        checks,
        validator,
        tuple(row_expectations),
        tuple(table_expectations),
        tuple(errors),
    )


def check_columns(expectation: Expectation, subject: Subject, *, validator: Validator) -> None:
    """Raise InvalidExpectation if a table does not have the columns of an expectation."""
    names = subject.schema.names
    missing_columns = [name for name in validator.columns(expectation) if name not in names]
    if missing_columns:
        raise InvalidExpectation(
            f"{describe(expectation)} refers to columns that {subject.name!r} does not have: "
            f"{listing(missing_columns)}. Available: {listing(names)}."
        )


def _check_rows(
    audit_plan: _AuditPlan,
) -> tuple[list[ExpectationResult], int, list[ExpectationResult]]:
    """Run all row checks; return their results, the number of rows, and the failed results."""
    column_names, validator = audit_plan.columns(), audit_plan.validator
    subject, engine, marked = audit_plan.subject, audit_plan.engine, audit_plan.marked
    results: list[ExpectationResult] = []
    rule_counts: list[CheckCounts] = []
    if column_names:
        rules = RowExpectations(audit_plan.row_expectations, validator, subject.key)
        checked_columns = engine.select(marked, dict(zip(column_names, column_names, strict=True)))
        state = engine.aggregate(checked_columns, RowAccumulator(audit_plan.checks, rules))
        rows, rule_counts = state.rows, state.rule_counts
        for check, check_counts in zip(audit_plan.checks, state.checks, strict=True):
            # Few tables have such times, so reports mention the check only if a row fails.
            if check.type != EARLY_TIMES or check_counts.unexpected:
                results.append(check.result(check_counts))
    else:
        rows = engine.count(marked)
    if subject.key:
        # Rows with the same key may be in different partitions, so the engine groups them.
        duplicated, examples = engine.duplicates(marked, subject.key)
        results.append(
            duplicate_keys_result(subject.key, rows=rows, duplicated=duplicated, samples=examples)
        )
    if validator is not None:
        for expectation, row_counts in zip(audit_plan.row_expectations, rule_counts, strict=True):
            if row_counts.error:
                error = InvalidExpectation(row_counts.error)
                results.append(error_result(expectation, error, rows=rows))
                continue
            holds = validator.holds(
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
    for expectation, refused in audit_plan.errors:
        results.append(error_result(expectation, refused, rows=rows))
    failed = [result for result in results if not result.success and not result.warning]
    return results, rows, failed


def _check_table(audit_plan: _AuditPlan, good: Relation, *, rows: int) -> list[ExpectationResult]:
    """Evaluate table-level expectations, which refer to the rows that would be committed."""
    if audit_plan.validator is None:
        return []
    results = check_table(
        good,
        audit_plan.subject,
        engine=audit_plan.engine,
        expectations=audit_plan.table_expectations,
        validator=audit_plan.validator,
    )
    return [replace(result, rows=rows) if result.is_error else result for result in results]


def _refuse_errors(results: Sequence[ExpectationResult], subject: Subject, *, mode: str) -> None:
    """Raise the error of a write whose rows cannot be checked."""
    errors = [result for result in results if result.is_error]
    if not errors or mode == "check":
        return
    lines = [f"  {describe(result.expectation)}: {result.message}" for result in errors]
    raise InvalidExpectation(
        f"{len(errors)} of {len(results)} checks of {subject.name!r} cannot be evaluated; nothing "
        "was written.\n" + "\n".join(lines),
        hint="compare the expectation with the types of the columns, or remove it with "
        f"store.update_featuregroup({subject.name!r}, expectations=[...])",
    )


def _split_failing_rows(
    audit_plan: _AuditPlan, failed: Sequence[ExpectationResult], *, directory: str | None
) -> QuarantineSplit:
    """Split the rows by the row-level checks and expectations that failed."""
    types = {str(result.expectation["type"]) for result in failed}
    expectations = [
        result.expectation for result in failed if result.expectation in audit_plan.row_expectations
    ]
    return split_rows(
        audit_plan.marked,
        audit_plan.subject,
        schema=audit_plan.relation.schema,
        engine=audit_plan.engine,
        checks=[check for check in audit_plan.checks if check.type in types],
        expectations=expectations,
        validator=audit_plan.validator,
        duplicates=next(
            (result.expectation for result in failed if _has_duplicate_keys(result)), None
        ),
        directory=directory,
    )


def _select_rejecting(
    report: ValidationReport, *, mode: str, row_failures: Sequence[ExpectationResult]
) -> list[ExpectationResult]:
    """Return the failed checks that prevent the commit under the policy of the report."""
    failures = []
    for result in report.failed:
        if report.validation == "strict":
            failures.append(result)
        elif report.validation == "quarantine":
            # Rows that fail row-level checks are quarantined; all other failures prevent the
            # commit.
            if result not in row_failures:
                failures.append(result)
        # Duplicate keys cannot be merged, so an upsert is rejected even if other failures are only
        # reported.
        elif mode == "upsert" and _has_duplicate_keys(result):
            failures.append(result)
    return failures


def _rejection(
    audit_plan: _AuditPlan,
    report: ValidationReport,
    failures: Sequence[ExpectationResult],
) -> ValidationFailed:
    """Return the error for failed checks, with the counts and sample rows of each check."""
    lines = [
        f"{report.name!r} version {report.version}: {len(failures)} of {len(report.results)} checks "
        "failed; nothing was written."
    ]
    for result in failures:
        lines.append(f"  {describe(result.expectation)}: {format_outcome(result)}")
        for sample in result.samples[:_MAX_SHOWN_SAMPLES]:
            lines.append(f"    {to_plain_json(sample)}")
    message = "\n".join(lines)
    if all(map(_has_duplicate_keys, failures)):
        subject = audit_plan.subject
        name = None if report.details["mode"] == "create" else subject.name
        rows = DuplicateRows(
            audit_plan.relation, subject.schema, subject.key, subject.event_time, name
        )
        hint = duplicate_keys_hint(rows, engine=audit_plan.engine)
        return DuplicateKeys(message, report=report, hint=hint)
    hint = (
        "fix the rows, or validation='quarantine' writes the valid rows and quarantines the others "
        "with their reasons"
    )
    if report.validation == "quarantine":
        hint = (
            "a table-level expectation cannot be met by quarantining rows; validation='warn' "
            "writes all rows"
        )
    return ValidationFailed(message, report=report, hint=hint)


def _has_duplicate_keys(result: ExpectationResult) -> bool:
    """Return whether a failed result is that of the check for duplicate keys."""
    return bool(result.expectation["type"] == DUPLICATE_KEYS)
