"""Statistics do not depend on chunking, order or merging."""

from __future__ import annotations

import json
import math
import pickle
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from featurestore.errors import StorageError
from featurestore.model.statistics import Statistics
from featurestore.statistics import (
    count_statistics,
    finish,
    merge,
    state_from_bytes,
    state_to_bytes,
    statistics_accumulator,
)
from featurestore.statistics.accumulator import sample_limit
from featurestore.statistics.moments import sum_integers, sum_twofold
from tests.statistics.example_tables import accumulator_of, count, cut, statistics_of, varied_table

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)
TABLE = varied_table(400, seed=3)
EXPECTED = statistics_of(TABLE)


def assert_same(a: Statistics, b: Statistics, *, relative: float = 1e-12) -> None:
    """Compare exact counts, and floating-point sums to a relative 1e-12."""
    assert (a.rows, a.sample_rows, a.sample_distinct, a.exact) == (
        b.rows,
        b.sample_rows,
        b.sample_distinct,
        b.exact,
    )
    for column, expected_column in zip(a.columns, b.columns, strict=True):
        for name, value in vars(column).items():
            expected = getattr(expected_column, name)
            if isinstance(value, float):
                assert value == pytest.approx(expected, rel=relative), (column.name, name)
            else:
                assert value == expected, (column.name, name)
    for correlations, expected_correlations in ((a.pearson, b.pearson), (a.spearman, b.spearman)):
        assert correlations is not None
        assert expected_correlations is not None
        np.testing.assert_allclose(
            np.array(correlations.matrix, dtype=float),
            np.array(expected_correlations.matrix, dtype=float),
            rtol=0,
            atol=relative,
            equal_nan=True,
        )


@settings(max_examples=20, deadline=None)
@given(positions=st.lists(st.integers(0, 400), max_size=12))
def test_statistics_independent_of_batch_boundaries(positions: list[int]) -> None:
    actual = finish(count(accumulator_of(TABLE), cut(TABLE, positions)))
    assert_same(actual, EXPECTED)
    assert json.dumps(actual.to_json()) == json.dumps(EXPECTED.to_json()), "to the last bit"


@settings(max_examples=25, deadline=None)
@given(
    positions=st.lists(st.integers(0, 400), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_statistics_independent_of_merge_order(positions: list[int], order: st.randoms) -> None:  # type: ignore[valid-type]
    accumulator = accumulator_of(TABLE)
    states = [count(accumulator, [batch]) for batch in cut(TABLE, positions)]
    order.shuffle(states)  # type: ignore[attr-defined]
    merged = accumulator.start()
    for state in states:
        merged = merge(merged, pickle.loads(pickle.dumps(state)))
    actual = finish(merged)
    assert_same(actual, EXPECTED)
    assert json.dumps(actual.to_json()) == json.dumps(EXPECTED.to_json()), "to the last bit"


@settings(max_examples=25, deadline=None)
@given(
    positions=st.lists(st.integers(0, 400), max_size=6),
    limit=st.integers(1, 60),
    seed=st.integers(0, 3),
)
def test_sample_depends_on_rows_alone(positions: list[int], limit: int, seed: int) -> None:
    accumulator = accumulator_of(TABLE, limit=limit, seed=seed)
    shuffled = TABLE.take(np.random.default_rng(seed).permutation(TABLE.num_rows))
    expected = count(accumulator, TABLE.to_batches())
    states = [count(accumulator, [batch]) for batch in cut(shuffled, positions)]
    merged = states[0]
    for state in states[1:]:
        merged = merge(merged, state)
    expected.sample.compact()
    merged.sample.compact()
    assert merged.sample.hashes[0].tolist() == expected.sample.hashes[0].tolist()
    assert merged.sample.weights().tolist() == expected.sample.weights().tolist()
    assert repr(merged.sample.rows().to_pylist()) == repr(expected.sample.rows().to_pylist())
    assert len(expected.sample.weights()) == limit
    assert_same(finish(expected), finish(merged))


def test_state_bytes_roundtrip() -> None:
    state = count(accumulator_of(TABLE), TABLE.to_batches(max_chunksize=90))
    assert finish(state_from_bytes(state_to_bytes(state))) == finish(state)


@pytest.mark.parametrize(
    "damage", [lambda data: b"nothing", lambda data: data[:-5], lambda data: data[:30]]
)
def test_state_from_damaged_bytes_raises(damage: object) -> None:
    data = state_to_bytes(count(accumulator_of(TABLE), TABLE.to_batches()))
    with pytest.raises(StorageError):
        state_from_bytes(damage(data))  # type: ignore[operator]


def test_sample_above_limit_is_representative() -> None:
    random = np.random.default_rng(5)
    rows = 60_000
    table = pa.table(
        {"id": np.arange(rows), "x": random.normal(size=rows), "g": random.integers(0, 50, rows)}
    )
    statistics = statistics_of(table, limit=5_000)
    assert not statistics.exact
    assert statistics.sample_rows == 5_000
    x = statistics.column("x")
    assert x.count == rows
    for probability in (0.1, 0.5, 0.9):
        share = float((table["x"].to_numpy() <= x.quantile(probability)).mean())
        assert share == pytest.approx(probability, abs=2 * statistics.error)
    assert statistics.column("id").distinct == pytest.approx(rows, rel=0.01)
    assert statistics.column("g").distinct == 50
    assert not x.distinct_exact


def test_rows_with_any_difference_are_distinct_in_sample() -> None:
    floats = [0.5, 1.0, 2.0, 4.0, float("nan"), None]
    texts = [f"{'the same beginning of a long text ' * 3}{end}" for end in "abc"]
    rows = list(product(floats, floats, range(12), [*texts, None], [True, False, None]))
    names = ["x", "y", "number", "text", "flag"]
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    statistics = statistics_of(pa.concat_tables([table, table.slice(0, 100)]))
    assert statistics.exact
    assert (statistics.sample_distinct, statistics.sample_rows) == (len(rows), len(rows) + 100)


@settings(max_examples=20, deadline=None)
@given(positions=st.lists(st.integers(0, 600), max_size=8), limit=st.sampled_from([40, 200]))
def test_row_hash_independent_of_batch(positions: list[int], limit: int) -> None:
    """With nulls, zeros of both signs and NaN in the same batch."""
    random = np.random.default_rng(7)
    small = random.integers(-2, 3, 600)
    columns: dict[str, pa.Array] = {
        "whole": pa.array(np.arange(600)),
        "zeros": pa.array(np.where(small > 0, -0.0, small.astype(float))),
        "odd": pa.array(np.where(small > 1, np.nan, small / 4), mask=small == 0),
        "flag": pa.array(small > 0, mask=np.arange(600) > 300),
        "byte": pa.array(small.astype(np.int8), mask=np.arange(600) < 200),
        "short": pa.array(small.astype(np.int16)),
    }
    table = pa.table(columns)
    accumulator = accumulator_of(table, limit=limit, rows=600)
    expected = accumulator.finish(count(accumulator, table.to_batches()))
    actual = accumulator.finish(count(accumulator, cut(table, positions)))
    assert actual.sample.hashes[0].tolist() == expected.sample.hashes[0].tolist()
    full_accumulator = accumulator_of(table, limit=600)
    drawn = full_accumulator.finish(count(full_accumulator, table.to_batches())).sample
    assert (
        expected.sample.hashes[0].tolist()
        == drawn.hashes[0].tolist()[: len(expected.sample.hashes[0])]
    )
    assert len(drawn.hashes[0]) == 600


def test_sample_limit_is_smaller_for_wide_tables() -> None:
    assert sample_limit(10) == 25_000
    assert sample_limit(6_400) == 10_000


def test_state_size_is_bounded_by_sample() -> None:
    accumulator = accumulator_of(pa.table({"x": [0.0]}), limit=100)
    state = accumulator.start()
    for seed in range(50):
        values = np.random.default_rng(seed).normal(size=1_000)
        state = accumulator.update(state, pa.RecordBatch.from_arrays([pa.array(values)], ["x"]))
        assert state.sample.row_count <= 2 * 100 + 1_000
    assert state.rows == 50_000


@pytest.mark.parametrize("copies", [1, 40])
def test_partition_share_gives_same_sample(empty_store: FeatureStore, copies: int) -> None:
    table = pa.table({"x": np.repeat(np.random.default_rng(1).normal(size=2_000), copies)})
    engine = empty_store.session.engine
    relation = engine.stage(engine.from_arrow(table.to_reader()), f"{empty_store.location}/staged")
    accumulator = statistics_accumulator(table.schema, limit=500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("featurestore.statistics.accumulator.sample_limit", lambda _: 500)
        statistics = count_statistics(engine, relation, table.schema)
    expected = engine.aggregate(relation, accumulator)
    expected.sample.compact()
    assert statistics.sample.hashes[0].tolist() == expected.sample.hashes[0].tolist()
    assert finish(statistics) == finish(expected)


def test_partition_with_known_row_count_keeps_its_share() -> None:
    table = pa.table({"x": np.random.default_rng(1).normal(size=50_000)})
    state = count(
        accumulator_of(table, limit=1_000, rows=50_000), table.slice(0, 5_000).to_batches()
    )
    assert state.sample.row_count == pytest.approx(125, abs=60)


def test_long_texts_are_truncated() -> None:
    texts = ["long " * 400 + str(index % 3) for index in range(30)]
    labels = statistics_of(pa.table({"text": texts}))
    column = labels.column("text")
    assert column.lengths is not None
    assert column.lengths.maximum == 2001
    assert column.distinct == 3
    assert all(len(str(entry.value)) < 130 for entry in column.top)


# -- exact sums ---------------------------------------------------------------------------------------------------


@settings(max_examples=75, deadline=None)
@given(st.lists(FLOATS, max_size=60))
def test_sum_of_floats_is_exact(values: list[float]) -> None:
    high, low = sum_twofold(np.array(values, dtype=np.float64))
    exact = sum((Fraction(value) for value in values), Fraction(0))
    if abs(exact) < 2**1000 and all(abs(value) < 2**900 for value in values):
        error = abs(Fraction(high) + Fraction(low) - exact)
        largest = max((abs(Fraction(value)) for value in values), default=Fraction(0))
        assert error <= largest * Fraction(1, 2**95)
        assert high == pytest.approx(float(exact), rel=1e-15, abs=float(largest) * 2**-95)


@pytest.mark.parametrize("rows", [1, 4_000, 70_000])
def test_sum_twofold_many_floats_exact_and_opposites_cancel(rows: int) -> None:
    values = np.random.default_rng(rows).normal(size=rows) * 1e3
    high, low = sum_twofold(values)
    assert high == math.fsum(values)
    assert abs(Fraction(high) + Fraction(low) - sum(map(Fraction, values))) < Fraction(1, 2**80)
    assert sum_twofold(np.concatenate([values, -values[::-1]])) == pytest.approx(
        (0.0, 0.0), abs=1e-25
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_sum_integers_does_not_overflow(dtype: type) -> None:
    limits = np.iinfo(dtype)
    values: NDArray[np.int64] = np.array([limits.max] * 1_000 + [limits.min] * 3, dtype=dtype)
    assert sum_integers(values) == int(limits.max) * 1_000 + int(limits.min) * 3


@pytest.mark.parametrize("offset", [0.0, 1e9, 1e15])
def test_std_is_precise_for_large_mean(offset: float) -> None:
    deviations = np.random.default_rng(2).integers(-1_000, 1_000, 50_000) / 8
    labels = statistics_of(
        pa.table({"x": deviations + offset, "y": deviations * 2 - offset}), rows=1_000
    )
    assert labels.column("x").std == pytest.approx(deviations.std(ddof=1), rel=1e-12)
    assert labels.pearson.value("x", "y") == pytest.approx(1.0, abs=1e-12)


def test_huge_values_cause_no_warning() -> None:
    labels = statistics_of(pa.table({"x": [1e308, -1e308, 1e308, 1.0], "y": [1.0, 2.0, 3.0, 4.0]}))
    assert labels.column("x").maximum == 1e308
    json.dumps(labels.to_json(), allow_nan=False)
