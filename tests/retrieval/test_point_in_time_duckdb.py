"""The point-in-time rules on the embedded engine."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.arrow.types import TIMESTAMP
from featurestore.plugins.engine import Engine
from featurestore.testing.oracle import JoinShape, any_shape
from featurestore.testing.retrieval_conformance import (
    RetrievalCheck,
    RetrievalConformance,
    check_cases,
    hours_after_t0,
)
from featurestore_connectors.duckdb_delta import DuckDBEngine, sorted_merge


class TestDuckDB(RetrievalConformance):
    pass


@pytest.fixture(scope="module")
def random_case_engine() -> Iterator[Engine]:
    """One engine for all random cases: hypothesis does not renew fixtures between them."""
    engine = DuckDBEngine()
    yield engine
    engine.close()


@settings(max_examples=60, deadline=None)
@given(
    shape=any_shape(),
    count=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
    is_merged=st.booleans(),
    is_small=st.booleans(),
)
def test_every_combination_of_rules_agrees_with_the_oracle(
    random_case_engine: Engine,
    shape: JoinShape,
    count: int,
    seed: int,
    is_merged: bool,
    is_small: bool,
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # The features of the cases have strings and lists, which are usually joined by a query.
        patch.setattr(sorted_merge, "is_unbounded", lambda dtype: False)
        if not is_merged:
            patch.setattr(sorted_merge, "_MAX_LABELS", -1)
        if not is_small:
            patch.setattr(sorted_merge, "_SMALL_BYTES", -1)
        retrieval = RetrievalCheck(random_case_engine, Path(directory), random_case_engine)
        check_cases(retrieval, shape, count=count, seed=seed)


_ROWS = 150
# Short and long values with equal prefixes that contain the bytes with which sort
# keys end.
_KEY_VALUES: dict[pa.DataType, list[object]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-(2**15), 2, 255],
    pa.int32(): [-(2**31), 2, 65_536],
    pa.int64(): [-(2**63), 2, 2**40],
    pa.uint8(): [0, 200, 255],
    pa.uint16(): [0, 2, 65_535],
    pa.uint32(): [0, 2, 2**32 - 1],
    pa.uint64(): [0, 2, 2**64 - 1],
    pa.decimal128(9, 2): [Decimal("0.01"), Decimal("-0.01"), Decimal("1000000.00")],
    pa.decimal128(38, 2): [Decimal("0.01"), Decimal("-0.01"), Decimal(10**30)],
    pa.date32(): [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    TIMESTAMP: [hours_after_t0(0), hours_after_t0(1), hours_after_t0(-1_000_000)],
    pa.string(): [
        "",
        "a\x00",
        "é",
        "a text that is longer than twelve bytes",
        "a text that is longer",
    ],
    pa.binary(): [
        b"",
        b"\x00",
        b"\x01\xff",
        b"bytes that are longer than twelve",
        b"bytes that are",
    ],
}


def _values(random: np.random.Generator) -> dict[str, pa.Array]:
    """Return a column of keys of each type, with some nulls."""
    columns = {}
    for index, (dtype, values) in enumerate(_KEY_VALUES.items()):
        choices = random.integers(-1, len(values), _ROWS)
        drawn = [None if choice < 0 else values[choice] for choice in choices]
        columns[f"c{index}"] = pa.array(drawn, dtype)
    return columns


def test_keys_of_all_type_pairs_match_plain_join(engine: DuckDBEngine, tmp_path: Path) -> None:
    """Also guards against the binary-column bug of ASOF joins in DuckDB 2.0."""
    random = np.random.default_rng(7)
    retrieval = RetrievalCheck(engine, tmp_path, engine)
    times = [hours_after_t0(hour) for hour in random.permutation(_ROWS).tolist()]
    rows = pa.table({**_values(random), "t": pa.array(times, TIMESTAMP), "x": np.arange(_ROWS)})
    label_times = [hours_after_t0(hour) for hour in random.integers(0, _ROWS, _ROWS).tolist()]
    labels = pa.table({**_values(random), "at": pa.array(label_times, TIMESTAMP)})
    names = labels.column_names[:-1]
    source = retrieval.group("w", rows, unique=True, primary_key=tuple(names), event_time="t")
    label_values, row_values = labels.to_pylist(), rows.to_pylist()
    wrong = []
    for first in names:
        other_names = [name for name in names if name != first]
        # The same table, under the name and the key of a group of its own.
        for second in other_names:
            spec = replace(source.spec, name=second, primary_key=(first, second))
            retrieval.sources[second, 1] = replace(source, spec=spec)
        expected_value = [f"{second}.x as x_{second}" for second in other_names]
        actual = retrieval.run(retrieval.plan(expected_value, labels, label_time="at"), labels)
        for second in other_names:
            expected = _plain_join(label_values, row_values, first, second)
            if actual.column(f"x_{second}").to_pylist() != expected:
                wrong.append((str(labels.field(first).type), str(labels.field(second).type)))
    assert wrong == []


def _plain_join(
    labels: list[dict[str, Any]], rows: list[dict[str, Any]], *key: str
) -> list[int | None]:
    """Return the last row of each label's key by a full scan."""
    met = defaultdict(list)
    for row in rows:
        met[tuple(row[name] for name in key)].append((row["t"], row["x"]))
    result = []
    for label in labels:
        values = tuple(label[name] for name in key)
        candidates = [pair for pair in met[values] if None not in values and pair[0] <= label["at"]]
        result.append(max(candidates)[1] if candidates else None)
    return result
