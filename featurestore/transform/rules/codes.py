"""Rules that encode values by bins, vocabularies, hashes or one-hot vectors.

Code 0 is a missing value.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from featurestore.model.json_object import JsonMapping, JsonObject
from featurestore.model.statistics import MAX_TEXT_CHARACTERS, ColumnStatistics
from featurestore.readers.columns import Tensor
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.rule import (
    Rule,
    ValueSample,
    most_frequent,
    no_values_to_fit_error,
    quantile,
)
from featurestore.transform.steps import Form, Step, code_form

_SHOWN_VALUES = 3


class Bins(Rule):
    """Bins with fixed edges. Bin 1 is below the first edge; each bin includes its lower edge."""

    name = "bins"
    handles_missing = True

    def edges(self, step: Step) -> list[float]:
        """Return the ascending edges."""
        return list(map(float, step.options["edges"]))

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "number", "whole")
        return code_form(form, len(self.edges(step)) + 2)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        x = ops.number(value)
        bins = ops.count_up_to(self.edges(step), x) + 1
        return Value("code", ops.where(ops.isnan(x), ops.cast(0, "int64"), bins))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        check_ascending(options)


class QuantileBins(Bins):
    """Bins with approximately equal row counts."""

    name = "quantile_bins"
    fits = True

    def edges(self, step: Step) -> list[float]:
        if step.fitted is None:
            # Before the step is fitted, its output form depends only on the number of edges.
            return [0.0] * (step.options["bins"] - 1)
        return list(map(float, step.fitted["edges"]))

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        values, counts = sample.numbers()
        if not len(values):
            raise no_values_to_fit_error(step)
        bins = step.options["bins"]
        edges = {quantile(values, counts, number / bins) for number in range(1, bins)}
        return {"edges": sorted(edges)}

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("bins", minimum=2)
        if fitted is not None:
            check_ascending(fitted)

    def fitted_summary(self, step: Step) -> str:
        return f"edges {summarize_strings([f'{edge:.6g}' for edge in self.edges(step)])}"


class Vocabulary(Rule):
    """Vocabulary codes in descending frequency, which follow the codes of unknown values."""

    name = "vocabulary"
    handles_missing = True
    fits = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "text", "whole")
        return code_form(form, 1 + step.options["unknown"] + len(fitted_values(step)))

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        return {"values": most_frequent(sample.by_frequency(), step.options["max_size"])}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, form: Form
    ) -> JsonMapping | None:
        values = strings_by_frequency(step, column)
        if values is None:
            return None
        return {"values": values}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value("code", vocabulary_codes(ops, step, value))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        check_vocabulary(options, fitted)

    def fitted_summary(self, step: Step) -> str:
        return summarize_values(step)


class HashBucket(Rule):
    """Hash buckets, numbered from 1."""

    name = "hash_bucket"
    handles_missing = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "text", "whole")
        return code_form(form, step.options["buckets"] + 1)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value(
            "code", _zero_missing(ops, value, ops.bucket(value, step.options["buckets"]) + 1)
        )

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("buckets", minimum=1)


class OneHot(Rule):
    """One-hot vectors of known values or codes, which are zeros for missing and unknown values."""

    name = "one_hot"
    handles_missing = True
    fits = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "text", "whole", "code")
        size = len(fitted_values(step))
        if form.value_type == "code":
            assert form.size is not None
            size = form.size - 1
        return Form("vector", (*form.shape, size))

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        values = most_frequent(sample.by_frequency(), step.options["max_size"])
        return {"values": sorted(values), "size": len(values)}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, form: Form
    ) -> JsonMapping | None:
        if form.value_type == "code":
            return {"values": None, "size": (form.size or 1) - 1}
        values = strings_by_frequency(step, column)
        if values is None:
            return None
        return {"values": sorted(values), "size": len(values)}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        assert step.fitted is not None
        size = step.fitted["size"]
        if value.value_type == "code":
            # Code 0 becomes -1, which is encoded as zeros.
            return Value("vector", ops.one_hot(ops.cast(value.data, "int64") - 1, size))
        positions = ops.position(step.fitted["values"], value)
        if value.present is not None:
            # Missing values have the position -1, which is encoded as zeros.
            positions = _zero_missing(ops, value, positions + 1) - 1
        return Value("vector", ops.one_hot(positions, size))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        _check_max_size(options)
        if fitted is None:
            return
        size = fitted.number("size")
        if fitted.get("values") is not None and len(_check_values(fitted)) != size:
            raise fitted.wrong_type_error("size", "the number of values")

    def fitted_summary(self, step: Step) -> str:
        assert step.fitted is not None
        if step.fitted["values"] is None:
            return f"{step.fitted['size']} codes"
        return summarize_values(step)


def fitted_values(step: Step) -> list[Any]:
    """Return the fitted values of a step, or [] before fitting."""
    if step.fitted is None or step.fitted["values"] is None:
        return []
    return list(step.fitted["values"])


def vocabulary_codes(ops: Ops, step: Step, value: Value) -> Any:
    """Encode values by the vocabulary of a step."""
    unknown = step.options["unknown"]
    positions = ops.position(fitted_values(step), value)
    unknown_codes: Any = ops.cast(min(unknown, 1), "int64")
    if unknown > 1:
        unknown_codes = ops.bucket(value, unknown) + 1
    codes = ops.where(positions >= 0, positions + (1 + unknown), unknown_codes)
    return _zero_missing(ops, value, codes)


def _zero_missing(ops: Ops, value: Value, codes: Tensor) -> Any:
    """Replace the codes of missing values by 0."""
    if value.present is None:
        return codes
    present = value.present
    for _ in range(len(codes.shape) - len(present.shape)):
        present = present[..., None]
    return ops.where(present, codes, ops.cast(0, "int64"))


def strings_by_frequency(step: Step, column: ColumnStatistics | None) -> list[Any] | None:
    """Return the strings of a column by frequency, or None if its statistics are incomplete."""
    if column is None:
        return None
    is_complete = column.top_complete and column.distinct_exact and column.sampled == column.count
    if column.kind != "text" or not is_complete:
        return None
    # Statistics store the beginning of longer strings, which would encode them as unknown.
    if column.lengths is not None and column.lengths.maximum > MAX_TEXT_CHARACTERS:
        return None
    pairs = [(str(top_value.value).encode(), top_value.count) for top_value in column.top]
    # The listed values must account for all values, so that the vocabulary is complete.
    if sum(count for _, count in pairs) != column.count:
        return None
    pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    return most_frequent(pairs, step.options["max_size"])


def summarize_strings(strings: list[str]) -> str:
    """Join the first strings, and append the total count if some are omitted."""
    summary = ", ".join(strings[:_SHOWN_VALUES])
    if len(strings) > _SHOWN_VALUES:
        summary += f", ... ({len(strings)})"
    return summary


def summarize_values(step: Step) -> str:
    """Summarize the fitted values of a step."""
    return summarize_strings(list(map(repr, fitted_values(step))))


def check_ascending(data: JsonObject, name: str = "edges") -> None:
    """Check that a JSON property is a list of ascending numbers."""
    numbers = data.array(name)
    for number in numbers:
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise data.wrong_type_error(name, "numbers")
    if any(not low < high for low, high in pairwise(numbers)):
        raise data.wrong_type_error(name, "ascending")


def check_vocabulary(options: JsonObject, fitted: JsonObject | None) -> None:
    """Check the stored options and fitted values of a vocabulary."""
    options.number("unknown")
    _check_max_size(options)
    if fitted is not None:
        _check_values(fitted)


def _check_max_size(options: JsonObject) -> None:
    if options.get("max_size") is not None:
        options.number("max_size", minimum=1)


def _check_values(fitted: JsonObject) -> list[Any]:
    """Check that fitted values are distinct strings or integers, and return them."""
    values = fitted.array("values")
    kinds = {type(value) for value in values}
    if not (kinds <= {str} or kinds <= {int}) or len(set(values)) != len(values):
        raise fitted.wrong_type_error("values", "distinct strings or integers")
    return values


class TextTokens(Rule):
    """Vocabulary codes of the first words of a string, padded with 0."""

    name = "text_tokens"
    handles_missing = True
    fits = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "text")
        size = 1 + step.options["unknown"] + len(fitted_values(step))
        return Form("code", (*form.shape, step.options["length"]), "int32", size)

    def fit(self, step: Step, sample: ValueSample, form: Form) -> JsonMapping:
        from featurestore.transform.ops import NumpyOps

        words = self._words(NumpyOps(), step, sample.value)
        word_counts = ValueSample(words, sample.counts).by_frequency()
        return {"values": most_frequent(word_counts, step.options["max_size"])}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value("code", vocabulary_codes(ops, step, self._words(ops, step, value)))

    def _words(self, ops: Ops, step: Step, value: Value) -> Value:
        return ops.words(value, lower=step.options["lower"], length=step.options["length"])

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("length", minimum=1)
        options.flag("lower")
        check_vocabulary(options, fitted)

    def fitted_summary(self, step: Step) -> str:
        return summarize_values(step)
