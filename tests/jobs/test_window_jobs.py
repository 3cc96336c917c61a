"""Jobs that write window aggregates: rows equal retrieval bit by bit."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import featurestore
from featurestore.cli import app
from featurestore.errors import (
    ColumnConflict,
    FeatureGroupNotFound,
    FeatureNotFound,
    FeatureStoreError,
    InvalidArgument,
    InvalidJob,
    InvalidReference,
    InvalidSql,
    NoJoinKey,
    UnknownArgument,
)
from featurestore.model import times
from featurestore.recovery.rebuild import rebuild
from featurestore.store import FeatureStore
from featurestore.testing.oracle import bits

START = datetime(2024, 1, 1, tzinfo=UTC)
DAYS = 6
CREATED = ("created", {"created_time": "known_at"})

AGGREGATES = """
import featurestore
WINDOWS = [
    *featurestore.windows("purchases.amount", ["sum", "mean", "std", "max"], over=["1d", "3d"]),
    featurestore.window("purchases.amount", "sum", over="2d", where="status = 'settled'", name="settled"),
    featurestore.window("purchases.amount", "sum", over="1d", offset="1d", fill_value=-1.0),
    featurestore.window("purchases.shop", "count_distinct", over="3d"),
    featurestore.window("purchases.amount", "last_n", over="3d", n=2),
]
"""  # fmt: skip
JOB = (
    AGGREGATES
    + """
featurestore.window_job(
    "spend", WINDOWS, every={every!r}, featuregroup="spend", primary_key="customer",
    start="2024-01-01T00:00Z", {rules}
)
"""
)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current time: the end of the purchases."""
    monkeypatch.setattr(times, "clock", lambda: START + timedelta(days=DAYS))


def purchases(seed: int = 0, count: int = 300) -> pd.DataFrame:
    """Return purchases of five customers, some exactly at midnight, some known days later."""
    random = np.random.default_rng(seed)
    event_times = START + pd.to_timedelta(random.integers(0, DAYS * 24 * 4, count) * 15, unit="min")
    return pd.DataFrame(
        {
            "customer": [f"c{number}" for number in random.integers(0, 5, count)],
            "purchase": np.arange(count) + seed * 1000,
            "amount": random.choice([0.1, 0.7, 12.35, 1e9, -1e9, 1e-7, np.nan], count),
            "shop": random.choice(["north", "south", "west"], count),
            "status": random.choice(["settled", "open"], count),
            "at": event_times,
            "known_at": event_times + pd.to_timedelta(random.integers(0, 60, count), unit="h"),
        }
    )


def fill(store: FeatureStore, rows: pd.DataFrame, **rules: Any) -> None:
    store.create_featuregroup(
        rows, "purchases", primary_key=["customer", "purchase"], event_time="at", **rules
    )


def register(store: FeatureStore, folder: Path, text: str) -> None:
    file = folder / "window_jobs.py"
    file.write_text(text)
    store.register_jobs(str(file))


def table(store: FeatureStore, name: str = "spend") -> pa.Table:
    result = store.get_featuregroup(name).to_arrow()
    return result.sort_by([(result.schema.names[0], "ascending"), ("window_end", "ascending")])


def retrieved(store: FeatureStore, labels: pa.Table) -> pa.Table:
    """Return the retrieval for the keys and times of a job's rows."""
    names: dict[str, Any] = {}
    exec(AGGREGATES, names)
    return store.get_features(
        names["WINDOWS"], labels=labels, label_time="window_end"
    ).to_arrow()  # fmt: skip


def check_rows(store: FeatureStore, *, ends: int, keep_empty: bool = False) -> pa.Table:
    """Check that the rows of a job equal the retrieval, and that no key is missing."""
    result = table(store)
    labels = result.select(["customer", "window_end"])
    assert bits(result) == bits(retrieved(store, labels).select(result.schema.names))
    assert labels.group_by(["customer", "window_end"]).aggregate([]).num_rows == labels.num_rows
    rows = store.get_featuregroup("purchases").to_arrow().to_pylist()
    expected = set()
    for number in range(1, ends + 1):
        end = START + timedelta(days=DAYS) * number / ends
        for row in rows:
            known_at = max(row["at"], row["known_at"]) if "known_at" in row else row["at"]
            if known_at <= end and (keep_empty or end - row["at"] < timedelta(days=3)):
                expected.add((row["customer"], end))
    assert set(zip(*labels.to_pydict().values(), strict=True)) == expected
    return result


@pytest.mark.usefixtures("now")
def test_window_job_rows_equal_retrieval_at_window_ends(
    store: FeatureStore, tmp_path: Path
) -> None:
    actual = daily(store, tmp_path, keep_empty=False)
    assert "c4" not in keys_at_the_end(actual)
    # A repeated run gives the same bits.
    store.backfill_job("spend", START, START + timedelta(days=DAYS), resume=False)
    assert bits(table(store)) == bits(actual)


@pytest.mark.usefixtures("now")
def test_window_job_keep_empty_keeps_keys_without_rows(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    actual = daily(empty_store, tmp_path, keep_empty=True)
    assert "c4" in keys_at_the_end(actual)


def daily(store: FeatureStore, folder: Path, *, keep_empty: bool) -> pa.Table:
    """Return the rows of a daily job; one customer is present on the first day only."""
    rows = purchases()
    rows = rows[(rows["customer"] != "c4") | (rows["at"] < START + timedelta(days=1))]
    fill(store, rows, created_time="known_at")
    register(store, folder, JOB.format(every="1d", rules=f"keep_empty={keep_empty}"))
    plan = store.plan_job("spend")
    assert len(plan.windows) == DAYS
    assert "amount_sum_1d = sum(amount) of purchases@v1 over (t - 1d, t]" in str(plan)
    store.run_job("spend", due=True)
    return check_rows(store, ends=DAYS, keep_empty=keep_empty)


def keys_at_the_end(result: pa.Table) -> list[str]:
    last = START + timedelta(days=DAYS)
    return [row["customer"] for row in result.to_pylist() if row["window_end"] == last]


@pytest.mark.usefixtures("now")
def test_window_job_with_unused_fill_value_is_refused(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    fill(empty_store, purchases(), created_time="known_at")
    filled = JOB.format(every="1d", rules="").replace("n=2)", "n=2, fill_value=[0.0, 0.0])")
    with pytest.raises(InvalidArgument, match="fill_value"):
        register(empty_store, tmp_path, filled)


@pytest.mark.usefixtures("now")
def test_window_job_late_rows_make_affected_windows_stale(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    store = empty_store
    fill(store, purchases().drop(columns="known_at"))
    register(store, tmp_path, JOB.format(every="1d", rules=""))
    store.run_job("spend", due=True)
    check_rows(store, ends=DAYS)
    assert store.run_job("spend", stale=True) == []
    late = purchases(seed=1, count=1).drop(columns="known_at")
    late["at"] = START + timedelta(days=2)  # included at its own time, and for three days
    late["customer"] = "new"
    store.insert_into_featuregroup(late, "purchases")
    (run,) = store.run_job("spend", stale=True)
    assert (run.window.start, run.window.end) == (
        START + timedelta(days=1),
        START + timedelta(days=4),
    )
    actual = check_rows(store, ends=DAYS)
    ends = [row["window_end"] for row in actual.to_pylist() if row["customer"] == "new"]
    assert ends == [START + timedelta(days=day) for day in (2, 3, 4)]


@pytest.mark.usefixtures("now")
def test_window_job_show_and_rebuild_keep_aggregates_and_windows(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    actual = daily(empty_store, tmp_path, keep_empty=False)
    arguments = ["--location", empty_store.location, "--output", "json", "job", "show", "spend"]
    shown = json.loads(CliRunner().invoke(app, arguments).output)
    assert (shown["kind"], shown["every"], shown["keep_empty"]) == ("window", "1d", False)
    assert shown["primary_key"] == ["customer"]
    assert (
        "settled = sum(amount) of purchases over (t - 2d, t] where status = 'settled'"
        in shown["windows"]
    )
    rebuild(empty_store.location, url=None)
    empty_store.register_jobs(str(tmp_path / "window_jobs.py"))
    assert empty_store.run_job("spend", due=True) == []
    assert bits(table(empty_store)) == bits(actual)


@pytest.mark.usefixtures("now")
def test_window_job_coarse_schedule_computes_all_instants(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    fill(empty_store, purchases(), created_time="known_at")
    register(empty_store, tmp_path, JOB.format(every="6h", rules="schedule='0 0 * * *'"))
    for day in range(DAYS):  # one at a time: each run stands alone
        empty_store.run_job("spend", window=START + timedelta(days=day))
    check_rows(empty_store, ends=DAYS * 4)


def test_window_job_key_defaults_to_group_key(empty_store: FeatureStore, tmp_path: Path) -> None:
    fill(empty_store, purchases())
    text = """
import featurestore
asked = featurestore.window("purchases.amount", "sum", over="7d", key="shop")
featurestore.window_job("by_shop", asked, every="1d", featuregroup="by_shop", start="2024-01-01")
featurestore.window_job(
    "by_all", "purchases.amount|sum|7d", every="1d", featuregroup="by_all", start="2024-01-01"
)
"""
    with pytest.warns(UserWarning, match="UTC"):
        register(empty_store, tmp_path, text)
    for job, key in (("by_shop", ("shop",)), ("by_all", ("customer", "purchase"))):
        (run,) = empty_store.run_job(job, window=START)
        group = empty_store.featuregroup(job)
        assert group.primary_key == key
        assert group.event_time == "window_end"
        assert run.rows == group.read().count() > 0
    actual = table(empty_store, "by_shop")
    aggregates = featurestore.window("purchases.amount", "sum", over="7d", key="shop")
    again = empty_store.get_features(
        aggregates, labels=actual.select(["shop", "window_end"]), label_time="window_end"
    )
    assert bits(again.to_arrow()) == bits(actual.select(again.columns))


def test_window_job_accepts_input_group_not_yet_created(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    text = """
import featurestore
featurestore.sql_job(
    "beat", sql="select 'a' as sensor, $window_end as at, 1.5 as value", schedule="0 * * * *",
    primary_key="sensor", event_time="at", start="2024-01-01T00:00Z",
)
featurestore.window_job(
    "pulse", "beat.value|count|3h", every="1h", featuregroup="pulse", primary_key="sensor",
    start="2024-01-01T00:00Z",
)
"""
    register(empty_store, tmp_path, text)
    empty_store.backfill_job("beat", START, START + timedelta(hours=5))
    empty_store.backfill_job("pulse", START, START + timedelta(hours=5))
    assert table(empty_store, "pulse")["value_count_3h"].to_pylist() == [1, 2, 3, 3, 3]


def define(windows: Any = "purchases.amount|sum|7d", **rules: Any) -> Any:
    arguments = {"every": "1d", "featuregroup": "spend", **rules}
    return featurestore.window_job("spend", windows, **arguments)


WRONG_DEFINITIONS: list[tuple[Any, type[FeatureStoreError], str]] = [
    (lambda: define(every="0s"), InvalidJob, "not positive"),
    (lambda: define(every="-1d"), InvalidJob, "every='1d'"),
    (lambda: define(every="often"), InvalidJob, "often"),
    (lambda: define(every="7h"), InvalidJob, "'6h'"),
    (lambda: define(every="7h", schedule="0 0 * * *"), InvalidJob, "does not divide"),
    (lambda: define(every="1d", schedule="0 * * * *"), InvalidJob, "does not divide"),
    (lambda: define(schedule="every day"), InvalidJob, "every day"),
    (lambda: define([]), InvalidJob, "no aggregates"),
    (lambda: define([3]), InvalidJob, "not an aggregate"),
    (lambda: define("purchases.amount"), InvalidReference, "sum|7d"),
    (lambda: define("purchases.amount|sum|0d"), InvalidArgument, "longer than zero"),
    (lambda: define(["purchases.amount|sum|7d"] * 2), ColumnConflict, "name="),
    (lambda: define("purchases.amount|sum|7d as window_end"), ColumnConflict, "event time"),
    (lambda: define(primary_key="amount_sum_7d"), ColumnConflict, "key column"),
    (lambda: define(primary_key="window_end"), InvalidJob, "event time"),
    (
        lambda: featurestore.window_job("spend", "purchases.amount|sum|7d", every="1d"),  # type: ignore[call-arg]
        UnknownArgument,
        "featuregroup",
    ),
]


def test_window_job_invalid_definition_raises(subtests: pytest.Subtests) -> None:
    for make, error, words in WRONG_DEFINITIONS:
        with subtests.test(error.__name__, words=words):
            with pytest.raises(error) as caught:
                make()
            assert words in str(caught.value) + str(caught.value.hint)


WRONG_FOR_THE_STORE: list[tuple[str, type[FeatureStoreError], str]] = [
    ("'nosuch.amount|sum|7d', {}", FeatureGroupNotFound, "nosuch"),
    ("'purchases.nosuch|sum|7d', {}", FeatureNotFound, "nosuch"),
    ("'purchases.shop|sum|7d', {}", InvalidArgument, "does not support"),
    ("'shops.size|sum|7d', {}", InvalidArgument, "no event time"),
    ("'purchases.amount|sum|7d', {'primary_key': 'nosuch'}", NoJoinKey, "nosuch"),
    ("['purchases.amount|sum|7d', 'visits.length|sum|7d'], {}", InvalidJob, "different keys"),
    (
        "featurestore.window('purchases.amount', 'sum', over='1d', where='at > now()'), {}",
        InvalidSql,
        "clock",
    ),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    store = featurestore.connect(tmp_path_factory.mktemp("shop"))
    fill(store, purchases(count=5))
    store.create_featuregroup([{"shop": "north", "size": 3}], "shops", primary_key="shop")
    visits = [{"visitor": "v", "at": START, "length": 1}]
    store.create_featuregroup(visits, "visits", primary_key="visitor", event_time="at")
    return store


def test_window_job_registration_unsupported_aggregates_raise(
    shop: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for arguments, error, words in WRONG_FOR_THE_STORE:
        with subtests.test(arguments=arguments):
            text = (
                "import featurestore\n"
                f"windows, rules = {arguments}\n"
                "featurestore.window_job('wrong', windows, every='1d', featuregroup='wrong', **rules)\n"
            )
            with pytest.raises(error) as caught:
                register(shop, tmp_path, text)
            assert words in str(caught.value) + str(caught.value.hint)
            assert shop.get_jobs() == []


@pytest.mark.usefixtures("now")
def test_window_job_ambiguous_ties_fail_without_writing(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    from featurestore.errors import JobFailed

    twice = purchases(count=20)
    twice = pd.concat([twice, twice])
    empty_store.create_featuregroup(
        twice, "purchases", primary_key="customer", event_time="at", validation="warn"
    )
    text = """
import featurestore
featurestore.window_job(
    "spend", "purchases.amount|sum|7d", every="1d", featuregroup="spend",
    start="2024-01-01T00:00Z",
)
"""
    register(empty_store, tmp_path, text)
    with pytest.raises(JobFailed, match="several rows with the same key and event time"):
        empty_store.run_job("spend", due=True)
    assert [group.name for group in empty_store.get_featuregroups()] == ["purchases"]
