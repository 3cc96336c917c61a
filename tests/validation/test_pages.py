"""Validation report pages: self-contained, with escaped text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import ValidationFailed
from featurestore.model.validation import ExpectationResult, ValidationReport
from featurestore.plugins.validator import find_validator
from featurestore.store import FeatureStore
from tests.html_page import Page
from tests.validation.test_expectations import report, rule

TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "dl", "dt", "dd", "label", "input",
    "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "code",
}  # fmt: skip
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "type", "id", "title"}


def hostile(text: str) -> ValidationReport:
    """A report with hostile text in every field that data or a definition can set."""
    kwargs = {"column": text, "regex": text, "value_set": [text], "row_condition": text}
    expectations = [
        rule("column_values_to_match_regex", column=text, regex=text, row_condition=text),
        rule("column_values_to_be_in_set", column="n", value_set=[text]),
        rule("column_values_to_match_json_schema", column="n", json_schema={"title": text}),
        {"type": "no_null_keys", "kwargs": {"columns": [text]}},
        {"type": text, "kwargs": kwargs},
    ]
    results = tuple(
        ExpectationResult(expectation, False, 2, 1, samples=({text: text},), message=text)
        for expectation in expectations
    )
    passed = ExpectationResult(expectations[1], True, 2, row_level=False, observed=[text])
    now = datetime(2024, 1, 1, tzinfo=UTC)
    return ValidationReport(text, 1, text, now, 2, (*results, passed), run_id=text)


def test_to_html_shows_report() -> None:
    page = Page(find_validator().to_html(report()))
    text = " ".join(page.text.split())
    for shown in (
        f"people v1, {report().time:%Y-%m-%d %H:%M} UTC",
        "10 rows; 2 of 5 checks failed.",
        "n values must be less than or equal to 5",
        "2 of 10 rows (20 %)",
        "{'n': 6}",
        "id, at must not be null.",
    ):
        assert shown in text


def test_samples_show_infinity_and_nan(empty_store: FeatureStore) -> None:
    values = [float("inf"), -float("inf"), float("nan"), None, 1.5]
    rows = pa.table({"id": range(5), "x": values, "xs": [[value] for value in values]})
    with pytest.raises(ValidationFailed) as refused:
        empty_store.create_featuregroup(
            rows,
            "numbers",
            primary_key="id",
            validation="strict",
            expectations=[
                rule("column_values_to_be_between", column="x", max_value=1, min_value=0),
                rule("column_values_to_not_be_null", column="x"),
                rule("column_values_to_be_null", column="xs"),
            ],
        )
    rejected = refused.value.report
    assert isinstance(rejected, ValidationReport)
    # JSON has no numbers for them.
    data = json.loads(json.dumps(rejected.to_json(), allow_nan=False))
    texts = dict(enumerate(["Infinity", "-Infinity", "NaN", None, 1.5]))
    samples = [result["samples"] for result in data["results"] if not result["success"]]
    assert samples == [
        [{"id": number, "x": texts[number]} for number in (0, 1, 4)],
        [{"id": number, "x": texts[number]} for number in (2, 3)],
        [{"id": number, "xs": [text]} for number, text in texts.items()],
    ]
    assert ValidationReport.from_json(data).to_json() == data
    page = Page(find_validator().to_html(rejected)).text
    for row in (samples[0][0], samples[0][1], samples[1][0], samples[2][2]):
        assert str(row) in page
        assert str(row) in str(refused.value)


def test_to_html_title_has_group_and_time() -> None:
    east = timezone(timedelta(hours=3))
    findings = replace(report(), time=datetime(2024, 1, 2, 1, 30, tzinfo=east))
    page = find_validator().to_html(findings)
    title = "people v1, 2024-01-01 22:30 UTC"
    assert f"<title>{title}</title>" in page
    assert f"<h1>{title}</h1>" in page
    text = Page(page).text
    assert "None" not in text
    sizes = {}
    for name in ("h1", "h2"):
        matches = re.search(rf"^{name} {{ font-size: ([\d.]+)rem", page, re.MULTILINE)
        assert matches is not None
        sizes[name] = float(matches.group(1)) * 16
    body = re.search(r"^body { font: (\d+)px", page, re.MULTILINE)
    assert body is not None
    assert sizes["h1"] > sizes["h2"] > 1.2 * float(body.group(1))


def test_to_html_loads_no_external_resources() -> None:
    page = find_validator().to_html(report())
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "default-src 'none'; style-src 'sha256-" in page
    for loading in ("url(", "@import", "//", "src=", "href="):
        assert loading not in page


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "\"'><img src=x onerror=alert(1)>",
        "</style></title><svg onload=alert(1)>",
        "<!--",
        "{{ 7 * 7 }}$column&lt;b&gt;",
    ],
)
def test_to_html_escapes_hostile_texts(text: str) -> None:
    page = Page(find_validator().to_html(hostile(text)))
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert page.text.count(text) >= 10


@settings(max_examples=25, deadline=None)
@given(st.text("<>&\"'/!-=$#a{}%\\ \n\x00", min_size=1, max_size=20))
def test_to_html_random_text_adds_no_markup(text: str) -> None:
    page = Page(find_validator().to_html(hostile(text)))
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
