"""Write-audit-publish: the audit of staged rows before a commit.

Depending on the validation policy, failing rows cause an error, are only reported, or are
quarantined.
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
from featurestore.plugins.validator import Validator, find_validator
from featurestore.validation.check_errors import error_result, refusal
from featurestore.validation.checks import (
    DUPLICATE_KEYS,
    CheckCounts,
    RowAccumulator,
    RowCheck,
    RowExpectations,
    Subject,
    built_in_row_checks,
    duplicate_keys_result,
    row_check_result,
)
from featurestore.validation.comparisons import (
    OpenFeature,
    distinct_comparisons,
    mark_existing_values,
)
from featurestore.validation.duplicate_hints import DuplicateRows, duplicate_keys_hint
from featurestore.validation.quarantine import QuarantineSplit, split_rows
from featurestore.validation.tables import check_table

if TYPE_CHECKING:
    import pyarrow as pa

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
    """The subject, engine and checks of an audit."""

    subject: Subject
    engine: Engine
    validator: Validator | None
    checks: tuple[RowCheck, ...]
    row_expectations: tuple[Mapping[str, Any], ...]
    table_expectations: tuple[Mapping[str, Any], ...]
    # The results of expectations that cannot be evaluated on this table.
    errors: tuple[ExpectationResult, ...] = ()

    @property
    def comparisons(self) -> tuple[FeatureComparison, ...]:
        """The comparisons with features of other groups."""
        return distinct_comparisons(map(FeatureComparison.from_expectation, self.row_expectations))

    def columns(self) -> list[str]:
        """Return the columns that row checks read, in table order."""
        needed = set(self.subject.key)
        for check in self.checks:
            needed.update(check.columns)
        if self.validator is not None:
            for expectation in self.row_expectations:
                needed.update(self.validator.columns(expectation))
        names = [name for name in self.subject.schema.names if name in needed]
        return [*names, *(comparison.marker for comparison in self.comparisons)]


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
        library: The dataframe library of the rows, for code in hints.
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
    report = ValidationReport(
        subject.name, subject.version, validation, now, 0, run_id=run_id, details={"mode": mode}
    )
    if validation == "off":
        return AuditOutcome(report, relation)
    # Importing Great Expectations takes about three seconds, so it is imported only if there are
    # expectations.
    if expectations and validator is None:
        validator = find_validator()
    checks = built_in_row_checks(subject, now=now, tolerance=event_time_tolerance)
    run = _prepare_audit(subject, engine, expectations, validator, checks)
    marked, comparison_errors = mark_existing_values(
        relation, run.comparisons, engine=engine, open_feature=open_feature
    )
    run = _without_failed_comparisons(run, comparison_errors)
    with observed_part("validate", subject.name, version=subject.version) as work:
        outcome = _run_audit(run, relation, marked, report, directory, library=library)
        work.report = outcome.report
    return outcome


def _run_audit(
    audit_plan: _AuditPlan,
    relation: Relation,
    marked: Relation,
    report: ValidationReport,
    directory: str | None,
    *,
    library: str,
) -> AuditOutcome:
    """Run all checks, quarantine or reject failing rows, and return the rows to commit.

    ``marked`` has the rows of ``relation`` with the columns of comparisons with other groups.
    """
    results, rows = _check_rows(audit_plan, marked)
    results += [replace(error, rows=rows) for error in audit_plan.errors]
    failed = [result for result in results if not result.success and not result.warning]
    good, quarantined = relation, None
    is_write = report.details["mode"] != "check"
    refused = refusal(report.name, results) if is_write else None
    if refused is not None:
        raise refused
    if report.validation == "quarantine" and failed:
        split = _split_failing_rows(
            audit_plan, marked, failed, schema=relation.schema, directory=directory
        )
        good, quarantined = split.good, split.quarantined
    # Table-level expectations refer to the rows that would be committed.
    if audit_plan.table_expectations and audit_plan.validator is not None:
        results += check_table(
            good,
            audit_plan.subject,
            engine=audit_plan.engine,
            expectations=audit_plan.table_expectations,
            validator=audit_plan.validator,
        )
        results = [replace(result, rows=rows) if result.is_error else result for result in results]
        refused = refusal(report.name, results) if is_write else None
        if refused is not None:
            raise refused
    report = replace(report, rows=rows, results=tuple(results))
    if quarantined is not None:
        report = replace(report, rows_quarantined=audit_plan.engine.count(quarantined))
    failures = _select_rejecting(report, mode=report.details["mode"], row_failures=failed)
    if failures:
        raise _rejection(audit_plan, relation, report, failures, library=library)
    unique = None
    if audit_plan.subject.key:
        # All rows with a duplicate key are quarantined.
        unique = quarantined is not None or _find_result(failed, DUPLICATE_KEYS) is None
    return AuditOutcome(report, good, quarantined, unique)


def _prepare_audit(
    subject: Subject,
    engine: Engine,
    expectations: Sequence[Mapping[str, Any]],
    validator: Validator | None,
    checks: tuple[RowCheck, ...],
) -> _AuditPlan:
    """Normalize the expectations again, and group them by row level and table level."""
    row_expectations: list[Mapping[str, Any]] = []
    table_expectations: list[Mapping[str, Any]] = []
    errors: list[ExpectationResult] = []
    if validator is None:
        return _AuditPlan(subject, engine, None, checks, (), ())
    # The expectations are stored in the table definition, which another program may have written.
    for expectation in validator.normalize(expectations):
        try:
            check_columns(expectation, subject, validator=validator)
        except InvalidExpectation as error:
            errors.append(error_result(expectation, error, rows=0))
            continue
        if validator.is_row_level(expectation):
            row_expectations.append(expectation)
        else:
            table_expectations.append(expectation)
    return _AuditPlan(
        subject,
        engine,
        validator,
        checks,
        tuple(row_expectations),
        tuple(table_expectations),
        tuple(errors),
    )


def _without_failed_comparisons(
    audit_plan: _AuditPlan, errors: Mapping[FeatureComparison, InvalidExpectation]
) -> _AuditPlan:
    """Return a plan whose comparisons with features all have a column in the checked rows."""
    row_expectations, results = [], list(audit_plan.errors)
    for expectation in audit_plan.row_expectations:
        comparison = FeatureComparison.from_expectation(expectation)
        error = None if comparison is None else errors.get(comparison)
        if error is None:
            row_expectations.append(expectation)
        else:
            results.append(error_result(expectation, error, rows=0))
    return replace(audit_plan, row_expectations=tuple(row_expectations), errors=tuple(results))


def check_columns(
    expectation: Mapping[str, Any], subject: Subject, *, validator: Validator
) -> None:
    """Raise InvalidExpectation if a table does not have the columns of an expectation."""
    names = subject.schema.names
    missing_columns = [name for name in validator.columns(expectation) if name not in names]
    if missing_columns:
        raise InvalidExpectation(
            f"{describe(expectation)} refers to columns that {subject.name!r} does not have: "
            f"{listing(missing_columns)}. Available: {listing(names)}."
        )


def _check_rows(audit_plan: _AuditPlan, relation: Relation) -> tuple[list[ExpectationResult], int]:
    """Run all row checks, and return their results and the number of rows."""
    column_names = audit_plan.columns()
    results: list[ExpectationResult] = []
    rule_counts: list[CheckCounts] = []
    if column_names:
        rules = RowExpectations(
            audit_plan.row_expectations, audit_plan.validator, audit_plan.subject.key
        )
        checked_columns = audit_plan.engine.select(
            relation, dict(zip(column_names, column_names, strict=True))
        )
        state = audit_plan.engine.aggregate(
            checked_columns, RowAccumulator(audit_plan.checks, rules)
        )
        rows, rule_counts = state.rows, state.rule_counts
        for check, check_counts in zip(audit_plan.checks, state.checks, strict=True):
            if check.is_reported or check_counts.unexpected:
                results.append(row_check_result(check, check_counts))
    else:
        rows = audit_plan.engine.count(relation)
    if audit_plan.subject.key:
        # Rows with the same key may be in different partitions, so the engine groups them.
        duplicated, examples = audit_plan.engine.duplicates(relation, audit_plan.subject.key)
        results.append(
            duplicate_keys_result(
                audit_plan.subject.key, rows=rows, duplicated=duplicated, samples=examples
            )
        )
    if audit_plan.validator is not None:
        for expectation, row_counts in zip(audit_plan.row_expectations, rule_counts, strict=True):
            if row_counts.error:
                error = InvalidExpectation(row_counts.error)
                results.append(error_result(expectation, error, rows=rows))
                continue
            holds = audit_plan.validator.holds(
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


def _split_failing_rows(
    audit_plan: _AuditPlan,
    relation: Relation,
    failed: Sequence[ExpectationResult],
    *,
    schema: pa.Schema,
    directory: str | None,
) -> QuarantineSplit:
    """Split the rows by the row-level checks and expectations that failed."""
    types = set()
    expectations = []
    for result in failed:
        types.add(str(result.expectation["type"]))
        if result.expectation in audit_plan.row_expectations:
            expectations.append(result.expectation)
    checks = [check for check in audit_plan.checks if check.type in types]
    duplicates = _find_result(failed, DUPLICATE_KEYS)
    return split_rows(
        relation,
        audit_plan.subject,
        schema=schema,
        engine=audit_plan.engine,
        checks=checks,
        expectations=expectations,
        validator=audit_plan.validator,
        duplicates=None if duplicates is None else duplicates.expectation,
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
        elif mode == "upsert" and _has_type(result, DUPLICATE_KEYS):
            failures.append(result)
    return failures


def _rejection(
    audit_plan: _AuditPlan,
    relation: Relation,
    report: ValidationReport,
    failures: Sequence[ExpectationResult],
    *,
    library: str,
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
    if all(_has_type(result, DUPLICATE_KEYS) for result in failures):
        subject = audit_plan.subject
        name = None if report.details["mode"] == "create" else subject.name
        rows = DuplicateRows(relation, subject.schema, subject.key, subject.event_time, name)
        hint = duplicate_keys_hint(rows, engine=audit_plan.engine, library=library)
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


def _find_result(results: Sequence[ExpectationResult], kind: str) -> ExpectationResult | None:
    """Return the first result of an expectation type, or None."""
    for result in results:
        if _has_type(result, kind):
            return result
    return None


def _has_type(result: ExpectationResult, kind: str) -> bool:
    return bool(result.expectation["type"] == kind)
