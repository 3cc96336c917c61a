"""The rule that applies a user's Python function.

Files contain only the hash of the function source, never code. A program must register the function
by ``t.function(...)``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, TransformationNotKnown
from featurestore.model.json_object import JsonMapping, JsonObject
from featurestore.model.on_demand import hash_source
from featurestore.readers.columns import NumpyArray
from featurestore.transform.ops import NumpyOps, Ops, Value
from featurestore.transform.rules.rule import Rule, ValueSample
from featurestore.transform.steps import Form, Step

# The functions registered in this process, by source hash.
_REGISTERED: dict[str, Callable[..., Any]] = {}


class Function(Rule):
    """A Python function of a batch: numbers are float64 with NaN, strings are str with None."""

    name = "function"
    supports_graphs = False
    handles_missing = True
    fits = True

    def output(self, step: Step, form: Form) -> Form:
        if form.value_type == "list":
            self.check_input(form, "number")
        shape: tuple[int, ...] = ()
        if step.fitted is not None:
            shape = tuple(step.fitted["shape"])
        return Form("vector" if shape else "number", shape)

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        values = to_function_argument(sample.value)
        fitted = None
        if step.fit is not None:
            is_present = ~np.array([value is None or value != value for value in values.tolist()])
            fitted = step.fit(values[is_present], sample.counts[is_present])
            try:
                # After the round trip, the function receives the same types as after loading the
                # stored values.
                fitted = json.loads(json.dumps(fitted, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"The fitted= function of {step.options['name']} did not return JSON: {error}.",
                    hint="return numbers, strings, lists or dicts",
                ) from error
        results = call_function(step, values, fitted)
        return {"value": fitted, "shape": list(results.shape[1:])}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        if not isinstance(ops, NumpyOps):
            raise InvalidArgument(
                f"{step.options['name']} is a Python function, which graphs do not support.",
                hint='dataset.preprocessor("numpy"), or reader.batches and reader.tf_dataset',
            )
        assert step.fitted is not None
        results = call_function(step, to_function_argument(value), step.fitted["value"])
        if list(results.shape[1:]) != step.fitted["shape"]:
            raise InvalidArgument(
                f"{step.options['name']} returned the shape {results.shape[1:]} for a value, but "
                f"{tuple(step.fitted['shape'])} when it was fitted."
            )
        return Value("vector" if results.ndim > 1 else "number", results)

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.text("source")
        options.text("name")
        options.flag("fitted")
        if fitted is not None:
            fitted.get("value")
            fitted.numbers("shape")

    def fitted_summary(self, step: Step) -> str:
        assert step.fitted is not None
        if step.fitted["value"] is None:
            return f"source {step.options['source'][:12]}"
        return json.dumps(step.fitted["value"])[:40]


def register_function(function: Callable[..., Any], fit: Callable[..., Any] | None) -> Step:
    """Register a function by its source hash, and return a step that applies it."""
    source = hash_source(function)
    _REGISTERED[source] = function
    name = getattr(function, "__qualname__", type(function).__name__)
    options = {"name": name, "source": source, "fitted": fit is not None}
    return Step("function", options, function=function, fit=fit)


def resolve_function(step: Step) -> Step:
    """Return a copy of a step with its registered function, so that it can be pickled.

    Raises:
        TransformationNotKnown: No function with this source is registered in this process.
    """
    if step.rule != "function" or step.function is not None:
        return step
    function = _REGISTERED.get(step.options["source"])
    if function is None:
        raise TransformationNotKnown(
            f"The function {step.options['name']!r} with source {step.options['source'][:12]} is "
            "not registered in this process; functions are not stored with a dataset.",
            hint="import its module and call t.function(the_function) before reading",
        )
    return replace(step, function=function)


def call_function(step: Step, values: NumpyArray, fitted: Any) -> npt.NDArray[np.float64]:
    """Call the function of a step and check its result."""
    function = resolve_function(step).function
    assert function is not None
    arguments: tuple[Any, ...] = (values,)
    if step.options["fitted"]:
        arguments = (values, fitted)
    results = np.asarray(function(*arguments))
    if results.dtype.kind not in "biuf" or not results.ndim or len(results) != len(values):
        raise InvalidArgument(
            f"{step.options['name']} returned {results.dtype} of shape {results.shape} for "
            f"{len(values)} rows.",
            hint="return one number, or one vector of numbers, for each row",
        )
    return results.astype(np.float64)


def to_function_argument(value: Value) -> NumpyArray:
    """Convert a column to the argument of user functions."""
    if value.value_type not in ("text", "binary", "other"):
        return NumpyOps().number(value)
    result = np.empty(len(value.data), dtype=object)
    for row, element in enumerate(value.data.tolist()):
        if value.present is None or value.present[row]:
            result[row] = element.decode() if value.value_type == "text" else element
    return result
