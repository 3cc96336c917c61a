"""The rule of a Python function of the user's.

A file holds the hash of the function's source, never a way to code: the function is found where a
program has named it itself, by ``t.function(...)``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, TransformationNotKnown
from featurestore.model.json_object import JsonObject
from featurestore.model.row_functions import source_hash
from featurestore.transform.forms import Form
from featurestore.transform.ops import NumpyOps, Ops, Value
from featurestore.transform.rules.rule import Rule
from featurestore.transform.sample import Sample
from featurestore.transform.steps import Step

# The functions that this process has named, by the hash of their source.
_KNOWN: dict[str, Callable[..., Any]] = {}


class Function(Rule):
    """A function over a batch: numbers come as float64 with NaN, texts as str with None."""

    name = "function"
    in_graphs = False
    settles_missing = True
    fits = True

    def output(self, step: Step, given: Form) -> Form:
        if given.kind == "list":
            self.takes(given, "number")
        shape: tuple[int, ...] = ()
        if step.fitted is not None:
            shape = tuple(step.fitted["shape"])
        return Form("vector" if shape else "number", shape)

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        values = given_to_function(sample.value)
        fitted = None
        if step.fit is not None:
            there = ~np.array([value is None or value != value for value in values.tolist()])
            fitted = step.fit(values[there], sample.counts[there])
            try:
                fitted = json.loads(json.dumps(fitted, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"What fitted= of {step.options['name']} returned is no JSON: {error}.",
                    hint="return numbers, texts, lists and dicts of them",
                ) from error
        found = call(step, values, fitted)
        return {"value": fitted, "shape": list(found.shape[1:])}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        if not isinstance(ops, NumpyOps):
            raise InvalidArgument(
                f"{step.options['name']} is a Python function, which a graph cannot hold.",
                hint='dataset.preprocessor("numpy"), or reader.batches and reader.tf_dataset',
            )
        assert step.fitted is not None
        found = call(step, given_to_function(value), step.fitted["value"])
        if list(found.shape[1:]) != step.fitted["shape"]:
            raise InvalidArgument(
                f"{step.options['name']} returned the shape {found.shape[1:]} for a value; when it "
                f"was fitted it was {tuple(step.fitted['shape'])}."
            )
        return Value("vector" if found.ndim > 1 else "number", found)

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.text("source")
        options.text("name")
        options.flag("fitted")
        if fitted is not None:
            fitted.get("value")
            fitted.numbers("shape")

    def fitted_text(self, step: Step) -> str:
        assert step.fitted is not None
        if step.fitted["value"] is None:
            return f"source {step.options['source'][:12]}"
        return json.dumps(step.fitted["value"])[:40]


def named(function: Callable[..., Any], fit: Callable[..., Any] | None) -> Step:
    """Return the step of a function, and remember the function for what files say of it."""
    source = source_hash(function)
    _KNOWN[source] = function
    name = getattr(function, "__qualname__", type(function).__name__)
    options = {"name": name, "source": source, "fitted": fit is not None}
    return Step("function", options, function=function, fit=fit)


def resolved(step: Step) -> Step:
    """Return a step with its function, which goes where the step goes.

    Raises:
        TransformationNotKnown: This process has not named a function of this source.
    """
    if step.rule != "function" or step.function is not None:
        return step
    function = _KNOWN.get(step.options["source"])
    if function is None:
        raise TransformationNotKnown(
            f"The function {step.options['name']!r} with source {step.options['source'][:12]} is "
            "not known in this process; functions are not stored with a dataset.",
            hint="import the module that has it and call t.function(it) before reading",
        )
    return replace(step, function=function)


def call(step: Step, values: npt.NDArray[Any], fitted: Any) -> npt.NDArray[np.float64]:
    """Return what the function of a step makes of values."""
    function = resolved(step).function
    assert function is not None
    arguments: tuple[Any, ...] = (values,)
    if step.options["fitted"]:
        arguments = (values, fitted)
    found = np.asarray(function(*arguments))
    if found.dtype.kind not in "biuf" or not found.ndim or len(found) != len(values):
        raise InvalidArgument(
            f"{step.options['name']} returned {found.dtype} of shape {found.shape} for "
            f"{len(values)} rows.",
            hint="return one number, or one row of numbers, for each row",
        )
    return found.astype(np.float64)


def given_to_function(value: Value) -> npt.NDArray[Any]:
    """Return a column as functions take it."""
    if value.kind not in ("text", "binary", "other"):
        return NumpyOps().number(value)
    result = np.empty(len(value.data), dtype=object)
    for row, each in enumerate(value.data.tolist()):
        if value.present is None or value.present[row]:
            result[row] = each.decode() if value.kind == "text" else each
    return result
