"""The rule that encodes the words of a string."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featurestore.model.json_object import JsonObject
from featurestore.transform.forms import Form, code_form
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.codes import (
    check_vocabulary,
    known_values,
    values_text,
    vocabulary_codes,
)
from featurestore.transform.rules.rule import Rule
from featurestore.transform.sample import Sample, most_frequent
from featurestore.transform.steps import Step


class TextTokens(Rule):
    """The codes of the first words of a string, padded with 0."""

    name = "text_tokens"
    handles_missing = True
    fits = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "text")
        size = 1 + step.options["unknown"] + len(known_values(step))
        return code_form(form, size).with_shape(step.options["length"])

    def fit(self, step: Step, sample: Sample, form: Form) -> Mapping[str, Any]:
        from featurestore.transform.ops import NumpyOps

        words = self._words(NumpyOps(), step, sample.value)
        word_counts = Sample(words, sample.counts).by_frequency()
        return {"values": most_frequent(word_counts, step.options["max_size"])}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value("code", vocabulary_codes(ops, step, self._words(ops, step, value)))

    def _words(self, ops: Ops, step: Step, value: Value) -> Value:
        return ops.words(value, lower=step.options["lower"], length=step.options["length"])

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("length", minimum=1)
        options.flag("lower")
        check_vocabulary(options, fitted)

    def fitted_text(self, step: Step) -> str:
        return values_text(step)
