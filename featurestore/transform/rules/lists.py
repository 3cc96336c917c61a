"""The rule that gives lists of varying length one length."""

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
    """As many items of each list: the first or the last ones, filled up behind them.

    What fills up is 0 among numbers, and a missing value among whole numbers and texts, which is 0
    in every code.
    """

    name = "pad"
    of_lists = True

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "list")
        assert given.item is not None
        return Form(given.item, (step.options["length"],), _DTYPES[given.item])

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        length, keep = step.options["length"], step.options["keep"]
        kind, rows, there = ops.place(value.data, length, last=keep == "last")
        present = value.present
        if kind != "number":
            if present is not None:
                there = there & present[..., None]
            return Value(kind, rows, there)
        if present is not None:
            rows = ops.where(present[..., None], rows, math.nan)
        return Value("number", rows)

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("length", least=1)
        if options.text("keep") not in KEEP:
            raise options.wrong("keep", "'first' or 'last'")
