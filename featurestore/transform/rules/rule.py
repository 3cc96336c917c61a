"""The rule interface, and the samples that rules are fitted on.

A sample contains the distinct values of a column in one split, with their counts. Values are
sorted, so that statistics of a sample do not depend on batches or the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument
from featurestore.model.json_object import JsonMapping, JsonObject
from featurestore.model.statistics import ColumnStatistics
from featurestore.readers.columns import Tensor
from featurestore.statistics.moments import sum_twofold
from featurestore.transform.ops import NumpyOps, Ops, Value
from featurestore.transform.steps import Form, Step

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_OPS = NumpyOps()
_KIND_NAMES = {
    "number": "numbers",
    "whole": "integers",
    "text": "strings",
    "binary": "bytes",
    "code": "codes",
    "vector": "vectors",
    "list": "variable-length lists",
    "other": "values of this type",
}
_HINTS = {
    ("list", "number"): "t.pad(length) | ... pads lists to one length",
    ("list", "text"): "t.pad(length) | ... pads lists to one length",
    ("number", "list"): "remove t.pad(...): only variable-length lists need it",
    ("text", "list"): "remove t.pad(...): only variable-length lists need it",
    ("whole", "list"): "remove t.pad(...): only variable-length lists need it",
    ("number", "text"): 't.cast("int64") converts to integers, t.bins(edges) to categories',
    ("text", "number"): "t.vocabulary(), t.hash_bucket(n) or t.one_hot() encode strings as numbers",
}


class Rule:
    """The implementation of a kind of step.

    Rules are stateless, since options and fitted values are stored in the step. ``output`` rejects
    unsupported inputs. A rule with fitted values implements ``fit``. It also implements
    ``from_statistics`` if exact statistics of a split are sufficient to fit it. ``apply`` uses only
    the operations of ``Ops``, so that results are equal in every library.
    """

    name = ""
    # Whether the step maps missing values to meaningful values.
    handles_missing = False
    fits = False
    # Whether a TensorFlow graph can contain the step.
    supports_graphs = True
    # Whether the step accepts variable-length lists, as the first step of a chain.
    for_lists = False

    def output(self, step: Step, form: Form) -> Form:
        """Return the output form of a step.

        Raises:
            InvalidArgument: The rule does not support the input.
        """
        raise NotImplementedError

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        """Fit a step on a sample and return the fitted values as JSON."""
        return {}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, form: Form
    ) -> JsonMapping | None:
        """Fit a step on column statistics, or return None if the column values are needed.

        ``column`` has the statistics of the stored values. It is None if there are none, or if this
        is not the first step of the chain.
        """
        return None

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        """Apply a fitted step to a column."""
        raise NotImplementedError

    def takes_byte_rows(self, step: Step) -> bool:
        """Return whether the step accepts binaries of equal length as uint8 of (rows, bytes)."""
        return False

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        """Check the stored options and fitted values of a step.

        Raises:
            MalformedJson: An option or a fitted value is invalid.
        """

    def fitted_summary(self, step: Step) -> str:
        """Return a short summary of the fitted values."""
        return ""

    def check_input(self, form: Form, *kinds: str) -> None:
        """Raise InvalidArgument unless ``kinds`` contains the kind of the input."""
        if form.value_type not in kinds:
            raise InvalidArgument(
                f"{self.name}() accepts {' or '.join(_KIND_NAMES[kind] for kind in kinds)}, "
                f"not {_KIND_NAMES[form.value_type]}.",
                hint=_HINTS.get((form.value_type, kinds[0])),
            )


def no_values_to_fit_error(step: Step) -> InvalidArgument:
    """Return the error for a step without finite values to fit."""
    return InvalidArgument(
        f"{step} cannot be fitted: all values are missing or infinite.",
        hint="omit the column, or use t.impute(value) first",
    )


@dataclass(frozen=True)
class ValueSample:
    """The distinct values of a column after some steps of a chain, and their row counts.

    Missing values are included.
    """

    value: Value
    counts: Counts

    def numbers(self) -> tuple[Floats, Counts]:
        """Return the finite numbers in ascending order, with their counts."""
        data = _OPS.number(self.value)
        data = data.reshape(-1)
        is_finite = np.isfinite(data)
        # Infinities would make the mean infinite.
        values, counts = data[is_finite], self._repeat_counts(data.size)[is_finite]
        order = np.argsort(values, kind="stable")
        return values[order], counts[order]

    def by_frequency(self) -> list[tuple[Any, int]]:
        """Return non-missing values with counts, by descending frequency, then ascending value."""
        data = np.asarray(self.value.data).reshape(-1)
        present = np.ones(data.size, dtype=np.bool_)
        if self.value.present is not None:
            present = np.broadcast_to(
                _flatten_mask(self.value.present, self.value.data), data.shape
            )
        if self.value.value_type == "number":
            present = present & ~np.isnan(data)
        totals: dict[Any, int] = {}
        counts = self._repeat_counts(data.size)
        for value, count in zip(data[present].tolist(), counts[present].tolist(), strict=True):
            totals[value] = totals.get(value, 0) + count
        return sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))

    def _repeat_counts(self, size: int) -> Counts:
        """Repeat the row counts for each value if a row has several values."""
        return np.repeat(self.counts, size // max(1, len(self.counts)))


def _flatten_mask(present: Tensor, data: Tensor) -> Any:
    """Flatten a mask of rows or values to a mask of values."""
    shape = np.shape(data)
    widened = np.reshape(present, np.shape(present) + (1,) * (len(shape) - np.ndim(present)))
    return np.broadcast_to(widened, shape).reshape(-1)


def mean_and_deviation(values: Floats, counts: Counts) -> tuple[float, float]:
    """Return the mean and population standard deviation of values weighted by counts.

    >>> mean_and_deviation(np.array([1.0, 3.0]), np.array([2, 2]))
    (2.0, 1.0)
    """
    rows = int(counts.sum())
    total = sum_twofold(values * counts)
    mean = (total[0] + total[1]) / rows
    # A second pass over the deviations avoids the cancellation in the difference of two large sums.
    squares = sum_twofold((values - mean) ** 2 * counts)
    return mean, math.sqrt(max(squares[0], 0.0) / rows)


def quantile(values: Floats, counts: Counts, probability: float) -> float:
    """Return a quantile of ascending values with counts, using linear interpolation.

    >>> quantile(np.array([1.0, 3.0]), np.array([1, 1]), 0.5)
    2.0
    """
    ends = np.cumsum(counts)
    position = (int(ends[-1]) - 1) * probability
    below = math.floor(position)
    low = float(values[np.searchsorted(ends, below, side="right")])
    if below == position:
        return low
    high = float(values[np.searchsorted(ends, below + 1, side="right")])
    return low + (high - low) * (position - below)


def round_factor(value: float) -> float:
    """Round a factor to nine digits, so that the summation order does not affect it."""
    return float(f"{value:.9g}")


def most_frequent(pairs: Sequence[tuple[Any, int]], limit: int | None) -> list[Any]:
    """Return the values of the first (value, count) pairs, with bytes decoded as strings."""
    values = [value for value, _ in pairs[:limit]]
    return [value.decode() if isinstance(value, bytes) else value for value in values]
