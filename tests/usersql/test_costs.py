"""Conditions of any shape end at the time limit of the call, and integers are computed exactly."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.errors import InvalidSql, LimitExceeded, QueryEnded
from featurestore.model.runtime import time_limit
from featurestore.store import FeatureStore
from featurestore.usersql.expressions import column_expression

ROWS = 4_096
SECONDS = 1.0
# The time until the end of a condition. Without bounds, nested expressions take minutes to hours.
PATIENCE = 10.0
SMALLEST, LARGEST = -(2**63), 2**63 - 1
EDGES = (SMALLEST, SMALLEST + 1, -3, -1, 0, 1, 3, 2**32, LARGEST - 1, LARGEST)
# Templates that nest an expression in a longer expression of the same type.
INTEGERS = (
    "(7 % {0})", "({0} % 1000003)", "({0} + {0})", "({0} * 3)", "({0} - {1})", "nullif({0}, 5)",
    "nullif(5, {0})", "coalesce({0}, {1})", "greatest({0}, i)", "abs({0})", "-{0}",
    "cast({0} in (1, 2, i) as bigint)", "cast({0} between {1} and 7 as bigint)",
    "case when {0} = 1 then {1} else 3 end", "length(cast({0} as varchar))", "mod({0}, {1})",
)  # fmt: skip
NUMBERS = (
    "(x / {0})", "({0} / {1})", "({0} * {0})", "nullif({0}, 0.5)", "(case when isinf({0}) then x else {1} end)",
    "greatest({0}, x)", "abs({0})",
)  # fmt: skip
STRINGS = (
    "replace({0}, 'a', 'aaaaaaaaaa')", "({0} || {0})", "replace({0}, '', {1})", "replace({0}, s, {0})",
    "trim({0})", "substring({0}, 1, 50)", "coalesce({0}, {1})",
)  # fmt: skip


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    with featurestore.connect(tmp_path_factory.mktemp("costs") / "store") as store:
        rows = {
            "k": list(range(ROWS)),
            "i": [0, SMALLEST, LARGEST, 7] * (ROWS // 4),
            "x": [0.0, 0.5] * (ROWS // 2),
            "s": ["a" * 60] * ROWS,
        }
        store.create_featuregroup(rows, "numbers", primary_key="k", statistics=False)
        yield store


def run(store: FeatureStore, condition: str) -> tuple[str, float]:
    """Return how a condition ended in a thread with a time limit, and after how many seconds."""
    outcomes: list[str] = []

    def count() -> None:
        try:
            with time_limit(SECONDS):
                store.get_featuregroup("numbers").filter(condition).count()
            outcomes.append("counted")
        except (LimitExceeded, InvalidSql, QueryEnded) as error:
            outcomes.append(type(error).__name__)

    start = time.monotonic()
    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    return outcomes[0], time.monotonic() - start


def nested(templates: list[str], column: str) -> str:
    expression = column
    for template in templates:
        longer = template.format(expression, column)
        # The server accepts conditions of 20,000 characters.
        if len(longer) > 18_000:
            break
        expression = longer
    return expression


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), depth=st.integers(1, 40), copies=st.integers(1, 300))
def test_nested_conditions_end_in_time(
    numbers: FeatureStore, data: st.DataObject, depth: int, copies: int
) -> None:
    templates, column, test = data.draw(
        st.sampled_from(
            [(INTEGERS, "i", "{0} = 1"), (NUMBERS, "x", "{0} > 1.5"), (STRINGS, "s", "{0} = 'b'")]
        )
    )
    few = data.draw(st.lists(st.sampled_from(templates), min_size=1, max_size=3))
    expression = nested((few * depth)[:depth], column)
    condition = " or ".join(
        [test.format(expression)] * min(copies, 19_000 // (len(expression) + 12) or 1)
    )
    outcome, seconds = run(numbers, condition)
    assert seconds < PATIENCE, (outcome, seconds, condition[:300])


@pytest.mark.parametrize(
    "condition",
    [
        nested(["(7 % {0})"] * 14, "i") + " = 1",
        nested(["(x / {0})"] * 14, "x") + " = 1",
        nested(["nullif({0}, 5)"] * 14, "i") + " = 1",
        nested(["cast({0} in (1, i) as bigint)"] * 14, "i") + " = 1",
        nested(["replace({0}, 'a', 'aaaaaaaaaa')"] * 9, "'a'") + " = 'b'",
        nested(["replace({0}, 'a', 'aaaaaaaaaa')"] * 9, "s") + " = 'b'",
    ],
)
def test_explosive_conditions_are_refused_before_they_run(
    numbers: FeatureStore, condition: str
) -> None:
    assert run(numbers, condition)[0] == "LimitExceeded"


def test_long_flat_conditions_are_accepted(numbers: FeatureStore) -> None:
    store = numbers.get_featuregroup("numbers")
    for condition in (
        " or ".join(f"i % 1000 = {number}" for number in range(600)),
        " or ".join(f"s = 'b{number}'" for number in range(900)),
        f"i in ({', '.join(map(str, range(3000)))})",
    ):
        store.filter(condition).schema  # noqa: B018 - the condition is parsed


def test_queries_without_end_are_interrupted(numbers: FeatureStore) -> None:
    sql = "select count(*) from range(1000000) a, range(1000000) b where a.range * b.range = -1"
    outcomes = []

    def query() -> None:
        try:
            with time_limit(SECONDS):
                numbers.session.engine.database.rows(sql)  # type: ignore[attr-defined]
        except QueryEnded as error:
            outcomes.append(error.message)

    start = time.monotonic()
    thread = threading.Thread(target=query)
    thread.start()
    thread.join()
    assert outcomes == [f"The call was cancelled after {SECONDS:g} seconds."]
    assert time.monotonic() - start < PATIENCE


def truncated_mod(first: int, second: int) -> int | None:
    """The remainder with the sign of the first number, as in SQL; null for zero."""
    if second == 0:
        return None
    remainder = abs(first) % abs(second)
    return -remainder if first < 0 else remainder


def test_integers_are_exact_at_the_edges_of_64_bits() -> None:
    pairs = [(first, second) for first in EDGES for second in EDGES]
    expected = {
        "a + b": [first + second for first, second in pairs],
        "a - b": [first - second for first, second in pairs],
        "a * b": [first * second for first, second in pairs],
        "a % b": [truncated_mod(first, second) for first, second in pairs],
        "abs(a)": [abs(first) for first, _ in pairs],
        "-a": [-first for first, _ in pairs],
    }
    firsts, seconds = zip(*pairs, strict=True)
    rows = pa.table({"a": firsts, "b": seconds})
    for expression, values in expected.items():
        sql, kind = column_expression(expression, schema=rows.schema, dialect="duckdb")
        # A result with more than 64 bits is null.
        results = [
            None if value is None or not SMALLEST <= value <= LARGEST else value for value in values
        ]
        assert kind == pa.int64()
        assert duckdb.from_arrow(rows).project(f"{sql} AS r").fetchall() == [(r,) for r in results]
