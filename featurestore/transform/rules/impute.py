"""The rule that replaces missing values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featurestore.errors import InvalidArgument
from featurestore.model.json_object import JsonObject
from featurestore.model.statistics import ColumnStatistics
from featurestore.transform.forms import Form
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.rule import Rule, no_values_error
from featurestore.transform.sample import Sample, mean_and_deviation, most_frequent, quantile
from featurestore.transform.steps import Step

STRATEGIES = ("mean", "median", "most_frequent")


class Impute(Rule):
    """Replacement of missing values by a constant, or by a statistic of the split of the fit."""

    name = "impute"
    handles_missing = True
    fits = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "number", "whole", "text")
        fill = step.options["value"]
        if step.fitted is not None:
            _check_fill(step.fitted["value"], form)
        if form.kind == "text":
            if not isinstance(fill, str):
                raise InvalidArgument(
                    f"{step} needs a string for a string column.", hint='t.impute("unknown")'
                )
            return form
        if isinstance(fill, str) and fill not in STRATEGIES:
            raise InvalidArgument(
                f"{step} needs a number for a column of numbers.",
                hint=f"a number, or one of {', '.join(STRATEGIES)}",
            )
        if form.kind == "whole" and (fill == "most_frequent" or isinstance(fill, int)):
            return form
        return Form("number", form.shape)

    def fit(self, step: Step, sample: Sample, form: Form) -> Mapping[str, Any]:
        fill = step.options["value"]
        if fill == "most_frequent":
            top_values = most_frequent(sample.by_frequency(), 1)
            if not top_values:
                raise no_values_error(step)
            return {"value": top_values[0]}
        if form.kind == "text" or fill not in STRATEGIES:
            return {"value": fill}
        values, counts = sample.numbers()
        if not len(values):
            raise no_values_error(step)
        if fill == "mean":
            return {"value": mean_and_deviation(values, counts)[0]}
        return {"value": quantile(values, counts, 0.5)}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, form: Form
    ) -> Mapping[str, Any] | None:
        fill = step.options["value"]
        if fill not in STRATEGIES or (form.kind == "text" and fill != "most_frequent"):
            return {"value": fill}
        if fill != "mean" or column is None or column.kind != "number":
            return None
        if not isinstance(column.mean, int | float):
            return None
        return {"value": float(column.mean)}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        assert step.fitted is not None
        fill = step.fitted["value"]
        if value.kind == "text" or (value.kind == "whole" and isinstance(fill, int)):
            if value.present is None:
                return value
            present = value.present
            for _ in range(len(value.data.shape) - len(present.shape)):
                present = present[..., None]
            constant = ops.constant(fill, value.kind)
            return Value(value.kind, ops.where(present, value.data, constant))
        x = ops.number(value)
        return Value("number", ops.where(ops.isnan(x), float(fill), x))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        for each in (options, fitted):
            if each is not None and not isinstance(each.get("value"), str):
                each.real("value")

    def fitted_text(self, step: Step) -> str:
        assert step.fitted is not None
        value = step.fitted["value"]
        if isinstance(value, float):
            return f"{value:.6g}"
        return repr(value)


def _check_fill(fill: object, form: Form) -> None:
    """Raise InvalidArgument unless a fitted value, which may come from a file, fits the column."""
    is_valid = isinstance(fill, str) if form.kind == "text" else isinstance(fill, int | float)
    if not is_valid or (isinstance(fill, int) and not -(2**63) <= fill < 2**63):
        raise InvalidArgument(f"The fitted value {fill!r} of impute() does not fit the column.")
