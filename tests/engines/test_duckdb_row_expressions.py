"""Expressions over Python values equal the same expressions over a relation."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from featurestore.errors import InvalidSql
from featurestore.testing.engine_conformance import VALUES
from featurestore.usersql import column_expression
from featurestore_connectors.duckdb_delta import DuckDBEngine

EXPRESSIONS = ("x is null", "x", "x + 1", "-x", "x || 'a'", "x.a is null", "1 + 1")


@pytest.mark.parametrize("name", VALUES)
def test_prepared_rows_equal_relation(name: str) -> None:
    dtype, values = VALUES[name]
    array = pa.array([*values, None], dtype)
    schema = pa.schema([("x", dtype)])
    engine = DuckDBEngine()
    compared = 0
    for text in EXPRESSIONS:
        try:
            sql, result_type = column_expression(text, schema=schema, dialect="duckdb")
        except InvalidSql:  # the expression does not support the type
            continue
        table = engine.from_arrow(pa.table({"x": array}).to_reader())
        relation = engine.sql(f"select {sql} as y from t", tables={"t": table}, parameters={})
        expected = engine.stream(relation).read_all().column(0).cast(result_type).to_pylist()
        result_schema = pa.schema([("y", result_type)])
        compute = engine.prepare_rows([sql], inputs=schema, kinds=result_schema)
        cells = array.to_pylist()
        assert repr([row[0] for row in compute([cells], len(cells))]) == repr(expected)
        assert repr([compute([[cell]], 1)[0][0] for cell in cells]) == repr(expected)
        compared += 1
    engine.close()
    assert compared >= 2


def test_prepared_rows_are_thread_safe() -> None:
    engine = DuckDBEngine()
    inputs = pa.schema([("x", pa.int64())])
    compute = engine.prepare_rows(['"x" + 1'], inputs=inputs, kinds=inputs)
    wrong: list[int] = []

    def run(start: int) -> None:
        for number in range(start, start + 50):
            if compute([[number]], 1) != [(number + 1,)]:
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    assert not wrong
