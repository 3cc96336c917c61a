"""Append, upsert, overwrite and delete: committed rows, refusals and commit metadata."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from featurestore.errors import (
    DuplicateKeys,
    InvalidArgument,
    InvalidSql,
    KeyRequired,
    SchemaMismatch,
    ValidationFailed,
)

if TYPE_CHECKING:
    from featurestore.store import FeatureStore


def day(number: int) -> dt.datetime:
    return dt.datetime(2024, 1, number, tzinfo=dt.UTC)


def rows(ids: list[Any], number: int = 1, x: float = 0.0, **more: list[Any]) -> pa.Table:
    return pa.table({"id": ids, "t": [day(number)] * len(ids), "x": [x] * len(ids), **more})


def values(store: FeatureStore, name: str = "g", **options: Any) -> dict[Any, Any]:
    result = store.get_featuregroup(name, dataframe_type="python", **options)
    return {(row["id"], row["t"].day): row["x"] for row in result}


def test_insert_modes_append_upsert_and_overwrite(store: FeatureStore) -> None:
    group = store.create_featuregroup(
        rows([1, 2], x=1.0), "g", primary_key="id", event_time="t", statistics=False
    )
    group.insert(rows([1], 2, x=2.0))
    assert values(store) == {(1, 1): 1.0, (2, 1): 1.0, (1, 2): 2.0}

    # Rows are matched by key and event time: one is corrected, one is new.
    corrected = pa.concat_tables([rows([1], 1, x=9.0), rows([3], 3, x=3.0)])
    group.insert(corrected, mode="upsert")
    assert values(store) == {(1, 1): 9.0, (2, 1): 1.0, (1, 2): 2.0, (3, 3): 3.0}

    deleted = store.delete_from_featuregroup(
        "g", "id = 1 AND t < TIMESTAMPTZ '2024-01-02 00:00:00+00'"
    )
    assert (deleted.operation, deleted.rows_out, deleted.rows) == ("delete", 1, 3)
    assert values(store) == {(2, 1): 1.0, (1, 2): 2.0, (3, 3): 3.0}

    group.insert(rows([7], x=7.0), mode="overwrite")
    assert values(store) == {(7, 1): 7.0}
    assert values(store, as_of=1) == {(1, 1): 1.0, (2, 1): 1.0}

    actual_rows = [
        (c.delta_version, c.operation, c.rows_in, c.rows_out, c.rows) for c in group.history()[::-1]
    ]
    assert actual_rows == [
        (1, "create", 2, 0, 2),
        (2, "append", 1, 0, 3),
        (3, "upsert", 2, 1, 4),
        (4, "delete", 0, 1, 3),
        (5, "overwrite", 1, 3, 1),
    ]
    assert len({c.run_id for c in group.history()}) == 5
    assert [c.validation for c in group.history()] == ["passed", None, "passed", "passed", "passed"]
    assert all(c.timestamp.tzinfo is not None for c in group.history())


def test_upsert_with_new_created_time_adds_row(empty_store: FeatureStore) -> None:
    first = rows([1], x=1.0).append_column("known", pa.array([day(1)]))
    group = empty_store.create_featuregroup(
        first, "g", primary_key="id", event_time="t", created_time="known"
    )
    later = rows([1], x=2.0).append_column("known", pa.array([day(5)]))
    group.insert(later, mode="upsert")
    again = rows([1], x=3.0).append_column("known", pa.array([day(5)]))
    group.insert(again, mode="upsert")
    actual = empty_store.get_featuregroup("g", dataframe_type="python")
    assert sorted((row["known"].day, row["x"]) for row in actual) == [(1, 1.0), (5, 3.0)]


def test_insert_matches_columns_by_name_and_casts(empty_store: FeatureStore) -> None:
    wide = pa.table({"id": [1], "a": pa.array([1], pa.int64()), "b": pa.array([0.5], pa.float64())})
    empty_store.create_featuregroup(wide, "g", primary_key="id")
    narrow = pa.table(
        {"b": pa.array([1.5], pa.float32()), "a": pa.array([7], pa.int8()), "id": [2]}
    )
    empty_store.insert_into_featuregroup(narrow, "g")
    actual = empty_store.get_featuregroup("g", dataframe_type="arrow").sort_by("id")
    assert actual.schema == wide.schema
    assert actual.to_pylist() == [{"id": 1, "a": 1, "b": 0.5}, {"id": 2, "a": 7, "b": 1.5}]


def test_insert_new_columns_require_schema_change(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(rows([1]), "g", primary_key="id", event_time="t")
    wider = rows([2], 2, y=pa.array([7], pa.uint8()))
    with pytest.raises(SchemaMismatch, match=r"unknown: 'y' \(uint8\)(.|\n)*schema_change='add'"):
        group.insert(wider)
    group.insert(wider, schema_change="add")
    assert group.schema.names == ["id", "t", "x", "y"]
    assert group.version == 1
    actual_rows = {row["id"]: row["y"] for row in group.read().to_arrow().to_pylist()}
    assert actual_rows == {1: None, 2: 7}
    assert group.schema.field("y").type == pa.uint8()
    assert group.read(as_of=1).columns == ["id", "t", "x"]
    group.insert(
        rows([3], 3, y=pa.array([1], pa.uint8())).append_column("z", pa.array(["new"])),
        mode="upsert",
        schema_change="add",
    )
    assert group.schema.names == ["id", "t", "x", "y", "z"]


def test_concurrent_column_additions_are_all_kept(empty_store: FeatureStore) -> None:
    import threading

    import featurestore

    group = empty_store.create_featuregroup(rows([1]), "g", primary_key="id", event_time="t")
    start = threading.Barrier(4)
    errors: list[Exception] = []

    def add(number: int) -> None:
        store = featurestore.connect(empty_store.location)
        batch = rows([10 + number], 2, **{f"y{number % 3}": pa.array([7], pa.uint8())})
        start.wait()
        try:
            store.insert_into_featuregroup(batch, "g", schema_change="add")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert {name: group.schema.field(name).type for name in ("y0", "y1", "y2")} == dict.fromkeys(
        ("y0", "y1", "y2"), pa.uint8()
    )
    assert group.read().count() == 5
    from featurestore.registry import featuregroups

    with empty_store.session.registry.reading() as connection:
        assert featuregroups.get(connection, "g").spec == group.spec


def test_insert_schema_mismatch_error_contains_types_and_hint(empty_store: FeatureStore) -> None:
    store = empty_store
    table = pa.table({"id": [1], "n": pa.array([1], pa.int32()), "text": ["a"]})
    store.create_featuregroup(table, "g", primary_key="id")
    wrong = pa.table({"id": [2], "n": ["1"], "text": [1.5]})
    with pytest.raises(SchemaMismatch) as error:
        store.insert_into_featuregroup(wrong, "g")
    assert "'n' is string where the group has int32" in error.value.message
    assert "'text' is double where the group has string" in error.value.message
    assert "df = featurestore.cast(df, {'n': " in str(error.value.hint)
    assert "create_featuregroup" in str(error.value.hint)
    with pytest.raises(SchemaMismatch, match="missing: 'text'"):
        store.insert_into_featuregroup(table.drop(["text"]), "g")
    with pytest.raises(SchemaMismatch, match="differ from existing ones only in case"):
        store.insert_into_featuregroup(
            table.rename_columns(["id", "n", "TEXT"]), "g", schema_change="add"
        )
    assert len(store.get_featuregroup_history("g")) == 1


def test_insert_duplicate_keys_raises_with_examples(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(rows([1]), "g", primary_key="id", event_time="t")
    doubled = pa.concat_tables([rows([5], 2, x=1.0), rows([5], 2, x=2.0)])
    for mode, policy in (("upsert", None), ("upsert", "off"), ("append", None)):
        with pytest.raises(DuplicateKeys, match="5"):
            group.insert(doubled, mode=mode, validation=policy)
    assert group.delta_version == 1
    group.insert(doubled, mode="upsert", on_duplicates="last")
    assert values(empty_store)[(5, 2)] == 2.0


def test_insert_failing_expectations_writes_nothing(empty_store: FeatureStore) -> None:
    store = empty_store
    group = store.create_featuregroup(rows([1]), "g", primary_key="id", event_time="t")
    with pytest.raises(ValidationFailed, match="no_null_keys"):
        group.insert(pa.table({"id": pa.array([None], pa.int64()), "t": [day(1)], "x": [1.0]}))
    assert group.delta_version == 1
    with pytest.raises(ValidationFailed):
        store.create_featuregroup(
            rows([None]).set_column(0, "id", pa.array([None], pa.int64())), "h", primary_key="id"
        )
    assert [group.name for group in store.get_featuregroups()] == ["g"]


def test_insert_failing_rows_go_to_quarantine(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(rows([1]), "g", primary_key="id", event_time="t")
    batch = rows([2, None], 2).cast(group.schema)
    commit = group.insert(batch, validation="quarantine", transaction=("app", 1))
    assert (commit.validation, commit.rows) == ("quarantined", 2)
    from deltalake import DeltaTable

    quarantined_rows = pa.table(DeltaTable(group.path + "_quarantine").to_pyarrow_table())
    assert quarantined_rows["id"].to_pylist() == [None]
    assert "null" in quarantined_rows["reasons"].to_pylist()[0][0]
    # Repeating the write adds neither commit again.
    assert group.insert(batch, validation="quarantine", transaction=("app", 1)).applied is False
    assert DeltaTable(group.path + "_quarantine").to_pyarrow_table().num_rows == 1


def test_insert_repeated_transaction_writes_nothing(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(rows([1]), "g", primary_key="id", event_time="t")
    first = group.insert(rows([2]), transaction=("nightly", 7))
    again = group.insert(rows([2]), transaction=("nightly", 7))
    older = group.insert(rows([3]), mode="overwrite", transaction=("nightly", 6))
    assert (first.applied, again.applied, older.applied) == (True, False, False)
    assert again.delta_version == first.delta_version == group.delta_version
    assert group.insert(rows([3]), transaction=("nightly", 8)).applied
    assert group.insert(rows([4]), mode="upsert", transaction=("other", 1)).applied
    assert values(empty_store).keys() == {(1, 1), (2, 1), (3, 1), (4, 1)}


@pytest.mark.parametrize("mode", ["append", "upsert", "overwrite"])
def test_insert_repeated_transaction_does_not_consume_stream(
    empty_store: FeatureStore, mode: str
) -> None:
    group = empty_store.create_featuregroup(rows([1]), "g", primary_key="id", event_time="t")
    group.insert(rows([2], 2), transaction=("app", 1))

    def batches() -> Any:
        yield from ()
        raise AssertionError("a repeat reads nothing")

    stream = pa.RecordBatchReader.from_batches(rows([1]).schema, batches())
    assert group.insert(stream, mode=mode, transaction=("app", 1)).applied is False


@pytest.mark.parametrize(
    ("options", "error_type", "message"),
    [
        ({"mode": "merge"}, InvalidArgument, "did you mean mode='upsert'"),
        ({"on_duplicates": "first"}, InvalidArgument, "'error' or 'last'"),
        ({"schema_change": "any"}, InvalidArgument, "schema_change='add'"),
        ({"validation": "loose"}, InvalidArgument, "strict, warn, quarantine, off"),
        ({"transaction": "app"}, InvalidArgument, "not \\(app, n\\)"),
        ({"transaction": ("app", -1)}, InvalidArgument, "not \\(app, n\\)"),
        ({"mode": "upsert"}, KeyRequired, "no primary key"),
    ],
)
def test_insert_invalid_arguments_raise(
    empty_store: FeatureStore, options: Any, error_type: Any, message: str
) -> None:
    group = empty_store.create_featuregroup(rows([1]), "g")
    with pytest.raises(error_type, match=message):
        group.insert(rows([2]), **options)


@pytest.mark.parametrize("condition", ["", "id >", "nonsense = 1", "id = 1; drop table x"])
def test_delete_invalid_condition_raises_without_deleting(
    empty_store: FeatureStore, condition: str
) -> None:
    group = empty_store.create_featuregroup(rows([1]), "g")
    with pytest.raises((InvalidSql, InvalidArgument)):
        empty_store.delete_from_featuregroup("g", condition)
    assert group.delta_version == 1


def test_delete_without_matching_rows_makes_no_commit(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(rows([1]), "g")
    assert empty_store.delete_from_featuregroup("g", "id = 5").delta_version == 1
    assert group.delta_version == 1


def test_partition_values_unsupported_by_delta_raise(empty_store: FeatureStore) -> None:
    table = pa.table({"id": [1, 2], "place": ["JFK", ""]})
    for policy in ("off", "strict"):
        with pytest.raises(InvalidArgument, match="'place' has empty strings"):
            empty_store.create_featuregroup(
                table, "g", primary_key="id", partition_by="place", validation=policy
            )
    with pytest.raises(InvalidArgument, match="cannot be a key or partition"):
        empty_store.create_featuregroup(pa.table({"id": [1], "x": [0.5]}), "g", partition_by="x")
    assert empty_store.get_featuregroups() == []
    group = empty_store.create_featuregroup(
        table.slice(0, 1), "g", primary_key="id", partition_by="place"
    )
    group.insert(pa.table({"id": [3], "place": ["LGA"]}))
    actual = empty_store.get_featuregroup("g", dataframe_type="arrow").sort_by("id")
    assert actual.to_pylist() == [{"id": 1, "place": "JFK"}, {"id": 3, "place": "LGA"}]


def test_engines_read_and_extend_tables_of_each_other(tmp_path: Any, spark: Any) -> None:
    import featurestore

    embedded = featurestore.connect(tmp_path / "store", engine="duckdb")
    group = embedded.create_featuregroup(rows([1, 2], x=1.0), "g", primary_key="id", event_time="t")
    cluster = featurestore.connect(tmp_path / "store", engine="spark")
    cluster.insert_into_featuregroup(rows([2], x=2.0), "g", mode="upsert")
    cluster.insert_into_featuregroup(rows([3], 3, y=["new"]), "g", schema_change="add")
    cluster.create_featuregroup(rows([1], x=5.0), "h", primary_key="id", event_time="t")
    assert values(embedded) == values(cluster) == {(1, 1): 1.0, (2, 1): 2.0, (3, 3): 0.0}
    embedded.insert_into_featuregroup(rows([1, 2], x=6.0), "h", mode="upsert")
    assert values(cluster, "h") == {(1, 1): 6.0, (2, 1): 6.0}
    assert [c.operation for c in group.history() if c.rows_in] == ["append", "upsert", "create"]
    cluster_group = embedded.featuregroup("h")
    embedded.insert_into_featuregroup(rows([4], 4), "h")
    assert [c.operation for c in cluster_group.history() if c.rows_in] == [
        "append",
        "upsert",
        "create",
    ]

    # Other Delta readers can read both tables.
    from deltalake import DeltaTable

    for path, expected in ((group.path, 3), (cluster_group.path, 3)):
        assert DeltaTable(path).to_pyarrow_table().num_rows == expected
        assert spark.read.format("delta").load(path).count() == expected
