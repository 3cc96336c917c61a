"""Rules that make codes of values: bins, vocabularies, hashes, one-hot. Code 0 is a missing value."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from featurestore.model.json_object import JsonObject
from featurestore.model.statistics import ColumnStatistics
from featurestore.transform.forms import Form, code_form
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.rule import Rule, nothing_to_fit
from featurestore.transform.sample import Sample, most, quantile
from featurestore.transform.steps import Step

_SHOWN = 3


class Bins(Rule):
    """The number of a bin: 1 below the first edge; a value on an edge is above it."""

    name = "bins"
    settles_missing = True

    def edges(self, step: Step) -> list[float]:
        """Return the ascending edges."""
        return list(map(float, step.options["edges"]))

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "number", "whole")
        return code_form(given, len(self.edges(step)) + 2)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        x = ops.number(value)
        bins = ops.count_up_to(self.edges(step), x) + 1
        return Value("code", ops.where(ops.isnan(x), ops.cast(0, "int64"), bins))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        check_ascending(options)


class QuantileBins(Bins):
    """Bins that hold about as many rows each."""

    name = "quantile_bins"
    fits = True

    def edges(self, step: Step) -> list[float]:
        if step.fitted is None:
            return [0.0] * (step.options["bins"] - 1)
        return list(map(float, step.fitted["edges"]))

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        values, counts = sample.numbers()
        if not len(values):
            raise nothing_to_fit(step)
        bins, edges = step.options["bins"], set()
        for number in range(1, bins):
            edges.add(quantile(values, counts, number / bins))
        return {"edges": sorted(edges)}

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("bins", least=2)
        if fitted is not None:
            check_ascending(fitted)

    def fitted_text(self, step: Step) -> str:
        return f"edges {shown([f'{edge:.6g}' for edge in self.edges(step)])}"


class Vocabulary(Rule):
    """Known values have codes by their frequency, unknown ones those before them."""

    name = "vocabulary"
    settles_missing = True
    fits = True

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "text", "whole")
        return code_form(given, 1 + step.options["unknown"] + len(known_values(step)))

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        return {"values": most(sample.by_frequency(), step.options["max_size"])}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, given: Form
    ) -> Mapping[str, Any] | None:
        values = counted_texts(step, column)
        if values is None:
            return None
        return {"values": values}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value("code", codes_of(ops, step, value))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        check_vocabulary(options, fitted)

    def fitted_text(self, step: Step) -> str:
        return values_text(step)


class HashBucket(Rule):
    """The bucket of a value's hash, from 1."""

    name = "hash_bucket"
    settles_missing = True

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "text", "whole")
        return code_form(given, step.options["buckets"] + 1)

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        return Value("code", _present(ops, value, ops.bucket(value, step.options["buckets"]) + 1))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("buckets", least=1)


class OneHot(Rule):
    """1 at the position of a known value or code; a missing or unknown one is nowhere."""

    name = "one_hot"
    settles_missing = True
    fits = True

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "text", "whole", "code")
        size = len(known_values(step))
        if given.kind == "code":
            assert given.size is not None
            size = given.size - 1
        return Form("vector", (*given.shape, size))

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        found = most(sample.by_frequency(), step.options["max_size"])
        return {"values": sorted(found), "size": len(found)}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, given: Form
    ) -> Mapping[str, Any] | None:
        if given.kind == "code":
            return {"values": None, "size": (given.size or 1) - 1}
        values = counted_texts(step, column)
        if values is None:
            return None
        return {"values": sorted(values), "size": len(values)}

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        assert step.fitted is not None
        size = step.fitted["size"]
        if value.kind == "code":
            return Value("vector", ops.hot(ops.cast(value.data, "int64") - 1, size))
        positions = ops.position(step.fitted["values"], value)
        if value.present is not None:
            positions = _present(ops, value, positions + 1) - 1
        return Value("vector", ops.hot(positions, size))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        _check_most(options)
        if fitted is None:
            return
        size = fitted.number("size")
        if fitted.get("values") is not None and len(_check_values(fitted)) != size:
            raise fitted.wrong("size", "the number of values")

    def fitted_text(self, step: Step) -> str:
        assert step.fitted is not None
        if step.fitted["values"] is None:
            return f"{step.fitted['size']} codes"
        return values_text(step)


def known_values(step: Step) -> list[Any]:
    """Return the fitted values of a step, none before it is fitted."""
    if step.fitted is None or step.fitted["values"] is None:
        return []
    return list(step.fitted["values"])


def codes_of(ops: Ops, step: Step, value: Value) -> Any:
    """Return the codes of a vocabulary."""
    unknown = step.options["unknown"]
    positions = ops.position(known_values(step), value)
    others: Any = ops.cast(min(unknown, 1), "int64")
    if unknown > 1:
        others = ops.bucket(value, unknown) + 1
    codes = ops.where(positions >= 0, positions + (1 + unknown), others)
    return _present(ops, value, codes)


def _present(ops: Ops, value: Value, codes: Any) -> Any:
    """Return codes with 0 where values are missing."""
    if value.present is None:
        return codes
    present = value.present
    for _ in range(len(codes.shape) - len(present.shape)):
        present = present[..., None]
    return ops.where(present, codes, ops.cast(0, "int64"))


def counted_texts(step: Step, column: ColumnStatistics | None) -> list[Any] | None:
    """Return the texts of a column by frequency where its statistics hold all of them."""
    if column is None:
        return None
    whole = column.top_complete and column.distinct_exact and column.sampled == column.count
    if column.kind != "text" or not whole:
        return None
    pairs = [(str(each.value).encode(), each.count) for each in column.top]
    if sum(count for _, count in pairs) != column.count:
        return None
    pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    return most(pairs, step.options["max_size"])


def shown(texts: list[str]) -> str:
    """Return the first of some texts."""
    text = ", ".join(texts[:_SHOWN])
    if len(texts) > _SHOWN:
        text += f", ... {len(texts)} in all"
    return text


def values_text(step: Step) -> str:
    """Return the first of the fitted values."""
    return shown(list(map(repr, known_values(step))))


def check_ascending(data: JsonObject, name: str = "edges") -> None:
    """Check a list of ascending numbers."""
    numbers = data.array(name)
    for number in numbers:
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise data.wrong(name, "numbers")
    if any(not low < high for low, high in pairwise(numbers)):
        raise data.wrong(name, "ascending")


def check_vocabulary(options: JsonObject, fitted: JsonObject | None) -> None:
    """Check what a file says of a vocabulary."""
    options.number("unknown")
    _check_most(options)
    if fitted is not None:
        _check_values(fitted)


def _check_most(options: JsonObject) -> None:
    if options.get("max_size") is not None:
        options.number("max_size", least=1)


def _check_values(fitted: JsonObject) -> list[Any]:
    """Return a list of different texts, or of different whole numbers."""
    values = fitted.array("values")
    kinds = {type(value) for value in values}
    if not (kinds <= {str} or kinds <= {int}) or len(set(values)) != len(values):
        raise fitted.wrong("values", "different texts or whole numbers")
    return values
