"""External feature groups behave like stored groups."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import (
    ExternalRowsError,
    FeatureStoreError,
    InvalidArgument,
    SourceNotFound,
    SourceTableNotFound,
    SourceUnavailable,
    VersionNotFound,
)
from featurestore.external import LiveSource
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import lineage
from featurestore.store import FeatureStore
from tests.on_spark import spark_in_soak
from tests.sources.source_writers import SOURCE_WRITERS

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = "id integer, plan text, spent real, updated_at timestamp"


def write(path: Path, rows: list[tuple[Any, ...]], *, columns: str = COLUMNS) -> None:
    """Write rows to the table ``customers`` of a SQLite file, created if needed."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"create table if not exists customers ({columns})")
        marks = ", ".join("?" for _ in columns.split(","))
        database.executemany(f"insert into customers values ({marks})", rows)


def history() -> list[tuple[Any, ...]]:
    """Return rows of 5 customers at several times, with ties, a null key and a null time."""
    rows: list[tuple[Any, ...]] = []
    for number in range(40):
        updated_at = START + timedelta(hours=number // 2)
        rows.append((number % 5, f"plan {number}", number * 1.5, updated_at.isoformat()))
    rows.append((None, "nobody", 1.0, START.isoformat()))
    rows.append((3, "never", 1.0, None))
    return rows


def labels() -> pa.Table:
    ids = [0, 1, 2, 3, 4, 9, 3]
    times = [START + timedelta(hours=4 * number) for number in range(len(ids))]
    return pa.table({"id": ids, "at": pa.array(times, pa.timestamp("us", "UTC"))})


@pytest.fixture
def shop(store: FeatureStore, tmp_path: Path) -> FeatureStore:
    """A store on either engine with a source and the external group ``customers``."""
    write(tmp_path / "shop.db", history())
    store.add_source("shop", f"sqlite:///{tmp_path / 'shop.db'}")
    store.create_external_featuregroup(
        "customers",
        source="shop",
        sql="select * from customers",
        primary_key="id",
        event_time="updated_at",
        description="what customers spent",
        tags={"team": "shop"},
    )
    return store


def test_external_rows_join_like_stored_rows(shop: FeatureStore) -> None:
    copy = list(shop.get_featuregroup("customers").to_arrow().to_pylist())
    complete_rows = [row for row in copy if row["id"] is not None and row["updated_at"] is not None]
    assert (len(copy), len(complete_rows)) == (42, 40)
    shop.create_featuregroup(complete_rows, "copied", primary_key="id", event_time="updated_at")
    spent = featurestore.window("customers.spent", "sum", over="6h")
    request = ["customers.plan", "customers.spent", spent]
    same = [feature.replace("customers", "copied") for feature in request[:2]]
    same.append(featurestore.window("copied.spent", "sum", over="6h"))
    for features, copied_features in ((request[:2], same[:2]), (request[2:], same[2:])):
        frame = shop.get_features(features, labels=labels(), label_time="at").to_arrow()
        expected = shop.get_features(copied_features, labels=labels(), label_time="at").to_arrow()
        assert frame.equals(expected)
        assert frame.column(2).null_count < frame.num_rows


def test_external_rows_are_read_lazily_and_once(shop: FeatureStore, tmp_path: Path) -> None:
    frame = shop.get_features(["customers.plan"], labels=labels(), label_time="at")
    plan = shop.explain_features(["customers.plan"], labels=labels(), label_time="at")
    assert "source 'shop', sql='select * from customers': read when needed" in str(plan)
    write(tmp_path / "shop.db", [(9, "late", 1.0, START.isoformat())])
    first = frame.to_arrow()
    assert first.column("plan").to_pylist()[5] == "late"
    write(tmp_path / "shop.db", [(9, "later", 1.0, (START + timedelta(hours=9)).isoformat())])
    assert frame.select("id", "plan").to_arrow().equals(first.select(["id", "plan"]))
    again = shop.get_features(["customers.plan"], labels=labels(), label_time="at")
    assert again.to_arrow().column("plan").to_pylist()[5] == "later"
    (read,) = frame.reads or ()
    assert (read.source, read.kind, read.rows) == ("shop", "sqlite", 43)


@spark_in_soak
def test_external_rows_are_removed_after_last_use(shop: FeatureStore) -> None:
    frame = shop.get_featuregroup("customers")
    (live,) = frame.plan.sources
    assert isinstance(live, LiveSource)
    path = Path(live.path)
    batches = frame.to_batches()
    del frame, live
    gc.collect()
    assert path.exists()
    assert sum(batch.num_rows for batch in batches) == 42
    del batches
    gc.collect()
    assert not path.exists()


def test_training_dataset_of_external_group_is_reproducible(
    shop: FeatureStore, tmp_path: Path
) -> None:
    shop.create_featuregroup(labels(), "asked", primary_key="id", event_time="at")
    frame = shop.get_features(["customers.plan", "customers.spent"], labels="asked")
    dataset = shop.create_training_dataset(frame, "spending", data_format="parquet")
    assert dataset.manifest.reproducible
    (read,) = dataset.manifest.reads
    assert (read["source"], read["rows"], read["input"]) == ("source:shop", 42, "customers")
    write(tmp_path / "shop.db", [(0, "changed", 1.0, START.isoformat())])
    report = dataset.verify(recompute=True)
    assert report.ok, report.problems
    snapshot = shop.get_featuregroup_history("customers")[0]
    assert (snapshot.operation, snapshot.rows) == ("snapshot", 42)
    assert snapshot.inputs["0"]["snapshot"] == read["snapshot"]
    old = shop.get_featuregroup("customers", as_of=snapshot.delta_version)
    assert (old.count(), shop.get_featuregroup("customers").count()) == (42, 43)
    with shop.session.registry.reading() as connection:
        edges = lineage.sources(connection, "training_dataset", "spending", 1)
        sources = lineage.sources(connection, "featuregroup", "customers", 1)
    assert {edge.source for edge in edges} == {"asked", "customers", "source:shop"}
    assert [edge.source for edge in sources] == ["source:shop"]
    with pytest.raises(FeatureStoreError, match="spending"):
        shop.delete_featuregroup("customers", version=1)


@spark_in_soak
def test_group_without_snapshots_is_not_reproducible(
    shop: FeatureStore,
) -> None:
    shop.create_external_featuregroup(
        "plans",
        source="shop",
        table="customers",
        primary_key="id",
        event_time="updated_at",
        snapshots="never",
    )
    shop.create_featuregroup(labels(), "asked", primary_key="id", event_time="at")
    frame = shop.get_features(["plans.plan"], labels="asked")
    dataset = shop.create_training_dataset(frame, "plans_then", data_format="parquet")
    assert not dataset.manifest.reproducible
    assert "stores no snapshots" in str(dataset.manifest.reproducible_reason)
    assert dataset.manifest.sources[1]["live"]
    assert dataset.verify().ok
    (problem,) = dataset.verify(recompute=True).problems
    assert "cannot be recomputed: feature group 'plans' is external" in str(problem)
    assert len(shop.get_featuregroup_history("plans")) == 1
    assert "without a stored snapshot" in str(dataset.drift())
    with pytest.raises(VersionNotFound, match="no snapshot"):
        shop.get_featuregroup("plans", as_of=1)


@spark_in_soak
def test_source_labels_are_recorded_in_lineage(shop: FeatureStore) -> None:
    features = shop.read_source("shop", sql="select id, updated_at from customers where id = 3")
    frame = shop.get_features(["customers.plan"], labels=features, label_time="updated_at")
    dataset = shop.create_training_dataset(frame, "of_labels", data_format="parquet")
    assert "labels were read from a source" in str(dataset.manifest.reproducible_reason)
    rows = sorted(read["rows"] for read in dataset.manifest.reads)
    assert rows == [9, 42]
    group = shop.create_featuregroup(
        shop.get_features(["customers.plan"], labels=features, label_time="updated_at"), "joined"
    )
    inputs = group.history()[0].inputs.values()
    assert sorted(read["rows"] for read in inputs if "rows" in read) == [9, 42]


@pytest.mark.parametrize("store", ["duckdb"], indirect=True)
@spark_in_soak
def test_external_definitions_are_listed_and_rebuilt(shop: FeatureStore) -> None:
    assert shop.featuregroup("customers").external.source == "shop"
    assert "customers.plan" in shop.get_features_list()
    assert next(match.group for match in shop.search("spent")) == "customers"
    statistics = shop.get_featuregroup_statistics("customers")
    assert (statistics.rows, statistics.column("spent").maximum) == (42, 58.5)
    report = shop.validate_featuregroup(
        "customers",
        expectations=[
            {
                "type": "expect_column_values_to_be_between",
                "kwargs": {"column": "spent", "min_value": 0, "max_value": 10},
            }
        ],
    )
    assert not report.success
    view = shop.create_feature_view("spenders", features=["customers.spent"])
    frame = view.get_features(labels=labels(), label_time="at")
    assert frame.to_arrow().column("spent").null_count == 1
    assert shop.featuregroup("customers").explain(key=3, at=START).row is None
    shop.create_external_featuregroup("customers", source="shop", table="customers")
    Path(str(shop.location), "registry.db").unlink(missing_ok=True)
    rebuilt = rebuild(str(shop.location))
    assert rebuilt.featuregroups == ["customers@v1", "customers@v2"]
    again = featurestore.connect(str(shop.location))
    assert again.get_featuregroup_tags("customers", version=1) == {"team": "shop"}
    assert again.get_featuregroup("customers").count() == 42  # the source came back, too
    again.delete_featuregroup("customers", version=2)


@pytest.mark.parametrize("store", ["duckdb"], indirect=True)
def test_external_group_refuses_stored_row_operations(shop: FeatureStore) -> None:
    with pytest.raises(ExternalRowsError, match="is external: its rows are in source 'shop'"):
        shop.insert_into_featuregroup([{"id": 1}], "customers")
    with pytest.raises(ExternalRowsError):
        shop.delete_from_featuregroup("customers", "id = 1")
    with pytest.raises(ExternalRowsError):
        shop.rename_feature("customers", "plan", "tariff")
    with pytest.raises(InvalidArgument, match="'training' copies"):
        shop.create_external_featuregroup("x", source="shop", snapshots="always")
    with pytest.raises(SourceNotFound, match="'shop'"):
        shop.create_external_featuregroup("x", source="shopp", table="customers")
    with pytest.raises(SourceTableNotFound, match="'customers'"):
        shop.create_external_featuregroup("x", source="shop", table="clients")
    with pytest.raises(InvalidArgument, match="primary_key: unknown columns"):
        shop.create_external_featuregroup(
            "x", source="shop", table="customers", primary_key="customer"
        )
    assert [str(group) for group in shop.get_featuregroups()] == ["customers v1"]


@pytest.mark.parametrize("store", ["duckdb"], indirect=True)
def test_changed_or_removed_source_raises_clear_error(shop: FeatureStore, tmp_path: Path) -> None:
    arguments = {"labels": labels(), "label_time": "at"}
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("alter table customers drop column plan")
    with pytest.raises(
        SourceTableNotFound, match=r"(?s)Unknown columns 'plan'.*dropped or renamed"
    ):
        shop.get_features(["customers.spent"], **arguments).to_arrow()
    path.unlink()
    with pytest.raises(SourceUnavailable, match="does not exist"):
        shop.get_features(["customers.spent"], **arguments).to_arrow()
    shop.create_featuregroup(labels(), "asked", primary_key="id", event_time="at")
    with pytest.raises(SourceUnavailable):
        shop.create_training_dataset(
            shop.get_features(["customers.spent"], labels="asked"), "none", data_format="parquet"
        )
    assert shop.get_training_datasets() == []
    shop.remove_source("shop")
    with pytest.raises(SourceNotFound, match="customers' version 1 are in source 'shop'"):
        shop.get_features(["customers.spent"], **arguments).to_arrow()


@pytest.mark.parametrize("source_type", SOURCE_WRITERS)
def test_external_group_supports_every_source_kind(
    empty_store: FeatureStore, tmp_path: Path, source_type: str
) -> None:
    times = [START + timedelta(hours=number, microseconds=number) for number in range(60)]
    rows = pa.table(
        {
            "id": pa.array([number % 7 for number in range(60)], pa.int64()),
            "customer": [f"customer {number}" for number in range(60)],
            "total": pa.array([number + 0.25 for number in range(60)], pa.float64()),
            "created_at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    source, query = SOURCE_WRITERS[source_type](rows, tmp_path)
    config = source._config
    empty_store.add_source("shop", config.uri, options=config.options)
    empty_store.create_external_featuregroup(
        "there",
        source="shop",
        table=query.table,
        path=query.path,
        primary_key="id",
        event_time="created_at",
    )
    empty_store.create_featuregroup(rows, "here", primary_key="id", event_time="created_at")
    actual = []
    for group in ("there", "here"):
        features = [f"{group}.customer", f"{group}.total"]
        frame = empty_store.get_features(features, labels=labels(), label_time="at")
        actual.append(frame.to_arrow())
    assert actual[0].equals(actual[1])
    assert actual[0].column("total").null_count == 1
