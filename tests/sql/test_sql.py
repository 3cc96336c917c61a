"""User SQL: what passes, what it becomes, and what is refused."""

from __future__ import annotations

import duckdb
import pytest

from featurestore.errors import InvalidSql
from featurestore.sql import parameters, predicate, query, quote

COLUMNS = ["speed", "Zone", "address", "at"]


@pytest.mark.parametrize(
    ("text", "in_duckdb", "in_spark"),
    [
        (
            "speed >= 10 and zone = 'A'",
            '"speed" >= 10 AND "Zone" = \'A\'',
            "`speed` >= 10 AND `Zone` = 'A'",
        ),
        ("ZONE in ('a', 'b')", "\"Zone\" IN ('a', 'b')", "`Zone` IN ('a', 'b')"),
        ("not speed between 1 and 2", 'NOT "speed" BETWEEN 1 AND 2', "NOT `speed` BETWEEN 1 AND 2"),
        ("address.street = 'x'", "\"address\".street = 'x'", "`address`.street = 'x'"),
        ("regexp_matches(zone, '^a')", "REGEXP_MATCHES(\"Zone\", '^a')", "`Zone` RLIKE '^a'"),
        ("zone is null -- a comment", '"Zone" IS NULL', "`Zone` IS NULL"),
        ("speed > 1;", '"speed" > 1', "`speed` > 1"),
    ],
)
def test_conditions_are_written_for_each_engine(text: str, in_duckdb: str, in_spark: str) -> None:
    assert predicate(text, columns=COLUMNS, dialect="duckdb") == in_duckdb
    assert predicate(text, columns=COLUMNS, dialect="spark") == in_spark


@pytest.mark.parametrize(
    "text",
    [
        "",
        "speed >",
        "speed > 1; drop table x",
        "delete from groups",
        "select 1",
        "speed > (select max(speed) from other)",
        "exists (select 1)",
        "count(*) > 1",
        "row_number() over () = 1",
        "speed = $limit",
        "speed = ?",
        "speed as s",
        "speed + 1",
        "'text'",
        "7",
    ],
)
def test_what_is_no_condition_on_one_row_is_refused(text: str) -> None:
    for dialect in ("duckdb", "spark"):
        with pytest.raises(InvalidSql):
            predicate(text, columns=COLUMNS, dialect=dialect)


def test_unknown_columns_are_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidSql, match=r"'sped'(.|\n)*'speed', 'Zone', 'address', 'at'"):
        predicate("sped > 1 and speed > 2", columns=COLUMNS, dialect="duckdb")


def test_double_quotes_make_columns_not_texts() -> None:
    with pytest.raises(InvalidSql, match="single quotes"):
        predicate('zone = "A"', columns=COLUMNS, dialect="duckdb")


def test_what_depends_on_types_is_not_guessed() -> None:
    assert predicate("epoch_ms(at) > 1", columns=COLUMNS, dialect="duckdb")
    with pytest.raises(InvalidSql, match="epoch_ms"):
        predicate("epoch_ms(at) > 1", columns=COLUMNS, dialect="spark")


def test_conditions_written_for_duckdb_run_in_duckdb() -> None:
    rows = duckdb.sql("select 5 as speed, 'a' as Zone, {'street': 'x'} as address, now() as at")
    for text in (
        "address.street = 'x'",
        "zone ilike 'A'",
        "at > now() - interval 3 days",
        "list_contains([5], speed)",
    ):
        assert rows.filter(predicate(text, columns=COLUMNS, dialect="duckdb")).count(
            "*"
        ).fetchall() == [(1,)]


def test_queries_for_duckdb_stay_as_they_were_written() -> None:
    text = "from trips select zone, arg_max(speed, at) group by all"
    assert query(f"  {text};  ", tables=["trips"], dialect="duckdb") == text


def test_queries_are_transpiled_for_spark() -> None:
    found = query("select * exclude (a), x::int as i from trips", tables=["trips"], dialect="spark")
    assert found == "SELECT * EXCEPT (a), CAST(x AS INT) AS i FROM trips"


def test_named_parameters_survive() -> None:
    text = (
        "select * from trips where at >= $window_start and at < $window_end and at > $window_start"
    )
    assert parameters(text) == ("window_start", "window_end")
    assert ":window_start" in query(text, tables=["trips"], dialect="spark")
    assert "$window_start" in query(text, tables=["trips"], dialect="duckdb")


def test_tables_of_the_query_itself_are_known() -> None:
    text = (
        "with fast as (select * from trips) select * from fast join trips as t using (id), range(3)"
    )
    assert query(text, tables={"trips": ["id"]}, dialect="duckdb") == text


@pytest.mark.parametrize(
    "text",
    [
        "select 1; select 2",
        "insert into trips values (1)",
        "create table x as select 1",
        "copy trips to 'x.csv'",
        "attach 'x.db'",
        "pragma version",
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from other",
        "select * from main.trips",
        "select * from trips where id in (select id from other)",
        "select from where",
    ],
)
def test_what_does_more_than_read_its_tables_is_refused(text: str) -> None:
    for dialect in ("duckdb", "spark"):
        with pytest.raises(InvalidSql):
            query(text, tables=["trips"], dialect=dialect)


def test_the_unknown_table_is_named_with_those_that_exist() -> None:
    with pytest.raises(InvalidSql, match=r"'other'(.|\n)*'trips'"):
        query("select * from other", tables=["trips"], dialect="duckdb")


def test_identifiers_are_quoted_for_each_dialect() -> None:
    assert quote('a"b') == '"a""b"'
    assert quote("a`b", dialect="spark") == "`a``b`"
