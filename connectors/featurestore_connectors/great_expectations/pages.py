"""Validation reports as static HTML pages, in which all strings of the report are escaped.

Great Expectations provides the wording of expectations. Its own pages are not used, since they load
styles and scripts from the web and render data as markup.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from importlib.resources import files
from string import Template

from featurestore.errors import InvalidExpectation
from featurestore.model.validation import (
    IN_FEATURE,
    ExpectationResult,
    ValidationReport,
    describe,
    format_outcome,
    to_plain_json,
)
from featurestore.plugins.validator import Expectation
from featurestore_connectors.great_expectations.forms import (
    build_expectation,
    import_library,
    suppress_output,
)

_BUILT_IN = {
    "no_null_keys": "{columns} must not be null.",
    "no_duplicate_keys": "{columns} must be unique in a write.",
    "no_future_event_times": "{columns} must not be in the future.",
}


@dataclass(frozen=True)
class _PageCheck:
    """One check in the table of the page."""

    mark: str
    statement: str
    finding: str
    samples: tuple[str, ...]


def to_html(report: ValidationReport) -> str:
    """Render a report as an HTML page."""
    from jinja2 import Environment
    from markupsafe import Markup

    time = report.time.astimezone(UTC)
    package = files(__package__)
    style = package.joinpath("page.css").read_text(encoding="utf-8")
    source = package.joinpath("page.j2").read_text(encoding="utf-8")
    # The content security policy only allows the page's own style, identified by its hash.
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(source)
        .render(
            policy=Markup(policy),
            style=Markup(style),
            # The title identifies the report by group and time.
            title=f"{report.name} v{report.version}, {time:%Y-%m-%d %H:%M} UTC",
            summary=_summary(report),
            report=report,
            facts=list(_report_facts(report)),
            checks=[_page_check(result) for result in report.results],
        )
    )


def _summary(report: ValidationReport) -> str:
    if not report.failed:
        return f"{report.rows:,} rows; all checks passed."
    return f"{report.rows:,} rows; {len(report.failed)} of {len(report.results)} checks failed."


def _report_facts(report: ValidationReport) -> Iterator[tuple[str, object]]:
    """Yield the facts about a report as label and value."""
    yield "validation", report.validation
    yield "time", f"{report.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if report.delta_version is not None:
        yield "Delta version", report.delta_version
    if report.run_id is not None:
        yield "run", report.run_id
    if report.rows_quarantined:
        yield "rows quarantined", f"{report.rows_quarantined:,}"
    yield "Great Expectations", import_library().__version__


def _page_check(result: ExpectationResult) -> _PageCheck:
    """Return the table row of a result."""
    mark = "warning" if result.warning else "failed"
    finding = format_outcome(result)
    if result.success:
        mark = "passed"
        finding = "" if result.row_level else f"found {to_plain_json(result.observed)}"
    samples = tuple(str(to_plain_json(sample)) for sample in result.samples)
    return _PageCheck(mark, _describe_expectation(result.expectation), finding, samples)


def _describe_expectation(expectation: Expectation) -> str:
    """Describe an expectation in words, or return it as written if the library has no wording."""
    kwargs = expectation.get("kwargs") or {}
    built_in = _BUILT_IN.get(str(expectation["type"]))
    if built_in is not None:
        columns = kwargs.get("columns") or [kwargs.get("column")]
        return built_in.format(columns=", ".join(map(str, columns)))
    words = _rendered_text(expectation)
    if expectation["type"] == IN_FEATURE:
        # The library would name the column that marks existing values.
        words = f"{kwargs.get('column')} values must exist in {kwargs.get('feature')}."
        if kwargs.get("mostly"):
            words = f"{words[:-1]}, at least {100 * kwargs['mostly']:.6g} % of the time."
    if words is None:
        return describe(expectation)
    if kwargs.get("row_condition"):
        return f"Where {kwargs['row_condition']}: {words}"
    return words


def _rendered_text(expectation: Expectation) -> str | None:
    """Return the library's wording of an expectation as plain text."""
    from great_expectations.expectations.registry import get_renderer_impl
    from great_expectations.render import LegacyRendererType

    try:
        configuration = build_expectation(expectation).configuration
    except InvalidExpectation:  # a report may be older than the library, or from elsewhere
        return None
    renderer = get_renderer_impl(configuration.type, LegacyRendererType.PRESCRIPTIVE)
    if renderer is None:
        return None
    with suppress_output():
        blocks = renderer[1](configuration=configuration)
    words = []
    for block in blocks:
        text = getattr(block, "string_template", None)
        if not isinstance(text, Mapping):
            return None
        # A template may contain placeholders without parameters, which stay as they are.
        words.append(Template(text["template"]).safe_substitute(text.get("params", {})))
    return " ".join(words) or None
