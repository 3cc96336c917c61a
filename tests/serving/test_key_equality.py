"""Keys are equal by value in joins, in ``equal_key`` and in servers, for each pair of types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from featurestore.errors import NoJoinKey
from featurestore.retrieval.resolve import are_comparable, equal_key
from featurestore.store import FeatureStore

DAY = datetime(2024, 1, 31, tzinfo=UTC)
INTEGERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
]
DIGITS = [(1, 0), (3, 1), (18, 0), (18, 2), (20, 0), (38, 0), (38, 10), (38, 38)]
NUMBERS = [*INTEGERS, *[pa.decimal128(*digits) for digits in DIGITS]]
# Types that only equal themselves.
INCOMPARABLE: dict[pa.DataType, Any] = {
    pa.string(): "1",
    pa.date32(): date(1970, 1, 2),
    pa.bool_(): True,
    pa.binary(): b"1",
    pa.timestamp("us", tz="UTC"): datetime(1970, 1, 2, tzinfo=UTC),
}
SPARK_NUMBERS = [pa.int8(), pa.int64(), pa.uint64(), pa.decimal128(18, 2), pa.decimal128(38, 10)]
# The limits of each type, and their neighbors.
LIMITS = [2**bits for bits in (7, 8, 15, 16, 31, 32, 63, 64)]
LIMITS += [10**digits for digits in (1, 2, 16, 18, 20, 28, 38)]
FRACTIONS = ["0.5", "-0.5", "1.1", "0.01", "0.99", "99.9", "127.5", "255.50", "9.99999999", "1e-38"]
FRACTIONS += ["0.0000000001", "1.0000000001", "9999999999999999.99", "-9999999999999999.99"]
FRACTIONS += ["9223372036854775807.5", "18446744073709551615.5"]
WHOLE_NUMBERS = {0, 1, -1, 5}
for limit in LIMITS:
    WHOLE_NUMBERS.update({limit - 1, limit, limit + 1, 1 - limit, -limit, -limit - 1})
VALUES = sorted([*map(Decimal, FRACTIONS), *[Decimal(n) for n in WHOLE_NUMBERS if abs(n) < 10**38]])


def is_value_of(value: Decimal, kind: pa.DataType) -> bool:
    """Return by exact arithmetic whether an integer or decimal type contains a number."""
    if pa.types.is_decimal(kind):
        unscaled = Fraction(value) * 10**kind.scale
        return unscaled.denominator == 1 and abs(unscaled) < 10**kind.precision
    if pa.types.is_unsigned_integer(kind):
        return 0 <= value < 2**kind.bit_width and value % 1 == 0
    limit = 2 ** (kind.bit_width - 1)
    return -limit <= value < limit and value % 1 == 0


def key_table(kind: pa.DataType, *names: str) -> pa.Table:
    """Return the numbers of a type as keys ``k``, with their positions in ``VALUES``."""
    positions = [row for row, value in enumerate(VALUES) if is_value_of(value, kind)]
    keys = [VALUES[row] for row in positions]
    is_integer = pa.types.is_integer(kind)
    columns = {"k": pa.array(list(map(int, keys)) if is_integer else keys, kind)}
    return pa.table({**columns, **dict.fromkeys(names, positions)})


def test_equal_numbers_are_equal_keys_of_each_pair_of_types(
    store: FeatureStore, engine_name: str
) -> None:
    kinds = NUMBERS if engine_name == "duckdb" else SPARK_NUMBERS
    kinds_by_name = {}
    for number, kind in enumerate(kinds):
        # The joins with and without a time are different queries.
        for name, time in ((f"v{number}", None), (f"t{number}", "at")):
            rows = key_table(kind, name)
            if time is not None:
                rows = rows.append_column(time, pa.array([DAY] * len(rows)))
            store.create_featuregroup(rows, f"g_{name}", primary_key="k", event_time=time)
            kinds_by_name[name] = kind
    features = [f"g_{name}.{name}" for name in kinds_by_name]
    wrong, pairs = [], 0

    def check(row: int, joined: Any, key: Any, origin: str, kind: pa.DataType) -> None:
        nonlocal pairs
        pairs += 1
        is_equal = is_value_of(VALUES[row], kind)
        if joined != (row if is_equal else None) or key != (VALUES[row] if is_equal else None):
            wrong.append(f"{VALUES[row]} of {origin} and {kind}: {joined}, {key}")

    for label_kind in kinds:
        labels = key_table(label_kind, "row")
        frame = store.get_features(features, labels=labels, label_time=DAY)
        for vector in frame.to_arrow().to_pylist():
            for name, kind in kinds_by_name.items():
                key = equal_key(vector["k"], kind)
                check(vector["row"], vector[name], key, str(label_kind), kind)
    store.create_feature_view("v", features=features)
    store.publish("v")
    rows = [row for row, value in enumerate(VALUES) if any(is_value_of(value, k) for k in kinds)]
    with store.get_feature_view("v").server() as server:
        for read in (server.get_vectors, lambda entities: map(server.get_vector, entities)):
            entities = [{"k": plain_number(VALUES[row])} for row in rows]
            for row, vector in zip(rows, read(entities), strict=True):
                for name, kind in kinds_by_name.items():
                    key = equal_key(VALUES[row], kind)
                    check(row, vector[name], key, "an entity", kind)
                is_missing = not all(is_value_of(VALUES[row], kind) for kind in kinds)
                assert vector.status == ("missing" if is_missing else "found")
    assert (wrong[:10], pairs > 1_000) == ([], True)


def plain_number(value: Decimal) -> int | Decimal:
    """Return a whole number as a Python integer."""
    return int(value) if Fraction(value).denominator == 1 else value


def test_types_that_only_equal_themselves_are_no_keys_of_other_types(
    empty_store: FeatureStore,
) -> None:
    kinds = {**INCOMPARABLE, pa.int8(): 1, pa.decimal128(3, 1): Decimal("1.0")}
    for number, (kind, value) in enumerate(kinds.items()):
        rows = pa.table({"k": pa.array([value], kind), f"v{number}": [number]})
        empty_store.create_featuregroup(rows, f"g{number}", primary_key="k")
    for label_kind, value in kinds.items():
        labels = pa.table({"k": pa.array([value], label_kind)})
        for number, kind in enumerate(kinds):
            is_comparable = label_kind == kind or {label_kind, kind}.isdisjoint(INCOMPARABLE)
            assert are_comparable(label_kind, kind) is is_comparable
            if not is_comparable:
                assert label_kind == pa.date32() or equal_key(value, kind) is None
                with pytest.raises(NoJoinKey):
                    empty_store.get_features(f"g{number}.v{number}", labels=labels)
                continue
            frame = empty_store.get_features(f"g{number}.v{number}", labels=labels)
            assert frame.to_arrow()[f"v{number}"].to_pylist() == [number]
            assert equal_key(value, kind) == value
