"""The rule that makes the codes of words of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featurestore.model.json_object import JsonObject
from featurestore.transform.forms import Form, code_form
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.codes import (
    check_vocabulary,
    codes_of,
    known_values,
    values_text,
)
from featurestore.transform.rules.rule import Rule
from featurestore.transform.sample import Sample, most
from featurestore.transform.steps import Step


class TextTokens(Rule):
    """The codes of the first words of a text, 0 behind the last one."""

    name = "text_tokens"
    settles_missing = True
    fits = True

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "text")
        size = 1 + step.options["unknown"] + len(known_values(step))
        return code_form(given, size).with_shape(step.options["length"])

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        from featurestore.transform.ops import NumpyOps

        words = self._words(NumpyOps(), step, sample.value)
        counted = Sample(words, sample.counts).by_frequency()
        return {"values": most(counted, step.options["max_size"])}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value("code", codes_of(ops, step, self._words(ops, step, value)))

    def _words(self, ops: Ops, step: Step, value: Value) -> Value:
        return ops.words(value, lower=step.options["lower"], length=step.options["length"])

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("length", least=1)
        options.flag("lower")
        check_vocabulary(options, fitted)

    def fitted_text(self, step: Step) -> str:
        return values_text(step)
