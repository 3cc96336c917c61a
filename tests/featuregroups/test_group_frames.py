"""Frames of groups read only the needed columns and files."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import featurestore
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import FeatureStoreError, InvalidArgument

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def rows(first: int, count: int, location: str) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table(
        {
            "id": ids,
            "place": [location] * count,
            "x": [float(i) for i in ids],
            "unread": ["long text"] * count,
        }
    )


def test_select_and_filter_are_pushed_down_to_files(store: FeatureStore) -> None:
    group = store.create_featuregroup(rows(0, 50, "a"), "g", primary_key="id", partition_by="place")
    group.insert(rows(100, 50, "b"))
    frame = store.get_featuregroup("g").select("id", "place").filter("id >= 120 AND place = 'b'")
    plan = store.session.engine.explain(frame.relation)
    assert "unread" not in plan
    assert "120" in plan
    assert frame.count() == 30
    assert sorted(frame.to_arrow()["id"].to_pylist()) == list(range(120, 150))


def test_filter_skips_files_of_excluded_rows(store: FeatureStore) -> None:
    group = store.create_featuregroup(
        rows(100, 50, "b"), "g", primary_key="id", partition_by="place"
    )
    group.insert(rows(0, 50, "a"))
    for file in read_snapshot(group.path).files:
        if "place=a" in file.path:
            content = Path(
                file.path
            ).read_bytes()  # without its rows, but with the footer that says what it is
            footer = 8 + int.from_bytes(content[-8:-4], "little")
            Path(file.path).write_bytes(
                content[:4] + bytes(len(content) - footer - 4) + content[-footer:]
            )
    assert store.get_featuregroup("g").filter("place = 'b' AND id < 110").count() == 10
    assert store.get_featuregroup("g").filter("place = 'b'").select("id").to_arrow().num_rows == 50
    with pytest.raises(FeatureStoreError):
        store.get_featuregroup("g").to_arrow()


def test_dataframe_types_give_same_rows(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(pa.table({"id": [1, 2], "x": [0.5, None]}), "g")
    get = empty_store.get_featuregroup
    assert get("g", dataframe_type="arrow").to_pylist() == get("g", dataframe_type="python")
    assert get("g", dataframe_type="pandas")["id"].tolist() == [1, 2]
    assert get("g", dataframe_type="polars")["x"].to_list() == [0.5, None]
    assert get("g", dataframe_type="numpy").shape == (2, 2)
    assert isinstance(get("g"), featurestore.FeatureFrame)
    with pytest.raises(InvalidArgument, match="'pandas', 'polars', 'arrow'"):
        get("g", dataframe_type="excel")  # type: ignore[call-overload]


def test_insert_accepts_feature_frame(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(rows(0, 5, "a"), "g", primary_key="id")
    copy = empty_store.create_featuregroup(
        empty_store.get_featuregroup("g").select("id", "x").filter("id > 2"),
        "copy",
        primary_key="id",
    )
    assert copy.read().count() == 2
    copy.insert(group.read().select("x", "id"), mode="upsert")
    assert sorted(copy.read().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4]


def test_overwrite_with_rows_of_same_group(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(rows(0, 10, "a"), "g", primary_key="id")
    group.insert(group.read().filter("id >= 5"), mode="overwrite")
    assert group.read().count() == 5
    group.insert(group.read().filter("id >= 8"), mode="overwrite", validation="off")
    assert group.read().count() == 2


def test_frame_show_prints_table(
    empty_store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    empty_store.create_featuregroup(rows(0, 7, "a"), "g")
    empty_store.get_featuregroup("g").select("id", "place").show(2)
    assert capsys.readouterr().out == (
        "+---+-----+\n| id|place|\n+---+-----+\n|  0|    a|\n|  1|    a|\n+---+-----+\nonly showing top 2 rows\n"
    )
    assert "<table" in empty_store.get_featuregroup("g")._repr_html_()
