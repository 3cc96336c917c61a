"""Decimal types of a group do not depend on the digits of one batch."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from featurestore.errors import DefinitionMismatch, InvalidArgument, SchemaMismatch, UnsupportedType

if TYPE_CHECKING:
    from featurestore.store import FeatureStore


def row(number: int, price: Any) -> dict[str, Any]:
    return {"id": number, "price": price}


def prices(store: FeatureStore, name: str) -> list[Decimal | None]:
    return list(store.get_featuregroup(name).to_arrow().sort_by("id")["price"].to_pylist())


def test_decimals_of_equal_value_fit_stored_type(store: FeatureStore) -> None:
    group = store.create_featuregroup([row(0, Decimal("9.99"))], "g", primary_key="id")
    values = [Decimal("1.1"), Decimal("1.100"), Decimal("2E+0"), 3, None]
    for number, value in enumerate(values, 1):
        group.insert([row(number, value)], mode="upsert")
    assert prices(store, "g") == [Decimal("9.99"), *values]
    wide = pa.table({"id": [1], "price": pa.array([Decimal("7.50")], pa.decimal128(38, 20))})
    for frame in (wide, wide.to_pandas(), pl.from_arrow(wide), duckdb.connect().from_arrow(wide)):
        group.insert(frame, mode="upsert")
        assert prices(store, "g")[1] == Decimal("7.50")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Decimal("10.00"), "'decimal(4, 2)'"),
        (Decimal("0.999"), "'decimal(4, 3)'"),
        (Decimal(10) ** 37 + 1, "create_featuregroup(...)"),
        (10, "create_featuregroup(...)"),
    ],
)
def test_wider_decimals_raise_with_common_type(
    empty_store: FeatureStore, value: Any, hint: str
) -> None:
    first = [row(0, Decimal("9.99"))]
    group = empty_store.create_featuregroup(first, "g", primary_key="id")
    with pytest.raises(SchemaMismatch, match="does not fit") as refusal:
        group.insert([row(1, value)])
    assert hint in str(refusal.value.hint)
    assert prices(empty_store, "g") == [Decimal("9.99")]
    if hint.startswith("'"):
        types = {"price": hint.strip("'")}
        group = empty_store.create_featuregroup(first, "g", primary_key="id", dtypes=types)
        group.insert([row(1, value)])
        assert prices(empty_store, "g") == [Decimal("9.99"), value]


def test_declared_decimal_types_fit_later_batches(store: FeatureStore) -> None:
    first = {
        **row(0, Decimal("9.99")),
        "fee": 1,
        "note": None,
        "tags": [],
        "parts": [Decimal("1.5")],
    }
    group = store.create_featuregroup(
        [first],
        "g",
        primary_key="id",
        decimal_type="decimal(20, 4)",
        dtypes={"fee": pa.decimal128(5, 1), "note": "string", "tags": "list<string>"},
    )
    money = pa.decimal128(20, 4)
    declared = [pa.int64(), money, pa.decimal128(5, 1), pa.string(), pa.list_(pa.string())]
    assert group.schema.types == [*declared, pa.list_(money)]
    later = {
        **row(1, Decimal("0.999")),
        "fee": Decimal("2.50"),
        "note": "n",
        "tags": ["t"],
        "parts": [2],
    }
    group.insert([later])
    assert store.get_featuregroup("g").to_arrow().sort_by("id").to_pylist() == [first, later]


def test_invalid_declared_types_raise_without_writing(empty_store: FeatureStore) -> None:
    def create(price: Any, **types: Any) -> None:
        empty_store.create_featuregroup([row(0, price)], "g", primary_key="id", **types)

    with pytest.raises(SchemaMismatch, match=r"9\.99 does not fit"):
        create(Decimal("9.99"), dtypes={"price": "decimal(2, 1)"})
    with pytest.raises(SchemaMismatch, match=r"9\.99 does not fit"):
        create(Decimal("9.99"), decimal_type="decimal(2, 1)")
    with pytest.raises(InvalidArgument, match=r"'prices'.*[\s\S]*dtypes={'price'"):
        create(Decimal("9.99"), dtypes={"prices": "decimal(3, 2)"})
    with pytest.raises(InvalidArgument, match="never parsed or rounded"):
        create("9.99", dtypes={"price": "decimal(3, 2)"})
    with pytest.raises(UnsupportedType, match="unknown type 'decimal\\(39, 2\\)'"):
        create(Decimal("9.99"), dtypes={"price": "decimal(39, 2)"})
    with pytest.raises(UnsupportedType, match="not a decimal type"):
        create(Decimal("9.99"), decimal_type="int64")
    assert empty_store.get_featuregroups() == []


def test_get_or_create_ignores_inferred_decimal_digits(empty_store: FeatureStore) -> None:
    create = empty_store.get_or_create_featuregroup
    create([row(0, Decimal("9.99"))], "g", primary_key="id")
    assert create(pd.DataFrame([row(0, Decimal("100.999"))]), "g", primary_key="id").version == 1
    with pytest.raises(DefinitionMismatch, match=r"stored decimal128\(3, 2\)"):
        create([row(0, Decimal("9.99"))], "g", primary_key="id", dtypes={"price": "decimal(5, 2)"})
