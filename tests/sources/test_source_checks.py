"""``check_source`` reports the errors that ``read_source`` raises, and no others."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from featurestore.errors import FeatureStoreError
from featurestore.store import FeatureStore

TABLES = {
    "b_names": "create table b_names as select 1 as id, 2 as 'total amount'",
    "c_good": "create table c_good as select 1 as id, 2.5 as total",
    "d_mixed": "create table d_mixed as select 1 as id, 'x' as v union all select 2, 3",
    "e_nulls": "create table e_nulls as select 1 as id, null as v",
    "f_view": "create view f_view as select id, total from c_good",
    "g_huge": "create table g_huge as select 9007199254740993 as n union all select 0.5",
    "h_failing": "create view h_failing as select abs(-9223372036854775808) as n",
    "i_good": "create table i_good (id integer, amount numeric)",
}
REFUSED = ("names", "mixed", "nulls", "huge", "failing")
FILES = {
    "a.csv": "id,total\n1,2.5\n",
    "b.csv": "id,total amount\n1,2.5\n",
    "c.csv": "1,2.5\n3,4.5\n",
    "d.csv": "id,id\n1,2\n",
    "e.csv": "",
    "f.json": '{"id": 1, "v": [1, "x"]}\n',
    "g.json": '{"id": 1}\n',
    "h.parquet": "not parquet",
}


def refusals(store: FeatureStore, queries: list[dict[str, str]]) -> list[str]:
    """Return the messages of the errors of ``read_source`` for tables or files."""
    messages = []
    for query in queries:
        try:
            store.read_source("shop", **query).head(1)
        except FeatureStoreError as error:
            messages.append(error.message)
    return messages


def assert_same_problems(store: FeatureStore, queries: list[dict[str, str]]) -> None:
    """Compare the problems of a check with the errors of reads; a hint follows the message."""
    problems = store.check_source("shop").problems
    messages = refusals(store, queries)
    assert len(problems) == len(messages)
    for problem, message in zip(problems, messages, strict=True):
        assert problem.startswith(message)


@pytest.mark.parametrize("first", ["b_names", "c_good", "g_huge"])
def test_check_reports_tables_that_are_refused(
    empty_store: FeatureStore, tmp_path: Path, first: str
) -> None:
    names = [name for name in TABLES if name >= first or name == "c_good"]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        for name in names:
            database.execute(TABLES[name])
    empty_store.add_source("shop", f"sqlite:///{tmp_path}/shop.db")
    queries = [{"table": name} for name in sorted(names)]
    assert_same_problems(empty_store, queries)
    assert len(refusals(empty_store, queries)) == sum(name[2:] in REFUSED for name in names)


def test_check_reports_files_that_are_refused(empty_store: FeatureStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    for name, text in FILES.items():
        (lake / name).write_text(text)
    empty_store.add_source("shop", str(lake))
    queries = [{"path": name} for name in FILES]
    assert_same_problems(empty_store, queries)
    assert 4 <= len(refusals(empty_store, queries)) < len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_check_of_a_file_equals_its_read(
    empty_store: FeatureStore, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text(FILES[name])
    empty_store.add_source("shop", str(tmp_path / name))
    assert_same_problems(empty_store, [{}])
