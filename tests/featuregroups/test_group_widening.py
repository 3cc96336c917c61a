"""``schema_change="add"`` widens decimals in a commit that changes no row."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import featurestore
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import SchemaMismatch, ValidationFailed
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import featuregroups
from tests.on_spark import on_engines, spark_in_soak

if TYPE_CHECKING:
    from pathlib import Path

    from featurestore.store import FeatureStore


def row(number: int, price: Any) -> dict[str, Any]:
    return {"id": number, "price": price}


def price_type(store: FeatureStore) -> pa.DataType:
    return store.get_featuregroup("g").schema.field("price").type


def prices(store: FeatureStore, **options: Any) -> list[Any]:
    rows = store.get_featuregroup("g", **options).to_arrow().sort_by("id")
    return list(rows["price"].to_pylist())


def test_schema_change_widens_decimals_and_keeps_older_versions(store: FeatureStore) -> None:
    group = store.create_featuregroup([row(0, Decimal("9.99"))], "g", primary_key="id")
    view = store.create_feature_view("v", features=["g.price"])
    with pytest.raises(SchemaMismatch) as refusal:
        group.insert([row(1, Decimal("10.001"))])
    assert str(refusal.value.hint).startswith("schema_change='add' widens the column, or ")
    group.insert([row(1, Decimal("10.001"))], schema_change="add")
    assert group.schema.field("price").type == price_type(store) == pa.decimal128(5, 3)
    assert prices(store) == [Decimal("9.990"), Decimal("10.001")]
    old = store.get_featuregroup("g", as_of=1)
    assert old.schema.field("price").type == pa.decimal128(3, 2)
    assert old.to_arrow().to_pylist() == [row(0, Decimal("9.99"))]
    group.insert([row(0, 12345)], mode="upsert", schema_change="add")
    assert price_type(store) == pa.decimal128(8, 3)
    assert prices(store) == [Decimal(12345), Decimal("10.001")]
    widened = [commit for commit in group.history() if commit.operation == "widen"]
    assert [(commit.rows_in, commit.rows_out) for commit in widened] == [(0, 0), (0, 0)]
    features = view.get_features(labels=[{"id": 1}]).to_arrow()
    assert features["price"].to_pylist() == [Decimal("10.001")]
    assert features.schema.field("price").type == pa.decimal128(8, 3)


@spark_in_soak
def test_decimal_widening_uses_values_not_batch_types(store: FeatureStore) -> None:
    group = store.create_featuregroup([row(0, Decimal("9.99"))], "g", primary_key="id")
    wide = pa.table({"id": [1], "price": pa.array([Decimal("7.50")], pa.decimal128(38, 20))})
    group.insert(wide, schema_change="add")
    group.insert(as_stream([row(2, 3), row(3, None)]), schema_change="add")
    assert price_type(store) == pa.decimal128(3, 2)
    assert [commit.operation for commit in group.history()] == ["append", "append", "create"]
    group.insert([row(6, Decimal("0.001"))], mode="overwrite", schema_change="add")
    assert price_type(store) == pa.decimal128(4, 3)
    assert prices(store) == [Decimal("0.001")]


def test_decimal_lists_and_partitions_are_widened(store: FeatureStore) -> None:
    first = {**row(0, Decimal("9.9")), "parts": [Decimal("1.5"), None]}
    group = store.create_featuregroup([first], "g", primary_key="id", partition_by="price")
    later = {**row(1, Decimal("10.25")), "parts": [Decimal("0.125"), Decimal(70)]}
    group.insert([later], schema_change="add")
    types = group.schema.types
    assert types == [pa.int64(), pa.decimal128(4, 2), pa.list_(pa.decimal128(5, 3))]
    assert store.get_featuregroup("g").to_arrow().sort_by("id").to_pylist() == [first, later]


def test_decimal_over_38_digits_raises_without_widening(store: FeatureStore) -> None:
    first = {**row(0, Decimal("9.99")), "fee": Decimal("1.5")}
    group = store.create_featuregroup([first], "g", primary_key="id")
    later = {**row(1, Decimal(10) ** 37), "fee": Decimal("12.25")}
    with pytest.raises(SchemaMismatch, match="does not fit") as refusal:
        group.insert([later], schema_change="add")
    assert "schema_change" not in str(refusal.value.hint)
    assert [commit.operation for commit in group.history()] == ["create"]
    assert store.get_featuregroup("g").to_arrow().to_pylist() == [first]


def test_decimal_widening_skipped_for_rejected_rows(empty_store: FeatureStore) -> None:
    rule = {"type": "expect_column_values_to_be_between"}
    rule["kwargs"] = {"column": "price", "max_value": 50}  # type: ignore[assignment]
    group = empty_store.create_featuregroup(
        [row(0, Decimal("9.99"))], "g", primary_key="id", expectations=[rule]
    )
    with pytest.raises(ValidationFailed):
        group.insert([row(1, Decimal("99.999"))], schema_change="add")
    assert price_type(empty_store) == pa.decimal128(3, 2)


@spark_in_soak
def test_quarantine_stores_rows_of_more_digits(store: FeatureStore) -> None:
    rule: dict[str, Any] = {"type": "expect_column_values_to_be_between"}
    rule["kwargs"] = {"column": "price", "max_value": 50}
    options: dict[str, Any] = {"validation": "quarantine", "expectations": [rule]}
    rows = [row(0, Decimal("9.99")), row(1, Decimal(60))]
    group = store.create_featuregroup(rows, "g", primary_key="id", **options)
    group.insert([row(2, Decimal("99.999")), row(3, Decimal("0.5"))], schema_change="add")
    quarantined = store.get_featuregroup_quarantine("g").to_arrow().sort_by("id")
    assert quarantined["price"].to_pylist() == [Decimal(60), Decimal("99.999")]
    assert prices(store) == [Decimal("9.99"), Decimal("0.5")]


@spark_in_soak
def test_decimal_widening_updates_statistics_and_registry(store: FeatureStore) -> None:
    group = store.create_featuregroup([row(0, Decimal("1.5"))], "g", primary_key="id")
    group.insert([row(1, Decimal("2.5"))])
    group.insert([row(2, Decimal("101.25"))], schema_change="add")
    (_, column) = store.get_featuregroup_statistics("g").columns
    assert (column.count, column.minimum, column.maximum) == (3, 1.5, 101.25)
    session = store._session
    with session.registry.reading() as connection:
        registered = featuregroups.get(connection, "g").spec.schema
    assert registered.field("price").type == pa.decimal128(5, 2)
    os.unlink(os.path.join(store.location, "registry.db"))
    assert rebuild(store.location).featuregroups == ["g@v1"]
    again = featurestore.connect(store.location, engine=store.engine)
    assert price_type(again) == pa.decimal128(5, 2)


def as_stream(rows: list[dict[str, Any]]) -> pa.RecordBatchReader:
    return pa.Table.from_pylist(rows).to_reader(max_chunksize=2)


def random_decimal(rng: random.Random) -> Decimal | None:
    digits = rng.choice([1, 2, 3, 5, 9, 15])
    if rng.random() < 0.1:
        return None
    number = Decimal(rng.randrange(-(10**digits), 10**digits))
    return number.scaleb(-rng.randrange(digits + 1)).normalize() + 0


@on_engines("seed", range(3), spark=[0])
def test_decimal_widening_random_batches_equal_single_batch(
    store: FeatureStore, engine_name: str, seed: int
) -> None:
    rng = random.Random(seed)
    for example in range(10 if engine_name == "duckdb" else 1):
        values = [random_decimal(rng) for _ in range(12)]
        values[0] = values[0] or Decimal("0.5")
        rows = list(map(row, range(12), values))
        expected = store.create_featuregroup(rows, f"whole{example}", primary_key="id")
        rng.shuffle(rows)
        first = next(number for number, record in enumerate(rows) if record["price"] is not None)
        rows.insert(0, rows.pop(first))
        cuts = sorted(rng.sample(range(1, 12), 3))
        batches = [rows[low:high] for low, high in zip([0, *cuts], [*cuts, 12], strict=True)]
        grown = store.create_featuregroup(batches[0], f"grown{example}", primary_key="id")
        for batch in batches[1:]:
            mode = rng.choice(["append", "upsert"])
            frame = rng.choice([list, pd.DataFrame, as_stream])(batch)
            grown.insert(frame, mode=mode, schema_change="add")
        assert grown.schema == expected.schema, rows
        tables = []
        for name in (expected.name, grown.name):
            tables.append(store.get_featuregroup(name).to_arrow().sort_by("id"))
        assert tables[0] == tables[1]


def test_concurrent_decimal_widening_keeps_all_rows(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    group = empty_store.create_featuregroup([row(0, Decimal("0.1"))], "g", primary_key="id")
    values = [Decimal(10) ** number + Decimal("0.5").scaleb(-number) for number in range(6)]

    def insert(number: int) -> None:
        store = featurestore.connect(empty_store.location, engine="duckdb")
        handle = store.get_featuregroup("g")
        assert handle is not None
        store.insert_into_featuregroup(
            [row(number + 1, values[number])],
            "g",
            mode="upsert" if number % 2 else "append",
            schema_change="add",
        )
        store.insert_into_featuregroup([row(number + 11, Decimal("0.2"))], "g")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(insert, range(6)))
    assert price_type(empty_store) == pa.decimal128(12, 6)
    assert prices(empty_store) == [Decimal("0.1"), *values, *[Decimal("0.2")] * 6]
    path = str(tmp_path / "store" / "featuregroups" / "g" / "v1")
    for file in read_snapshot(path).files:
        schema = parquet.read_schema(file.path)
        assert schema.field("price").type == pa.decimal128(12, 6)
    assert group.schema.field("price").type == pa.decimal128(12, 6)
