"""Validation reports: expectations and their results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Annotated, Any

from featurestore.model import display
from featurestore.model.codecs import JSON, JSON_OBJECT
from featurestore.model.json_object import JsonDict, JsonMapping, float_value
from featurestore.model.names import parse_reference
from featurestore.model.records import OMIT_DEFAULT, Codec, Key, Record

REPORT_FORMAT = 1
# The expectation that each value of a column exists in a feature of another group.
IN_FEATURE = "expect_column_values_to_be_in_feature"


@dataclass(frozen=True)
class FeatureComparison:
    """A column whose values must exist in ``feature``, a reference ``group.feature``.

    The engine adds a column to the checked rows, named ``marker``: whether the value of the row
    exists, or null for a missing value.
    """

    column: str
    feature: str

    @property
    def group(self) -> str:
        """The name of the group of the feature."""
        return str(parse_reference(self.feature).group)

    @property
    def marker(self) -> str:
        """The name of the added column."""
        digest = hashlib.sha256(f"{self.column}\n{self.feature}".encode()).hexdigest()
        return f"__fs_exists_{digest[:16]}"

    @classmethod
    def from_expectation(cls, expectation: JsonMapping) -> FeatureComparison | None:
        """Return the comparison of an expectation, or None if it reads only its own table.

        >>> kwargs = {"column": "customer", "feature": "customers.id"}
        >>> FeatureComparison.from_expectation({"type": IN_FEATURE, "kwargs": kwargs})
        FeatureComparison(column='customer', feature='customers.id')
        """
        if expectation["type"] != IN_FEATURE:
            return None
        kwargs = expectation["kwargs"]
        return cls(str(kwargs["column"]), str(kwargs["feature"]))


def to_plain_json(value: Any) -> Any:
    """Convert a value to a JSON value.

    Times become ISO 8601 strings, bytes become hex strings, and NaN, infinity and values of other
    types become strings.

    >>> to_plain_json({"a": (date(2020, 1, 2), float("nan"))})
    {'a': ['2020-01-02', 'NaN']}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float_value(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(nested_value) for key, nested_value in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(to_plain_json, value))
    # NumPy scalars.
    item = getattr(value, "item", None)
    if callable(item):
        return to_plain_json(item())
    return str(value)


_PLAIN_JSON, _PLAIN_OBJECT = Codec(JSON.read, to_plain_json), Codec(JSON_OBJECT.read, to_plain_json)
# Versions without the first field can read all other reports.
_RESULT_KEYS = (
    "is_error", "expectation", "success", "warning", "row_level", "rows", "unexpected", "observed",
    "samples", "message",
)  # fmt: skip
_REPORT_KEYS = (
    "name", "version", "validation", "success", "time", "rows", "rows_quarantined", "delta_version",
    "run_id", "results", "details",
)  # fmt: skip


@dataclass(frozen=True)
class ExpectationResult(Record, keys=_RESULT_KEYS, closed=True):
    """The result of an expectation or a built-in check.

    ``row_level`` is True if failing rows can be identified; ``unexpected`` is their number;
    ``samples`` are examples as plain dicts. ``warning`` marks a check that never refuses data.
    ``is_error`` marks an expectation that could not be evaluated; ``message`` is the reason.
    """

    expectation: Annotated[JsonMapping, _PLAIN_OBJECT]
    success: bool
    rows: int
    unexpected: int = 0
    row_level: bool = True
    observed: Annotated[Any, _PLAIN_JSON] = None
    samples: tuple[Annotated[JsonMapping, _PLAIN_OBJECT], ...] = ()
    message: str = ""
    warning: bool = False
    is_error: Annotated[bool, OMIT_DEFAULT] = False

    __repr__ = display.record_repr


@dataclass(frozen=True)
class ValidationReport(
    Record, format=REPORT_FORMAT, subject="The validation report", keys=_REPORT_KEYS
):
    """The result of an audit; ``success`` is False if an expectation failed, warnings excluded.

    >>> report = store.validate_featuregroup("weather")
    >>> report.success, report.failed
    (True, ())
    >>> print(report)
    weather v1 (Delta 1): 4 rows, all checks passed, validation='warn'
      ok   no_null_keys(columns=['origin', 'measured_at'])
      ok   no_future_event_times(column='measured_at', tolerance='0us')
      ok   no_duplicate_keys(columns=['origin', 'measured_at'])
    """

    name: str
    version: int
    validation: Annotated[str, Key("policy")]
    time: datetime
    rows: int
    results: tuple[ExpectationResult, ...] = ()
    rows_quarantined: int = 0
    delta_version: int | None = None
    run_id: str | None = None
    details: Annotated[JsonMapping, _PLAIN_OBJECT] = field(default_factory=dict)

    __repr__ = display.record_repr

    @property
    def success(self) -> bool:
        """Whether all expectations succeeded, warnings excluded."""
        return all(result.success or result.warning for result in self.results)

    @property
    def failed(self) -> tuple[ExpectationResult, ...]:
        """The failed expectations, warnings excluded."""
        return tuple(result for result in self.results if not result.success and not result.warning)

    def __str__(self) -> str:
        subject, outcome = f"{self.name} v{self.version}", "all checks passed"
        if self.delta_version is not None:
            subject += f" (Delta {self.delta_version})"
        if self.failed:
            outcome = f"{len(self.failed)} of {len(self.results)} checks failed"
        lines = [f"{subject}: {self.rows:,} rows, {outcome}, validation={self.validation!r}"]
        for result in self.results:
            if result.success:
                lines.append(f"  ok   {describe(result.expectation)}")
            else:
                mark = "warn" if result.warning else "FAIL"
                lines.append(f"  {mark} {describe(result.expectation)}: {format_outcome(result)}")
        if self.rows_quarantined:
            lines.append(f"  {self.rows_quarantined:,} rows quarantined")
        return "\n".join(lines)

    def _summary(self) -> dict[str, object]:
        return {
            "time": self.time,
            "group": f"{self.name} v{self.version}",
            "delta_version": self.delta_version,
            "success": self.success,
            "failed": ", ".join(str(result.expectation["type"]) for result in self.failed) or None,
            "rows": self.rows,
            "rows_quarantined": self.rows_quarantined,
            "validation": self.validation,
        }

    def _repr_html_(self) -> str:
        checks: list[dict[str, object]] = []
        for result in self.results:
            mark, outcome = "ok", ""
            if not result.success:
                mark = "warning" if result.warning else "failed"
                outcome = format_outcome(result)
            check = describe(result.expectation)
            checks.append({"result": mark, "check": check, "outcome": outcome})
        caption = str(self).partition("\n")[0]
        return display.properties_table(self._summary(), caption=caption) + display.records_table(
            checks
        )

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, the inverse of ``from_json`` except for sample values.

        See ``validation_report.schema.json``.

        >>> data = store.validate_featuregroup("weather").to_json()
        >>> data["rows"], data["success"], len(data["results"])
        (4, True, 3)
        """
        return super().to_json()


def describe(expectation: JsonMapping) -> str:
    """Format an expectation for display.

    >>> describe({"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "age"}})
    "expect_column_values_to_not_be_null(column='age')"
    """
    arguments = [
        f"{key}={value!r}"
        for key, value in expectation.get("kwargs", {}).items()
        if value is not None
    ]
    return f"{expectation['type']}({', '.join(arguments)})"


def format_outcome(result: ExpectationResult) -> str:
    """Format the outcome of an expectation on one line.

    >>> format_outcome(ExpectationResult({"type": "x"}, False, 2_000, unexpected=5))
    '5 of 2,000 rows (0.25 %)'
    """
    if result.message:
        return result.message
    if result.row_level and result.rows:
        share = 100 * result.unexpected / result.rows
        return f"{result.unexpected:,} of {result.rows:,} rows ({share:.3g} %)"
    if isinstance(result.observed, float):
        return f"observed {result.observed:.6g}"
    if result.observed is None:
        return "failed"
    return f"observed {result.observed!r}"
