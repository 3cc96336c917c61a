"""The rule that puts a value where one is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featurestore.errors import InvalidArgument
from featurestore.model.json_object import JsonObject
from featurestore.model.statistics import ColumnStatistics
from featurestore.transform.forms import Form
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.rule import Rule, nothing_to_fit
from featurestore.transform.sample import Sample, moments, most, quantile
from featurestore.transform.steps import Step

STRATEGIES = ("mean", "median", "most_frequent")


class Impute(Rule):
    """Missing values become one value: given, or that of the split it was fitted on."""

    name = "impute"
    settles_missing = True
    fits = True

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "number", "whole", "text")
        wanted = step.options["value"]
        if step.fitted is not None:
            _check_fill(step.fitted["value"], given)
        if given.kind == "text":
            if not isinstance(wanted, str):
                raise InvalidArgument(f"{step} is no text.", hint='t.impute("unknown")')
            return given
        if isinstance(wanted, str) and wanted not in STRATEGIES:
            raise InvalidArgument(
                f"{step} is no number.", hint=f"a number, or one of {', '.join(STRATEGIES)}"
            )
        if given.kind == "whole" and (wanted == "most_frequent" or isinstance(wanted, int)):
            return given
        return Form("number", given.shape)

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        wanted = step.options["value"]
        if wanted == "most_frequent":
            found = most(sample.by_frequency(), 1)
            if not found:
                raise nothing_to_fit(step)
            return {"value": found[0]}
        if given.kind == "text" or wanted not in STRATEGIES:
            return {"value": wanted}
        values, counts = sample.numbers()
        if not len(values):
            raise nothing_to_fit(step)
        if wanted == "mean":
            return {"value": moments(values, counts)[0]}
        return {"value": quantile(values, counts, 0.5)}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, given: Form
    ) -> Mapping[str, Any] | None:
        wanted = step.options["value"]
        if wanted not in STRATEGIES or (given.kind == "text" and wanted != "most_frequent"):
            return {"value": wanted}
        if wanted != "mean" or column is None or column.kind != "number":
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


def _check_fill(fill: object, given: Form) -> None:
    """Raise unless a fitted value is one of the column: files may come from elsewhere."""
    fits = isinstance(fill, str) if given.kind == "text" else isinstance(fill, int | float)
    if not fits or (isinstance(fill, int) and not -(2**63) <= fill < 2**63):
        raise InvalidArgument(f"impute() was fitted as {fill!r}, which is no value of the column.")
