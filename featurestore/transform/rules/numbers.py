"""Rules of numbers: scaled, clipped, logarithms, circles, types. Missing values stay missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from featurestore.model.json_object import JsonObject
from featurestore.model.statistics import ColumnStatistics
from featurestore.transform import kernels
from featurestore.transform.forms import DTYPES, Form
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.rule import Rule, nothing_to_fit
from featurestore.transform.sample import Sample, moments, quantile, settled
from featurestore.transform.steps import Step

_NARROWEST, _WIDEST = 1e-150, 1e150


class NumberRule(Rule):
    """A rule from numbers to numbers."""

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "number", "whole")
        return Form("number", given.shape)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value("number", self.numbers(ops, step, ops.number(value)))

    def numbers(self, ops: Ops, step: Step, x: Any) -> Any:
        """Return the results of float64 numbers."""
        raise NotImplementedError


class ScaleRule(NumberRule):
    """(x - offset) * factor + shift, all three fitted.

    A factor, not a quotient: TensorFlow makes factors of quotients by constants.
    """

    fits = True

    def numbers(self, ops: Ops, step: Step, x: Any) -> Any:
        assert step.fitted is not None
        x = (x - step.fitted["offset"]) * step.fitted["factor"]
        if step.fitted["shift"]:
            x = x + step.fitted["shift"]
        return x

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        if fitted is not None:
            for name in ("offset", "factor", "shift"):
                fitted.real(name)

    def fitted_text(self, step: Step) -> str:
        assert step.fitted is not None
        offset, factor, shift = (step.fitted[name] for name in ("offset", "factor", "shift"))
        text = f"(x - {offset:.6g}) * {factor:.6g}"
        if shift:
            text += f" + {shift:.6g}"
        return text


class Standardize(ScaleRule):
    """Mean 0 and standard deviation 1 (with n) in the split that it was fitted on."""

    name = "standardize"

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        values, counts = sample.numbers()
        if not len(values):
            raise nothing_to_fit(step)
        mean, deviation = moments(values, counts)
        return _scale(mean, deviation)

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, given: Form
    ) -> Mapping[str, Any] | None:
        if column is None or column.kind != "number" or column.std is None:
            return None
        rows = column.count - column.infinite
        if not isinstance(column.mean, int | float):
            return None
        return _scale(float(column.mean), column.std * math.sqrt((rows - 1) / rows))


class MinMax(ScaleRule):
    """Smallest and largest value become ``low`` and ``high``."""

    name = "min_max"

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        values, _ = sample.numbers()
        if not len(values):
            raise nothing_to_fit(step)
        return self._range(step, float(values[0]), float(values[-1]))

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, given: Form
    ) -> Mapping[str, Any] | None:
        if column is None or column.kind != "number":
            return None
        low, high = column.minimum, column.maximum
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            return None
        return self._range(step, float(low), float(high))

    def _range(self, step: Step, low: float, high: float) -> Mapping[str, Any]:
        wanted = step.options["high"] - step.options["low"]
        return _scale(low, high - low, wanted=wanted, shift=float(step.options["low"]))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.real("low")
        options.real("high")
        super().check(options, fitted)


class Robust(ScaleRule):
    """Median 0, and 1 for the distance of the quartiles."""

    name = "robust"

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        values, counts = sample.numbers()
        if not len(values):
            raise nothing_to_fit(step)
        low, middle, high = (quantile(values, counts, share) for share in (0.25, 0.5, 0.75))
        return _scale(middle, high - low)


class Log1p(NumberRule):
    """log(1 + x)."""

    name = "log1p"

    def numbers(self, ops: Ops, step: Step, x: Any) -> Any:
        return kernels.log1p(ops, x)


class Clip(NumberRule):
    """Values outside of a range become its ends."""

    name = "clip"

    def numbers(self, ops: Ops, step: Step, x: Any) -> Any:
        low, high = step.options["low"], step.options["high"]
        if low is not None:
            x = ops.where(x < low, float(low), x)
        if high is not None:
            x = ops.where(x > high, float(high), x)
        return x

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        for name in ("low", "high"):
            if options.get(name) is not None:
                options.real(name)


class Cyclical(NumberRule):
    """Sine and cosine of the way around a period."""

    name = "cyclical"

    def output(self, step: Step, given: Form) -> Form:
        return replace(super().output(step, given), kind="vector").with_shape(2)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        per_period = 1.0 / step.options["period"]
        both = kernels.circle(ops, ops.number(value), per_period=per_period)
        return Value("vector", ops.stack(both))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        if not _NARROWEST < options.real("period") < _WIDEST:
            raise options.wrong("period", "a positive number")


class Cast(Rule):
    """The type of the result; whole numbers are cut towards 0, and their missing values are 0."""

    name = "cast"

    def output(self, step: Step, given: Form) -> Form:
        dtype = step.options["dtype"]
        if given.kind == "code" and dtype.startswith("int"):
            return replace(given, dtype=dtype)
        if given.kind == "vector" and dtype.startswith("float"):
            return replace(given, dtype=dtype)
        self.takes(given, "number", "whole")
        if dtype.startswith("int"):
            return Form("whole", given.shape, dtype)
        return Form("number", given.shape, dtype)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        dtype = step.options["dtype"]
        if value.kind in ("code", "vector"):
            return value
        if dtype.startswith("float"):
            return Value("number", ops.number(value))
        if value.kind == "whole" and dtype == "int64":
            return value
        x = ops.number(value)
        present = ~ops.isnan(x)
        least, greatest = -(2.0**31), 2.0**31 - 1
        if dtype == "int64":
            least, greatest = -(2.0**63), 2.0**63 - 1024
        x = ops.where(x < 0.0, -ops.floor(-x), ops.floor(x))
        x = ops.where(x < least, least, ops.where(x > greatest, greatest, x))
        return Value("whole", ops.cast(ops.where(present, x, 0.0), "int64"), present)

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        if options.text("dtype") not in DTYPES:
            raise options.wrong("dtype", f"one of {', '.join(DTYPES)}")


def _scale(
    offset: float, spread: float, *, wanted: float = 1.0, shift: float = 0.0
) -> dict[str, Any]:
    """Return offset, factor and shift; a column that is constant stays so."""
    factor = 1.0
    if _NARROWEST < spread < _WIDEST:
        factor = settled(wanted / spread)
    return {"offset": offset, "factor": factor, "shift": shift}
