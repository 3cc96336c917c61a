"""Validation on write: each policy, on both engines."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from featurestore.cli import app
from featurestore.errors import (
    DuplicateKeys,
    InvalidArgument,
    InvalidExpectation,
    KeyRequired,
    ValidationFailed,
)
from featurestore.model.validation import describe
from featurestore.plugins.validator import find_validator
from featurestore.validation.checks import (
    EARLY_TIMES,
    FUTURE_TIMES,
    Subject,
    built_in_row_checks,
)
from tests.on_spark import spark_in_soak

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

START = datetime(2024, 1, 1, tzinfo=UTC)
AGE = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "age", "min_value": 0, "max_value": 120},
}
FEW = {"type": "expect_table_row_count_to_be_between", "kwargs": {"max_value": 1_000}}


def people(ids: Any, ages: Any, *, hours: int = 0) -> pd.DataFrame:
    times = [START + timedelta(hours=hours)] * len(ids)
    return pd.DataFrame({"id": pd.array(ids, "Int64"), "age": pd.array(ages, "Int64"), "at": times})


def create(store: FeatureStore, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "primary_key": ["id"],
        "event_time": "at",
        "expectations": [AGE, FEW],
        "statistics": False,
    } | options
    return store.create_featuregroup(people(range(100), [30] * 100), "people", **settings)


def rows(store: FeatureStore) -> list[dict[str, Any]]:
    result = store.get_featuregroup("people").to_arrow().to_pylist()
    return sorted(result, key=lambda row: (row["id"], row["age"]))


def quarantined(store: FeatureStore) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = store.get_featuregroup_quarantine(
        "people", dataframe_type="python"
    )
    return result


@spark_in_soak
def test_quarantine_keeps_group_types(store: FeatureStore) -> None:
    group = create(store)
    empty = group.quarantine()
    assert (empty.count(), empty.count()) == (0, 0)
    assert empty.columns == ["id", "age", "at", "reasons"]
    more = people([1, None], [2, 3], hours=1).assign(size=1.5)
    store.insert_into_featuregroup(people([None], [5]), "people", validation="quarantine")
    grown = create(store, version=2)
    assert (grown.version, grown.quarantine().count()) == (2, 0)
    store.insert_into_featuregroup(
        more, "people", version=1, validation="quarantine", schema_change="add"
    )
    first = store.get_featuregroup_quarantine("people", version=1)
    assert first.schema.field("at").type == store.featuregroup("people").schema.field("at").type
    actual_rows = sorted(first.to_arrow().to_pylist(), key=lambda row: row["age"])
    assert [(row["age"], row["size"]) for row in actual_rows] == [(3, 1.5), (5, None)]
    assert all(row["reasons"] == ["no_null_keys(columns=['id', 'at'])"] for row in actual_rows)
    assert first.filter("age = 3").select(["reasons"]).count() == 1


@spark_in_soak
def test_validation_policies_write_expected_rows(store: FeatureStore) -> None:
    create(store)
    bad = people([200, 201, 202, 203, 203, None], [40, 300, 41, 1, 2, 3], hours=1)

    with pytest.raises(ValidationFailed) as caught:
        store.insert_into_featuregroup(bad, "people")
    text = str(caught.value)
    assert "'people' version 1: 3 of 5 checks failed; nothing was written." in text
    assert (
        "expect_column_values_to_be_between(column='age', min_value=0, max_value=120): 1 of 6 rows"
        in text
    )
    assert "{'id': 201, 'at': '2024-01-01T01:00:00+00:00', 'age': 300}" in text
    assert "1 of 6 rows have nulls in id, at" in text
    assert "1 key occurs more than once" in text
    assert "validation='quarantine'" in text
    assert len(rows(store)) == 100

    commit = store.insert_into_featuregroup(bad, "people", validation="quarantine")
    assert commit.validation == "quarantined"
    assert [row["id"] for row in rows(store)][100:] == [200, 202]
    failing = {(row["id"], row["age"]): row["reasons"] for row in quarantined(store)}
    assert failing == {
        (201, 300): [
            "expect_column_values_to_be_between(column='age', min_value=0, max_value=120)"
        ],
        (203, 1): ["no_duplicate_keys(columns=['id', 'at'])"],
        (203, 2): ["no_duplicate_keys(columns=['id', 'at'])"],
        (None, 3): ["no_null_keys(columns=['id', 'at'])"],
    }
    assert all(row["at"] == START + timedelta(hours=1) for row in quarantined(store))

    commit = store.insert_into_featuregroup(
        bad[:3].assign(id=[300, 301, 302]), "people", validation="warn"
    )
    assert commit.validation == "warned"
    assert [row["age"] for row in rows(store)][-3:] == [40, 300, 41]

    history = [
        (report.validation, report.success, report.rows, report.rows_quarantined)
        for report in store.get_validation_history("people")
    ]
    assert history == [
        ("strict", True, 100, 0),
        ("strict", False, 6, 0),
        ("quarantine", False, 6, 4),
        ("warn", False, 3, 0),
    ]
    assert [report.delta_version for report in store.get_validation_history("people")] == [
        1,
        None,
        2,
        3,
    ]


def test_upsert_quarantines_failing_rows_before_merge(empty_store: FeatureStore) -> None:
    store = empty_store
    create(store, expectations=[AGE])
    changes = people([1, 2, 3], [31, 999, 32])
    commit = store.insert_into_featuregroup(
        changes, "people", mode="upsert", validation="quarantine", transaction=("app", 1)
    )
    assert commit.rows == 100
    ages = {row["id"]: row["age"] for row in rows(store)}
    assert (ages[1], ages[2], ages[3]) == (31, 30, 32)
    assert [row["id"] for row in quarantined(store)] == [2]
    again = store.insert_into_featuregroup(
        changes, "people", mode="upsert", validation="quarantine", transaction=("app", 1)
    )
    assert not again.applied
    assert len(quarantined(store)) == 1


@pytest.mark.parametrize("policy", ["strict", "warn", "off"])
def test_upsert_duplicate_keys_raises(empty_store: FeatureStore, policy: str) -> None:
    create(empty_store, expectations=None)
    with pytest.raises(DuplicateKeys, match=r"id('?: |=)1"):
        empty_store.insert_into_featuregroup(
            people([1, 1], [5, 6]), "people", mode="upsert", validation=policy
        )
    assert {row["age"] for row in rows(empty_store)} == {30}


def test_upsert_on_duplicates_last_keeps_last_row(empty_store: FeatureStore) -> None:
    create(empty_store)
    empty_store.insert_into_featuregroup(
        people([1, 1], [5, 6]), "people", mode="upsert", on_duplicates="last"
    )
    assert rows(empty_store)[1]["age"] == 6


def test_quarantine_table_level_failure_raises(empty_store: FeatureStore) -> None:
    create(
        empty_store,
        expectations=[
            AGE,
            {
                "type": "expect_column_mean_to_be_between",
                "kwargs": {"column": "age", "max_value": 35},
            },
        ],
    )
    with pytest.raises(ValidationFailed, match=r"expect_column_mean_to_be_between.*observed 40"):
        empty_store.insert_into_featuregroup(
            people([200, 201], [40, 999]), "people", validation="quarantine"
        )
    assert len(rows(empty_store)) == 100
    assert quarantined(empty_store) == []
    # The mean is over the rows to be committed.
    empty_store.insert_into_featuregroup(
        people([200, 201], [34, 999]), "people", validation="quarantine"
    )
    assert len(rows(empty_store)) == 101


def test_quarantine_batch_of_failing_rows_commits_no_rows(empty_store: FeatureStore) -> None:
    create(empty_store)
    commit = empty_store.insert_into_featuregroup(
        people([200, 201], [998, 999]), "people", validation="quarantine"
    )
    assert commit.rows == 100
    assert len(quarantined(empty_store)) == 2


@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
def test_future_event_times_are_warning(empty_store: FeatureStore) -> None:
    create(empty_store)
    future_rows = people([500], [30], hours=24 * 365 * 100)
    empty_store.insert_into_featuregroup(future_rows, "people")
    report = empty_store.get_validation_history("people")[-1]
    future = next(
        result for result in report.results if result.expectation["type"] == "no_future_event_times"
    )
    assert (report.success, future.success, future.warning, future.unexpected) == (
        True,
        False,
        True,
        1,
    )


def test_event_times_fail_by_the_microsecond_and_by_the_day(subtests: pytest.Subtests) -> None:
    zone = timezone(timedelta(hours=-7))
    now = datetime(2024, 1, 31, 23, 30, 0, 1, tzinfo=zone)  # 6:30 of the next day in UTC
    latest, first = now + timedelta(hours=1), datetime(1980, 1, 1, tzinfo=UTC)
    steps = [timedelta(0), timedelta(microseconds=1), timedelta(hours=1), timedelta(days=1)]
    times = [time + sign * step for time in (latest, first) for step in steps for sign in (1, -1)]
    days = [time.astimezone(UTC).date() for time in times]
    latest_day = latest.astimezone(UTC).date()
    columns = {
        "times": (pa.array(times, pa.timestamp("us", "UTC")), times, latest, first),
        "days": (pa.array(days, pa.date32()), days, latest_day, first.date()),
    }
    for title, (column, values, last_value, first_value) in columns.items():
        with subtests.test(title):
            subject = Subject("g", 1, pa.schema([("at", column.type)]), event_time="at")
            checks = built_in_row_checks(subject, now=now, tolerance=timedelta(hours=1))
            batch = pa.RecordBatch.from_arrays([column], names=["at"])
            failing = {check.type: check.failing(batch).tolist() for check in checks}
            assert failing[FUTURE_TIMES] == [value > last_value for value in values]
            assert failing[EARLY_TIMES] == [value < first_value for value in values]


@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
def test_event_times_within_tolerance_pass(empty_store: FeatureStore) -> None:
    now = datetime.now(UTC)
    frame = pd.DataFrame(
        {"id": [1, 2], "age": [30, 30], "at": [now + timedelta(minutes=4), now + timedelta(days=2)]}
    )
    group = empty_store.create_featuregroup(
        frame, "people", primary_key=["id"], event_time="at", event_time_tolerance="5min"
    )
    assert group.spec.event_time_tolerance == timedelta(minutes=5)
    empty_store.validate_featuregroup("people")
    findings = [
        (
            result.expectation["kwargs"]["tolerance"],
            result.unexpected,
            result.success,
            result.warning,
        )
        for report in empty_store.get_validation_history("people")
        for result in report.results
        if result.expectation["type"] == "no_future_event_times"
    ]
    assert findings == [("5min", 1, False, True)] * 2
    assert len(rows(empty_store)) == 2


def test_event_time_tolerance_invalid_raises(empty_store: FeatureStore) -> None:
    inputs = people([1], [30])
    with pytest.raises(KeyRequired, match="event_time_tolerance needs an event_time"):
        empty_store.create_featuregroup(inputs, "people", event_time_tolerance="5min")
    with pytest.raises(InvalidArgument, match="event_time_tolerance='soon' is not a duration"):
        empty_store.create_featuregroup(
            inputs, "people", event_time="at", event_time_tolerance="soon"
        )


def test_validation_off_skips_checks(empty_store: FeatureStore) -> None:
    create(empty_store)
    empty_store.insert_into_featuregroup(people([200, 200], [999, 999]), "people", validation="off")
    assert len(rows(empty_store)) == 102
    assert len(empty_store.get_validation_history("people")) == 1


def test_mostly_counts_rows_of_all_chunks(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featurestore.validation.checks._CHUNK_ROWS", 10)
    mostly = {**AGE, "kwargs": {**AGE["kwargs"], "mostly": 0.9}}  # type: ignore[dict-item]
    create(empty_store, expectations=[mostly])
    batch = people(range(200, 300), [999] * 10 + [30] * 90)
    empty_store.insert_into_featuregroup(batch, "people")
    with pytest.raises(ValidationFailed, match="11 of 100 rows"):
        empty_store.insert_into_featuregroup(
            batch.assign(id=range(400, 500), age=[999] * 11 + [30] * 89), "people"
        )


def test_validate_featuregroup_reports_failures(empty_store: FeatureStore) -> None:
    store = empty_store
    create(store)
    assert store.validate_featuregroup("people").success
    store.insert_into_featuregroup(people([200], [999]), "people", validation="warn")
    report = store.validate_featuregroup("people")
    assert not report.success
    assert (report.delta_version, report.rows) == (2, 101)
    assert "FAIL expect_column_values_to_be_between" in str(report)
    strange = [
        {
            "type": "expect_column_values_to_be_in_set",
            "kwargs": {"column": "age", "value_set": [30, 999]},
        }
    ]
    assert store.validate_featuregroup("people", expectations=strange).success
    assert len(store.get_validation_history("people")) == 5


def test_fg_validate_command_prints_failures(empty_store: FeatureStore) -> None:
    older = {
        "type": "expect_column_mean_to_be_between",
        "kwargs": {"column": "age", "min_value": 60},
    }
    create(empty_store, expectations=[AGE, older], validation="warn")
    call = CliRunner().invoke(app, ["--location", empty_store.location, "fg", "validate", "people"])
    assert call.exit_code == 1
    text = " ".join(call.output.split())
    assert "expect_column_values_to_be_between" in text
    assert "observed 30" in text
    arguments = [
        "--location",
        empty_store.location,
        "--output",
        "json",
        "fg",
        "validate",
        "people",
    ]
    document = json.loads(CliRunner().invoke(app, arguments).stdout)
    failures = [result["expectation"] for result in document["results"] if not result["success"]]
    assert failures == [older]
    assert len(empty_store.get_validation_history("people")) == 3


def test_expectations_of_all_forms_are_stored(empty_store: FeatureStore) -> None:
    import great_expectations as gx

    inputs = [
        gx.expectations.ExpectColumnValuesToNotBeNull(column="age"),
        gx.ExpectationSuite(
            name="suite", expectations=[gx.expectations.ExpectColumnToExist(column="id")]
        ),
        AGE,
    ]
    create(empty_store, expectations=inputs)
    expected = [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "age"}},
        {"type": "expect_column_to_exist", "kwargs": {"column": "id"}},
        AGE,
    ]
    assert list(empty_store.featuregroup("people").spec.expectations) == expected
    with pytest.raises(
        ValidationFailed, match=r"expect_column_values_to_not_be_null\(column='age'\): 1 of 2 rows"
    ):
        empty_store.insert_into_featuregroup(people([200, 201], [40, None]), "people")


def test_validation_reads_needed_columns_in_chunks(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "primary_key": ["id"],
        "event_time": "at",
        "expectations": [AGE, FEW],
    }
    empty_store.create_featuregroup(people([1], [30]).assign(unnamed=1.5), "people", **options)
    monkeypatch.setattr("featurestore.validation.checks._CHUNK_ROWS", 20_000)
    validator = type(find_validator())
    check, looked_at = validator.check, []

    def watch(self: Any, table: pa.Table, expectations: Any) -> Any:
        looked_at.append((table.num_rows, table.column_names))
        return check(self, table, expectations)

    monkeypatch.setattr(validator, "check", watch)
    more = pa.Table.from_pandas(people(range(1_000, 201_000), [30] * 200_000).assign(unnamed=1.5))
    stream = pa.RecordBatchReader.from_batches(
        more.schema, iter(more.to_batches(max_chunksize=5_000))
    )
    empty_store.insert_into_featuregroup(stream, "people", validation="warn")
    assert sum(rows for rows, _ in looked_at) == 200_000
    # Buffered rows are checked once they fill a chunk; an engine batch is checked as one.
    assert max(rows for rows, _ in looked_at) < 100_000
    # Keys and times are loaded for the samples of failing rows.
    assert {tuple(sorted(names)) for _, names in looked_at} == {("age", "at", "id")}


def test_validate_featuregroup_repeated_keys_are_warning(
    empty_store: FeatureStore,
) -> None:
    create(empty_store)
    empty_store.insert_into_featuregroup(people([1], [30]), "people")
    report = empty_store.validate_featuregroup("people")
    repeated = next(
        result for result in report.results if result.expectation["type"] == "no_duplicate_keys"
    )
    assert (report.success, repeated.success, repeated.unexpected) == (True, False, 1)


def test_expectation_of_missing_column_raises(empty_store: FeatureStore) -> None:
    absent = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "height"}}
    with pytest.raises(InvalidExpectation, match=r"'height'.*'age'"):
        create(empty_store, expectations=[absent])
    assert empty_store.get_featuregroups() == []


def _rule(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_column_{name}", "kwargs": kwargs}


# Expectations of a table of words, of which the last ones cannot be evaluated.
RUNNING = [
    _rule("values_to_not_be_null", column="word"),
    _rule("values_to_be_in_set", column="word", value_set=["a"]),
    _rule("values_to_be_unique", column="word"),
    _rule("max_to_be_between", column="n", max_value=1),
    _rule("values_to_match_regex", column="word", regex="^[ab]$", row_condition="n > 0"),
]
BROKEN = [
    _rule("values_to_be_between", column="word", max_value=1),
    _rule("values_to_match_regex", column="word", regex="["),
    _rule("values_to_not_be_null", column="n", row_condition="word > 3"),
    _rule("max_to_be_between", column="n", max_value="2024-01-01"),
    _rule("quantile_values_to_be_between", column="word", quantile_ranges={
        "quantiles": [0.5], "value_ranges": [[0, 1]],
    }),
    {
        "type": "expect_column_values_to_be_in_feature",
        "kwargs": {"column": "word", "feature": "words.n"},
    },
]  # fmt: skip


def test_expectation_that_cannot_be_evaluated_blocks_no_other(store: FeatureStore) -> None:
    words = pa.table({"word": ["a", "b", "b", None], "n": [0, 1, 2, 3]})
    store.create_featuregroup(words, "words")

    def verdicts(expectations: list[dict[str, Any]]) -> dict[str, Any]:
        store.update_featuregroup("words", expectations=expectations)
        report = store.validate_featuregroup("words")
        latest_report = store.get_validation_history("words")[-1]
        assert latest_report.to_json() == report.to_json()
        return {
            str(each.expectation): (each.success, each.unexpected, each.is_error)
            for each in report.results
        }

    alone = verdicts(RUNNING)
    assert sorted(success for success, _, is_error in alone.values() if not is_error) == [
        *[False] * 4,
        *[True] * (len(alone) - 4),
    ]
    mixed = verdicts([BROKEN[0], *RUNNING, *BROKEN[1:]])
    assert {name: mixed[name] for name in alone} == alone
    broken = [verdict for name, verdict in mixed.items() if name not in alone]
    assert broken == [(False, 0, True)] * len(BROKEN)
    for policy, expectation in (
        ("strict", BROKEN[0]),
        ("warn", BROKEN[3]),
        ("quarantine", BROKEN[5]),
    ):
        store.update_featuregroup("words", expectations=[*RUNNING[:1], expectation])
        before = store.featuregroup("words").delta_version
        with pytest.raises(InvalidExpectation, match="cannot be evaluated") as refused:
            store.insert_into_featuregroup(words.slice(0, 1), "words", validation=policy)
        assert describe(expectation) in refused.value.message
        assert store.featuregroup("words").delta_version == before
