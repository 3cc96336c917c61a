"""Snapshots of dbt: a point-in-time read has the values of the version that is valid then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from featurestore.store import FeatureStore
from tests.dbt.test_dbt_projects import ORDERS, of_config

COLUMNS = ("id", "plan", "dbt_valid_from", "dbt_valid_to", "dbt_updated_at", "dbt_is_deleted")
KEYS = range(200)
START, OPEN = datetime(2026, 1, 1), datetime(9999, 12, 31)
CREATE = """create table main.plans (id integer, plan varchar, dbt_valid_from timestamp,
    dbt_valid_to timestamp, dbt_updated_at timestamp, dbt_is_deleted varchar)"""


def valid_plan(rows: Iterable[Mapping[str, Any]], key: object, time: datetime) -> str | None:
    """Return the plan of the version that is valid at a time, read from the rows that dbt wrote.

    Of several versions the one with the latest ``dbt_valid_from`` counts, then the first to end.
    """
    versions = [
        (row["dbt_valid_to"] or OPEN, row)
        for row in rows
        if row["id"] == key and row["dbt_valid_from"] <= time < (row["dbt_valid_to"] or OPEN)
    ]
    if not versions:
        return None
    latest = max(row["dbt_valid_from"] for _, row in versions)
    _, row = min(
        (version for version in versions if version[1]["dbt_valid_from"] == latest),
        key=lambda version: version[0],
    )
    return None if row.get("dbt_is_deleted") == "True" else row["plan"]


def read_plans(
    store: FeatureStore, group: str, cases: Sequence[tuple[object, datetime]]
) -> list[Any]:
    """Return the plans of a group at the times of keys, in UTC."""
    labels = [
        {"number": number, "id": key, "at": time.replace(tzinfo=UTC)}
        for number, (key, time) in enumerate(cases)
    ]
    frame = store.get_features([f"{group}.plan"], labels=labels, label_time="at")
    rows = sorted(frame.to_arrow().to_pylist(), key=lambda row: row["number"])
    return [row["plan"] for row in rows]


def random_rows(generator: random.Random, *, open_end: datetime | None) -> list[dict[str, Any]]:
    """Return the versions of keys with few different times, so that many overlap or are empty."""
    rows = []
    for key in KEYS:
        periods = {
            (generator.randint(0, 7), generator.choice([*range(8), None, None]))
            for _ in range(generator.randint(0, 5))
        }
        for number, (begin, end) in enumerate(periods):
            valid_from = START + timedelta(days=begin)
            rows.append(
                {
                    "id": key,
                    "plan": f"plan {key} {number}",
                    "dbt_valid_from": valid_from,
                    "dbt_valid_to": open_end if end is None else START + timedelta(days=end),
                    "dbt_updated_at": valid_from,
                    "dbt_is_deleted": generator.choice(["False", "False", "True"]),
                }
            )
    return rows


def write_plans(url: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the table ``main.plans`` of a DuckDB file or a Postgres database."""
    values = [[row[name] for name in COLUMNS] for row in rows]
    if url.startswith("duckdb"):
        with duckdb.connect(url.removeprefix("duckdb:///")) as connection:
            connection.execute(CREATE)
            connection.executemany("insert into main.plans values (?, ?, ?, ?, ?, ?)", values)
        return
    with psycopg.connect(url) as database, database.cursor() as cursor:
        cursor.execute("create schema main")
        cursor.execute(CREATE)
        cursor.executemany("insert into main.plans values (%s, %s, %s, %s, %s, %s)", values)


@pytest.mark.parametrize("open_end", [None, OPEN], ids=["null", "marker"])
@pytest.mark.parametrize(
    "database", ["duckdb", pytest.param("postgresql", marks=pytest.mark.postgres)]
)
def test_read_of_snapshot_equals_validity(
    empty_store: FeatureStore,
    edited: Callable[..., Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    database: str,
    open_end: datetime | None,
) -> None:
    rows = random_rows(random.Random(), open_end=open_end)
    url = f"duckdb:///{tmp_path / 'shop.duckdb'}"
    if database == "postgresql":
        url = request.getfixturevalue("postgres_url")
    write_plans(url, rows)
    empty_store.add_source("warehouse", url)
    marker = None if open_end is None else "to_date('9999-12-31')"
    manifest = edited(of_config("snapshot.shop.plans", dbt_valid_to_current=marker))
    empty_store.add_dbt_project(manifest, source="warehouse", select="plans")
    times = [START + timedelta(hours=12 * number) for number in range(-1, 17)]
    cases = [(key, time) for key in KEYS for time in times]
    expected = [valid_plan(rows, key, time) for key, time in cases]
    assert read_plans(empty_store, "plans", cases) == expected


def test_tests_of_snapshot_do_not_count_added_rows(
    shop: FeatureStore, edited: Callable[..., Path]
) -> None:
    def attach_tests(manifest: dict[str, Any]) -> None:
        """Let the tests of the model ``orders`` test the columns of the snapshot."""
        columns = {
            "not_null": ["id", "plan"],
            "unique": ["plan"],
            "accepted_values": ["plan"],
        }
        for test in manifest["nodes"].values():
            metadata = test.get("test_metadata")
            if metadata is None or test["attached_node"] != ORDERS or test["config"]["where"]:
                continue
            if not columns.get(metadata["name"]):
                continue
            column = columns[metadata["name"]].pop()
            metadata["kwargs"]["column_name"] = test["column_name"] = column
            test["attached_node"] = "snapshot.shop.plans"
            if "values" in metadata["kwargs"]:
                metadata["kwargs"]["values"] = ["basic", "plus"]

    result = shop.add_dbt_project(edited(attach_tests), source="warehouse", select="plans")
    expectations = shop.featuregroup("plans").spec.expectations
    assert sorted((each["type"], each["kwargs"]["column"]) for each in expectations) == [
        ("expect_column_values_to_be_in_set", "plan"),
        ("expect_column_values_to_not_be_null", "id"),
    ]
    assert shop.validate_featuregroup("plans").success
    noted = [note for note in result.notes if "adds rows at the ends of versions" in note]
    assert [note.split("'")[3] for note in noted] == [
        "not_null_orders_order_id",
        "unique_orders_order_id",
    ]
