"""Columns whose names are words of SQL, in queries, conditions and expressions."""

from __future__ import annotations

import json
import re

import duckdb
import pyarrow as pa
import pytest

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
