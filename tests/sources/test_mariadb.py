"""MySQL and MariaDB types are read losslessly or refused by name, with pushdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidSql,
    SourceChanged,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
    UnsupportedType,
)
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceConfig, SourceQuery, SourceSnapshot, find_source
from tests.sources.mariadb_server import PASSWORD, USER, connect_as_root
from tests.sources.source_writers import open_source

pytestmark = pytest.mark.mariadb

MANY = 20_000
Begin = Callable[[], SourceSnapshot]


@pytest.fixture(scope="module")
def port(mariadb_port: int) -> int:
    """The port of a server with a database shared by the module."""
    with connect_as_root(mariadb_port) as database, database.cursor() as cursor:
        cursor.execute("create database types character set utf8mb4")
        cursor.execute(f"create user {USER} identified by '{PASSWORD}'")
        cursor.execute(f"grant select on types.* to {USER}")
        cursor.execute("create table types.many (id int primary key, at datetime(6), total float)")
        cursor.execute(
            "insert into types.many select seq, timestampadd(second, seq, '2024-01-01'), seq / 8 "
            f"from types.seq_0_to_{MANY - 1}"
        )
    return mariadb_port


@pytest.fixture
def database(port: int) -> Iterator[Any]:
    with connect_as_root(port, database="types") as connection, connection.cursor() as cursor:
        cursor.execute("set session time_zone = '+05:00'")
        yield cursor


@pytest.fixture
def begin(port: int) -> Iterator[Callable[[], SourceSnapshot]]:
    """Start a snapshot that includes the tables created so far."""
    snapshots = []

    def open_snapshot() -> SourceSnapshot:
        snapshots.append(
            open_source("mariadb", f"mariadb://root@127.0.0.1:{port}/types").snapshot()
        )
        return snapshots[-1]

    yield open_snapshot
    for snapshot in snapshots:
        snapshot.close()


TYPED_VALUES = [
    ("decimal(12, 3)", "12.345", Decimal("12.345"), pa.decimal128(12, 3)),
    ("decimal(38, 38)", "-0.5", Decimal("-0.5"), pa.decimal128(38, 38)),
    ("decimal(9) unsigned", "999999999", Decimal(999999999), pa.decimal128(9, 0)),
    ("bigint unsigned", "18446744073709551615", 2**64 - 1, pa.uint64()),
    ("bigint", "-9223372036854775808", -(2**63), pa.int64()),
    ("tinyint unsigned", "255", 255, pa.int64()),
    ("float", "0.1", 0.10000000149011612, pa.float32()),
    ("double", "0.1", 0.1, pa.float64()),
    ("date", "'2024-02-29'", date(2024, 2, 29), pa.date32()),
    ("datetime(6)", "'1000-01-01 00:00:00.000001'", datetime(1000, 1, 1, 0, 0, 0, 1, UTC), None),
    ("timestamp(6) null", "'2024-01-01 05:00'", datetime(2024, 1, 1, tzinfo=UTC), None),
    ("year", "2024", 2024, pa.int64()),
    ("enum('a', 'é')", "'é'", "é", pa.string()),
    ("set('a', 'b')", "'a,b'", "a,b", pa.string()),
    ("text", "'o''neill 50% :x 🙂'", "o'neill 50% :x 🙂", pa.string()),
    ("char(3) character set latin1", "'é'", "é", pa.string()),
    ("varbinary(4)", "x'00ff'", b"\x00\xff", pa.binary()),
    ("longblob", "x'00ff'", b"\x00\xff", pa.binary()),
    ("json", "'{\"a\": 1}'", '{"a": 1}', pa.string()),
    ("uuid", "'0b1b1f3e-0000-4000-8000-000000000001'", "0b1b1f3e-0000-4000-8000-000000000001", None),
    ("inet6", "'::1'", "::1", pa.string()),
]  # fmt: skip


def create_typed_table(database: Any) -> None:
    columns, values = [], []
    for number, (column_type, value, _, _) in enumerate(TYPED_VALUES):
        columns.append(f"c{number} {column_type}")
        values.append(value)
    database.execute(f"create or replace table kept ({', '.join(columns)})")
    database.execute(f"insert into kept values ({', '.join(values)})")
    database.execute("insert into kept () values ()")


def test_table_read_keeps_values(database: Any, begin: Begin) -> None:
    create_typed_table(database)
    read = begin().read(SourceQuery(table="kept")).read_all()
    for number, (column_type, _, value, dtype) in enumerate(TYPED_VALUES):
        assert dtype in (None, read.schema.field(number).type), column_type
        assert read.column(number).to_pylist() == [value, None], column_type


def test_query_read_keeps_values(database: Any, begin: Begin) -> None:
    create_typed_table(database)
    names = []
    for number, (column_type, *_) in enumerate(TYPED_VALUES):
        if column_type != "bigint unsigned":  # query metadata does not include the sign
            names.append(f"c{number}")
    query = SourceQuery(sql=f"select {', '.join(names)}, '50%' as `a``b%%c` from kept -- all")
    snapshot = begin()
    read = snapshot.read(query).read_all()
    assert read.column("a`b%%c").to_pylist() == ["50%", "50%"]
    for name in names:
        value = TYPED_VALUES[int(name[1:])][2]
        assert read.column(name).to_pylist() == [value, None], name
    too_much = SourceQuery(sql="select 18446744073709551615 as most")
    with pytest.raises(UnsupportedType, match="'most'"):
        snapshot.read(too_much).read_all()


@pytest.mark.parametrize(
    "column_type", ["decimal(39)", "time", "bit(3)", "geometry", "point", "decimal(65, 30)"]
)
def test_unsupported_types_are_refused_with_working_sql(
    database: Any, begin: Begin, column_type: str
) -> None:
    database.execute(f"create or replace table odd (id int, odd {column_type})")
    database.execute("insert into odd (id) values (1)")
    snapshot = begin()
    for query in (SourceQuery(table="odd"), SourceQuery(sql="select * from odd")):
        with pytest.raises(UnsupportedType, match="'odd'") as error:
            snapshot.schema(query)
        way_out = str(error.value).split("Hint: sql='select ")[1].split(", ...'")[0]
        inputs = SourceQuery(sql=f"select {way_out} from odd")
        assert snapshot.read(inputs).read_all().num_rows == 1
        # Columns that are not selected cause no error.
        assert snapshot.read(replace(query, columns=("id",))).read_all().to_pylist() == [{"id": 1}]


def test_zero_date_is_refused_by_column(database: Any, begin: Begin) -> None:
    database.execute("set session sql_mode = ''")
    database.execute("create or replace table zeros (day date)")
    database.execute("insert into zeros values ('0000-00-00')")
    with pytest.raises(UnsupportedType, match=r"'day'.*0000-00-00"):
        begin().read(SourceQuery(table="zeros")).read_all()


def test_snapshot_hides_concurrent_changes(database: Any, begin: Begin) -> None:
    database.execute("create or replace table busy (id int)")
    database.execute("create or replace table altered (id int)")
    snapshot = begin()
    database.execute("insert into busy values (1)")
    assert snapshot.read(SourceQuery(table="busy")).read_all().num_rows == 0
    # A table that was read cannot be altered before the snapshot is closed.
    database.execute("alter table altered modify column id bigint")
    with pytest.raises(SourceChanged, match="definition"):
        snapshot.read(SourceQuery(table="altered")).read_all()


def test_second_read_spools_the_first(
    begin: Begin,
) -> None:
    snapshot = begin()
    query = SourceQuery(table="many", columns=("id",))
    first = snapshot.read(query)
    ids = next(first).column(0).to_pylist()
    second = snapshot.read(query)
    other_ids = next(second).column(0).to_pylist()
    for batch in first:
        ids += batch.column(0).to_pylist()
    for batch in second:
        other_ids += batch.column(0).to_pylist()
    assert ids == other_ids == list(range(MANY))


def test_snapshot_closes_during_a_read(begin: Begin) -> None:
    snapshot = begin()
    reader = snapshot.read(SourceQuery(table="many"))
    next(reader)
    snapshot.close()
    snapshot.close()


def test_read_sends_only_columns_and_bounds(database: Any, begin: Begin) -> None:
    database.execute("set global log_output = 'TABLE'")
    database.execute("set global general_log = 1")
    window = TimeRange(
        "at", datetime(2024, 1, 1, 0, 0, 10, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 20, tzinfo=UTC)
    )
    query = SourceQuery(table="many", columns=("total",), window=window)
    assert begin().read(query).read_all().column(0).to_pylist() == [n / 8 for n in range(10, 20)]
    database.execute("set global general_log = 0")
    database.execute(
        "select convert(argument using utf8mb4) from mysql.general_log where argument like 'SELECT (`total`%'"
    )
    assert [row[0] for row in database.fetchall()] == [
        "SELECT (`total` + 0e0) AS `total` FROM `many` WHERE "
        "`at` >= '2024-01-01 00:00:10' AND `at` < '2024-01-01 00:00:20'"
    ]


def test_secret_opens_database_and_stays_hidden(port: int) -> None:
    uri = f"mysql://{USER}@127.0.0.1:{port}/types"
    config = SourceConfig("shop", uri, {}, lambda: PASSWORD)
    snapshot = find_source("mysql")(config).snapshot()
    assert snapshot.read(SourceQuery(table="many")).read_all().num_rows == MANY
    assert snapshot.server.startswith("mariadb 1")
    with pytest.raises(SourceError):
        snapshot.read(SourceQuery(sql="select * from mysql.user")).read_all()
    snapshot.close()
    wrong = replace(config, secret=lambda: "wr0ng&guess")
    with pytest.raises(SourceUnavailable, match="denied") as error:
        find_source("mysql")(wrong).snapshot()
    assert "wr0ng" not in f"{error.value!r} {error.value}"
    with pytest.raises(SourceUnavailable, match="reached"):
        open_source("mysql", "mysql://root@127.0.0.1:1/types").snapshot()


def test_invalid_arguments_are_refused(port: int, begin: Begin) -> None:
    snapshot = begin()
    with pytest.raises(SourceTableNotFound, match="'many'"):
        snapshot.schema(SourceQuery(table="manny"))
    with pytest.raises(InvalidSql, match="syntax"):
        snapshot.schema(SourceQuery(sql="selec 1"))
    with pytest.raises(InvalidSql, match="nothere"):
        snapshot.schema(SourceQuery(sql="select nothere from many"))
    with pytest.raises(FeatureStoreError, match=r"mysql\.nothere"):
        snapshot.schema(SourceQuery(sql="select * from mysql.nothere"))
    assert snapshot.read(SourceQuery(table="types.many")).read_all().num_rows == MANY
    for uri in ("sqlalchemy+sqlite:///orders.db", "mysql://", "sqlalchemy+nothere://host/x"):
        with pytest.raises(FeatureStoreError):
            open_source("sqlalchemy", uri).snapshot()
    with pytest.raises(InvalidArgument, match="charset"):
        open_source("mysql", f"mysql://root@127.0.0.1:{port}/types", charset="utf8")
    with pytest.raises(InvalidArgument, match="earlier"):
        open_source("mysql", f"mysql://root@127.0.0.1:{port}/types").snapshot(at=3)


def test_insert_from_database_records_its_source(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    store = featurestore.connect(tmp_path / "store")
    uri = f"mysql://{USER}@127.0.0.1:{port}/types"
    store.add_source("shop", uri, secret="env:SHOP_PASSWORD")
    # Another test has a table with such a column.
    problems = [text for text in store.check_source("shop").problems if "'odd'" not in text]
    assert problems == []
    rows = store.read_source("shop", table="many")
    group = store.create_featuregroup(rows, "many", primary_key="id", event_time="at")
    assert store.get_featuregroup("many").count() == MANY
    (source_read,) = group.history()[0].inputs.values()
    assert (source_read["rows"], source_read["source"]) == (MANY, "source:shop")
