"""Expectations that compare a column with a feature of another group, on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from featurestore.errors import FeatureStoreError, InvalidExpectation, ValidationFailed
from featurestore.model.validation import IN_FEATURE
from featurestore.plugins.validator import find_validator
from featurestore.store import FeatureStore

Row = tuple[int | None, str]


def in_customers(**arguments: Any) -> dict[str, Any]:
    """Return the expectation that customers of orders exist."""
    kwargs = {"column": "customer", "feature": "customers.id", **arguments}
    return {"type": IN_FEATURE, "kwargs": kwargs}


def customers(*ids: int | None) -> pa.Table:
    return pa.table({"key": range(len(ids)), "id": pa.array(ids, pa.int64())})


def orders(rows: list[Row], first: int = 0) -> pa.Table:
    return pa.table(
        {
            "number": pa.array(range(first, first + len(rows)), pa.int64()),
            "customer": pa.array([customer for customer, _ in rows], pa.int32()),
            "status": [status for _, status in rows],
        }
    )


IDS = st.none() | st.integers(0, 5)
ROWS = st.lists(st.tuples(IDS, st.sampled_from(["paid", "open"])), min_size=1, max_size=6)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ids=st.lists(IDS, min_size=1, max_size=5),
    rows=ROWS,
    mostly=st.none() | st.sampled_from([0.5, 0.8]),
    condition=st.booleans(),
)
def test_values_without_match_are_found(
    store: FeatureStore,
    ids: list[int | None],
    rows: list[Row],
    mostly: float | None,
    condition: bool,
) -> None:
    arguments: dict[str, Any] = {} if mostly is None else {"mostly": mostly}
    if condition:
        arguments["row_condition"] = "status == 'paid'"
    store.create_featuregroup(customers(*ids), "customers", primary_key="key")
    expectation = in_customers(**arguments)
    created = store.create_featuregroup(
        orders(rows), "orders", primary_key="number", expectations=[expectation], validation="warn"
    )
    checked = [
        customer
        for customer, status in rows
        if customer is not None and (not condition or status == "paid")
    ]
    missing = [customer for customer in checked if customer not in ids]
    history = store.get_validation_history("orders", version=created.version)
    for report in (history[-1], store.validate_featuregroup("orders")):
        (result,) = [result for result in report.results if result.expectation == expectation]
        assert (result.unexpected, result.rows) == (len(missing), len(rows))
        assert result.success == (
            not missing or len(checked) - len(missing) >= (mostly or 1) * len(checked)
        )
        assert {sample["customer"] for sample in result.samples} <= set(missing)
        assert len(result.samples) == min(len(missing), 5)
    for name in ("orders", "customers"):
        store.delete_featuregroup(name, version=store.featuregroup(name).version)


def test_write_is_refused_or_quarantined(store: FeatureStore) -> None:
    store.create_featuregroup(customers(1, 2), "customers", primary_key="key")
    store.create_featuregroup(
        orders([(1, "paid"), (None, "paid")]),
        "orders",
        primary_key="number",
        expectations=[in_customers()],
    )
    with pytest.raises(ValidationFailed) as failed:
        store.insert_into_featuregroup(orders([(2, "paid"), (7, "open")], 2), "orders")
    assert "in_feature(column='customer', feature='customers.id')" in failed.value.message
    assert '{"number": 3, "customer": 7}'.replace('"', "'") in failed.value.message
    assert store.featuregroup("orders").delta_version == 1
    store.insert_into_featuregroup(
        orders([(2, "paid"), (7, "open")], 2), "orders", validation="quarantine"
    )
    quarantined = store.get_featuregroup_quarantine("orders").to_arrow().to_pylist()
    assert [(row["number"], len(row["reasons"])) for row in quarantined] == [(3, 1)]
    table = store.get_featuregroup("orders").to_arrow()
    assert table.schema.names == ["number", "customer", "status"]
    assert table.schema.field("customer").type == pa.int32()
    assert sorted(table["number"].to_pylist()) == [0, 1, 2]
    # The check reads the newest rows of the other group.
    store.insert_into_featuregroup(pa.table({"key": [9], "id": [7]}), "customers")
    store.insert_into_featuregroup(orders([(7, "open")], 4), "orders")


def test_own_feature_includes_rows_of_the_write(store: FeatureStore) -> None:
    expectation = {"type": IN_FEATURE, "kwargs": {"column": "manager", "feature": "staff.id"}}

    def staff(*pairs: tuple[int, int | None]) -> pa.Table:
        managers = pa.array([manager for _, manager in pairs], pa.int64())
        return pa.table({"id": [id for id, _ in pairs], "manager": managers})

    store.create_featuregroup(
        staff((1, None), (2, 1)), "staff", primary_key="id", expectations=[expectation]
    )
    store.insert_into_featuregroup(staff((3, 1), (4, 3)), "staff")
    with pytest.raises(ValidationFailed):
        store.insert_into_featuregroup(staff((5, 6)), "staff")
    with pytest.raises(ValidationFailed):  # the earlier rows are replaced
        store.insert_into_featuregroup(staff((5, 1)), "staff", mode="overwrite")
    assert store.validate_featuregroup("staff").success


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()], ids=str)
def test_integers_and_floats_are_compared_by_value(store: FeatureStore, kind: pa.DataType) -> None:
    signed = [-(2**63), -(2**53) - 1, -1]
    numbers = [0, 1, 2, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1]
    numbers += signed if pa.types.is_signed_integer(kind) else [2**63, 2**63 + 1, 2**64 - 2048]
    floats = [-0.0, 0.5, 1.0, 2.25, 2.0**53, -(2.0**53), 2.0**63, -(2.0**63), 2.0**64 - 2048]
    features = pa.table({"id": [*floats, 2.0**64, float("inf"), float("nan"), None]})
    store.create_featuregroup(features, "customers")
    orders = pa.table({"number": range(len(numbers)), "customer": pa.array(numbers, kind)})
    store.create_featuregroup(
        orders,
        "orders",
        primary_key="number",
        expectations=[in_customers()],
        validation="quarantine",
    )
    actual = store.get_featuregroup("orders").to_arrow().column("customer").to_pylist()
    # Python compares integers with floats by value.
    assert sorted(actual) == sorted(number for number in numbers if number in floats)


def test_invalid_comparisons_are_refused_before_the_write(empty_store: FeatureStore) -> None:
    store = empty_store
    store.create_featuregroup(customers(1), "customers", primary_key="key")
    store.create_featuregroup([{"word": "a"}], "words")
    rows = orders([(1, "paid")])
    for kwargs, message in (
        ({"column": "customer", "feature": "customer.id"}, "customer"),
        ({"column": "customer", "feature": "customers.idd"}, "has no column 'idd'"),
        ({"column": "customer", "feature": "customers@v3.id"}, "version 3"),
        ({"column": "customer", "feature": "words.word"}, r"\(int32\) cannot be compared"),
        ({"column": "client", "feature": "customers.id"}, "'client'"),
        ({"column": "customer", "feature": "id"}, "is not a feature of a group"),
        ({"column": "customer", "feature": "customers.*"}, "is not a feature of a group"),
        ({"column": "customer"}, "'feature' is not a string"),
        ({"column": "customer", "feature": "customers.id", "values": [1]}, "unknown argument"),
        ({"column": "customer", "feature": "customers.id", "mostly": 2}, "mostly"),
    ):
        expectation = {"type": IN_FEATURE, "kwargs": kwargs}
        with pytest.raises(InvalidExpectation, match=message):
            store.create_featuregroup(
                rows, "orders", primary_key="number", expectations=[expectation]
            )
    assert [group.name for group in store.get_featuregroups()] == ["customers", "words"]
    store.create_featuregroup(rows, "orders", primary_key="number")
    with pytest.raises(InvalidExpectation, match="has no column 'idd'"):
        store.update_featuregroup("orders", expectations=[in_customers(feature="customers.idd")])
    store.update_featuregroup("orders", expectations=[in_customers()])
    store.delete_featuregroup("customers", version=1)
    with pytest.raises(FeatureStoreError, match="cannot be compared with the feature"):
        store.insert_into_featuregroup(orders([(1, "paid")], 1), "orders")
    with pytest.raises(InvalidExpectation, match="not compared with other groups"):
        store.create_training_dataset(rows, "d", expectations=[in_customers()], progress=False)


def test_external_groups_are_compared_in_their_source(store: FeatureStore, tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("create table customers as select * from (values (1), (2)) as t(id)")
        connection.execute(
            "create table orders as select * from (values (1, 1), (2, 9)) as t(number, customer)"
        )
    store.add_source("shop", f"duckdb:///{tmp_path / 'shop.duckdb'}")
    store.create_external_featuregroup(
        "customers", source="shop", table="customers", primary_key="id"
    )
    with pytest.raises(InvalidExpectation, match="has no column 'no'"):
        store.create_external_featuregroup(
            "orders",
            source="shop",
            table="orders",
            primary_key="number",
            expectations=[in_customers(feature="customers.no")],
        )
    store.create_external_featuregroup(
        "orders", source="shop", table="orders", primary_key="number", expectations=[in_customers()]
    )
    report = store.validate_featuregroup("orders")
    (result,) = report.failed
    assert (result.unexpected, result.samples) == (1, ({"number": 2, "customer": 9},))
    page = find_validator().to_html(report)
    assert "customer values must exist in customers.id." in page
    assert "__fs_" not in page + str(report.to_json())
