"""Deeply nested and large values are refused by name or handled in little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from featurestore.arrow.types import MAX_LEVELS
from featurestore.errors import FeatureStoreError, UnsupportedType
from featurestore.server import create_app
from featurestore.store import FeatureStore
from tests.attacks.test_arrow_bodies import read, stream


def structs(depth: int) -> pa.Table:
    array = pa.array([1, 2])
    for _ in range(depth):
        array = pa.StructArray.from_arrays([array], ["f"])
    return pa.table({"k": [1, 2], "x": array})


def lists(depth: int) -> pa.Table:
    array = pa.array([1, 2])
    for _ in range(depth):
        array = pa.ListArray.from_arrays([0, 1, 2], array)
    return pa.table({"k": [1, 2], "x": array})


def rows(depth: int) -> list[dict[str, Any]]:
    value: Any = 1
    for _ in range(depth):
        value = {"f": value}
    return [{"k": 1, "x": value}]


@pytest.mark.parametrize("build", [structs, lists, rows])
def test_types_are_nested_to_a_bound(
    empty_store: FeatureStore, build: Callable[[int], Any]
) -> None:
    group = empty_store.create_featuregroup(build(MAX_LEVELS), "deep", primary_key="k")
    assert group.read().count() in (1, 2)
    assert group.read().to_arrow().num_rows in (1, 2)
    for depth in (MAX_LEVELS + 1, 60, 300):
        with pytest.raises(FeatureStoreError, match=r"levels of lists and structs|nested"):
            empty_store.create_featuregroup(build(depth), "deeper", primary_key="k")
    assert not empty_store.get_latest_featuregroup_version("deeper")


@pytest.mark.parametrize("depth", [MAX_LEVELS + 1, 60])
def test_uploads_of_deep_types_are_refused(empty_store: FeatureStore, depth: int) -> None:
    for table in (structs(depth), lists(depth)):
        with pytest.raises(UnsupportedType, match="levels"):
            empty_store.create_featuregroup(
                read(stream(table.to_batches())), "deep", primary_key="k"
            )


def test_pages_show_the_beginning_of_a_large_cell(empty_store: FeatureStore) -> None:
    size = 5_000_000
    table = pa.table({"k": [1], "text": ["x" * size], "bytes": [b"x" * size], "list": [[1] * size]})
    empty_store.create_featuregroup(table, "large", primary_key="k")
    client = TestClient(create_app(empty_store), base_url="http://localhost")
    for page in ("", "/rows", "/statistics", "/validation", "/history"):
        response = client.get(f"/groups/large/1{page}")
        assert response.status_code == 200
        assert len(response.content) < 100_000, page
