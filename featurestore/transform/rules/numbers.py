"""Rules for numbers (scaling, clipping, logarithm, cyclical encoding, casts) and missing values."""

from __future__ import annotations

import math
from typing import Any

from featurestore.errors import InvalidArgument
from featurestore.model.json_object import JsonDict, JsonMapping, JsonObject
from featurestore.model.statistics import ColumnStatistics
from featurestore.readers.columns import Tensor
from featurestore.transform.ops import Ops, Value, log1p, sine_and_cosine
from featurestore.transform.rules import rule
from featurestore.transform.rules.rule import Rule, ValueSample
from featurestore.transform.steps import DTYPES, Form, Step

STRATEGIES = ("mean", "median", "most_frequent")
# The reciprocals and squares of these numbers are normal float64 numbers.
_MIN_WIDTH, _MAX_WIDTH = 1e-150, 1e150


class NumberRule(Rule):
    """A rule that maps numbers to numbers."""

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "number", "whole")
        return Form("number", form.shape)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value("number", self.numbers(ops, step, ops.number(value)))

    def numbers(self, ops: Ops, step: Step, x: Tensor) -> Any:
        """Transform float64 numbers."""
        raise NotImplementedError


class ScaleRule(NumberRule):
    """The linear function (x - offset) * factor + shift, with three fitted numbers.

    It multiplies by a factor, since TensorFlow replaces division by a constant by multiplication.
    """

    fits = True

    def numbers(self, ops: Ops, step: Step, x: Tensor) -> Any:
        assert step.fitted is not None
        x = (x - step.fitted["offset"]) * step.fitted["factor"]
        if step.fitted["shift"]:
            x = x + step.fitted["shift"]
        return x

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        if fitted is not None:
            for name in ("offset", "factor", "shift"):
                fitted.real(name)

    def fitted_summary(self, step: Step) -> str:
        assert step.fitted is not None
        offset, factor, shift = (step.fitted[name] for name in ("offset", "factor", "shift"))
        text = f"(x - {offset:.6g}) * {factor:.6g}"
        if shift:
            text += f" + {shift:.6g}"
        return text


class Standardize(ScaleRule):
    """Scaling to mean 0 and population standard deviation 1."""

    name = "standardize"

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        values, counts = sample.numbers()
        if not len(values):
            raise rule.no_values_to_fit_error(step)
        mean, deviation = rule.mean_and_deviation(values, counts)
        return _scale_parameters(mean, deviation)

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, form: Form
    ) -> JsonMapping | None:
        if column is None or column.kind != "number" or column.std is None:
            return None
        rows = column.count - column.infinite
        if not isinstance(column.mean, int | float):
            return None
        # Statistics contain the sample deviation (n - 1), but the step uses the population
        # deviation.
        return _scale_parameters(float(column.mean), column.std * math.sqrt((rows - 1) / rows))


class MinMax(ScaleRule):
    """Scaling of the minimum to ``low`` and the maximum to ``high``."""

    name = "min_max"

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        values, _ = sample.numbers()
        if not len(values):
            raise rule.no_values_to_fit_error(step)
        return self._scale_range(step, float(values[0]), float(values[-1]))

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, form: Form
    ) -> JsonMapping | None:
        if column is None or column.kind != "number":
            return None
        low, high = column.minimum, column.maximum
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            return None
        return self._scale_range(step, float(low), float(high))

    def _scale_range(self, step: Step, low: float, high: float) -> JsonMapping:
        width = step.options["high"] - step.options["low"]
        return _scale_parameters(low, high - low, width=width, shift=float(step.options["low"]))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.real("low")
        options.real("high")
        super().check(options, fitted)


class Robust(ScaleRule):
    """Scaling to median 0 and interquartile range 1."""

    name = "robust"

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        values, counts = sample.numbers()
        if not len(values):
            raise rule.no_values_to_fit_error(step)
        low, middle, high = (rule.quantile(values, counts, share) for share in (0.25, 0.5, 0.75))
        return _scale_parameters(middle, high - low)


class Log1p(NumberRule):
    """Logarithm of 1 + x."""

    name = "log1p"

    def numbers(self, ops: Ops, step: Step, x: Tensor) -> Any:
        return log1p(ops, x)


class Clip(NumberRule):
    """Clipping of values to a range."""

    name = "clip"

    def numbers(self, ops: Ops, step: Step, x: Tensor) -> Any:
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
    """Sine and cosine of the phase within a period."""

    name = "cyclical"

    def output(self, step: Step, form: Form) -> Form:
        numbers = super().output(step, form)
        return Form("vector", (*numbers.shape, 2), numbers.dtype)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        per_period = 1.0 / step.options["period"]
        coordinates = sine_and_cosine(ops, ops.number(value), per_period=per_period)
        return Value("vector", ops.stack(coordinates))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        if not _MIN_WIDTH < options.real("period") < _MAX_WIDTH:
            raise options.wrong_type_error("period", "a positive number")


class Cast(Rule):
    """A cast to an output type. Integers are truncated towards 0, and missing integers are 0."""

    name = "cast"

    def output(self, step: Step, form: Form) -> Form:
        dtype = step.options["dtype"]
        is_integer = dtype.startswith("int")
        if form.value_type == ("code" if is_integer else "vector"):
            return Form(form.value_type, form.shape, dtype, form.size)
        self.check_input(form, "number", "whole")
        return Form("whole" if is_integer else "number", form.shape, dtype)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        dtype = step.options["dtype"]
        if value.value_type in ("code", "vector"):
            return value
        if dtype.startswith("float"):
            return Value("number", ops.number(value))
        if value.value_type == "whole" and dtype == "int64":
            return value
        x = ops.number(value)
        present = ~ops.isnan(x)
        minimum, maximum = -(2.0**31), 2.0**31 - 1
        if dtype == "int64":
            # The largest float64 below 2**63.
            minimum, maximum = -(2.0**63), 2.0**63 - 1024
        x = ops.where(x < 0.0, -ops.floor(-x), ops.floor(x))
        x = ops.where(x < minimum, minimum, ops.where(x > maximum, maximum, x))
        return Value("whole", ops.cast(ops.where(present, x, 0.0), "int64"), present)

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        if options.text("dtype") not in DTYPES:
            raise options.wrong_type_error("dtype", f"one of {', '.join(DTYPES)}")


def _scale_parameters(
    offset: float, spread: float, *, width: float = 1.0, shift: float = 0.0
) -> JsonDict:
    """Return offset, factor and shift of a linear scaling; a constant column has the factor 1."""
    factor = 1.0
    if _MIN_WIDTH < spread < _MAX_WIDTH:
        factor = rule.round_factor(width / spread)
    return {"offset": offset, "factor": factor, "shift": shift}


class Impute(Rule):
    """Replacement of missing values by a constant or by a statistic of the fitted split."""

    name = "impute"
    handles_missing = True
    fits = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "number", "whole", "text")
        fill = step.options["value"]
        if step.fitted is not None:
            _check_fill(step.fitted["value"], form)
        if form.value_type == "text":
            if not isinstance(fill, str):
                raise InvalidArgument(
                    f"{step} needs a string for a string column.", hint='t.impute("unknown")'
                )
            return form
        if isinstance(fill, str) and fill not in STRATEGIES:
            raise InvalidArgument(
                f"{step} needs a number for a numeric column.",
                hint=f"a number, or one of {', '.join(STRATEGIES)}",
            )
        if form.value_type == "whole" and (fill == "most_frequent" or isinstance(fill, int)):
            return form
        return Form("number", form.shape)

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        fill = step.options["value"]
        if fill == "most_frequent":
            top_values = rule.most_frequent(sample.by_frequency(), 1)
            if not top_values:
                raise rule.no_values_to_fit_error(step)
            return {"value": top_values[0]}
        if form.value_type == "text" or fill not in STRATEGIES:
            return {"value": fill}
        values, counts = sample.numbers()
        if not len(values):
            raise rule.no_values_to_fit_error(step)
        if fill == "mean":
            return {"value": rule.mean_and_deviation(values, counts)[0]}
        return {"value": rule.quantile(values, counts, 0.5)}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, form: Form
    ) -> JsonMapping | None:
        fill = step.options["value"]
        if fill not in STRATEGIES or (form.value_type == "text" and fill != "most_frequent"):
            return {"value": fill}
        if fill != "mean" or column is None or column.kind != "number":
            return None
        if not isinstance(column.mean, int | float):
            return None
        return {"value": float(column.mean)}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        assert step.fitted is not None
        fill = step.fitted["value"]
        if value.value_type == "text" or (value.value_type == "whole" and isinstance(fill, int)):
            if value.present is None:
                return value
            present = value.present
            for _ in range(len(value.data.shape) - len(present.shape)):
                present = present[..., None]
            constant = ops.constant(fill, value.value_type)
            return Value(value.value_type, ops.where(present, value.data, constant))
        x = ops.number(value)
        return Value("number", ops.where(ops.isnan(x), float(fill), x))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        for json_object in (options, fitted):
            if json_object is not None and not isinstance(json_object.get("value"), str):
                json_object.real("value")

    def fitted_summary(self, step: Step) -> str:
        assert step.fitted is not None
        value = step.fitted["value"]
        if isinstance(value, float):
            return f"{value:.6g}"
        return repr(value)


def _check_fill(fill: object, form: Form) -> None:
    """Raise InvalidArgument unless a fill value, which may come from a file, suits the column."""
    is_valid = isinstance(fill, str) if form.value_type == "text" else isinstance(fill, int | float)
    if not is_valid or (isinstance(fill, int) and not -(2**63) <= fill < 2**63):
        raise InvalidArgument(
            f"The fitted value {fill!r} of impute() does not match the column type."
        )
