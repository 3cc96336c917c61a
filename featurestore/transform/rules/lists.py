"""The rule that pads variable-length lists to one length."""

from __future__ import annotations

import math

from featurestore.model.json_object import JsonObject
from featurestore.transform.forms import Form
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.rule import Rule
from featurestore.transform.steps import Step

KEEP = ("first", "last")
_DTYPES = {"number": "float32", "whole": "int64", "text": ""}


class Pad(Rule):
    """The first or last items of each list, padded at the end.

    Padding is 0 for numbers, and a missing value for integers and strings, which has code 0.
    """

    name = "pad"
    for_lists = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "list")
        assert form.item is not None
        return Form(form.item, (step.options["length"],), _DTYPES[form.item])

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        length, keep = step.options["length"], step.options["keep"]
        kind, rows, is_item = ops.pad_lists(value.data, length, last=keep == "last")
        present = value.present
        if kind != "number":
            if present is not None:
                is_item = is_item & present[..., None]
            return Value(kind, rows, is_item)
        if present is not None:
            rows = ops.where(present[..., None], rows, math.nan)
        return Value("number", rows)

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("length", minimum=1)
        if options.text("keep") not in KEEP:
            raise options.wrong("keep", "'first' or 'last'")
