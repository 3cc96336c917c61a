"""The rules in the table of docs/how-to/windows.md, on each engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore
from featurestore.errors import InvalidArgument
from featurestore.model.window_features import WindowFeature

START = datetime(2024, 1, 1, tzinfo=UTC)
TIMES = pa.timestamp("us", "UTC")
MICROSECOND = timedelta(microseconds=1)
# Every amount is a power of two, so a sum says which rows count.
ROWS: list[tuple[str | None, int, float | None, float | None, float | None]] = [
    # who, purchase, hour, known at hour, amount
    ("ann", 1, 10, 10, 1.0),
    ("ann", 2, 12, 20, 2.0),  # known late
    ("ann", 3, 14, 14, 4.0),
    ("ann", 3, 14, 16, 8.0),  # a correction of the one before
    ("ann", 4, 14, 14, None),
    ("ann", 5, None, 14, 16.0),
    ("ann", 6, 11, None, 32.0),
    ("ann", 7, 13, 9, 64.0),  # known in advance
    ("ann", 8, 14, 14, 128.0),
    (None, 9, 14, 14, 256.0),
    ("bob", 10, 14, 14, float("nan")),
    ("bob", 11, 15, 15, float("inf")),
]


def to_time(hour: float | None) -> datetime | None:
    return None if hour is None else START + timedelta(hours=hour)


def table() -> pa.Table:
    persons, purchases, event_hours, known_hours, amounts = zip(*ROWS, strict=True)
    return pa.table(
        {
            "who": persons,
            "purchase": purchases,
            "at": pa.array(map(to_time, event_hours), TIMES),
            "known": pa.array(map(to_time, known_hours), TIMES),
            "amount": pa.array(amounts, pa.float64()),
        }
    )


def sums(store: FeatureStore, features: list[Any], pairs: list[Any], **options: Any) -> list[Any]:
    """Return the aggregates of labels, which are pairs of key and time."""
    persons, times = zip(*pairs, strict=True)
    labels = pa.table({"who": pa.array(persons, pa.string()), "t": pa.array(times, TIMES)})
    frame = store.get_features(features, labels=labels, label_time="t", **options).to_arrow()
    rows = frame.drop_columns(["who", "t"]).to_pylist()
    return [list(row.values()) for row in rows]


def test_window_rules_match_documented_table(store: FeatureStore) -> None:
    store.create_featuregroup(
        table(),
        "purchases",
        primary_key=["who", "purchase"],
        event_time="at",
        created_time="known",
        ttl="1h",
        validation="off",
    )
    aggregates = [
        "purchases.amount|sum|4h",
        featurestore.window("purchases.amount", "sum", over=None, fill_value=-1.0),
        "purchases.amount|count|4h",
        featurestore.window("purchases.amount", "last_n", over="4h", n=2),
    ]
    nothing = [None, -1.0, 0, [None, None]]
    cases: list[tuple[str, Any, list[Any]]] = [
        ("before any row", ("ann", to_time(9)), nothing),
        ("at the time of a row", ("ann", to_time(10)), [1.0, 1.0, 1, [None, 1.0]]),
        ("one row is as old as the window is long", ("ann", to_time(14)),
         [64.0 + 4 + 128, 1.0 + 64 + 4 + 128, 3, None]),
        ("and a microsecond before that", ("ann", to_time(14) - MICROSECOND),  # type: ignore[operator]
         [1.0 + 64, 1.0 + 64, 2, [1.0, 64.0]]),
        ("a correction is known", ("ann", to_time(16)),
         [64.0 + 8 + 128, 1.0 + 64 + 8 + 128, 3, None]),
        ("a late row is known, and its time has passed", ("ann", to_time(20)),
         [None, 1.0 + 2 + 64 + 8 + 128, 0, [None, None]]),
        ("nobody", ("eve", to_time(14)), nothing),
        ("null key", (None, to_time(14)), nothing),
        ("null time", ("ann", None), nothing),
        ("NaN wins over infinity", ("bob", to_time(15)), ["nan", "nan", 2, ["nan", float("inf")]]),
        ("infinity", ("bob", to_time(18.5)), [float("inf"), "nan", 1, [None, float("inf")]]),
    ]  # fmt: skip
    actual = sums(store, aggregates, [pair for _, pair, _ in cases])
    for (name, _, expected), row in zip(cases, actual, strict=True):
        for value, expected_value in zip(row, expected, strict=True):
            if expected_value is not None or value is None:
                assert _replace_nan(value) == _replace_nan(expected_value), name
    # Ignoring created times: corrections apply at once, and so does the row never known.
    pairs = [("ann", to_time(14)), ("ann", to_time(12))]
    actual = sums(store, aggregates[:1], pairs, created_time_filter=False)
    assert actual == [[2.0 + 64 + 8 + 128 + 32], [1.0 + 2 + 32]]


def _replace_nan(value: Any) -> Any:
    """Return a value that is equal to itself, also for NaN."""
    if isinstance(value, list):
        return [_replace_nan(element) for element in value]
    return "nan" if value != value else value


def test_ttl_limits_features_but_not_windows(empty_store: FeatureStore) -> None:
    rows = {"who": ["ann"] * 2, "at": [START, START + timedelta(hours=1)], "x": [1.0, 2.0]}
    empty_store.create_featuregroup(rows, "w", primary_key="who", event_time="at", ttl="1h")
    request = ["w.x", "w.x|sum|1d", "w.x|sum|1h"]
    pairs = [("ann", to_time(1)), ("ann", to_time(2)), ("ann", to_time(3))]
    assert sums(empty_store, request, pairs) == [
        [2.0, 3.0, 2.0],
        [2.0, 3.0, None],  # a ttl includes its bound, a window does not
        [None, 3.0, None],
    ]


# feature, function, fill value, and the value without rows, of the type of the feature
FILLS: list[tuple[str, str, Any, Any]] = [
    ("n", "sum", 2.0, 2),
    ("n", "mean", 1, 1.0),
    ("n", "count", 0, 0),
    ("n", "last_n", -1, [-1, -1, -1]),
    ("n", "last_n", Decimal("7"), [7, 7, 7]),
    ("s", "last_n", "", ["", "", ""]),
    ("s", "max", "none", "none"),
    ("at", "last", datetime(2000, 1, 1), datetime(2000, 1, 1, tzinfo=UTC)),
    ("pair", "first", [8, 9.0], [8, 9]),
    ("pair", "last_n", [8, 9], [[8, 9]] * 3),
    ("p", "last", {"b": "x", "a": 1.0}, {"a": 1, "b": "x"}),
]
# Values without an equal in the type of the feature, and values that would not be used.
UNFIT_FILLS: list[tuple[str, str, Any]] = [
    ("n", "sum", 1.5),
    ("n", "max", 300),
    ("n", "max", True),
    ("n", "mean", 2**53 + 1),
    ("n", "count", -1),
    ("n", "count_distinct", 1),
    ("n", "last_n", 1.5),
    ("n", "last_n", [0, 0, 0]),
    ("s", "max", 0),
    ("at", "last", 0),
    ("at", "last", START.date()),
]


def _fill_store(store: FeatureStore) -> FeatureStore:
    row = {"who": "ann", "at": START, "n": 5, "s": "a", "pair": [1, 2], "p": {"a": 3, "b": "y"}}
    schema = pa.schema(
        [
            ("who", pa.string()),
            ("at", TIMES),
            ("n", pa.int8()),
            ("s", pa.string()),
            ("pair", pa.list_(pa.int16(), 2)),
            ("p", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ]
    )
    rows = pa.Table.from_pylist([row], schema=schema)
    store.create_featuregroup(rows, "f", primary_key="who", event_time="at")
    return store


def _fill_window(column: str, function: Any, fill: Any) -> WindowFeature:
    count = 3 if function == "last_n" else None
    return featurestore.window(
        f"f.{column}", function, over="1d", fill_value=fill, n=count, name="value"
    )


def test_fill_values_replace_missing_values(store: FeatureStore, subtests: pytest.Subtests) -> None:
    _fill_store(store)
    for column, function, fill, expected in FILLS:
        with subtests.test(f"{function} of {column}, filled with {fill!r}"):
            aggregate = _fill_window(column, function, fill)
            pairs = [("ann", to_time(-1)), ("eve", to_time(1)), (None, to_time(1)), ("ann", None)]
            assert sums(store, [aggregate], pairs) == [[expected]] * 4
            ((value,),) = sums(store, [aggregate], [("ann", to_time(1))])
            assert value != expected
            if function == "last_n":
                assert value[:2] == expected[:2]
                assert value[2] != expected[2]


def test_unfit_fill_values_are_refused(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    _fill_store(empty_store)
    for column, function, fill in UNFIT_FILLS:
        with subtests.test(f"{function} of {column}, filled with {fill!r}"):
            with pytest.raises(InvalidArgument, match="fill_value") as caught:
                sums(empty_store, [_fill_window(column, function, fill)], [("ann", to_time(1))])
            assert caught.value.hint


def test_function_of_another_meaning_is_not_proposed(subtests: pytest.Subtests) -> None:
    for function, proposal in (
        ("maen", "did you mean function='mean'?"),
        ("Sum", "did you mean function='sum'?"),
        ("lastn", "did you mean function='last' or function='last_n'?"),
        ("median", None),
        ("quantile", None),
        ("mode", None),
        ("product", None),
    ):
        with subtests.test(function), pytest.raises(InvalidArgument, match="'last_n'") as error:
            featurestore.window("g.v", function, over="7d")
        assert error.value.hint == proposal
