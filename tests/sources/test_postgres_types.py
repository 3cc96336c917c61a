"""Postgres types are read losslessly or refused by name, with pushdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore.errors import InvalidSql, SourceError, SourceTableNotFound, UnsupportedType
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceQuery, SourceSnapshot
from featurestore.store import FeatureStore
from tests.registry.conftest import postgres_server  # noqa: F401  # a fixture
from tests.sources.source_writers import open_source

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def url(postgres_server: str) -> str:  # noqa: F811
    """The URL of a database shared by the module."""
    import psycopg

    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        connection.execute("create database types")
    return f"{postgres_server}/types"


@pytest.fixture
def database(url: str) -> Iterator[Any]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def snapshot(url: str) -> Iterator[SourceSnapshot]:
    result = open_source("postgresql", url).snapshot()
    yield result
    result.close()


TYPED_VALUES = [
    ("12.345::numeric(12, 3)", Decimal("12.345"), pa.decimal128(12, 3)),
    ("'-0.5'::numeric(38, 38)", Decimal("-0.5"), pa.decimal128(38, 38)),
    ("'0b1b1f3e-0000-4000-8000-000000000001'::uuid", "0b1b1f3e-0000-4000-8000-000000000001", pa.string()),
    ("'10.1.2.3/24'::inet", "10.1.2.3/24", pa.string()),
    ("'ff00::/8'::cidr", "ff00::/8", pa.string()),
    ("'2024-02-29'::date", date(2024, 2, 29), pa.date32()),
    ("'2024-01-01 00:00:00.000001+02'::timestamptz", datetime(2023, 12, 31, 22, 0, 0, 1, UTC), None),
    ("'0001-01-01'::timestamp", datetime(1, 1, 1, tzinfo=UTC), None),
    ("'9999-12-31'::date", date(9999, 12, 31), pa.date32()),
    ("array[1, null, 3]::int[]", [1, None, 3], pa.list_(pa.int32())),
    ("array['a', 'b']", ["a", "b"], pa.list_(pa.string())),
    ("'\\x00ff'::bytea", b"\x00\xff", pa.binary()),
    ("'{\"a\": 1}'::json", '{"a": 1}', pa.string()),
    ("9223372036854775807::bigint", 2**63 - 1, pa.int64()),
    ("'NaN'::float8", None, pa.float64()),
    ("null::numeric(5, 2)", None, pa.decimal128(5, 2)),
]  # fmt: skip


def test_postgres_read_keeps_values(snapshot: SourceSnapshot) -> None:
    select_list = ", ".join(
        f"{sql} as c{number}" for number, (sql, _, _) in enumerate(TYPED_VALUES)
    )
    read = snapshot.read(SourceQuery(sql=f"select {select_list}")).read_all()
    for number, (sql, value, dtype) in enumerate(TYPED_VALUES):
        assert dtype in (None, read.schema.field(number).type), sql
        if "NaN" not in sql:
            assert read.column(number).to_pylist() == [value], sql


@pytest.mark.parametrize(
    "sql",
    [
        "'1.5'::numeric",
        "'12.34'::money",
        "'1 day'::interval",
        "'12:00'::time",
        "'12:00+01'::timetz",
        "4294967295::oid",
        "'(1,2)'::point",
        "'[1,3)'::int4range",
        "b'101'",
        "array[1.5]::numeric[]",
        "array['2024-01-01']::date[]",
    ],
)
def test_unsupported_types_are_refused_with_working_sql(snapshot: SourceSnapshot, sql: str) -> None:
    with pytest.raises(UnsupportedType, match="'odd'") as error:
        snapshot.schema(SourceQuery(sql=f"select 1 as id, {sql} as odd"))
    way_out = str(error.value).split("Hint: sql='select ")[1].split(", ...'")[0]
    inputs = SourceQuery(sql=f"select {way_out} from (select {sql} as odd) as t")
    assert snapshot.read(inputs).read_all().num_rows == 1
    # Columns that are not selected cause no error.
    query = SourceQuery(sql=f"select 1 as id, {sql} as odd", columns=("id",))
    assert snapshot.read(query).read_all().to_pylist() == [{"id": 1}]


@pytest.mark.parametrize(
    "sql",
    [
        "'infinity'::timestamptz",
        "'-infinity'::timestamp",
        "'infinity'::date",
        "'294276-01-01'::timestamptz",
        "'NaN'::numeric(5, 2)",
        "array[array[1, 2], array[3, 4]]",
        "array[array['a']]",
    ],
)
def test_unsupported_values_are_refused_by_column(snapshot: SourceSnapshot, sql: str) -> None:
    with pytest.raises(UnsupportedType, match="'odd'"):
        snapshot.read(SourceQuery(sql=f"select 1 as id, {sql} as odd")).read_all()


# Values without a feature type, and the value of the column that the hint reads.
READABLE = [
    ("'0.00123'::numeric", "0.00123"),
    ("'123456789012345678901234567890.0000000000000000000001'::numeric",
     "123456789012345678901234567890.0000000000000000000001"),
    ("'92233720368547758.07'::money", Decimal("92233720368547758.070")),
    ("'-92233720368547758.08'::money", Decimal("-92233720368547758.080")),
    ("4294967295::oid", 4294967295),
    ("'1 month'::interval", "1 mon"),
    ("'30 days 00:00:00.000001'::interval", "30 days 00:00:00.000001"),
    ("'23:59:59.999999'::time", 86399.999999),
    ("'12:00:00.000001+01'::timetz", "12:00:00.000001+01"),
]  # fmt: skip


def test_casts_of_unsupported_types_keep_values(
    snapshot: SourceSnapshot, subtests: pytest.Subtests
) -> None:
    for sql, value in READABLE:
        with subtests.test(sql):
            with pytest.raises(UnsupportedType) as error:
                snapshot.schema(SourceQuery(sql=f"select {sql} as odd"))
            expression = str(error.value.hint).split("sql='select ")[1].split(", ...'")[0]
            query = SourceQuery(sql=f"select {expression} from (select {sql} as odd) as t")
            assert snapshot.read(query).read_all().to_pylist() == [{"odd": value}]


def test_out_of_range_times_hint_keeps_or_omits_values(
    snapshot: SourceSnapshot, subtests: pytest.Subtests
) -> None:
    texts = ("infinity", "-infinity", "0044-03-15 BC", "10000-01-01")
    for kind in ("date", "timestamp", "timestamptz"):
        for text in texts:
            rows = f"(values ('{text}'::{kind}), ('2024-02-29'), ('0001-01-01'), ('9999-12-31')) as t(odd)"
            with subtests.test(f"{text} {kind}"):
                with pytest.raises(UnsupportedType) as error:
                    snapshot.read(SourceQuery(sql=f"select odd from {rows}")).read_all()
                line, _, condition = str(error.value.hint).partition(" reads them as strings; ")
                strings = eval(line.removeprefix("sql=")).replace(", ...", f" from {rows}")
                cells = snapshot.read(SourceQuery(sql=strings)).read_all()["odd"].to_pylist()
                assert cells[0].startswith(text.split()[0])
                assert cells[0].endswith("BC") == text.endswith("BC")
                expression = condition.removesuffix(" makes them null")
                query = SourceQuery(sql=f"select {expression} as odd from {rows}")
                times = snapshot.read(query).read_all()["odd"].to_pylist()
                assert [time and (time.year, time.month) for time in times] == [
                    None, (2024, 2), (1, 1), (9999, 12),
                ]  # fmt: skip


def test_read_sends_only_columns_and_window(
    url: str,
    database: Any,
) -> None:
    name = url.rsplit("/", 1)[1]
    database.execute('create table "Odd ""orders" (id int, note text, "at" timestamptz, fat text)')
    database.execute(f"alter database {name} set log_statement = 'all'")
    snapshot = open_source("postgresql", url).snapshot()
    window = TimeRange("at", datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC))
    query = SourceQuery(table='Odd "orders', columns=("note", "id"), window=window)
    assert snapshot.read(query).read_all().num_rows == 0
    snapshot.close()
    (data,) = database.execute("show data_directory").fetchone()
    log = Path(data).parent.joinpath("log").read_text()
    statements = [line for line in log.splitlines() if "COPY" in line and '"Odd ""orders"' in line]
    assert len(statements) == 1
    assert 'SELECT "note" AS "note", "id" AS "id" FROM "Odd ""orders"' in statements[0]
    assert "\"at\" >= TIMESTAMPTZ '2024-01-01 00:00:00.000000+00:00'" in statements[0]
    assert "\"at\" < TIMESTAMPTZ '2024-01-02 00:00:00.000000+00:00'" in statements[0]
    assert "fat" not in statements[0]


def test_reads_of_a_snapshot_see_one_state(url: str, database: Any) -> None:
    database.execute("create table a as select 1 as id")
    database.execute("create table b as select 1 as id")
    snapshot = open_source("postgresql", url).snapshot()
    counts = SourceQuery(sql="select (select count(*) from a) + (select count(*) from b) as n")
    first = snapshot.read(SourceQuery(table="a"))
    database.execute("insert into a values (2)")
    database.execute("insert into b values (2)")
    assert first.read_all().num_rows == 1
    assert snapshot.read(SourceQuery(table="b")).read_all().num_rows == 1
    assert snapshot.read(counts).read_all().to_pylist() == [{"n": 2}]
    snapshot.close()
    again = open_source("postgresql", url).snapshot()
    assert again.read(counts).read_all().to_pylist() == [{"n": 4}]
    assert again.identity != snapshot.identity
    again.close()


def test_writes_are_refused_with_server_error(
    url: str,
    database: Any,
) -> None:
    database.execute("create table orders (id int)")
    database.execute("create sequence counted")
    database.execute("create schema sales")
    database.execute("create table sales.orders (id int)")
    later = open_source("postgresql", url).snapshot()
    with pytest.raises(SourceTableNotFound, match="did you mean table='orders'"):
        later.schema(SourceQuery(table="order"))
    assert later.schema(SourceQuery(table="sales.orders")).names == ["id"]
    write_query = SourceQuery(sql="select nextval('counted') as n")
    with pytest.raises((SourceError, InvalidSql), match="read-only"):
        later.read(write_query).read_all()
    later.close()
    database.execute("create role weak login")
    weak = open_source("postgresql", url.replace("store@", "weak@")).snapshot()
    assert not any(table.readable for table in weak.tables())
    with pytest.raises(SourceError, match="permission denied"):
        weak.read(SourceQuery(table="orders")).read_all()
    weak.close()


def test_check_source_names_unreadable_tables(
    url: str, database: Any, empty_store: FeatureStore
) -> None:
    database.execute("create table open (id int)")
    database.execute("insert into open values (7)")
    database.execute("create table shut (id int)")
    database.execute("drop role if exists guest")
    database.execute("create role guest login")
    database.execute("grant select on open to guest")
    empty_store.add_source("shop", url.replace("store@", "guest@"))
    report = empty_store.check_source("shop")
    assert "The user of the URI may not read the table 'shut'." in report.problems
    assert not report.ok
    readable = [table.name for table in report.tables if table.readable]
    assert readable == ["open"]  # other tests have tables in this database, too
    assert (report.sampled, report.sample) == ("open", ({"id": 7},))


def test_read_batches_have_bounded_size(url: str) -> None:
    long = "select n::bigint as id, repeat('x', 200) as text from generate_series(1, 150000) as n"
    snapshot = open_source("postgresql", url).snapshot()
    sizes, rows = [], 0
    for batch in snapshot.read(SourceQuery(sql=long)):
        sizes.append(batch.nbytes)
        rows += batch.num_rows
    snapshot.close()
    assert rows == 150_000
    assert len(sizes) > 4
    assert max(sizes) < 8 << 20


def test_query_hash_depends_on_window_and_columns() -> None:
    query = SourceQuery(table="orders")
    window = TimeRange("at", datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC))
    hashes = {query.hash, replace(query, columns=("id",)).hash, replace(query, window=window).hash}
    assert len(hashes) == 3
    assert query.hash == SourceQuery(table="orders").hash
