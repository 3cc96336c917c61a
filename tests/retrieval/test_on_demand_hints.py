"""Unsupported on-demand expressions raise errors that name the replacement."""

from __future__ import annotations

import pytest

import featurestore
from featurestore.errors import InvalidArgument, InvalidSql
from featurestore.store import FeatureStore
from tests.on_spark import on_engines


@on_engines("value", [-7, -1, 0, 6, 7, 2**52 + 1], spark=[-7, 2**52 + 1])
def test_integer_division_error_has_equivalent_hint(store: FeatureStore, value: int) -> None:
    store.create_featuregroup([{"k": 1, "i": value}], "g", primary_key="k")
    labels = store.get_featuregroup("g")
    with pytest.raises(InvalidSql) as refused:
        store.get_features([featurestore.feature("half", "i // 2")], labels=labels)
    expression = str(refused.value.hint).removesuffix(" is the integer quotient")
    rows = store.get_features([featurestore.feature("half", expression)], labels=labels).to_arrow()
    quotient = abs(value) // 2 * (1 if value >= 0 else -1)
    assert rows.column("half").to_pylist() == [quotient]
    with pytest.raises(InvalidSql, match="integer quotient"):
        labels.filter("(i + 1) // 2 = 3")


def test_on_demand_of_on_demand_hints_expression(
    flights_store: FeatureStore,
) -> None:
    labels = flights_store.get_featuregroup("planes")
    with_crew = featurestore.feature("with_crew", "seats + 2")
    double = featurestore.feature("double", "with_crew * 2")
    with pytest.raises(InvalidSql, match=r"write \(seats \+ 2\) instead of with_crew"):
        flights_store.get_features([with_crew, double], labels=labels)
    chained = flights_store.get_features(
        [double], labels=flights_store.get_features([with_crew], labels=labels)
    )
    inline = featurestore.feature("double", "(seats + 2) * 2")
    single_step = flights_store.get_features([with_crew, inline], labels=labels)
    for frame in (chained, single_step):
        assert sorted(frame.to_arrow().column("double").to_pylist()) == [44, 114, 302, 404]


@pytest.mark.parametrize("as_of", [True, False, 2.5, None, [1], b"1"])
def test_as_of_of_group_must_be_version(flights_store: FeatureStore, as_of: object) -> None:
    with pytest.raises(InvalidArgument, match="neither a time nor a Delta version"):
        flights_store.get_features(
            "planes.seats",
            labels=[{"tailnum": "N102UW"}],
            as_of={"planes": as_of},  # type: ignore[dict-item]
        )
