"""A DuckDB file with the tables of the dbt project in ``project``, and a store with its source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from featurestore.store import FeatureStore
from tests.dbt.project import MANIFEST
from tests.registry.conftest import postgres_server, postgres_url  # noqa: F401  # fixtures

Edit = Callable[[dict[str, Any]], None]
TABLES = """
create table raw_customers as select * from (values
    (1, 'basic', 'NL', timestamp '2026-01-01 06:00'),
    (2, 'plus', 'DE', timestamp '2026-01-01 07:00'),
    (3, 'basic', 'FR', timestamp '2026-01-02 07:00')) as t(id, plan, country, updated_at);
create table raw_orders as select * from (values
    (1, 1, 12.5::double, 'paid', timestamp '2026-01-01 10:00'),
    (2, 2, 99.0, 'paid', timestamp '2026-01-01 11:00'),
    (3, 1, 40.0, 'returned', timestamp '2026-01-03 09:00'),
    (4, 3, 7.0, 'paid', timestamp '2026-01-04 09:00'))
    as t(order_id, customer_id, amount, status, ordered_at);
create table orders as select * from raw_orders;
create table customer_spending as select customer_id, ordered_at,
    sum(amount) over (partition by customer_id order by ordered_at) as spent,
    count(*) over (partition by customer_id order by ordered_at) as orders from orders;
create table countries_v1 as select country, count(*) as customers from raw_customers group by country;
create table countries_v2 as
    select country, count(*) as customers, max(updated_at) as updated_at from raw_customers group by country;
-- Customer 1 changed the plan, customer 2 was deleted and came back.
create table plans as select id, plan, country, valid_from as updated_at, md5(plan) as dbt_scd_id,
    valid_from as dbt_updated_at, valid_from as dbt_valid_from, valid_to as dbt_valid_to
from (values
    (1, 'basic', 'NL', timestamp '2026-01-01 06:00', timestamp '2026-01-03 06:00'),
    (1, 'plus', 'NL', timestamp '2026-01-03 06:00', null),
    (2, 'plus', 'DE', timestamp '2026-01-01 07:00', timestamp '2026-01-02 07:00'),
    (2, 'basic', 'DE', timestamp '2026-01-05 07:00', null),
    (3, 'basic', 'FR', timestamp '2026-01-02 07:00', null)) as t(id, plan, country, valid_from, valid_to);
"""


@pytest.fixture
def shop(empty_store: FeatureStore, tmp_path: Path) -> FeatureStore:
    """A store with the source ``warehouse``."""
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute(TABLES)
    empty_store.add_source("warehouse", f"duckdb:///{tmp_path / 'shop.duckdb'}")
    return empty_store


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes the manifest with changes, and returns its path."""

    def write(*edits: Edit) -> Path:
        manifest = json.loads(MANIFEST.read_text())
        for edit in edits:
            edit(manifest)
        path = tmp_path / "manifest.json"
        path.write_text(json.dumps(manifest))
        return path

    return write
