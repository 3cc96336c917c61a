"""Whatever stands in a stored expectation, it is checked or refused by the store's own error."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidExpectation
from featurestore.plugins.validator import find_validator
from featurestore_connectors.great_expectations.library import library

TABLE = pa.table({"n": [1, 2, None], "x": [1.0, None, 3.0], "word": ["a", None, "c"]})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["n", "x", "1", "", "2020-01-01", "[", "int64", "%Y", "__name__"])
    | st.text(max_size=5)
)
KEYS = st.sampled_from(["$PARAMETER", "$ref", "type", "column", "quantiles", "values", "weights"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
COLUMNS = st.sampled_from(["n", "x", "word"])
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "column": COLUMNS,
    "column_A": COLUMNS,
    "column_B": COLUMNS,
    "column_list": st.lists(COLUMNS, min_size=2, max_size=3, unique=True),
    "mostly": st.floats(0, 1),
    "quantile_ranges": st.just({"quantiles": [0.5], "value_ranges": [[0, 1]]}),
    "row_condition": st.sampled_from(["n > 1", "word == 'a'", "x"]),
    "value_set": st.lists(SCALARS, max_size=3),
}
NOT_DRAWN = {"id", "meta", "notes", "description", "severity", "rendered_content", "windows"}


@cache
def arguments() -> dict[str, dict[str, bool]]:
    """The arguments of each kind of expectation, and whether they must be given."""
    found = {}
    for name in dir(library().expectations):
        kind = getattr(library().expectations, name)
        if getattr(kind, "expectation_type", ""):
            fields = kind.__fields__.items()
            found[kind.expectation_type] = {
                name: bool(field.required) for name, field in fields if name not in NOT_DRAWN
            }
    return found


@st.composite
def expectations(draw: st.DrawFn) -> dict[str, Any]:
    kinds = arguments()
    kind = draw(st.sampled_from(sorted(kinds)))
    kwargs = {}
    for name, required in kinds[kind].items():
        if required or draw(st.booleans()):
            kwargs[name] = draw(FITTING.get(name, JSON) if draw(st.integers(0, 9)) else JSON)
    return {"type": kind, "kwargs": kwargs}


def check(stored: object) -> None:
    validator = find_validator()
    try:
        for plain in validator.normalize(stored):
            assert validator.normalize(json.loads(json.dumps(plain))) == (plain,)
            validator.measures(plain, TABLE.schema)
            if set(validator.columns(plain)) <= set(TABLE.column_names):
                validator.check(TABLE, [plain])
    except InvalidExpectation:
        pass


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expectations() | JSON)
def test_any_json_is_an_expectation_or_refused(stored: object) -> None:
    check(stored)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expectations() | JSON)
def test_twenty_thousand_more_are_expectations_or_refused(stored: object) -> None:
    check(stored)
