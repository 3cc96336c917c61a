"""Aggregates together with plain features: several groups, roles, ``as_of``, ttl."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.errors import ColumnConflict, NoJoinKey

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
Row = dict[str, Any]


def day(number: float) -> datetime:
    return START + number * DAY


PURCHASES: list[Row] = []
for number, (customer, amount, day_number) in enumerate(
    [("ann", 20.0, 0), ("ann", 5.0, 3), ("ann", 12.5, 9), ("bob", 80.0, 2), ("bob", 1.5, 5), ("eve", 7.0, 4)]
):  # fmt: skip
    PURCHASES.append(
        {"customer": customer, "purchase": number, "amount": amount, "at": day(day_number)}
    )
VISITS: list[Row] = []
for number, (customer, minutes, day_number, known_day) in enumerate(
    [("ann", 10, 2, 2), ("ann", 30, 3, 8), ("bob", 7, 1, 1), ("bob", 9, 4.5, 9)]
):
    VISITS.append(
        {
            "customer": customer,
            "visit": number,
            "minutes": minutes,
            "at": day(day_number),
            "known": day(known_day),
        }
    )
PRICES: list[Row] = [
    {"shop": "north", "at": day(1), "price": 1.0},
    {"shop": "north", "at": day(4), "price": 2.0},
    {"shop": "south", "at": day(0), "price": 3.0},
]
LABEL_ROWS: list[Row] = [
    {"customer": "ann", "friend": "bob", "shop": "north", "asked_at": day(5), "returns": True},
    {"customer": "bob", "friend": "eve", "shop": "south", "asked_at": day(5), "returns": False},
    {"customer": "ann", "friend": "bob", "shop": "south", "asked_at": day(1), "returns": True},
    {"customer": "who", "friend": "ann", "shop": "west", "asked_at": day(9), "returns": False},
]


def fill(store: FeatureStore) -> FeatureStore:
    store.create_featuregroup(
        PURCHASES, "purchases", primary_key=["customer", "purchase"], event_time="at"
    )
    store.create_featuregroup(
        VISITS, "visits", primary_key=["customer", "visit"], event_time="at", created_time="known"
    )
    store.create_featuregroup(PRICES, "prices", primary_key="shop", event_time="at", ttl="2d")
    store.create_featuregroup(
        LABEL_ROWS, "asked", primary_key=["customer", "friend", "shop"], event_time="asked_at"
    )
    return store


def total(
    rows: list[Row],
    customer: str,
    column: str,
    time: datetime,
    over: timedelta,
    created_time_filter: bool = True,
) -> Any:
    values = []
    for row in rows:
        inside = row["customer"] == customer and time - over < row["at"] <= time
        if inside and (not created_time_filter or row.get("known", row["at"]) <= time):
            values.append(row[column])
    return sum(values) if values else None


def expected(label: Row) -> Row:
    time = label["asked_at"]
    prices = [row for row in PRICES if row["shop"] == label["shop"] and row["at"] <= time]
    fresh = [row["price"] for row in prices if time - row["at"] <= 2 * DAY]
    return {
        **label,
        "amount_sum_4d": total(PURCHASES, label["customer"], "amount", time, 4 * DAY),
        "price": fresh[-1] if fresh else None,
        "minutes_sum_4d": total(VISITS, label["customer"], "minutes", time, 4 * DAY),
        "friend_spent": total(PURCHASES, label["friend"], "amount", time, 4 * DAY),
    }


def both_roles(store: FeatureStore, labels: Any) -> Any:
    """Request aggregates of two groups and a feature with a ttl, then another role."""
    first = store.get_features(
        ["purchases.amount|sum|4d", "prices.price", "visits.minutes|sum|4d"],
        labels=labels,
        label_time="asked_at",
    )
    return store.get_features(
        "purchases.amount|sum|4d as friend_spent",
        labels=first,
        label_time="asked_at",
        join_key={"friend": "customer"},
    )


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["customer"], row["asked_at"]))


LABELS: dict[str, Callable[[FeatureStore], Any]] = {
    "name of a group": lambda store: "asked",
    "frame of a group": lambda store: store.get_featuregroup("asked"),
    "the engine's own table": lambda store: store.get_featuregroup("asked").native(),
    "rows in memory": lambda store: LABEL_ROWS,
}


def create_dataset(store: FeatureStore) -> featurestore.TrainingDataset:
    return store.create_training_dataset(
        both_roles(store, "asked"), "roles", label="returns", data_format="parquet", progress=False
    )


def test_windows_and_features_of_several_groups_combine(
    store: FeatureStore, engine_name: str, tmp_path: Path
) -> None:
    fill(store)
    expected_value = in_order([expected(label) for label in LABEL_ROWS])
    # On Spark only native labels: the other window suites use labels from memory there, and
    # check leaks; the embedded engine's dataset is verified by its rows.
    embedded = engine_name == "duckdb"
    for name in list(LABELS) if embedded else ["the engine's own table"]:
        frame = both_roles(store, LABELS[name](store))
        rows = frame.to_arrow().to_pylist()
        assert in_order(rows) == expected_value, name
    if embedded:
        assert rows == [expected(label) for label in LABEL_ROWS]  # their order
        assert store.check_leakage(frame).ok
    dataset = create_dataset(store)
    if embedded:
        assert dataset.verify(recompute=True).ok
    else:
        embedded_store = fill(featurestore.connect(tmp_path / "embedded", engine="duckdb"))
        same = create_dataset(embedded_store)
        assert same.manifest.content_hash == dataset.manifest.content_hash
    assert set(dataset.roles.inputs) == {"amount_sum_4d", "price", "minutes_sum_4d", "friend_spent"}
    assert [window.name for window in dataset.manifest.windows] == [
        "amount_sum_4d", "minutes_sum_4d", "friend_spent",
    ]  # fmt: skip


@pytest.fixture
def shop(empty_store: FeatureStore) -> FeatureStore:
    return fill(empty_store)


def sums(store: FeatureStore, **options: Any) -> list[Any]:
    frame = store.get_features(
        ["visits.minutes|sum|4d", "purchases.amount|sum|4d"],
        labels=LABEL_ROWS,
        label_time="asked_at",
        **options,
    )
    return list(zip(*frame.to_arrow().to_pydict().values(), strict=True))


def expected_sums(purchases: list[Row], *, created_time_filter: bool) -> list[Any]:
    result = []
    for label in LABEL_ROWS:
        customer, time = label["customer"], label["asked_at"]
        minutes = total(VISITS, customer, "minutes", time, 4 * DAY, created_time_filter)
        result.append(
            (*label.values(), minutes, total(purchases, customer, "amount", time, 4 * DAY))
        )
    return result


def test_created_time_filter_excludes_unknown_rows(
    shop: FeatureStore,
) -> None:
    assert sums(shop) == expected_sums(PURCHASES, created_time_filter=True)
    assert sums(shop, created_time_filter=False) == expected_sums(
        PURCHASES, created_time_filter=False
    )
    assert sums(shop) != sums(shop, created_time_filter=False)


def test_window_as_of_reads_older_version(shop: FeatureStore) -> None:
    before = sums(shop)
    late = {"customer": "ann", "purchase": 99, "amount": 100.0, "at": day(4)}
    shop.insert_into_featuregroup([late], "purchases")
    assert sums(shop) == expected_sums([*PURCHASES, late], created_time_filter=True) != before
    assert sums(shop, as_of={"purchases": 1}) == before
    first = shop.get_featuregroup_history("purchases")[-1].timestamp
    request = ["purchases.amount|sum|4d"]
    arguments = {"labels": LABEL_ROWS, "label_time": "asked_at"}
    then = shop.get_features(request, as_of={"purchases": first}, **arguments)
    assert then.to_pandas()["amount_sum_4d"].equals(
        shop.get_features(request, as_of={"purchases": 1}, **arguments).to_pandas()["amount_sum_4d"]
    )


def test_window_name_conflicts_raise(shop: FeatureStore) -> None:
    for request in (
        ["purchases.amount|sum|4d", "purchases.amount|sum|4d"],
        ["purchases.amount|sum|4d as price", "prices.price"],
        ["prices.price", "purchases.amount|sum|4d as PRICE"],
    ):
        with pytest.raises(ColumnConflict, match="has the same output name"):
            shop.get_features(request, labels=LABEL_ROWS, label_time="asked_at")


def test_window_join_key_maps_label_column(shop: FeatureStore) -> None:
    rows = [{**row, "till": row["purchase"] % 2} for row in PURCHASES]
    shop.create_featuregroup(rows, "tills", primary_key=["customer", "purchase"], event_time="at")
    aggregates = featurestore.window("tills.amount", "sum", over=None, key="till")
    labels = pd.DataFrame({"desk": [0, 1, 2], "t": [day(10)] * 3})
    frame = shop.get_features(aggregates, labels=labels, label_time="t", join_key={"desk": "till"})
    assert frame.to_arrow()["amount_sum"].to_pylist() == [34.0, 92.0, None]
    people = pd.DataFrame({"who": ["ann", "bob"], "desk": [0, 1], "t": [day(10)] * 2})
    frame = shop.get_features(
        [aggregates, "tills.amount|sum|all as spent", "visits.minutes|sum|all"],
        labels=people,
        label_time="t",
        join_key={"desk": "till", "who": "customer"},
    )
    actual_rows = frame.drop("who", "desk", "t").to_arrow().to_pylist()
    assert [list(row.values()) for row in actual_rows] == [[34.0, 37.5, 40], [92.0, 81.5, 16]]
    with pytest.raises(NoJoinKey, match="nosuch"):
        shop.get_features(
            aggregates, labels=labels, label_time="t", join_key={"tills": {"desk": "nosuch"}}
        )
