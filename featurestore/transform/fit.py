"""Fitting: what chains ask for is checked, and their steps are fitted one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.errors import FeatureNotFound, InvalidArgument, did_you_mean, listing
from featurestore.model.statistics import ColumnStatistics
from featurestore.transform.forms import Form, form_of
from featurestore.transform.ops import NumpyOps
from featurestore.transform.rules import RULES
from featurestore.transform.sample import Sample
from featurestore.transform.steps import Chain, Step

_OPS = NumpyOps()


@dataclass(frozen=True)
class AskedColumn:
    """A column and the chain that was asked for; ``narrow`` as of ``FittedColumn``."""

    name: str
    chain: Chain
    form: Form
    type: pa.DataType
    narrow: bool = False


def check_asked(asked: object, schema: pa.Schema) -> tuple[AskedColumn, ...]:
    """Return what ``transformations=`` asks for, checked against the columns there are.

    Raises:
        InvalidArgument: It is no ``{column: chain}``, or a chain cannot take its column.
        FeatureNotFound: There is no such column.
    """
    if not isinstance(asked, Mapping):
        raise InvalidArgument(
            f"transformations={type(asked).__name__} is no mapping.",
            hint='transformations={"temp": t.standardize()}',
        )
    columns = []
    for name, chain in asked.items():
        if name not in schema.names:
            raise FeatureNotFound(
                f"transformations names {name!r}; the columns are "
                f"{listing(schema.names, limit=50)}.",
                hint=did_you_mean(name, schema.names, write="{!r}"),
            )
        if not isinstance(chain, Chain):
            raise InvalidArgument(
                f"transformations[{name!r}] is {chain!r}, no transformation.",
                hint="from featurestore import transform as t; t.standardize()",
            )
        kind = schema.field(name).type
        columns.append(AskedColumn(name, chain, form_of(kind), kind))
        output_of(columns[-1].form, chain, name=name)
    return tuple(columns)


def output_of(given: Form, chain: Chain, *, name: str) -> Form:
    """Return the form of a chain's result; InvalidArgument names the column."""
    form = given
    for step in chain.steps:
        try:
            form = RULES[step.rule].output(step, form)
        except InvalidArgument as error:
            raise InvalidArgument(f"Column {name!r}: {error.message}", hint=error.hint) from error
    if not form.dtype:
        raise InvalidArgument(
            f"Column {name!r}: {chain} ends with texts, which no model takes.",
            hint=f"{chain} | t.vocabulary()",
        )
    return form


def fit_without_rows(column: AskedColumn, statistics: ColumnStatistics | None) -> Chain | None:
    """Return the fitted chain where statistics tell all that it needs; None: values are needed."""
    fitted: list[Step] = []
    form = column.form
    for index, step in enumerate(column.chain.steps):
        rule = RULES[step.rule]
        if rule.fits:
            known = None
            if index == 0 and not column.form.shape:
                known = statistics
            found = rule.from_statistics(step, known, form)
            if found is None:
                return None
            step = replace(step, fitted=found)
        fitted.append(step)
        form = rule.output(step, form)
    return Chain(tuple(fitted))


def fit_on_sample(
    column: AskedColumn, sample: Sample, statistics: ColumnStatistics | None
) -> Chain:
    """Return the chain fitted on the different values of a split.

    What statistics tell exactly is taken of them, so that it does not matter what other columns
    needed.
    """
    fitted: list[Step] = []
    form = replace(column.form, shape=())
    for index, step in enumerate(column.chain.steps):
        rule = RULES[step.rule]
        if rule.of_lists:
            # The values of a sample are the items of all lists.
            form = replace(rule.output(step, form), shape=())
            fitted.append(step)
            continue
        if rule.fits:
            known = statistics if index == 0 and not column.form.shape else None
            found = rule.from_statistics(step, known, form)
            if found is None:
                found = _found(column.name, step, sample, form)
            step = replace(step, fitted=found)
        fitted.append(step)
        form = rule.output(step, form)
        with np.errstate(all="ignore"):
            value = rule.apply(_OPS, step, sample.value)
        sample = Sample(value, sample.counts)
    return Chain(tuple(fitted))


def _found(name: str, step: Step, sample: Sample, form: Form) -> Mapping[str, Any]:
    try:
        return RULES[step.rule].fit(step, sample, form)
    except InvalidArgument as error:
        raise InvalidArgument(f"Column {name!r}: {error.message}", hint=error.hint) from error
