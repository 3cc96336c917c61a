"""Columns of SQLite are read in a type that holds all their values, or refused by name."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore.errors import UnsupportedType
from featurestore.plugins.source import SourceQuery
from tests.sources.source_writers import open_source

# Declared types of columns; "unnamed" is a column without a type.
DECLARED = (
    *("integer", "bigint", "numeric", "decimal(10,2)", "decimal(20,0)", "number(10)", "money"),
    *("any", "unnamed", "real", "double precision", "boolean", "text", "varchar(9)", "blob"),
    *("date", "datetime", "timestamp", "uuid"),
)
WITHOUT_TYPE = ("any", "unnamed")
EDGES = (0, 1, 2, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**63 - 1, -(2**63))
VALUES = (
    st.sampled_from(EDGES),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.sampled_from([0.5, 2.0**53, 2.0**63, -0.0, float("inf")]),
    st.sampled_from(["x", "12", "1e3", "9007199254740993", "2024-01-01", "2024-01-01 12:30:00"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.binary(max_size=4),
)
# Rows of one or two kinds of values, and null.
ROWS = st.lists(st.sampled_from(VALUES), min_size=1, max_size=2).flatmap(
    lambda choices: st.lists(st.one_of(st.none(), *choices), max_size=5)
)


def expected_values(values: Sequence[Any], declared: str) -> list[Any] | None:
    """Return the values of a column, or None if no type holds all of them."""
    present = [value for value in values if value is not None]
    types = {type(value) for value in present}
    if not types:
        return None if declared in WITHOUT_TYPE else list(values)
    if types == {int, float}:
        return list(values) if all(float(value) == value for value in present) else None
    if len(types) > 1:
        return None
    if declared == "boolean" and types == {int}:
        is_boolean = all(value in (0, 1) for value in present)
        return [None if value is None else bool(value) for value in values] if is_boolean else None
    if declared in ("date", "datetime", "timestamp") and types == {str}:
        return expected_times(values, declared)
    return list(values)


def expected_times(texts: Sequence[str | None], declared: str) -> list[Any] | None:
    """Return the times of texts, or None if one is not a time."""
    times: list[Any] = []
    for text in texts:
        try:
            if text is None or declared == "date":
                times.append(None if text is None else date.fromisoformat(text))
            else:
                times.append(datetime.fromisoformat(text).replace(tzinfo=UTC))
        except ValueError:
            return None
    return times


def write_columns(path: Path, rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Write values into a column of each declared type; return what SQLite stored."""
    columns = ", ".join(f'"{name}" {"" if name == "unnamed" else name}' for name in DECLARED)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("drop table if exists t")
        database.execute(f"create table t (id integer primary key, {columns})")
        marks = ", ".join("?" * len(DECLARED))
        for value in rows:
            database.execute(f"insert into t values (null, {marks})", [value] * len(DECLARED))
        stored = database.execute("select * from t order by id").fetchall()
    return {name: [row[index] for row in stored] for index, name in enumerate(DECLARED, 1)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_sqlite_values_of_all_declared_types_are_exact_or_refused(
    tmp_path: Path, rows: list[Any]
) -> None:
    stored = write_columns(tmp_path / "shop.db", rows)
    snapshot = open_source("sqlite", f"sqlite:///{tmp_path}/shop.db").snapshot()
    try:
        for name, values in stored.items():
            query = SourceQuery(table="t", columns=(name,))
            expected = expected_values(values, name)
            if expected is None:
                with pytest.raises(UnsupportedType, match=re.escape(f"'{name}'")):
                    snapshot.read(query).read_all()
                continue
            actual = snapshot.read(query).read_all()[name]
            assert actual.to_pylist() == expected
            # 1 == 1.0 in Python.
            if pa.types.is_floating(actual.type):
                assert name not in ("integer", "bigint", "any") or float in map(type, values)
    finally:
        snapshot.close()


def test_sqlite_texts_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("create table t (id integer, name text)")
        database.execute("insert into t values (1, 'a'), (2, cast(x'ff41' as text))")
    snapshot = open_source("sqlite", f"sqlite:///{tmp_path}/shop.db").snapshot()
    with pytest.raises(UnsupportedType, match="'name' has texts that are not UTF-8") as error:
        snapshot.read(SourceQuery(table="t")).read_all()
    statement = eval(str(error.value.hint).split("sql=")[1].split(" reads")[0])
    sql = statement.replace(", ...", " from t order by id")
    assert snapshot.read(SourceQuery(sql=sql)).read_all()["name"].to_pylist() == [b"a", b"\xffA"]
    snapshot.close()
