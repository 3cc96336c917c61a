"""Reports as HTML by the renderer of Great Expectations, in a page that is whole: it loads nothing from the web."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib.resources import files
from typing import Any

from featurestore.model.validation import ExpectationResult, ValidationReport, plain_json
from featurestore_connectors.great_expectations.library import library, quiet


def to_html(report: ValidationReport) -> str:
    """Return a report as one page; built-in checks come first, as a table of their own."""
    version = library().__version__
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.render.renderer import ValidationResultsPageRenderer

    results = [_result(each, report.time) for each in report.results]
    passed = sum(each.success for each in report.results)
    outcome = ExpectationSuiteValidationResult(
        success=report.success,
        results=results,
        suite_name=f"{report.name} version {report.version}",
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": passed,
            "unsuccessful_expectations": len(results) - passed,
            "success_percent": 100.0 * passed / len(results) if results else None,
        },
        meta={
            "run_id": {
                "run_name": report.run_id or report.policy,
                "run_time": report.time.isoformat(),
            },
            "policy": report.policy,
            "rows": report.rows,
            "rows_quarantined": report.rows_quarantined,
            "great_expectations_version": version,
        },
    )
    with quiet():
        return str(_view().render(ValidationResultsPageRenderer().render(outcome)))


def _view() -> Any:
    """Return the library's view with a page around it that needs neither its styles and scripts nor a network."""
    from great_expectations.render.view import DefaultJinjaPageView
    from jinja2 import ChoiceLoader, DictLoader

    view = DefaultJinjaPageView()
    page = files(__package__).joinpath("page.j2").read_text(encoding="utf-8")
    view.env.loader = ChoiceLoader([DictLoader({"page.j2": page}), view.env.loader])
    return view


def _result(result: ExpectationResult, now: datetime) -> Any:
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    expectation = result.expectation
    kind, kwargs = str(expectation["type"]), dict(expectation["kwargs"])
    if not kind.startswith("expect_"):
        # Built-in checks in the nearest words that the renderer knows.
        kind, kwargs = _nearest(kind, kwargs, now)
    details: dict[str, Any] = {
        "element_count": result.rows,
        "unexpected_count": result.unexpected,
        "unexpected_percent": 100.0 * result.unexpected / result.rows if result.rows else 0.0,
        "partial_unexpected_list": [str(plain_json(sample)) for sample in result.samples],
        "missing_count": 0,
        "missing_percent": 0.0,
    }
    if not result.row_level:
        details = {"observed_value": plain_json(result.observed)}
    return ExpectationValidationResult(
        success=result.success,
        expectation_config=ExpectationConfiguration(type=kind, kwargs=kwargs),
        result=details,
        exception_info={
            "raised_exception": False,
            "exception_message": None,
            "exception_traceback": None,
        },
    )


def _nearest(kind: str, kwargs: Mapping[str, Any], now: datetime) -> tuple[str, dict[str, Any]]:
    if kind == "no_duplicate_keys" and len(kwargs["columns"]) == 1:
        return "expect_column_values_to_be_unique", {"column": kwargs["columns"][0]}
    if kind == "no_duplicate_keys":
        return "expect_compound_columns_to_be_unique", {"column_list": kwargs["columns"]}
    if kind == "no_future_event_times":
        return "expect_column_values_to_be_between", {
            "column": kwargs["column"],
            "max_value": now.isoformat(),
        }
    return "expect_column_values_to_not_be_null", {"column": ", ".join(kwargs["columns"])}
