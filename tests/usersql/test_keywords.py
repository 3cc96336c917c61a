"""Columns whose names are words of SQL, in queries, conditions and expressions."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import InvalidSql
from featurestore.usersql import predicate, query
from featurestore.usersql.text import _keywords, parse_statement, quote_keywords

WORDS = [
    word
    for (word,) in duckdb.connect()
    .execute("select distinct keyword_name from duckdb_keywords() order by 1")
    .fetchall()
]
# The first column of each query is the value of the column {w}.
QUERIES = (
    "select {w} from t",
    "select sum({w}) as x from t group by {w} order by {w} desc",
    "select t.{w} as {w} from t where t.plain = 1",
    "select case when plain = 1 then {w} end as x, {w} from t",
    "from t select max({w})",
)
# Each is true for the value {i} only.
CONDITIONS = (
    "{w} = {i}",
    "plain = 1 and ({w} + 1) = {i} + 1",
    "{w} in ({i}, -1)",
    "case when {w} >= {i} and not {w} > {i} then true else false end",
)
CONSTANTS = ("true", "false", "null")
QUOTED = "quote a column whose name is a word of SQL: "


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def test_keywords_are_those_that_duckdb_reads_only_in_quotes() -> None:
    rows = (
        duckdb.connect()
        .execute(
            "select keyword_name from duckdb_keywords() group by 1 "
            "having bool_and(keyword_category in ('reserved', 'type_function'))"
        )
        .fetchall()
    )
    assert _keywords() == {word for (word,) in rows}


def hinted_line(error: InvalidSql) -> str | None:
    """Return the SQL of the hint of an error; None if the hint has none."""
    _, mark, line = (error.hint or "").partition(QUOTED)
    return line if mark else None


def translate(sql: str, schema: pa.Schema, *, is_query: bool) -> str:
    """Return the query of DuckDB for a query or for the rows of a condition."""
    if is_query:
        return query(sql, tables=["t"], dialect="duckdb")
    return f"select count(*) from t where {predicate(sql, schema=schema, dialect='duckdb')}"


def test_column_named_like_any_word_is_read_or_refused(
    database: duckdb.DuckDBPyConnection,
) -> None:
    # Words with queries and conditions that run only with the hint, and those without a hint.
    hinted, refused = set(), set()
    for number, word in enumerate(WORDS):
        if word in CONSTANTS:
            continue
        schema = pa.schema([("plain", pa.int64()), (word, pa.int64())])
        database.execute(f'create or replace table t as select 1 as plain, {number} as "{word}"')
        templates = (
            (*QUERIES, *CONDITIONS) if word in _keywords() else (*QUERIES[:2], CONDITIONS[0])
        )
        for template in templates:
            text = template.format(w=word, i=number)
            is_query = template in QUERIES

            try:
                sql = translate(text, schema, is_query=is_query)
            except InvalidSql as error:
                line = hinted_line(error)
                if line is None:
                    refused.add(word)
                    continue
                hinted.add(word)
                sql = translate(line, schema, is_query=is_query)
            try:
                ((value, *_),) = database.execute(sql).fetchall()
            except duckdb.ParserException:
                refused.add(word)
                continue
            assert value == (number if is_query else 1), text
    assert hinted >= {"case", "not", "select"}
    # Some lines need several quotes, or are read by sqlglot in another way than by DuckDB.
    assert refused == {
        "all", "and", "as", "distinct", "else", "except", "fetch", "from", "intersect", "into",
        "join", "lateral", "not", "select", "then", "union",
    }  # fmt: skip
    assert not {"at", "end", "order", "group", "desc", "left", "user", "table", "to"} & (
        hinted | refused
    )


# Words of the grammar that sqlglot could read as names.
SYNTAX = (
    "select a from t order by all desc",
    "select a from t group by all limit all",
    "from t positional join u",
    "from t asof join u using (a)",
    "from t asof left join u on t.a = u.a and t.b >= u.b",
    "from t anti join u using (a)",
    "from t semi join u using (a)",
    "from t natural join u",
    "from t cross join u",
    "from t left outer join u on true",
    "from t tablesample 10%",
    "from t using sample 5",
    "select a isnull, b notnull, a is distinct from b from t",
    "select a collate nocase, a similar to 'x', a ilike 'x', a glob 'y' from t",
    "select unpack(columns(*)), columns('a.*') from t",
    "select map {'a': 1}, map([1], [2]), struct_pack(a := 1), {'end': 1}",
    "select left(a, 1), right(a, 2) from t",
    "select list_transform([1], lambda x: x + 1), list_transform([1], x -> x + 1)",
    "select a = any([1, 2]), any_value(b) from t",
    "select cast(a as int), try_cast(a as int), a::int[] from t",
    "select a from t union all by name select b from u",
    "select distinct on (a) a from t",
    "select (1, 2) overlaps (3, 4)",
    "from t at (version => 3)",
    "select sum(a) over w from t window w as (partition by b order by c desc nulls last)",
    "select a from t qualify row_number() over () = 1",
    "from (pivot t on a using sum(b))",
    "from (unpivot t on a, b)",
    "select a between symmetric 1 and 2, a at time zone 'UTC' from t",
    "with x as materialized (select 1) from x",
    "select array[1, 2], [x for x in [1, 2] if x > 1]",
    "select * exclude (a), * replace (a as b) from t",
    "select lag(a ignore nulls) over (), count(*) filter (where a) from t",
    "select percentile_cont(0.5) within group (order by a desc) from t",
    "select t.end, t.at as at, 1 as order, a.b.end from t",
    "select interval from t order by interval desc",
    "select 'at end' as x, \"end\" from t -- at end",
)


def test_quoted_query_has_the_syntax_tree_of_the_query(
    database: duckdb.DuckDBPyConnection,
) -> None:
    templates = (
        *QUERIES,
        "select a {w} from t",
        "from t {w}",
        "select {w}(a) from t",
        "select {w} 'x'",
    )
    texts = [
        *SYNTAX,
        *(template.format(w=word) for template in templates for word in sorted(_keywords())),
    ]
    compared = 0
    for text in texts:
        tree = syntax_tree(database, text)
        try:
            parsed = parse_statement(text, expected="query", calls_by_name=True)
        except InvalidSql:
            continue
        # DuckDB parses DEFAULT, which is valid in no query.
        if tree is not None and "default" not in text:
            compared += 1
            assert syntax_tree(database, quote_keywords(text, parsed)) == tree
    assert compared > 100


def syntax_tree(database: duckdb.DuckDBPyConnection, sql: str) -> str | None:
    """Return DuckDB's syntax tree of a query without positions; None if it cannot be parsed."""
    ((text,),) = database.execute("select json_serialize_sql(?)", [sql]).fetchall()
    if json.loads(text)["error"]:
        return None
    return re.sub(r'"query_location(_length)?":\d+', "", text)


START = datetime(2024, 1, 1, tzinfo=UTC)
TRIPS = pa.table(
    {
        "id": ["a", "b", "a"],
        "at": [START, START, START + timedelta(minutes=30)],
        "end": pa.array([1, 2, 3], pa.int64()),
        "order": pa.array([10, 20, 30], pa.int64()),
        "left": ["x", "y", None],
    }
)
JOB = """
import featurestore
featurestore.sql_job(
    "totals", primary_key=["id"], event_time="at", schedule="0 * * * *", closed="left",
    start="2024-01-01T00:00Z", inputs={"trips": "trips"}, sql='''
    select id, max(at) as at, sum(order) as order, count(left) as left, max(end) as end
    from trips where at >= $window_start and at < $window_end and end > 0 group by id'''
)
"""


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_columns_named_like_words_are_read_without_quotes(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    with featurestore.connect(tmp_path / "store", engine=engine) as store:
        store.create_featuregroup(TRIPS, "trips", primary_key=["id"], event_time="at")
        frame = store.sql(
            "select at, end, t.left, order + 1 as order from trips as t where end > 1 order by at, end"
        )
        assert frame.to_arrow().to_pylist() == [
            {"at": START, "end": 2, "left": "y", "order": 21},
            {"at": START + timedelta(minutes=30), "end": 3, "left": None, "order": 31},
        ]
        filtered = frame.filter("at > '2024-01-01' and end * 10 < order or left is null")
        assert filtered.to_arrow().column("end").to_pylist() == [3]
        labels = TRIPS.rename_columns(["key", "moment", "end", "group", "desc"])
        computed = store.get_features([featurestore.feature("x", "end + group")], labels=labels)
        assert computed.to_arrow().column("x").to_pylist() == [11, 22, 33]
        (tmp_path / "jobs.py").write_text(JOB)
        store.register_jobs(tmp_path / "jobs.py")
        store.backfill_job("totals", START, START + timedelta(hours=1))
        rows = store.get_featuregroup("totals").to_arrow().sort_by("id").to_pylist()
        assert rows == [
            {"id": "a", "at": START + timedelta(minutes=30), "order": 40, "left": 1, "end": 3},
            {"id": "b", "at": START, "order": 20, "left": 1, "end": 2},
        ]


def test_sql_job_that_the_engine_cannot_parse_is_not_registered(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "store") as store:
        start = JOB.index("select id")
        end = JOB.index("'''", start)
        # sqlglot parses a query without columns.
        for text in ("select union from trips", "select distinct from trips"):
            (tmp_path / "jobs.py").write_text(JOB[:start] + text + JOB[end:])
            with pytest.raises(InvalidSql, match="'totals': DuckDB rejects the query"):
                store.register_jobs(tmp_path / "jobs.py")
        assert store.get_jobs() == []
