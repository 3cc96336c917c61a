"""Aggregates through the store API: references, errors, plans, datasets and leaks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.errors import (
    ColumnConflict,
    FeatureNotFound,
    FeatureStoreError,
    InvalidArgument,
    InvalidReference,
    InvalidSql,
    NoJoinKey,
)

DAY = pd.Timestamp("2024-01-01", tz="UTC")


@pytest.fixture(scope="module")
def purchases_store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    store = featurestore.connect(tmp_path_factory.mktemp("windows"))
    purchases = pd.DataFrame(
        {
            "customer": ["ann", "ann", "ann", "bob"],
            "purchase": [1, 2, 3, 4],
            "amount": [20.0, 5.0, 12.5, 80.0],
            "shop": ["north", "south", "north", "north"],
            "status": ["settled", "open", "settled", "settled"],
            "at": DAY + pd.to_timedelta([0, 3, 9, 2], unit="D"),
        }
    )
    store.create_featuregroup(
        purchases, "purchases", primary_key=["customer", "purchase"], event_time="at"
    )
    customers = pd.DataFrame({"customer": ["ann", "bob"], "segment": ["gold", "new"]})
    store.create_featuregroup(customers, "customers", primary_key="customer")
    store.create_featuregroup(
        labels(), "questions", primary_key="customer", event_time="asked_at", statistics=False
    )
    return store


def labels() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "customer": ["eve", "ann", "bob", "ann"],
            "asked_at": DAY + pd.to_timedelta([5, 9, 5, 4], unit="D"),
            "returns": [False, True, True, False],
        }
    )


def test_windows_and_features_keep_requested_order(
    purchases_store: FeatureStore,
) -> None:
    aggregates = [
        featurestore.window("purchases.amount", "sum", over="7d"),
        "customers.segment",
        "purchases.amount|count|all as purchases",
        featurestore.window(
            "purchases.amount", "sum", over="7d", where="status = 'settled'", name="settled"
        ),
        featurestore.window("purchases.shop", "last_n", over=None, n=2),
    ]
    frame = purchases_store.get_features(aggregates, labels=labels(), label_time="asked_at")
    rows = frame.to_arrow().to_pylist()
    assert [list(row.values())[3:] for row in rows] == [
        [None, None, 0, None, [None, None]],
        [17.5, "gold", 3, 12.5, ["south", "north"]],
        [80.0, "new", 1, 80.0, [None, "north"]],
        [25.0, "gold", 2, 20.0, ["north", "south"]],
    ]
    assert frame.columns[3:] == ["amount_sum_7d", "segment", "purchases", "settled", "shop_last_2"]
    text = str(frame.plan)
    assert "settled = sum(amount) over (asked_at - 7d, asked_at] where status = 'settled'" in text
    report = purchases_store.check_leakage(frame)
    assert report.ok
    assert report.features == 5


def test_constant_label_time_returns_rows_of_group(purchases_store: FeatureStore) -> None:
    frame = purchases_store.get_features(
        ["customers.segment", "purchases.amount|sum|7d"],
        label_time="2024-01-05T00:00Z",
        include_keys=True,
    )
    rows = sorted(frame.to_arrow().to_pylist(), key=str)
    assert [list(row.values()) for row in rows] == [["ann", "gold", 25.0], ["bob", "new", 80.0]]


def test_join_key_applies_to_features_and_windows(purchases_store: FeatureStore) -> None:
    input_rows = labels().rename(columns={"customer": "who"})
    frame = purchases_store.get_features(
        ["customers.segment", "purchases.amount|sum|7d"],
        labels=input_rows,
        join_key={"who": "customer"},
    )
    assert frame.to_pandas()["amount_sum_7d"].tolist()[1:] == [17.5, 80.0, 25.0]


def test_training_dataset_of_windows_is_reproducible(
    purchases_store: FeatureStore,
) -> None:
    frame = purchases_store.get_features(
        featurestore.windows("purchases.amount", ["sum", "std", "max"], over=["7d", None]),
        labels="questions",
    )
    dataset = purchases_store.create_training_dataset(
        frame, "returns", label="returns", data_format="parquet", statistics=False
    )
    assert dataset.manifest.reproducible
    assert dataset.verify(recompute=True).ok
    inputs = [name for name in dataset.schema.names if name.startswith("amount_")]
    assert sorted(dataset.roles.inputs) == sorted(inputs)


def test_coverage_counts_labels_with_window_rows(purchases_store: FeatureStore) -> None:
    request = ["customers.segment", "purchases.amount|sum|3d"]
    frame = purchases_store.get_features(request, labels=labels(), label_time="asked_at")
    actual = {group.group: group for group in frame.coverage().groups}
    purchases = actual["purchases@v1"]
    assert (purchases.labels, purchases.found, purchases.no_such_key) == (4, 2, 1)
    assert purchases.older_than_ttl == 1  # bob's row is three days old: (t - 3d, t] is without it
    assert "over=" in " ".join(purchases.advice)
    assert actual["customers@v1"].found == 3


def test_explain_window_returns_counted_rows(purchases_store: FeatureStore) -> None:
    aggregates = featurestore.window(
        "purchases.amount", "sum", over="7d", where="status = 'settled'"
    )
    actual = purchases_store.featuregroup("purchases").explain_window(
        aggregates, key={"customer": "ann"}, at=DAY + pd.Timedelta(days=4)
    )
    assert actual.value == 20.0
    assert [row["purchase"] for row in actual.rows] == [1]
    assert actual.left_out == {
        "in the future": 1,
        "for which status = 'settled' is not true": 1,
    }
    assert "amount_sum_7d" in str(actual)


MISTAKES: list[tuple[Any, type[FeatureStoreError], str]] = [
    (lambda: featurestore.window("purchases.amount", "summ", over="7d"), InvalidArgument, "'sum'"),
    (lambda: featurestore.window("purchases.amount", "sum", over="0s"), InvalidArgument, "longer"),
    (lambda: featurestore.window("purchases.amount", "sum", over=-1), InvalidArgument, "'7d'"),
    (
        lambda: featurestore.window("purchases.amount", "sum", over=-timedelta(days=1)),
        InvalidArgument,
        "negative",
    ),
    (lambda: "purchases.status|mean|7d", InvalidArgument, "does not support"),
    (lambda: featurestore.window("amount", "sum", over="7d"), InvalidReference, "one group"),
    (lambda: featurestore.window("purchases.amount", "last_n", over="7d"), InvalidArgument, "n=10"),
    (lambda: "purchases.amount|sum", InvalidReference, "group.column|sum|7d"),
    (lambda: "purchases.amuont|sum|7d", FeatureNotFound, "amount"),
    (lambda: "purchases.shop|sum|7d", InvalidArgument, "does not support"),
    (lambda: "customers.segment|count|7d", InvalidArgument, "no event time"),
    (
        lambda: featurestore.window("purchases.amount", "sum", over="7d", where="at > now()"),
        InvalidSql,
        "clock",
    ),
    (
        lambda: featurestore.window("purchases.amount", "sum", over="7d", where="nosuch = 1"),
        InvalidSql,
        "nosuch",
    ),
    (
        lambda: featurestore.window("purchases.amount", "sum", over="7d", fill_value="none"),
        InvalidArgument,
        "fill_value",
    ),
    (
        lambda: featurestore.window("purchases.amount", "sum", over="7d", key="nosuch"),
        NoJoinKey,
        "nosuch",
    ),
    (
        lambda: featurestore.window("purchases.amount", "sum", over="7d", name="returns"),
        ColumnConflict,
        "name=",
    ),
]


@pytest.mark.parametrize(("make_request", "error", "words"), MISTAKES)
def test_invalid_window_requests_raise(
    purchases_store: FeatureStore, make_request: Any, error: type[FeatureStoreError], words: str
) -> None:
    with pytest.raises(error) as caught:
        purchases_store.get_features([make_request()], labels=labels(), label_time="asked_at")
    assert words in str(caught.value) + str(caught.value.hint)


def test_window_over_indistinguishable_events_raises(
    empty_store: FeatureStore,
) -> None:
    rows = {"who": ["a", "a", "b"], "at": [DAY, DAY, DAY], "x": [1.0, 2.0, 3.0]}
    empty_store.create_featuregroup(
        rows, "tied", primary_key="who", event_time="at", validation="warn"
    )
    input_rows = pd.DataFrame({"who": ["b"], "t": [DAY]})
    with pytest.raises(InvalidArgument, match="who=a, at=2024-01-01") as caught:
        empty_store.get_features("tied.x|sum|1d", labels=input_rows, label_time="t")
    assert "created_time" in str(caught.value.hint)
    numbered_rows = {**rows, "number": [1, 2, 3]}
    empty_store.create_featuregroup(
        numbered_rows, "apart", primary_key=["who", "number"], event_time="at"
    )
    frame = empty_store.get_features("apart.x|sum|1d", labels=input_rows, label_time="t")
    assert frame.to_pandas()["x_sum_1d"].tolist() == [3.0]


def test_window_key_accepts_any_group_column(purchases_store: FeatureStore, tmp_path: Path) -> None:
    del tmp_path
    input_rows = pd.DataFrame(
        {"shop": ["north", "south"], "asked_at": [DAY + pd.Timedelta(days=9)] * 2}
    )
    aggregates = featurestore.window("purchases.amount", "sum", over=None, key="shop")
    frame = purchases_store.get_features([aggregates], labels=input_rows)
    assert frame.to_pandas()["amount_sum"].tolist() == [112.5, 5.0]
