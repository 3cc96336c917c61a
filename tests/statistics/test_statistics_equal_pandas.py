"""Statistics equal those of pandas, numpy and scipy over all rows."""

from __future__ import annotations

import json
import math
import pickle
from datetime import datetime
from importlib.resources import files
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import FeatureNotFound
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.statistics import PROBABILITIES, Statistics
from featurestore.statistics import finish, merge, statistics_accumulator
from tests.statistics.example_tables import count, statistics_of, varied_table

ROWS = 3_000
NUMBERS = (
    "plain",
    "related",
    "holed",
    "single",
    "small",
    "large",
    "unsigned",
    "money",
    "flag",
    "constant",
)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return varied_table(ROWS)


@pytest.fixture(scope="module")
def statistics(table: pa.Table) -> Statistics:
    result: Statistics = statistics_of(table, rows=700)
    return result


def finite(table: pa.Table, name: str) -> np.ndarray[Any, Any]:
    """Return the finite values of a column, with integers as Python integers."""
    values = table[name].drop_null().to_pylist()
    return np.array([value for value in values if math.isfinite(value)], dtype=object)


@pytest.mark.parametrize("name", NUMBERS)
def test_count_sum_mean_and_extremes_cover_all_rows(
    table: pa.Table, statistics: Statistics, name: str
) -> None:
    column, values = statistics.column(name), finite(table, name)
    assert column.nulls == table[name].null_count
    assert column.count + column.nulls + column.nan == ROWS
    assert column.count - column.infinite == len(values)
    exact = math.fsum(values) if isinstance(values[0], float) else sum(values)
    assert column.sum == pytest.approx(float(exact), rel=1e-14)
    assert column.mean == pytest.approx(float(exact) / len(values), rel=1e-14)
    assert (float(column.minimum), float(column.maximum)) == (
        float(min(values)),
        float(max(values)),
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NUMBERS)
def test_std_and_quantiles_equal_pandas(table: pa.Table, statistics: Statistics, name: str) -> None:
    column = statistics.column(name)
    values = pd.Series(finite(table, name).astype(np.float64))
    # pandas loses digits with a large mean, so it gets centred values.
    deviation = float((values - values.mean()).std()) if name != "constant" else 0.0
    assert column.std == pytest.approx(deviation, rel=1e-9)
    np.testing.assert_allclose(
        np.array(column.quantiles, dtype=float), values.quantile(list(PROBABILITIES)), rtol=1e-12
    )
    assert column.distinct == values.nunique() or name in ("large", "unsigned")
    assert column.distinct_exact


def test_sum_of_64_bit_integers_is_exact(table: pa.Table, statistics: Statistics) -> None:
    assert statistics.column("large").sum == sum(table["large"].to_pylist())
    assert statistics.column("unsigned").sum == sum(table["unsigned"].to_pylist())
    assert statistics.column("unsigned").maximum == pc.max(table["unsigned"]).as_py()


def test_nan_and_infinity_are_counted_separately(table: pa.Table, statistics: Statistics) -> None:
    column = statistics.column("holed")
    assert column.nan == pc.sum(pc.is_nan(table["holed"])).as_py()
    assert column.infinite == pc.sum(pc.is_inf(table["holed"])).as_py()
    assert column.missing == column.nulls + column.nan


def test_missing_values_are_not_zero(statistics: Statistics) -> None:
    empty = statistics.column("empty")
    assert (empty.count, empty.nulls) == (0, ROWS)
    assert (
        empty.sum,
        empty.mean,
        empty.std,
        empty.minimum,
        empty.maximum,
        empty.quantile(0.5),
    ) == (None,) * 6
    assert empty.histogram is None
    assert empty.distinct == 0


def test_time_statistics_are_times(table: pa.Table, statistics: Statistics) -> None:
    times = table["moment"].to_pandas()
    column = statistics.column("moment")
    assert datetime.fromisoformat(str(column.minimum)) == times.min().to_pydatetime()
    assert datetime.fromisoformat(str(column.mean)) == pytest.approx(
        times.mean().to_pydatetime(), abs=pd.Timedelta("1us")
    )
    assert column.std == pytest.approx(times.std().total_seconds(), rel=1e-9)
    day = statistics.column("day")
    assert day.minimum == min(table["day"].to_pylist()).isoformat()
    assert day.std == pytest.approx(
        np.std([value.toordinal() for value in table["day"].to_pylist()], ddof=1) * 86_400
    )


def test_text_statistics_have_lengths_and_frequent_values(
    table: pa.Table, statistics: Statistics
) -> None:
    words = table["word"].to_pandas()
    column = statistics.column("word")
    assert column.lengths is not None
    assert (column.lengths.minimum, column.lengths.maximum) == (0, 7)
    assert column.lengths.mean == pytest.approx(words.str.len().mean())
    assert {entry.value: entry.count for entry in column.top} == words.value_counts().to_dict()
    assert column.top_complete
    name = statistics.column("name")
    assert (name.distinct, name.top, name.top_complete) == (ROWS, (), False)


def test_nested_values_have_lengths_only(statistics: Statistics) -> None:
    for name, longest in (("blob", 6), ("list", 3), ("vector", 3)):
        column = statistics.column(name)
        assert column.lengths is not None
        assert column.lengths.maximum == longest
        assert (column.minimum, column.mean, column.distinct, column.quantiles) == (
            None,
            None,
            None,
            (),
        )
    assert statistics.column("struct").count == ROWS


def test_histogram_counts_every_finite_value_once(table: pa.Table, statistics: Statistics) -> None:
    for column in statistics.columns:
        if column.histogram is not None:
            assert sum(column.histogram.counts) == column.count - column.infinite
            assert len(column.histogram.edges) == len(column.histogram.counts) + 1
    small = statistics.column("small").histogram
    assert small is not None
    expected = table["small"].to_pandas().dropna().value_counts().sort_index()
    assert list(small.counts) == expected.tolist()


def test_pearson_correlations_are_pairwise_complete(
    table: pa.Table, statistics: Statistics
) -> None:
    frame = table.select(list(NUMBERS)).to_pandas().astype(float).replace([np.inf, -np.inf], np.nan)
    frame = frame - frame.mean()  # pandas does not centre first
    expected = frame.corr()
    assert statistics.pearson is not None
    for first in NUMBERS:
        for second in NUMBERS:
            value = statistics.pearson.value(first, second)
            if "constant" in (first, second):
                assert value is None
            else:
                assert value == pytest.approx(expected.loc[first, second], abs=1e-10)


def test_spearman_correlations_equal_scipy(table: pa.Table, statistics: Statistics) -> None:
    from scipy.stats import spearmanr

    names = ("plain", "related", "single", "large")
    expected = spearmanr(table.select(list(names)).to_pandas()).statistic
    assert statistics.spearman is not None
    actual = [[statistics.spearman.value(first, second) for second in names] for first in names]
    np.testing.assert_allclose(np.array(actual, dtype=float), expected, atol=1e-12)


def test_spearman_ties_get_mean_rank() -> None:
    from scipy.stats import spearmanr

    table = pa.table({"a": [1, 1, 2, 2, 3, 3, 3], "b": [5, 4, 4, 4, 1, 0, 0]})
    statistics = statistics_of(table)
    expected = spearmanr(table["a"].to_numpy(), table["b"].to_numpy()).statistic
    assert statistics.spearman.value("a", "b") == pytest.approx(expected, abs=1e-12)


def test_repeated_rows_count_every_time() -> None:
    values = np.repeat(np.arange(10), np.arange(1, 11))
    table = pa.table({"a": values, "b": values**2})
    statistics = statistics_of(table, rows=7, limit=10)
    assert (statistics.sample_rows, statistics.sample_distinct, statistics.exact) == (55, 10, True)
    np.testing.assert_allclose(statistics.column("a").quantiles, np.quantile(values, PROBABILITIES))
    assert [(entry.value, entry.count) for entry in statistics.column("a").top][:2] == [
        (9, 10),
        (8, 9),
    ]
    assert statistics.spearman.value("a", "b") == pytest.approx(1.0)


def test_correlations_exclude_keys_and_times() -> None:
    table = pa.table(
        {
            "id": [1, 2, 3],
            "t": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
            "a": [1.0, 2, 4],
            "b": [1.0, 0, 0],
        }
    )
    spec = FeatureGroupSpec("g", 1, table.schema, primary_key=("id",), event_time="t")
    statistics = finish(count(statistics_accumulator(spec), table.to_batches()))
    assert statistics.pearson is not None
    assert statistics.pearson.columns == ("a", "b")
    assert [column.role for column in statistics.columns] == ["key", "time", "feature", "feature"]


@pytest.mark.parametrize("columns", [2, 30, 60])
@pytest.mark.parametrize("rows", [1, 3_000])
def test_correlations_of_columns_with_missing_values_equal_pandas(columns: int, rows: int) -> None:
    random = np.random.default_rng(columns)
    data = random.normal(size=(columns, rows)) + random.normal(size=rows)
    is_valid = random.random((columns, rows)) < 0.7
    is_valid[::3] = True
    frame = pd.DataFrame(np.where(is_valid, data, np.nan).T).rename(columns=str)
    table = pa.table({name: pa.array(frame[name], from_pandas=True) for name in frame})
    for limit in (rows, rows // 2 + 1):
        statistics = statistics_of(table, limit=limit).pearson
        assert statistics is not None
        actual = np.array(statistics.matrix, dtype=float)
        np.testing.assert_allclose(actual, frame.corr(min_periods=2), atol=1e-12)


@pytest.mark.parametrize("columns", [64, 65])
def test_pearson_over_64_columns_uses_sample(columns: int) -> None:
    random = np.random.default_rng(columns)
    data = random.normal(size=(columns, 2_000)) + random.normal(size=2_000)
    data[0, random.random(2_000) < 0.3] = np.nan
    frame = pd.DataFrame(data.T).rename(columns=str)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    accumulator = statistics_accumulator(table.schema, limit=500)
    states = [count(accumulator, table.slice(start, 700).to_batches()) for start in (0, 700, 1_400)]
    state = merge(merge(states[0], pickle.loads(pickle.dumps(states[1]))), states[2])
    result = finish(state)
    assert result.pearson is not None
    assert result.spearman is not None
    assert not result.exact
    assert (result.pearson.sampled, result.spearman.sampled) == (columns > 64, True)
    if columns > 64:
        frame = state.sample.rows().to_pandas()
        assert len(frame) == 500
    actual = np.array(result.pearson.matrix, dtype=float)
    np.testing.assert_allclose(actual, frame.corr(), atol=1e-12)
    assert Statistics.from_json(json.loads(result.to_bytes())) == result
    exact_result = finish(count(statistics_accumulator(table.schema), table.to_batches()))
    assert exact_result.pearson is not None
    assert not exact_result.pearson.sampled


def test_pearson_of_more_than_50_columns() -> None:
    random = np.random.default_rng(1)
    base = random.normal(size=2_000)
    table = pa.table(
        {
            f"c{index}": base * (index == 0 or index == 70) + random.normal(size=2_000)
            for index in range(80)
        }
    )
    statistics = statistics_of(table)
    assert statistics.pearson is not None
    assert len(statistics.pearson.columns) == 80
    assert {"c0", "c70"} == set(statistics.pearson.top_pairs(1)[0][:2])
    expected = np.corrcoef(np.stack([table[name].to_numpy() for name in table.column_names]))
    np.testing.assert_allclose(
        np.array(statistics.pearson.matrix, dtype=float), expected, atol=1e-12
    )


def test_statistics_of_no_rows(table: pa.Table) -> None:
    statistics = statistics_of(table.slice(0, 0))
    assert statistics.rows == 0
    assert all(column.count == 0 for column in statistics.columns)
    assert statistics.pearson is not None
    assert statistics.pearson.value("plain", "related") is None


def test_statistics_json_roundtrip_matches_schema(statistics: Statistics) -> None:
    data = json.loads(json.dumps(statistics.to_json(), allow_nan=False))
    schema = json.loads(
        files("featurestore_schemas").joinpath("statistics.schema.json").read_text()
    )
    jsonschema.validate(data, schema)
    assert Statistics.from_json(data) == statistics


def test_statistics_unknown_column_raises_with_suggestion(statistics: Statistics) -> None:
    with pytest.raises(FeatureNotFound, match="'plain'"):
        statistics.column("plan")


def test_top_share_covers_sampled_rows() -> None:
    names = np.repeat(np.arange(500), np.arange(500, 0, -1)).astype(str)
    labels = statistics_of(
        pa.table({"name": names, "few": names == "1", "list": [[1]] * len(names)})
    )
    name = labels.column("name")
    assert (len(name.top), name.top_complete, name.sampled) == (20, False, len(names))
    assert name.top_share == pytest.approx(sum(range(481, 501)) / len(names))
    assert labels.column("few").top_share == 1.0
    assert labels.column("list").top_share is None
    many = np.repeat(np.arange(2_000), np.r_[np.full(20, 2_000), np.full(1_980, 20)]).astype(str)
    sampled = statistics_of(pa.table({"name": many, "n": np.arange(len(many))}), limit=1000)
    share = sampled.column("name").top_share
    assert sampled.column("name").sampled == 1000
    assert share == pytest.approx(40_000 / len(many), abs=0.06)


@given(
    dtype=st.sampled_from(
        [pa.bool_(), pa.int8(), pa.uint8(), pa.int64(), pa.float64(), pa.string()]
    ),
    different=st.integers(1, 300),
    seed=st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_columns_of_few_values_are_exact_beyond_sample(
    dtype: pa.DataType, different: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    most = {pa.bool_(): 2, pa.int8(): 100, pa.uint8(): 200}
    different = min(different, most.get(dtype, different))
    values = pa.array(random.integers(0, different, 3_000)).cast(pa.int64()).cast(dtype)
    holed = pc.if_else(pa.array(random.random(3_000) < 0.9), values, None)
    table = pa.table({"few": holed, "n": np.arange(3_000)})
    sampled, exact = statistics_of(table, limit=200), statistics_of(table)
    assert (sampled.exact, exact.exact) == (False, True)
    actual, expected = sampled.column("few"), exact.column("few")
    assert actual.distinct_exact
    assert (actual.distinct, actual.top, actual.top_complete, actual.sampled) == (
        expected.distinct,
        expected.top,
        expected.top_complete,
        expected.sampled,
    )
    assert (actual.quantiles, actual.histogram) == (expected.quantiles, expected.histogram)


def test_statistics_of_older_releases_have_no_top_share() -> None:
    names = np.repeat(np.arange(500), 3).astype(str)
    document = statistics_of(pa.table({"name": names})).to_json()
    del document["columns"][0]["sampled"]
    assert Statistics.from_json(document).column("name").top_share is None


@pytest.mark.parametrize("columns", [3, 200])
def test_statistics_repr_fits_screen(table: pa.Table, columns: int) -> None:
    names = np.array(["a" * 40, "b\n\x1b[31m", "c"])[np.arange(300) % 3]
    wide = {f"a long name of a column, {index}": names for index in range(columns)}
    for statistics in (
        statistics_of(table),
        statistics_of(pa.table(wide)),
        statistics_of(table, limit=9),
    ):
        lines = repr(statistics).split("\n")
        assert len(lines) <= 23
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in repr(statistics)
