"""Aggregates of a group that is split into parts equal those of the whole group bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.aggregates import stream
from featurestore.aggregates.chunk import Aggregate
from featurestore.aggregates.exact import Sums
from featurestore.aggregates.incremental import IncrementalGroup
from featurestore.aggregates.kernel import result_type
from featurestore.aggregates.window_side import WindowFeatures
from featurestore.testing.oracle import bits

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "v0": (
        pa.float64(),
        [None, 0.1, 0.2, -3.5, 1e16, -1e16, 1e-9, 5e-324, -0.0, float("nan"), float("inf")],
    ),
    "v1": (pa.int64(), [None, 1, -7, 2**40, -(2**58)]),
    "v2": (pa.decimal128(30, 2), [None, Decimal("1.25"), Decimal("-9.50"), Decimal(10) ** 24]),
    "v3": (pa.string(), [None, "", "a", "zz"]),
    "v4": (pa.bool_(), [None, True, False]),
    "w0": (pa.bool_(), [None, True, False]),
}
FUNCTIONS = [
    ["sum", "count", "mean", "min", "max", "std", "var", "first", "last", "count_distinct", "last_n"],
    ["sum", "mean", "max", "std"],
    ["sum", "min", "mean"],
    ["min", "max", "last", "count_distinct", "last_n"],
    ["any", "all", "count"],
]  # fmt: skip
WINDOWS = [(None, 0), (3, 0), (10, 0), (None, 2), (4, 5)]


def all_aggregates() -> tuple[Aggregate, ...]:
    result = []
    for values, functions in enumerate(FUNCTIONS):
        for function in functions:
            for over, offset in WINDOWS:
                n = 3 if function == "last_n" else 0
                result.append(Aggregate(function, values, over, offset=offset, n=n))
            result.append(Aggregate(function, values, 6, condition=0, n=n))
            result.append(Aggregate(function, values, None, condition=0, n=n))
    return tuple(result)


AGGREGATES = all_aggregates()


def features(aggregates: tuple[Aggregate, ...], *, waits: bool) -> WindowFeatures:
    fields = [pa.field("row", pa.int64())]
    for number, aggregate in enumerate(aggregates):
        dtype = result_type(aggregate.function, COLUMNS[f"v{aggregate.values}"][0], n=aggregate.n)
        fields.append(pa.field(f"a{number}", dtype))
    return WindowFeatures(
        schema=pa.schema(fields),
        keys=1,
        members=1,
        filters_created_time=waits,
        rejects_ties=False,
        aggregates=aggregates,
        fills=tuple([None] * len(aggregates)),
        conditions=1,
        group="w",
    )


@st.composite
def streams(draw: Any) -> tuple[WindowFeatures, pa.Table, int]:
    """Return a stream of a few groups, the requested aggregates, and the rows per part."""
    seed = draw(st.integers(0, 2**32))
    random = np.random.default_rng(seed)
    count, waits = draw(st.integers(1, 60)), draw(st.booleans())
    keys, start = draw(st.integers(1, 3)), draw(st.sampled_from([0, -100, 10**15]))
    label = random.random(count) < 0.4
    stream_time = (start + random.integers(0, draw(st.sampled_from([5, 40])), count)) * 2 + label
    key = random.integers(0, keys, count)
    # All keys share a hash; some labels have a null key or time.
    nothing = label & (random.random(count) < 0.1)
    timeless = label & (random.random(count) < 0.1)
    available = (stream_time >> 1) + random.integers(-2, 12, count)
    columns: dict[str, Any] = {
        stream.GROUP: pa.array(np.zeros(count, np.int64)),
        stream.STREAM_TIME: pa.array(stream_time, mask=timeless),
        stream.AVAILABLE: pa.array(available, mask=label | (random.random(count) < 0.1)),
        stream.TIE: random.integers(0, 1000, count),
        "k0": pa.array(key, mask=nothing),
        "m0": random.integers(0, 2, count),
        "c0": np.arange(count),
    }
    for name, (dtype, values) in COLUMNS.items():
        indices = random.integers(0, len(values), count)
        columns[name] = pa.array([values[number] for number in indices], dtype)
    nulls = draw(st.sampled_from(["at_start", "at_end"]))
    table = pa.table(columns)
    order = np.argsort(np.where(timeless, -(2**61) if nulls == "at_start" else 2**61, stream_time))
    some = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=6, unique=True))
    computation = features(tuple(some), waits=waits)
    return computation, table.take(pa.array(order)), draw(st.integers(1, 20))


def compute(
    computation: WindowFeatures,
    table: pa.Table,
    *,
    group_rows: int,
    batch_rows: int,
    threads: int = 1,
) -> pa.Table:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(batch_rows)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "GROUP_ROWS", group_rows)
        patched.setattr(stream, "BLOCK_ROWS", max(group_rows // 2, 1))
        computed = computation.compute_in_threads(batches(), threads=threads)
        result = pa.Table.from_batches(computed, computation.schema)
    return result.sort_by("row")


def check(case: tuple[WindowFeatures, pa.Table, int]) -> None:
    computation, table, rows = case
    expected = compute(computation, table, group_rows=10**9, batch_rows=10**9)
    parallel = compute(computation, table, group_rows=rows, batch_rows=max(rows // 2, 1), threads=3)
    cut = compute(computation, table, group_rows=rows, batch_rows=max(rows // 2, 1))
    assert bits(parallel) == bits(cut)
    for name in expected.column_names[1:]:
        expected_column, column = expected.select([name]), cut.select([name])
        number = int(name[1:])
        assert bits(expected_column) == bits(column), computation.aggregates[number]


@settings(max_examples=20, deadline=None)
@given(case=streams())
def test_incremental_group_equals_whole_group(
    case: tuple[WindowFeatures, pa.Table, int],
) -> None:
    check(case)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=20_000, deadline=None)
@given(case=streams())
def test_incremental_group_many_cases_equal_whole_group(
    case: tuple[WindowFeatures, pa.Table, int],
) -> None:
    check(case)


@given(
    sums=st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=3),
    number=st.fractions().map(lambda fraction: fraction.numerator),
    power=st.integers(-1074, 900),
)
def test_sums_plus_is_exact(sums: list[int], number: int, power: int) -> None:
    inputs = Sums([np.array([value]) for value in sums], -20, 40)
    added = Fraction(number) * Fraction(2) ** power
    assert inputs.plus(added).as_fraction(0) == inputs.as_fraction(0) + added


def test_incremental_group_memory_is_independent_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "GROUP_ROWS", 400)
    monkeypatch.setattr(stream, "BLOCK_ROWS", 200)
    row_counts: list[int] = []
    absorb = IncrementalGroup._absorb

    def counting(self: IncrementalGroup, state: Any, new_rows: pa.Table, end: int) -> None:
        absorb(self, state, new_rows, end)
        rows = 0
        for segment in state.segments:
            rows += segment.summary.selected_rows.num_rows
            if segment.rows is not None:
                rows += segment.rows.num_rows
        row_counts.append(rows)

    monkeypatch.setattr(IncrementalGroup, "_absorb", counting)
    count = 20_000
    table = pa.table(
        {
            stream.GROUP: np.zeros(count, np.int64),
            stream.STREAM_TIME: np.arange(count) * 2 + (np.arange(count) % 5 == 0),
            "k0": np.zeros(count, np.int64),
            "m0": np.zeros(count, np.int64),
            "v0": np.random.default_rng(1).random(count),
            "c0": np.arange(count),
        }
    )
    aggregates = (
        Aggregate("sum", 0, None),
        Aggregate("max", 0, 300),
        Aggregate("last_n", 0, None, n=2),
    )
    dtypes = [pa.float64(), pa.float64(), pa.list_(pa.float64(), 2)]
    fields = [("row", pa.int64()), *zip(["a", "b", "c"], dtypes, strict=True)]
    computation = WindowFeatures(
        schema=pa.schema(fields),
        keys=1,
        members=1,
        filters_created_time=False,
        rejects_ties=False,
        aggregates=aggregates,
        fills=(None, None, None),
        conditions=0,
        group="w",
    )
    result = pa.Table.from_batches(computation(iter(table.to_batches(100))))
    assert result.num_rows == count // 5
    assert len(row_counts) > 50
    assert max(row_counts) < 800
