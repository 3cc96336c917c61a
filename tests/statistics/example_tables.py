"""Tables with every kind of column, for tests of statistics."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.statistics import StatisticsState, finish, statistics_accumulator
from featurestore.statistics.accumulator import StatisticsAccumulator

TIMESTAMP = pa.timestamp("us", tz="UTC")


def varied_table(rows: int, *, seed: int = 0) -> pa.Table:
    """Return a table with nulls, NaN, infinities, duplicate rows, and every supported type."""
    random = np.random.default_rng(seed)
    base = random.normal(1e6, 1.0, rows)

    def some_null(values: Any, share: float = 0.1) -> pa.Array:
        return pa.array(values, mask=random.random(rows) < share)

    floats = random.normal(size=rows)
    floats[random.random(rows) < 0.05] = np.nan
    floats[random.random(rows) < 0.01] = np.inf
    table = pa.table(
        {
            "plain": base,
            "related": base * -2 + random.normal(size=rows),
            "holed": some_null(floats),
            "single": pa.array(random.normal(size=rows).astype(np.float32)),
            "small": some_null(random.integers(-5, 6, rows).astype(np.int8)),
            "large": random.integers(-(2**62), 2**62, rows),
            "unsigned": pa.array(random.integers(0, 2**64, rows, dtype=np.uint64)),
            "money": pa.array(random.integers(0, 10**6, rows)).cast(pa.decimal128(38, 2)),
            "flag": some_null(random.random(rows) < 0.3),
            "moment": pa.array(
                random.integers(1_500_000_000_000_000, 1_600_000_000_000_000, rows), TIMESTAMP
            ),
            "day": pa.array(random.integers(0, 20_000, rows).astype(np.int32)).cast(pa.date32()),
            "word": some_null(
                np.array(["ash", "birch", "cedar-é", ""])[random.integers(0, 4, rows)]
            ),
            "name": pa.array([f"row {index}" for index in range(rows)]),
            "blob": pa.array([b"x" * (index % 7) for index in range(rows)]),
            "list": pa.array(
                [list(range(index % 4)) for index in range(rows)], pa.list_(pa.int32())
            ),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(random.random(rows * 3).astype(np.float32)), 3
            ),
            "struct": pa.array(
                [{"a": index} for index in range(rows)], pa.struct([("a", pa.int64())])
            ),
            "constant": np.full(rows, 0.1),
            "empty": pa.nulls(rows, pa.float64()),
        }
    )
    return table


def accumulator_of(table: pa.Table, **options: Any) -> StatisticsAccumulator:
    """Return the accumulator for a table's schema."""
    return statistics_accumulator(table.schema, **options)


def count(accumulator: StatisticsAccumulator, batches: Iterable[pa.RecordBatch]) -> StatisticsState:
    """Return the accumulated state of batches."""
    state = accumulator.start()
    for batch in batches:
        state = accumulator.update(state, batch)
    return state


def statistics_of(table: pa.Table, *, rows: int = 10_000, **options: Any) -> Any:
    """Return the statistics of a table, computed in batches of a size."""
    return finish(count(accumulator_of(table, **options), table.to_batches(max_chunksize=rows)))


def cut(table: pa.Table, positions: Sequence[int]) -> list[pa.RecordBatch]:
    """Return the table as batches between the positions."""
    bounds = [0, *sorted(position % (table.num_rows + 1) for position in positions), table.num_rows]
    return [
        batch
        for start, stop in itertools.pairwise(bounds)
        for batch in table.slice(start, stop - start).combine_chunks().to_batches()
    ]
