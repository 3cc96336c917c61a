"""Features from which a label can be read directly, and labels that have almost no information.

Training datasets check them when they are exported, and the leak check in its sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

# With fewer rows, columns may correspond by chance.
MIN_ROWS = 20
# Units and rounding remain above; the value of the row before, in a series of prices, is below.
_MIN_CORRELATION = 0.9999
# In columns with few extreme values these alone determine the correlation, but not that of ranks.
_MIN_RANK_CORRELATION = 0.95
# Distinct values of fewer rows each, such as numbers of rows, correspond to those of any column.
_ROWS_PER_VALUE = 10
# Labels in at most this share of the rows are more often a wrong join than the intended rows.
_MAX_UNLABELED_SHARE = 0.95

Floats = npt.NDArray[np.float64]


def find_repeated(
    features: Mapping[str, pa.Array], labels: Mapping[str, pa.Array]
) -> dict[str, dict[str, str]]:
    """Return the features that repeat a label, by label, with the correspondence of their values.

    A feature repeats a label if the correlation is 1.000 or -1.000, or if each of its values occurs
    with one value of the label and vice versa, over at least 20 rows with both.

    >>> cities = pa.array(["a", "b"] * 100)
    >>> find_repeated({"city": cities, "x": pa.array(range(200))}, {"code": pa.array([7, 5] * 100)})
    {'code': {'city': 'one value for each label value'}}
    """
    numbers = {name: _to_numbers(array) for name, array in {**features, **labels}.items()}
    codes = {name: _to_codes(array) for name, array in {**features, **labels}.items()}
    repeated: dict[str, dict[str, str]] = {}
    for label in labels:
        for feature in features:
            correspondence = _correlation(numbers[feature], numbers[label])
            if correspondence is None and _is_one_to_one(codes[feature], codes[label]):
                correspondence = "one value for each label value"
            if correspondence is not None:
                repeated.setdefault(label, {})[feature] = correspondence
    return repeated


def is_almost_unlabeled(labeled: int, rows: int) -> bool:
    """Return whether so few rows have a label that the join of the labels may be wrong.

    >>> is_almost_unlabeled(3, 100), is_almost_unlabeled(30, 100)
    (True, False)
    """
    return rows - labeled >= _MAX_UNLABELED_SHARE * rows


def _to_numbers(array: pa.Array) -> Floats | None:
    """Return numbers, booleans and times as float64 with NaN for nulls; None for other types."""
    dtype = array.type
    if pat.is_date32(dtype):
        array = array.cast(pa.int32())
    elif pat.is_date(dtype) or pat.is_timestamp(dtype):
        array = array.cast(pa.int64())
    elif pat.is_boolean(dtype):
        array = array.cast(pa.int8())
    elif not (pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal(dtype)):
        return None
    floats = array.cast(pa.float64(), safe=False)
    return np.array(floats.to_numpy(zero_copy_only=False), np.float64)


def _to_codes(array: pa.Array) -> npt.NDArray[np.int64] | None:
    """Return the number of each distinct value, -1 for nulls; None for types without classes."""
    dtype = array.type
    if not (pat.is_string(dtype) or pat.is_boolean(dtype) or pat.is_integer(dtype)):
        return None
    return np.asarray(array.dictionary_encode().indices.fill_null(-1)).astype(np.int64)


def _correlation(feature: Floats | None, label: Floats | None) -> str | None:
    """Return the correlation as text if it is 1.000 or -1.000, also without extreme values."""
    if feature is None or label is None:
        return None
    is_finite = np.isfinite(feature) & np.isfinite(label)
    pairs = np.stack([feature[is_finite], label[is_finite]])
    if pairs.shape[1] < MIN_ROWS:
        return None
    correlation = _correlate(pairs)
    if not abs(correlation) >= _MIN_CORRELATION:
        return None
    if not abs(_correlate(np.stack(list(map(_ranks, pairs))))) >= _MIN_RANK_CORRELATION:
        return None
    return f"correlation {correlation:.3f}"


def _correlate(pairs: Floats) -> float:
    """Return the correlation of two rows, NaN if one of them is constant."""
    # Scaled first, since squares of large numbers overflow.
    with np.errstate(all="ignore"):
        centered = pairs - pairs.mean(axis=1, keepdims=True)
        centered /= np.abs(centered).max(axis=1, keepdims=True)
        products: Any = centered @ centered.T
        return float(products[0, 1] / np.sqrt(products[0, 0] * products[1, 1]))


def _ranks(values: Floats) -> Floats:
    """Return the ranks of values, with the mean rank for equal ones."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse.reshape(-1)]


def _is_one_to_one(
    feature: npt.NDArray[np.int64] | None, label: npt.NDArray[np.int64] | None
) -> bool:
    """Return whether each value of either column occurs with one value of the other."""
    if feature is None or label is None:
        return False
    has_both = (feature >= 0) & (label >= 0)
    feature, label = feature[has_both], label[has_both]
    label_values = int(np.count_nonzero(np.bincount(label)))
    if len(label) < max(MIN_ROWS, _ROWS_PER_VALUE * label_values) or label_values < 2:
        return False
    if np.count_nonzero(np.bincount(feature)) != label_values:
        return False
    return len(np.unique(feature * (label.max() + 1) + label)) == label_values
