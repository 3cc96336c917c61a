"""Aggregates of both engines over a fixed table, compared with a golden file bit for bit.

python -m tests.aggregates.test_golden_windows    writes the file, from the embedded engine
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import featurestore
from featurestore import FeatureStore

GOLDEN = Path(__file__).parent / "golden_windows.json"
START = datetime(2024, 1, 1, tzinfo=UTC)
CHOICES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "x": (
        pa.float64(),
        [0.1, 0.2, None, -3.5, 1e16, 1e-9, -1e16, 19.99, 5e-324, 1e200, -0.0, 2.5, 0.1],
    ),
    "odd": (pa.float64(), [1.5, float("nan"), None, float("inf"), -2.0, float("-inf"), 7.25]),
    "f": (pa.float32(), [0.1, 3.5, None, -1e30, 1e-30]),
    "n": (pa.int64(), [1, -7, None, 2**40, 2**53 + 1]),
    "d": (pa.decimal128(12, 2), [Decimal("1.25"), Decimal("-9.50"), None, Decimal("0.07")]),
    "s": (pa.string(), ["", "a", None, "zz", "ä"]),
    "b": (pa.bool_(), [True, None, False]),
    "u": (pa.timestamp("us", "UTC"), [START, None, START + timedelta(days=400)]),
}
NUMBERS = ["sum", "count", "mean", "min", "max", "std", "var", "first", "last", "count_distinct"]
FUNCTIONS: dict[str, list[str]] = {
    "x": NUMBERS,
    "odd": NUMBERS,
    "f": NUMBERS,
    "n": NUMBERS,
    "d": NUMBERS,
    "s": ["min", "max", "first", "last", "count", "count_distinct"],
    "b": ["any", "all", "first", "last", "count", "count_distinct"],
    "u": ["min", "max", "first", "last", "count_distinct"],
}
ROWS, LABELS = 120, 24


def table() -> pa.Table:
    """Return rows of three keys, some known late and some replacing others."""
    numbers = list(range(ROWS))
    event = [START + timedelta(hours=(number * 37) % 90) for number in numbers]
    late = [timedelta(hours=(number * 11) % 17 - 3) for number in numbers]
    columns: dict[str, Any] = {
        "key": [number % 3 for number in numbers],
        "part": [number % 2 for number in numbers],
        "event": pa.array(event, pa.timestamp("us", "UTC")),
        "created": pa.array(map(sum_of, event, late), pa.timestamp("us", "UTC")),
    }
    for index, (name, (dtype, values)) in enumerate(CHOICES.items()):
        column = [values[(number * 5 + number // 7 + index) % len(values)] for number in numbers]
        columns[name] = pa.array(column, dtype)
    return pa.table(columns)


def sum_of(start: datetime, length: timedelta) -> datetime:
    return start + length


def labels() -> pa.Table:
    """Return labels between -2 and 113 hours, one of them for a key without rows."""
    times = [START + timedelta(hours=number * 5 - 2) for number in range(LABELS)]
    keys = [number % 4 for number in range(LABELS)]
    return pa.table({"key": keys, "at": pa.array(times, pa.timestamp("us", "UTC"))})


def make_aggregates() -> list[Any]:
    result: list[Any] = []
    for column, functions in FUNCTIONS.items():
        for function in functions:
            for over in ("12h", "2d", None):
                result.append(featurestore.window(f"golden.{column}", function, over=over))
    for column in ("x", "s"):
        result.append(featurestore.window(f"golden.{column}", "last_n", over="2d", n=3))
    result.append(featurestore.window("golden.x", "sum", over="1d", offset="6h"))
    result.append(featurestore.window("golden.x", "std", over="2d", where="b", name="x_std_b"))
    result.append(featurestore.window("golden.n", "max", over="6h", fill_value=-1, name="n_filled"))
    return result


def text(value: Any) -> Any:
    """Format a value with all its bits; doubles are hexadecimal."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list):
        return [text(element) for element in value]
    if value is None or isinstance(value, (int, str)):
        return value
    return str(value)


def compute_aggregates(store: FeatureStore) -> dict[str, dict[str, list[Any]]]:
    """Return the aggregates with and without the created-time filter."""
    store.create_featuregroup(
        table(),
        "golden",
        primary_key=["key", "part"],
        event_time="event",
        created_time="created",
        statistics=False,
    )
    result: dict[str, dict[str, list[Any]]] = {}
    for name, waits in (("known", True), ("at once", False)):
        frame = store.get_features(
            make_aggregates(),
            labels=labels(),
            label_time="at",
            created_time_filter=waits,
        )
        # check_leakage scans every row and its created time; one engine suffices, since the
        # bits are equal.
        if store.session.engine.name == "duckdb":
            assert store.check_leakage(frame).ok == waits
        columns = frame.to_arrow().drop_columns(["key", "at"]).to_pydict()
        result[name] = {column: text(values) for column, values in columns.items()}
    return result


def test_window_aggregates_match_golden_file(store: FeatureStore) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    actual = compute_aggregates(store)
    for name, columns in golden.items():
        assert list(actual[name]) == list(columns)
        for column, values in columns.items():
            assert actual[name][column] == values, (name, column)


def test_golden_file_covers_functions_and_special_numbers() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {aggregate.function for aggregate in make_aggregates()} == {
        "sum", "count", "mean", "min", "max", "std", "var", "first", "last", "count_distinct",
        "any", "all", "last_n",
    }  # fmt: skip
    odd: set[Any] = set()
    for column in ("odd_sum_12h", "odd_max_12h", "odd_min_12h", "odd_last_12h"):
        odd.update(golden["known"][column])
    assert {"nan", "inf", "-inf", None} <= odd
    assert golden["known"] != golden["at once"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        results = compute_aggregates(featurestore.connect(folder, engine="duckdb"))
    lines = []
    for name, columns in results.items():
        inner = ",\n".join(f"  {json.dumps(key)}: {json.dumps(columns[key])}" for key in columns)
        lines.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
