"""Conformance suite for transformations: all libraries and engines give the same bits as numpy.

A subclass implements the transformation of rows by its library or engine. The rows contain rare
values: missing values, NaN, infinities, numbers near 0 and beyond float32, values that the fit did
not see, and random bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore import transform as t
from featurestore.arrow.schemas import type_to_json
from featurestore.transform import Chain
from featurestore.transform.apply import TransformBatch
from featurestore.transform.fit import ValueCounts, check_chains, fit_on_sample, to_sample
from featurestore.transform.fitted import FittedColumn, Transformations

ROWS = 2000
_WORDS = ("late", "Late", "gate A3", "", "ünïcode straße", "a-b_c d", "x" * 90, "3", "\t tab\n")

# The column and its chain, by name.
CHAINS: Mapping[str, tuple[str, Chain]] = {
    "standardize": ("real", t.standardize()),
    "min_max": ("real", t.min_max(-1, 1) | t.standardize()),
    "robust": ("single", t.robust() | t.clip(-3, 3)),
    "log1p": ("real", t.log1p()),
    "log1p_standardize": ("single", t.clip(low=0) | t.log1p() | t.standardize()),
    "impute_mean": ("real", t.impute("mean") | t.min_max()),
    "impute_median": ("single", t.impute("median") | t.log1p() | t.robust()),
    "impute_value": ("whole", t.impute(-1) | t.vocabulary(max_size=5)),
    "impute_text": ("text", t.impute("none") | t.vocabulary()),
    "cyclical": ("real", t.cyclical(24)),
    "cyclical_whole": ("whole", t.cyclical(7)),
    "bins": ("real", t.bins([-1.5, 0, 0.1, 2])),
    "quantile_bins": ("single", t.quantile_bins(8)),
    "quantile_one_hot": ("whole", t.quantile_bins(4) | t.one_hot()),
    "vocabulary": ("text", t.vocabulary(max_size=3, unknown=1)),
    "vocabulary_buckets": ("text", t.vocabulary(max_size=2, unknown=5)),
    "vocabulary_whole": ("whole", t.vocabulary(max_size=10, unknown=0)),
    "hash_bucket": ("text", t.hash_bucket(1000)),
    "hash_whole": ("whole", t.hash_bucket(17)),
    "one_hot": ("text", t.one_hot()),
    "one_hot_whole": ("flag", t.one_hot()),
    "tokens": ("text", t.text_tokens(3, max_size=4)),
    "tokens_case": ("text", t.text_tokens(2, unknown=3, lower=False)),
    "cast_whole": ("real", t.cast("int32")),
    "cast_double": ("single", t.standardize() | t.cast("float64")),
    "list": ("list", t.standardize() | t.clip(-1, 1)),
    "list_codes": ("list", t.bins([0, 1])),
    "pad_codes": ("texts", t.pad(3) | t.vocabulary(max_size=4, unknown=2)),
    "pad_tokens": ("texts", t.pad(2, keep="last") | t.text_tokens(2)),
    "pad_numbers": ("numbers", t.pad(3, keep="last") | t.standardize()),
}


def rows(seed: int, *, has_special_values: bool) -> pa.Table:
    """Generate random rows; ``has_special_values`` adds special and unseen values."""
    random = np.random.default_rng(seed)
    real = random.normal(size=ROWS) * 10.0 ** random.integers(-3, 4, ROWS)
    integers = random.integers(-5, 15, ROWS)
    words = list(_WORDS)
    if has_special_values:
        real = real.copy()
        # Random bits include NaN with different payloads, subnormal and very large numbers.
        bits = random.integers(0, 2**64, ROWS // 2, dtype=np.uint64).view(np.float64)
        real[: len(bits)] = bits
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 5e-324, 1e-40, -1e-310, 3.5e38, -1e39]
        real[: len(special)] = special
        integers = np.where(
            random.random(ROWS) < 0.1, random.integers(-(2**63), 2**63 - 1), integers
        )
        words += ["never seen", "日本", "A B C D E", "-"]
    with np.errstate(over="ignore", invalid="ignore"):
        single = real.astype(np.float32)
    lists = random.normal(size=(ROWS, 3)).astype(np.float32)
    missing = random.random((4, ROWS)) < 0.1
    texts = random.choice(np.array(words, dtype=object), ROWS)
    ends = np.cumsum(random.integers(0, 6, ROWS))
    # The last offset must not be null, because it is the end of the last list.
    list_mask = np.append(missing[3], False)
    splits = pa.array(np.append(0, ends), pa.int32(), mask=list_mask)
    list_items = pa.array(random.choice(np.array(words, dtype=object), ends[-1]), pa.string())
    return pa.table(
        {
            "real": pa.array(real, mask=missing[0]),
            "single": pa.array(single, mask=missing[1]),
            "whole": pa.array(integers, mask=missing[2]),
            "text": pa.array(texts, pa.string(), mask=missing[3]),
            "flag": pa.array(random.random(ROWS) < 0.3),
            "list": pa.FixedSizeListArray.from_arrays(pa.array(lists.reshape(-1)), 3),
            "texts": pa.ListArray.from_arrays(splits, list_items),
            "numbers": pa.ListArray.from_arrays(splits, pa.array(random.normal(size=ends[-1]))),
        }
    )


def fit_chains(table: pa.Table, chains: Mapping[str, Chain]) -> Transformations:
    """Fit transformations on all rows of a table."""
    columns = check_chains(chains, table.schema)
    counts = ValueCounts(tuple(chains))
    state = counts.start()
    for batch in table.to_batches():
        state = counts.update(state, batch)
    state = counts.finish(state)
    fitted = []
    for column in columns:
        sample = to_sample(state[column.name], column.form, narrow=False)
        chain = fit_on_sample(column, sample, None)
        fitted.append(FittedColumn(column.name, type_to_json(column.type), chain))
    return Transformations("conformance", 1, "train", table.num_rows, tuple(fitted))


def fit_all_chains(
    *, seed: int = 1, leave_out: Sequence[str] = ()
) -> tuple[Transformations, pa.Table]:
    """Return transformations with all chains, fitted on ordinary rows, and special rows."""
    names = [name for name in CHAINS if name not in leave_out]
    chains = {name: CHAINS[name][1] for name in names}
    # Chains are fitted on ordinary rows, so that the other rows have values that the fit did not
    # see.
    ordinary_rows, special_rows = (
        rows(seed, has_special_values=False),
        rows(seed + 1, has_special_values=True),
    )
    return fit_chains(_chain_inputs(ordinary_rows, names), chains), _chain_inputs(
        special_rows, names
    )


def _chain_inputs(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the input columns of chains, named after the chains."""
    return pa.table({name: table.column(CHAINS[name][0]) for name in names})


def check_equal(
    actual: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Assert that types and bits are equal; the message lists all differing chains."""
    differing = []
    for name, array in expected.items():
        actual_array = actual[name]
        same = actual_array.dtype == array.dtype and actual_array.shape == array.shape
        if not same or not np.array_equal(to_bits(actual_array), to_bits(array)):
            differing.append(name)
    assert not differing


def to_bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the bits of an array, with a single bit pattern for NaN."""
    if array.dtype.kind != "f":
        return array
    # Libraries return different bit patterns for NaN.
    array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return array.view(f"u{array.dtype.itemsize}")


def transform_with_numpy(fitted: Transformations, table: pa.Table) -> dict[str, npt.NDArray[Any]]:
    """Transform a table with numpy."""
    batch = table.combine_chunks().to_batches()[0]
    return to_arrays(pa.Table.from_batches([TransformBatch(fitted)(batch)]))


def to_arrays(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
    """Convert table columns to arrays of shape (rows, ...)."""
    result = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
        shape = [len(column)]
        while pa.types.is_fixed_size_list(column.type):
            shape.append(column.type.list_size)
            column = column.flatten()
        result[name] = column.to_numpy(zero_copy_only=False).reshape(shape)
    return result


class TransformConformance:
    """Tests for one library or engine, which implements ``transformed``."""

    def transformed(self, fitted: Transformations, table: pa.Table) -> dict[str, npt.NDArray[Any]]:
        """Transform a table, and return the columns with rows in table order."""
        raise NotImplementedError

    def test_chains_equal_numpy_bit_by_bit(self) -> None:
        fitted, table = fit_all_chains()
        check_equal(self.transformed(fitted, table), transform_with_numpy(fitted, table))
