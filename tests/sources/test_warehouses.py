"""Warehouses by ADBC: Flight SQL against two servers; addresses and options of the others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("adbc_driver_flightsql")
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    SourceTableNotFound,
    SourceUnavailable,
)
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, find_source
from featurestore.store import FeatureStore
from featurestore.testing.source_conformance import SourceConformance
from tests.maven import NotFetched
from tests.sources import flight_sql_server
from tests.sources.flight_sql_server import PASSWORD, USER, DuckDBServer

START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def duckdb_server() -> Iterator[DuckDBServer]:
    with flight_sql_server.serving() as server:
        yield server


@pytest.fixture(scope="module")
def sqlite_port() -> Iterator[int]:
    try:
        with flight_sql_server.serving_sqlite() as port:
            yield port
    except NotFetched as error:
        pytest.skip(f"Flight SQL skipped: {error}")


def uri_of(server: DuckDBServer) -> str:
    return f"flightsql://127.0.0.1:{server.port}?tls=false"


def source_of(uri: str, secret: str | None = None) -> Source:
    reference = None if secret is None else lambda: secret
    return find_source(uri.partition(":")[0])(SourceConfig("shop", uri, {}, reference))


class TestFlightSQL(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, duckdb_server: DuckDBServer) -> None:
        self.server = duckdb_server

    def source(self, rows: pa.Table, directory: Path) -> tuple[Source, SourceQuery]:
        del directory
        self.server.database.register("given", rows)
        self.server.database.execute("create or replace table orders as from given")
        self.server.database.unregister("given")
        return source_of(uri_of(self.server)), SourceQuery(table="orders")


def test_flight_sql_pushes_columns_and_bound_windows_down(
    duckdb_server: DuckDBServer, empty_store: FeatureStore
) -> None:
    database = duckdb_server.database
    database.execute("create schema sales")
    for time_type in ("timestamptz", "timestamp", "date"):
        database.execute(
            f"create table sales.by_{time_type} as select i as id, 'x' as secret_note, "
            f"({time_type} '2024-01-01' + to_days(i::int))::{time_type} as day from range(10) t(i)"
        )
    snapshot = source_of(uri_of(duckdb_server)).snapshot()
    for time_type in ("timestamptz", "timestamp", "date"):
        duckdb_server.statements.clear()
        window = TimeRange("day", START + timedelta(days=2), START + timedelta(days=5))
        query = SourceQuery(table=f"main.sales.by_{time_type}", columns=("id",), window=window)
        if time_type == "date":
            query = SourceQuery(
                sql=f"from sales.by_{time_type} -- a", columns=("id",), window=window
            )
        else:
            query = SourceQuery(table=f"sales.by_{time_type}", columns=("id",), window=window)
        assert snapshot.read(query).read_all().column("id").to_pylist() == [2, 3, 4]
        read = duckdb_server.statements[-1]
        assert '"day" >= ? AND "day" < ?' in read
        assert "secret_note" not in read
        assert "2024" not in read
    snapshot.close()
    empty_store.add_source("warehouse", uri_of(duckdb_server))
    report = empty_store.check_source("warehouse")
    assert report.ok
    assert "sales.by_date" in [table.name for table in report.tables]
    frame = empty_store.read_source("warehouse", table="sales.by_date")
    group = empty_store.create_featuregroup(frame, "days", primary_key="id", event_time="day")
    (source_read,) = group.history()[0].inputs.values()
    assert (source_read["source"], source_read["kind"], source_read["rows"]) == (
        "source:warehouse",
        "flightsql",
        10,
    )


def test_flight_sql_checks_passwords_and_hides_them(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flight_sql_server.serving(with_password=True) as server:
        server.database.execute("create table orders as select 1 as id")
        address = f"127.0.0.1:{server.port}?tls=false"
        monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
        empty_store.add_source("shop", f"flightsql://{USER}@{address}", secret="env:SHOP_PASSWORD")
        assert empty_store.read_source("shop", table="orders").count() == 1
        token = source_of(f"flightsql://{address}", "token-of-reader").snapshot()
        assert [table.name for table in token.tables()] == ["main.orders"]
        token.close()
        for path in Path(empty_store.location).rglob("*"):
            assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()
        for user, secret in ((f"{USER}@", "wrong-pass-0815"), ("", "wrong-pass-0815"), ("", None)):
            with pytest.raises(SourceUnavailable, match="rejects the user") as caught:
                source_of(f"flightsql://{user}{address}", secret).snapshot()
            assert "0815" not in f"{caught.value!r} {caught.value}"
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        source_of(f"flightsql://{address}").snapshot().tables()


def test_flight_sql_of_sqlite_is_a_source(sqlite_port: int) -> None:
    snapshot = source_of(f"flightsql://127.0.0.1:{sqlite_port}?tls=false").snapshot()
    assert snapshot.server == "db_name"
    assert {"foreignTable", "intTable"} <= {table.name for table in snapshot.tables()}
    query = SourceQuery(table="intTable", columns=("keyName", "value"))
    assert snapshot.schema(query).names == ["keyName", "value"]
    rows = snapshot.read(query).read_all().to_pydict()
    assert rows == {"keyName": ["one", "zero", "negative one", None], "value": [1, 0, -1, None]}
    assert snapshot.read(SourceQuery(sql="select id from intTable")).read_all().num_rows == 4
    with pytest.raises(SourceTableNotFound, match=r"unknown table 'intTabel'.*'intTable'"):
        snapshot.schema(SourceQuery(table="intTabel"))
    with pytest.raises(FeatureStoreError, match="no such column"):
        snapshot.schema(SourceQuery(sql="select nosuch from intTable"))
    snapshot.close()
    snapshot.close()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("flightsql://host", "is not the address"),
        ("flightsql://host:1/database", "is not the address"),
        ("flightsql://host:1?tls_root_certs=/etc/passwd", "'tls_root_certs' is not allowed"),
        ("flightsql://host:1?tls=no", "neither true nor false"),
        ("flightsql://host:1?tls=false", "unencrypted"),
        ("snowflake://account/shop", "is not a database of Snowflake"),
        ("snowflake://me@account", "is not a database of Snowflake"),
        ("snowflake://me@account/shop?authentication=browser", "unknown authentication"),
        ("snowflake://me@account/shop?warehouse=a%2Fb", "unsafe value"),
        ("bigquery://project", "is not a dataset"),
        ("bigquery://me@project/data", "is not a dataset"),
        ("bigquery://project/data?auth_credentials=x", "'auth_credentials' is not allowed"),
    ],
)
def test_warehouse_uris_are_checked_without_connecting(uri: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        source_of(uri, "tr0ub4dor")


def test_snowflake_and_bigquery_address_tables_in_the_uri() -> None:
    from featurestore_connectors.sources.sql_source import Selection
    from featurestore_connectors.sources.typed_columns import SourceColumn
    from featurestore_connectors.sources.warehouses import WarehouseSnapshot, WarehouseSource

    window = TimeRange("day", START, START + timedelta(days=1))
    query = SourceQuery(table="orders", window=window)
    expected = {
        "snowflake://me@MyOrg-Account/SHOP/PUBLIC?role=r": (
            '"SHOP"."PUBLIC"."orders"',
            '"day" >= CAST(? AS TIMESTAMP_TZ) AND "day" < CAST(? AS TIMESTAMP_TZ)',
        ),
        "bigquery://shop-project/sales?location=EU": (
            "`shop-project`.`sales`.`orders`",
            "`day` >= CAST(? AS TIMESTAMP) AND `day` < CAST(? AS TIMESTAMP)",
        ),
    }
    for uri, (table, condition) in expected.items():
        source = source_of(uri, "tr0ub4dor")
        assert isinstance(source, WarehouseSource)
        warehouse = source._warehouse("tr0ub4dor")
        assert "tr0ub4dor" not in repr(warehouse)
        assert "tr0ub4dor" in warehouse.options.values()
        snapshot = WarehouseSnapshot.__new__(WarehouseSnapshot)
        snapshot._warehouse = warehouse
        assert snapshot._from_item(query) == table
        time_column = SourceColumn("day", '"day"', None, "timestamp[us, tz=UTC]")
        selection = Selection(query, [time_column], [], time_column)
        assert snapshot._window_condition(selection) == condition
        bounds = snapshot._window_parameters(selection)
        assert bounds is not None
        assert bounds.to_pylist()[0]["0"] == "2024-01-01 00:00:00.000000+00:00"
        # A driver refuses options that it does not know when the database is created.
        driver = pytest.importorskip(warehouse.driver)
        driver.connect(db_kwargs=dict(warehouse.options)).close()
