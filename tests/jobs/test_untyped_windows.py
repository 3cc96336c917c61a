"""First windows without values in a column succeed or name the line that types it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from featurestore.errors import JobFailed
from featurestore.store import FeatureStore
from tests.jobs.conftest import START, Clock
from tests.on_spark import on_engines

HOUR = timedelta(hours=1)
JOB = """
import featurestore, pyarrow as pa
@featurestore.job(
    featuregroup="notes", name="notes", primary_key=["zone"], event_time="hour",
    schedule="0 * * * *", start="2024-01-01T00:00Z", on_error="wait", {rules}
)
def notes(window):
    rows = [{{"zone": "a", "hour": window.end, **{values}[window.start.hour]}}]
    {result}
"""
NULLS = [
    {"note": None, "x": 1.0, "late": None},
    {"note": None, "x": None, "late": None},
    {"note": "y", "x": 2.0, "late": None},
    {"note": None, "x": 3.0, "late": None},
    {"note": None, "x": 4.0, "late": 5},
]
# Values without a type, and the values of the second window.
EMPTY: dict[str, tuple[Any, Any]] = {
    "list": ([], ["x"]),
    "list of nulls": ([None], ["x"]),
    "lists of lists": ([[]], [["x"]]),
    "struct": ({"n": None, "m": 1}, {"n": "x", "m": 2}),
    "structs": ([{"n": []}], [{"n": ["x"]}]),
}


@pytest.fixture(autouse=True)
def _at_noon(clock: Clock) -> None:
    """Stop the clock after the first windows."""


def write_job(define: Callable[..., Path], values: Any, **overrides: str) -> Path:
    source = JOB.format(
        values=repr(values),
        rules=overrides.get("rules", ""),
        result=overrides.get("result", "return rows"),
    )
    return define(source)


def read_column(store: FeatureStore, column: str) -> list[Any]:
    return list(store.get_featuregroup("notes").to_arrow().sort_by("hour")[column].to_pylist())


@on_engines("at_once", [1, 2, 5], spark=[2])
def test_windows_of_nulls_run_one_after_another(
    store: FeatureStore, define: Callable[..., Path], at_once: int
) -> None:
    store.register_jobs(write_job(define, NULLS))
    for first in range(0, 5, at_once):
        last = min(first + at_once, 5)
        store.backfill_job("notes", START + first * HOUR, START + last * HOUR)
    assert read_column(store, "note") == [None, None, "y", None, None]
    assert read_column(store, "x") == [1.0, None, 2.0, 3.0, 4.0]
    assert read_column(store, "late") == [None, None, None, None, 5]
    store.run_job("notes", window=START)  # again, in the types of the others
    assert read_column(store, "note") == [None, None, "y", None, None]


@on_engines("case", EMPTY, spark=["structs"])
def test_first_window_of_nulls_hint_types_column(
    store: FeatureStore, define: Callable[..., Path], case: str
) -> None:
    values = [{"cell": cell} for cell in EMPTY[case]]
    store.register_jobs(write_job(define, values))
    with pytest.raises(JobFailed, match="Job 'notes' has columns without a type") as refused:
        store.run_job("notes", window=START)
    hint = str(refused.value.hint).split("; log: ")[0]
    store.register_jobs(write_job(define, values, result=hint))
    store.backfill_job("notes", START, START + 2 * HOUR)
    assert read_column(store, "cell") == list(EMPTY[case])


def test_query_empty_lists_error_contains_cast(
    empty_store: FeatureStore, define: Callable[..., Path]
) -> None:
    job = """
import featurestore
tags = featurestore.sql_job(
    "tags", sql="select 'a' as zone, $window_end as hour, {tags}", inputs={{}},
    primary_key=["zone"], event_time="hour", schedule="0 * * * *", start="2024-01-01T00:00Z",
)
"""
    empty_store.register_jobs(define(job.format(tags="[] as tags")))
    try:
        empty_store.run_job("tags", window=START)
    except JobFailed as refused:
        cast = str(refused.hint).split("job's query: ")[1].split("; log: ")[0]
        assert cast == 'cast("tags" as DOUBLE[]) as "tags"'
    else:  # DuckDB types empty lists as numbers
        assert empty_store.get_featuregroup("tags").to_arrow()["tags"].to_pylist() == [[]]


def test_null_column_in_expectation_fails_run(
    empty_store: FeatureStore, define: Callable[..., Path]
) -> None:
    expectation = "expect_column_values_to_be_unique"
    rules = f"expectations=[{{'type': {expectation!r}, 'kwargs': {{'column': 'note'}}}}]"
    empty_store.register_jobs(write_job(define, NULLS, rules=rules))
    with pytest.raises(JobFailed, match=r"without a type.*'note' \(null\)[\s\S]*from_pylist"):
        empty_store.run_job("notes", window=START)
