"""Window functions accept or refuse column types when they are requested."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore.aggregates.chunk import Function
from featurestore.aggregates.exact import Sums, bits_for, from_doubles, from_squares
from featurestore.aggregates.sums import deviations, variances
from featurestore.errors import InvalidArgument
from featurestore.store import FeatureStore

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "small": (pa.int8(), [1, -2, None]),
    "whole": (pa.int64(), [2**62, -(2**62), None]),
    "big": (pa.uint64(), [2**63 - 1, 0, None]),
    "half": (pa.float32(), [1.5, math.nan, None]),
    "number": (pa.float64(), [1e308, -1e308, None]),
    "money": (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("-2.00"), None]),
    "word": (pa.string(), ["b", "a", None]),
    "blob": (pa.binary(), [b"b", b"", None]),
    "day": (pa.date32(), [START.date(), START.date(), None]),
    "instant": (pa.timestamp("us", "UTC"), [START, START, None]),
    "array": (pa.list_(pa.float32(), 2), [[1.0, 2.0], [3.0, 4.0], None]),
    "matrix": (pa.list_(pa.list_(pa.uint8(), 2), 2), [[[1, 2], [3, 4]], [[5, 6], [7, 8]], None]),
    "items": (pa.list_(pa.int64()), [[1], [], None]),
    "parts": (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": 2}, None]),
}
NESTED = ("array", "matrix", "items", "parts")


def fill(store: FeatureStore) -> None:
    hours = pa.array(
        [START + timedelta(hours=hour) for hour in range(3)], pa.timestamp("us", "UTC")
    )
    columns: dict[str, Any] = {"k": [1, 1, 1], "t": hours}
    for name, (dtype, values) in COLUMNS.items():
        columns[name] = pa.array(values, dtype)
    store.create_featuregroup(pa.table(columns), "events", primary_key="k", event_time="t")


def test_window_functions_by_column_type_raise_or_compute(store: FeatureStore) -> None:
    fill(store)
    label = {"k": 1, "asked": START + timedelta(hours=5)}
    accepted = []
    for column in COLUMNS:
        for function in get_args(Function):
            options = {"n": 2} if function == "last_n" else {}
            aggregates = featurestore.window(f"events.{column}", function, over="7d", **options)
            try:
                store.get_features([aggregates], labels=[label], label_time="asked")
            except InvalidArgument:
                with pytest.raises(InvalidArgument, match="does not support"):
                    store.create_feature_view("v", features=[aggregates])
            else:
                accepted.append(aggregates)
    names = {aggregate.name for aggregate in accepted}
    for column in NESTED:
        assert f"{column}_last_7d" in names
        for function in ("count_distinct", "min", "max", "sum", "std"):
            assert f"{column}_{function}_7d" not in names
    frame = store.get_features(accepted, labels=[label], label_time="asked")
    row = frame.to_arrow().to_pylist()[0]
    assert row["array_last_7d"] == [3.0, 4.0]
    assert row["word_count_distinct_7d"] == 2
    assert row["number_std_7d"] == math.sqrt(2) * 1e308
    assert row["number_var_7d"] == math.inf


DOUBLES = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [1e308, -1e308, 1.7e308, 1e200, -1e160, 5e-324, 0.0]
)


@given(st.lists(DOUBLES, min_size=2, max_size=8))
def test_std_with_overflowing_variance_is_nearest_double(values: list[float]) -> None:
    array = np.array(values)
    bits = bits_for(len(array))
    sums = []
    for fixed in (from_doubles(array, bits=bits), from_squares(array, bits=bits)):
        sums.append(Sums([limb.sum(keepdims=True) for limb in fixed.limbs], fixed.unit, fixed.bits))
    counts = np.array([len(array)])
    actual = variances(counts, *sums)
    root = float(deviations(counts, actual, *sums)[0])
    numbers = list(map(Fraction, values))
    mean = sum(numbers, Fraction(0)) / len(numbers)
    exact = sum(((number - mean) ** 2 for number in numbers), Fraction(0)) / (len(numbers) - 1)
    if math.isfinite(actual[0]):
        assert root == math.sqrt(actual[0])
    elif math.isfinite(root):
        above, below = math.nextafter(root, math.inf), math.nextafter(root, 0.0)
        upper = (Fraction(root) + Fraction(above)) / 2 if math.isfinite(above) else None
        assert ((Fraction(root) + Fraction(below)) / 2) ** 2 <= exact
        assert upper is None or exact <= upper**2
    else:
        assert exact > Fraction(np.finfo(float).max) ** 2
