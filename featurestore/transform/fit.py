"""Requested chains: their JSON, their checks, and the fitting of their steps in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.errors import (
    FeatureNotFound,
    FeatureViewDamaged,
    InvalidArgument,
    did_you_mean,
    listing,
)
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.statistics import ColumnStatistics
from featurestore.transform.forms import Form, form_of
from featurestore.transform.ops import NumpyOps
from featurestore.transform.rules import RULES
from featurestore.transform.sample import Sample
from featurestore.transform.steps import Chain, Step

ChainsJson = Mapping[str, Sequence[Mapping[str, Any]]]


_OPS = NumpyOps()


def chains_to_json(
    chains: Mapping[str, Chain], schema: pa.Schema
) -> dict[str, list[dict[str, Any]]]:
    """Return chains as JSON after checking those of known columns against their types.

    Columns of the labels are checked when a dataset is created.
    """
    if not isinstance(chains, Mapping):
        check_chains(chains, schema)
    payload = {}
    for name, chain in chains.items():
        if name in schema.names or not isinstance(chain, Chain):
            check_chains({name: chain}, schema)
        for step in chain.steps:
            if step.fit is not None:
                raise InvalidArgument(
                    f"The chain of {name!r} has fitted=, a Python function that a feature view "
                    "does not store.",
                    hint="view.create_training_dataset(..., transformations={...})",
                )
        payload[name] = [step.to_json() for step in chain.steps]
    return payload


def chains_from_json(payload: ChainsJson, *, view: str) -> dict[str, Chain]:
    """Return the chains of a feature view.

    Raises:
        FeatureViewDamaged: The JSON is not valid in this release.
    """
    chains = {}
    for name, steps in payload.items():
        try:
            chains[name] = Chain(tuple(_step(JsonObject.from_value(step, name)) for step in steps))
        except MalformedJson as error:
            raise FeatureViewDamaged(
                f"The transformations of feature view {view!r} are not supported by this release: "
                f"{error}.",
                hint="view.create_training_dataset(..., transformations={...})",
            ) from error
    return chains


def _step(data: JsonObject) -> Step:
    rule = RULES.get(data.text("rule"))
    if rule is None:
        raise data.wrong("rule", "a rule that this release knows")
    options = data.object("options")
    rule.check(options, None)
    return Step(rule.name, options.data)


@dataclass(frozen=True)
class ColumnChain:
    """A column and its chain before fitting; ``narrow`` as in ``FittedColumn``."""

    name: str
    chain: Chain
    form: Form
    type: pa.DataType
    narrow: bool = False


def check_chains(chains: object, schema: pa.Schema) -> tuple[ColumnChain, ...]:
    """Return the columns and chains of ``transformations=`` after checking them against a schema.

    Raises:
        InvalidArgument: The argument is not ``{column: chain}``, or a chain does not support the
            type of its column.
        FeatureNotFound: A column does not exist.
    """
    if not isinstance(chains, Mapping):
        raise InvalidArgument(
            f"transformations={type(chains).__name__} is not a mapping.",
            hint='transformations={"temp": t.standardize()}',
        )
    columns = []
    for name, chain in chains.items():
        if name not in schema.names:
            raise FeatureNotFound(
                f"Unknown column {name!r} in transformations=. Available: "
                f"{listing(schema.names, limit=50)}.",
                hint=did_you_mean(name, schema.names, write="{!r}"),
            )
        if not isinstance(chain, Chain):
            raise InvalidArgument(
                f"transformations[{name!r}] is {chain!r}, which is not a transformation.",
                hint="from featurestore import transform as t; t.standardize()",
            )
        kind = schema.field(name).type
        columns.append(ColumnChain(name, chain, form_of(kind), kind))
        output_form(columns[-1].form, chain, name=name)
    return tuple(columns)


def output_form(input_form: Form, chain: Chain, *, name: str) -> Form:
    """Return the form of a chain's result; InvalidArgument names the column."""
    form = input_form
    for step in chain.steps:
        try:
            form = RULES[step.rule].output(step, form)
        except InvalidArgument as error:
            raise InvalidArgument(f"Column {name!r}: {error.message}", hint=error.hint) from error
    if not form.dtype:
        raise InvalidArgument(
            f"Column {name!r}: {chain} ends with strings, which models do not accept.",
            hint=f"{chain} | t.vocabulary()",
        )
    return form


def fit_without_rows(column: ColumnChain, statistics: ColumnStatistics | None) -> Chain | None:
    """Fit a chain on statistics only; return None if it needs the values."""
    steps: list[Step] = []
    form = column.form
    for index, step in enumerate(column.chain.steps):
        rule = RULES[step.rule]
        if rule.fits:
            first_statistics = None
            if index == 0 and not column.form.shape:
                first_statistics = statistics
            fitted_values = rule.from_statistics(step, first_statistics, form)
            if fitted_values is None:
                return None
            step = replace(step, fitted=fitted_values)
        steps.append(step)
        form = rule.output(step, form)
    return Chain(tuple(steps))


def fit_on_sample(
    column: ColumnChain, sample: Sample, statistics: ColumnStatistics | None
) -> Chain:
    """Return the chain fitted on the distinct values of a split.

    Exact statistics take precedence over the sample, so that the chains of other columns, which
    decide if a sample is needed, cannot change the result.
    """
    steps: list[Step] = []
    form = replace(column.form, shape=())
    for index, step in enumerate(column.chain.steps):
        rule = RULES[step.rule]
        if rule.for_lists:
            # The values of a sample are the items of all lists.
            form = replace(rule.output(step, form), shape=())
            steps.append(step)
            continue
        if rule.fits:
            first_statistics = statistics if index == 0 and not column.form.shape else None
            fitted_values = rule.from_statistics(step, first_statistics, form)
            if fitted_values is None:
                fitted_values = _fit_step(column.name, step, sample, form)
            step = replace(step, fitted=fitted_values)
        steps.append(step)
        form = rule.output(step, form)
        with np.errstate(all="ignore"):
            value = rule.apply(_OPS, step, sample.value)
        sample = Sample(value, sample.counts)
    return Chain(tuple(steps))


def _fit_step(name: str, step: Step, sample: Sample, form: Form) -> Mapping[str, Any]:
    try:
        return RULES[step.rule].fit(step, sample, form)
    except InvalidArgument as error:
        raise InvalidArgument(f"Column {name!r}: {error.message}", hint=error.hint) from error
