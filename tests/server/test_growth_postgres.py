"""Pages read the same number of rows from Postgres after the store has grown ten times.

Rows are counted in the plans that the server executed: those that each node returned or removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from starlette.testclient import TestClient

import featurestore
from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.grown_store import grow_registry
from tests.registry.conftest import new_database, postgres_server  # noqa: F401  # fixtures
from tests.server.conftest import fill
from tests.server.test_growth import ORIGIN, PAGES, SMALL, add_files

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.postgres
_MORE_ROWS = 1000


@dataclass
class Plans:
    """The plans of the statements of a request."""

    rows: int = 0
    largest: tuple[int, str] = (0, "")

    def add(self, statement: str, plan: dict[str, Any]) -> None:
        """Add the rows of an executed plan."""
        rows = _rows_of(plan)
        self.rows += rows
        self.largest = max(self.largest, (rows, statement))


def _rows_of(node: dict[str, Any]) -> int:
    """Return the rows that a node and those below it returned and removed."""
    names = ("Actual Rows", *[name for name in node if name.startswith("Rows Removed by")])
    rows = sum(node[name] for name in names) * node["Actual Loops"]
    return int(rows) + sum(map(_rows_of, node.get("Plans", ())))


@contextmanager
def explained(store: FeatureStore) -> Iterator[Plans]:
    """Execute the queries of the registry a second time, to learn their plans."""
    plans = Plans()
    engine = store.session.registry._engine

    def explain(
        connection: sa.Connection, _cursor: Any, statement: str, values: Any, *_: Any
    ) -> None:
        if not statement.lstrip().lower().startswith(("select", "with")):
            return
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(f"explain (analyze, format json) {statement}", values)
            plan = cursor.fetchall()[0][0]
        plans.add(statement, (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])

    event.listen(engine, "after_cursor_execute", explain)
    yield plans
    event.remove(engine, "after_cursor_execute", explain)


def _set_costs(url: str) -> None:
    """Set the costs of pages that are in memory, so that Postgres selects plans with few rows.

    With its defaults, it reads tables of a few thousand rows completely.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        for name in ("seq_page_cost", "random_page_cost"):
            connection.execute(f"alter database {connection.info.dbname} set {name} = 0")


def _plans_of(store: FeatureStore) -> dict[str, Plans]:
    app = create_app(store, ServerSettings(page=2))
    plans_by_address = {}
    with TestClient(app, base_url="http://localhost") as client:
        for address in PAGES:
            with explained(store) as plans:
                assert client.get(address).status_code == 200, address
            plans_by_address[address] = plans
    return plans_by_address


def test_pages_read_the_same_rows_of_a_larger_store(
    tmp_path: Path,
    postgres_server: str,  # noqa: F811
    subtests: pytest.Subtests,
) -> None:
    plans_by_store = []
    for name, size in (("small", SMALL), ("large", SMALL.times(10))):
        url = new_database(postgres_server, f"grown_{name}")
        _set_costs(url)
        with featurestore.connect(tmp_path / name, registry=url, engine="duckdb") as store:
            fill(store, tmp_path)
            add_files(store)
            grow_registry(store, size, origin=ORIGIN)
            with store.session.registry.transaction() as connection:
                connection.exec_driver_sql("analyze")
            plans_by_store.append(_plans_of(store))
    small, large = plans_by_store
    for address in PAGES:
        with subtests.test(address):
            assert large[address].rows <= 1.3 * small[address].rows + _MORE_ROWS, large[address]
