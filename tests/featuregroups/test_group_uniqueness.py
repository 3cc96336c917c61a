"""Commits record unique keys only if uniqueness is proven.

Readers spare the work for ties exactly there.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.delta import commits
from featurestore.featuregroups.write import insert
from featurestore.featuregroups.write_request import WriteRequest

if TYPE_CHECKING:
    from featurestore.featuregroups import FeatureGroup
    from featurestore.store import FeatureStore


def rows(ids: list[Any], day: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "t": [dt.datetime(2024, 1, day, tzinfo=dt.UTC)] * len(ids),
        }
    )


def unique(group: FeatureGroup) -> bool:
    return commits.is_unique_at(group.path, group.delta_version)


def group_of(store: FeatureStore, name: str = "g") -> FeatureGroup:
    return store.create_featuregroup(rows([1, 2], 1), name, primary_key="id", event_time="t")


def test_unique_keys_preserved_by_appends_upserts_and_deletes(empty_store: FeatureStore) -> None:
    group = group_of(empty_store)
    assert unique(group)
    group.insert(rows([1, 2], 2))
    assert unique(group)
    group.insert(rows([1, 3], 2), mode="upsert")
    assert unique(group)
    empty_store.delete_from_featuregroup("g", "id = 3")
    empty_store.add_featuregroup_tag("g", "a", "b")
    empty_store.compact_featuregroup("g")
    assert unique(group)
    assert [commit.unique for commit in group.history() if commit.unique is not None] == [True] * 4


def test_append_of_earlier_or_equal_times_is_not_unique(empty_store: FeatureStore) -> None:
    group = group_of(empty_store)
    group.insert(rows([5], 1))
    assert not unique(group)
    group.insert(rows([5], 9))
    assert not unique(group)
    group.insert(rows([1], 1), mode="overwrite")
    assert unique(group)


def test_unchecked_writes_are_not_marked_unique(empty_store: FeatureStore) -> None:
    group = group_of(empty_store)
    group.insert(rows([7, 7], 3), validation="off")
    assert not unique(group)
    second_group = group_of(empty_store, "other")
    second_group.insert(rows([7, None], 3), validation="warn")
    assert not unique(second_group)
    plain = empty_store.create_featuregroup(rows([1, 1], 1), "plain")
    assert not unique(plain)


def test_unique_mark_is_lost_after_concurrent_append(empty_store: FeatureStore) -> None:
    """An append checked against version 1 is committed after another append.

    It proves nothing any more.
    """
    group = group_of(empty_store)
    session = empty_store.session
    base = group.delta_version
    group.insert(rows([1], 5))
    from featurestore.plugins.engine import TableWrite

    late = session.engine.from_arrow(rows([1], 5).to_reader())
    claim = {"operation": "append", "unique": "kept_after", "base": base}
    session.engine.write(group.path, late, TableWrite("append", commit_metadata=claim))
    assert not unique(group)


def test_replace_range_is_not_marked_unique(empty_store: FeatureStore) -> None:
    from featurestore.plugins.engine import TimeRange

    group = group_of(empty_store)
    window = TimeRange(
        "t", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    )
    commit = insert(
        empty_store.session,
        rows([8], 1),
        WriteRequest(
            "g",
            mode="replace",
            replace=window,
            run_id="r1",
            inputs=({"featuregroup": "a", "version": 1, "delta_version": 3},),
        ),
    )
    assert (commit.run_id, commit.rows, commit.operation) == ("r1", 1, "replace")
    assert not unique(group)
