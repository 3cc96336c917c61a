"""Row conditions of expectations are compiled, never executed as code.

Parsed to a small grammar, compiled here, and never evaluated by a library.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore import FeatureStore
from featurestore.errors import InvalidExpectation
from featurestore.plugins.engine import PropertyChange
from featurestore.plugins.validator import Validator, find_validator
from featurestore_connectors.great_expectations.aggregates import to_frame
from featurestore_connectors.great_expectations.conditions import parse_condition
from featurestore_connectors.great_expectations.predicates import evaluate

TABLE = pa.table(
    {
        "n": pa.array([1, 2, None, 40]),
        "m": pa.array([3, 2, 1, None]),
        "x": [1.5, None, float("nan"), 9.0],
        "word": ["a", "b", None, "it's"],
        "flag": [True, None, False, True],
        "at": pa.array([0, 1, 2, None], pa.timestamp("us", "UTC")),
        "home town": ["u", "v", "w", "w"],
    }
)


@pytest.fixture(scope="module")
def validator() -> Validator:
    return find_validator()


def rule(condition: object, **more: Any) -> dict[str, Any]:
    kwargs = {"column": "n", "max_value": 10, "row_condition": condition, **more}
    return {"type": "expect_column_values_to_be_between", "kwargs": kwargs}


def comparison(name: str, value: object, operator: str = "==") -> dict[str, Any]:
    return {
        "type": "comparison", "column": {"name": name}, "operator": operator, "parameter": value
    }  # fmt: skip


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth else {}


def code(marker: Path) -> str:
    return f"__import__('pathlib').Path('{marker}').touch()"


def attacks(marker: Path) -> list[dict[str, Any]]:
    run = code(marker)
    texts = [
        f"@{run}",
        run,
        f"n > 0 and {run}",
        "n.map(print)",
        "@pd.eval('1')",
        "n.__class__.__mro__",
        f"`n`.map(lambda _: {run})",
        "n in [word]",
        "n = 3",
    ]
    objects = [
        {"type": "pass_through", "pass_through_filter": f"@{run}"},
        {"type": "nullity", "column": {"name": "n"}, "is_null": f"@{run}"},
        comparison("n", {"a": run}),
        {"type": "and", "conditions": [comparison("n", 1), {"type": "pass_through"}]},
        {"type": "or", "conditions": "n"},
        {"type": run},
        [run],
    ]
    return [rule(condition, condition_parser="pandas") for condition in [*texts, *objects]]


def test_stored_condition_does_not_execute_code(
    validator: Validator, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    marker = tmp_path / "ran"
    for number, expectation in enumerate(attacks(marker)):
        with subtests.test(number=number, condition=expectation["kwargs"]["row_condition"]):
            marker.unlink(missing_ok=True)
            for refuse in (
                validator.normalize,
                validator.columns,
                lambda attack: validator.check(TABLE, [attack]),
            ):
                with pytest.raises(InvalidExpectation):
                    refuse(expectation)
            assert not marker.exists()


def test_stored_condition_in_sql_reads_no_files(
    validator: Validator, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    path = tmp_path / "file"
    path.touch()
    for condition in (
        f"exists (select 1 from read_text('{path}'))",
        f"n in (select 1 from '{path}')",
        f"copy n to '{path}'",
        "n = 1; select 1",
        "n = 1) or (1 = 1",
        "getenv('HOME') = word",
        "current_setting('threads') = word",
        "n",
        "n = " + "1 + " * 5_000 + "1",
        {"type": "nullity"},
    ):
        with subtests.test(condition=str(condition)[:40]), pytest.raises(InvalidExpectation):
            validator.check(TABLE, [rule(condition, condition_parser="sql")])


def test_stored_condition_column_names_are_not_evaluated(
    validator: Validator, tmp_path: Path
) -> None:
    name = f"n` > 0 and @{code(tmp_path / 'ran')} or `n"
    expectation = rule(comparison(name, 1))
    assert validator.columns(expectation) == ("n", name)
    with pytest.raises(InvalidExpectation, match="uses the unknown column"):
        validator.check(TABLE, [expectation])
    assert not (tmp_path / "ran").exists()


def test_stored_expectation_arguments_are_not_evaluated(
    validator: Validator, subtests: pytest.Subtests
) -> None:
    for arguments, message in (
        ({"max_value": {"$PARAMETER": "2 ^ 99999999"}}, "suite parameter"),
        ({"json_schema": {"items": [{"$ref": "file:///etc/hostname"}]}}, "another document"),
        ({"json_schema": nested(60)}, "nested more than 50 levels"),
        ({"json_schema": {"$dynamicRef": "https://example.org/s"}}, "another document"),
    ):
        with subtests.test(message, arguments=arguments):
            expectation_type = "expect_column_values_to_be_between"
            if "json_schema" in arguments:
                expectation_type = "expect_column_values_to_match_json_schema"
            expectation = {"type": expectation_type, "kwargs": {"column": "word", **arguments}}
            for refuse in (
                validator.normalize,
                lambda definition: validator.check(TABLE, [definition]),
            ):
                with pytest.raises(InvalidExpectation, match=message):
                    refuse(expectation)


def test_foreign_definition_expectations_are_not_executed(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    table = TABLE.drop(["home town"])
    group = empty_store.create_featuregroup(table, "g", validation="warn")
    engine = empty_store.session.engine
    definition = json.loads(DeltaTable(group.path).metadata().configuration["featurestore.spec"])
    attack = rule(f"@{code(tmp_path / 'ran')}", condition_parser="pandas")
    for expectation in (attack, {"kwargs": {}}, {"type": "expect_nothing", "kwargs": {}}):
        changed = json.dumps({**definition, "expectations": [expectation]})
        change = PropertyChange({"featurestore.spec": changed})
        engine.change_properties(group.path, lambda _, change=change: change)
        with pytest.raises(InvalidExpectation):
            empty_store.validate_featuregroup("g")
        with pytest.raises(InvalidExpectation):
            empty_store.insert_into_featuregroup(table, "g")
    assert not (tmp_path / "ran").exists()


# A condition and the rows that meet it.
CONDITIONS: list[tuple[Any, list[int]]] = [
    ("n >= 2", [1, 3]),
    ("n != 2", [0, 2, 3]),
    ("not n >= 2", [0, 2]),
    ("2 < n <= 40 or x < 2", [0, 3]),
    ("n == m", [1]),
    ("m > n", [0]),
    ("n in [1, 40] and not (x > 5)", [0]),
    ("n not in (1, 40)", [1, 2]),
    ("word == 'it\\'s'", [3]),
    ("word is null", [2]),
    ("x is not null", [0, 3]),
    ("x == None | word != null & n == 2", [1, 2]),
    ("flag", [0, 3]),
    ("~flag", [1, 2]),
    ("flag == true", [0, 3]),
    ("`home town` == 'w'", [2, 3]),
    ("at > '1970-01-01T00:00:00.000001Z'", [2]),
    ("at in ['1970-01-01', '2020-01-01']", [0]),
    ("n > -1", [0, 1, 3]),
    ('col("n") > 1.5', [1, 3]),
    ('col("word").notNull()', [0, 1, 3]),
    ('col("at") < date("1970-01-01T00:00:00.000001")', [0]),
    (comparison("word", ["a", "b"], "IN"), [0, 1]),
    (comparison("word", ["a", "b"], "NOT_IN"), [2, 3]),
    ({"type": "nullity", "column": {"name": "n"}, "is_null": False}, [0, 1, 3]),
    ({"type": "or", "conditions": [comparison("n", 1), comparison("m", 1)]}, [0, 2]),
    ({"type": "pass_through", "pass_through_filter": "n > 1"}, [1, 3]),
]


# Conditions in SQL, where a comparison with null is null, and NaN is above all numbers.
SQL_CONDITIONS: list[tuple[Any, list[int]]] = [
    ("n >= 2 and m is null", [3]),
    ("n <> 2", [0, 3]),
    ("not (n = 2)", [0, 3]),
    ("x > 5", [2, 3]),
    ("n not in (1, 40)", [1]),
    ("word like 'it%'", [3]),
    ("\"home town\" = 'w' or n + 1 = 2", [0, 2, 3]),
    ("at > '1970-01-01 00:00:00.000001'", [2]),
]


def test_row_condition_selects_rows(validator: Validator, subtests: pytest.Subtests) -> None:
    values = TABLE["n"].to_pylist()
    notations = [(*case, {}) for case in CONDITIONS]
    notations += [(*case, {"condition_parser": "sql"}) for case in SQL_CONDITIONS]
    for condition, met, notation in notations:
        with subtests.test(condition=condition):
            (plain,) = validator.normalize(rule(condition, **notation))
            assert plain["kwargs"]["row_condition"] == condition
            assert validator.normalize(plain) == (plain,)
            (outcome,) = validator.check(TABLE, [plain])
            assert outcome.checked == sum(values[row] is not None for row in met)
            failing = [row for row in met if values[row] == 40]
            assert outcome.result.unexpected == len(failing)
            if failing:
                assert np.flatnonzero(outcome.failing).tolist() == failing


def test_row_condition_objects_are_normalized(validator: Validator) -> None:
    from great_expectations.expectations.row_conditions import Column

    from featurestore_connectors.great_expectations.forms import import_library

    inputs = import_library().expectations.ExpectColumnValuesToBeBetween(
        column="n",
        max_value=10,
        row_condition=((Column("n") > 1) & Column("x").is_not_null())
        | (Column("at") > datetime(2020, 1, 1, tzinfo=UTC)),
    )
    (plain,) = validator.normalize(inputs)
    assert validator.columns(plain) == ("n", "x", "at")
    (outcome,) = validator.check(TABLE, [plain])
    assert (outcome.checked, outcome.result.unexpected) == (1, 1)


def test_row_count_expectation_respects_condition(validator: Validator) -> None:
    count = {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 2}}
    count["kwargs"] |= {"row_condition": "n > 1"}  # type: ignore[operator]
    (plain,) = validator.normalize(count)
    assert validator.columns(plain) == ("n",)
    (outcome,) = validator.check(TABLE, [plain])
    assert outcome.result.success
    with pytest.raises(InvalidExpectation, match="applies to all rows"):
        validator.normalize(
            {
                "type": "expect_table_column_count_to_equal",
                "kwargs": {"value": 1, "row_condition": "n > 1"},
            }
        )


def test_invalid_row_condition_raises(validator: Validator, subtests: pytest.Subtests) -> None:
    for condition, message in (
        ("n > 'a'", "incompatible value"),
        ("word > 3", "incompatible value"),
        ("n", "not boolean"),
        ("at > 'noon'", "is not a time"),
        ("absent > 1", "Available: 'n', 'm'"),
        ("~n > 1", "'~' at character 0"),
        ("1 < 2", "cannot be read"),
        ("n > null", "cannot be read"),
        ("n in [null]", "cannot be read"),
        ("n > 1 and", "unexpected end"),
        ("(" * 60 + "n > 1" + ")" * 60, "cannot be read"),
        ("n == " + "9" * 200, "cannot be read"),
        ("n == 1 or " * 2000 + "flag", "20,004 characters"),
    ):
        with (
            subtests.test(condition=condition[:30]),
            pytest.raises(InvalidExpectation, match=message),
        ):
            validator.check(TABLE, [rule(condition)])


_COMPARED = st.builds(
    "{} {} {}".format,
    st.sampled_from(["n", "x"]),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    st.sampled_from(["1", "2", "9.0", "-3", "m"]),
)
_CONDITIONS = st.recursive(
    _COMPARED | st.sampled_from(["n in [1, 2]", "x not in [9.0]", "word == 'a'"]),
    lambda inner: (
        st.builds("({} and {})".format, inner, inner)
        | st.builds("({} or {})".format, inner, inner)
        | st.builds("not ({})".format, inner)
        | st.builds("1 < n <= 40 and {}".format, inner)
    ),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None)
@given(_CONDITIONS)
def test_parse_condition_equals_pandas_query(text: str) -> None:
    table = TABLE.select(["n", "m", "x", "word"])
    frame = to_frame(table)
    condition = parse_condition(text)
    assert condition is not None
    expected = frame.index.isin(frame.query(text, engine="python").index)
    (mask,) = evaluate(table, [condition.sql(table.schema)])
    assert mask.tolist() == expected.tolist()


_TEXTS = st.text(max_size=30) | st.lists(
    st.sampled_from([*"nx()[]@.,'\"`~&|<>=!-", "and", "or", "not", "in", "is", "null", "col", " ", "1"]),
    max_size=20,
).map(" ".join)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | _TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "column", "name", "operator", "parameter", "conditions"]),
            inner,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=75, deadline=None)
@given(_TEXTS | _JSON)
def test_parse_condition_random_text_parses_or_raises(given_condition: object) -> None:
    table = pa.table({"n": [1.0, None], "x": ["a", None]})
    try:
        condition = parse_condition(given_condition)
        if condition is not None:
            assert len(evaluate(table, [condition.sql(table.schema)])[0]) == 2
    except InvalidExpectation:
        pass
