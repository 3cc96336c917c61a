"""Validation, serialization and fitting of requested chains.

The steps of a chain are fitted in order. Each step is fitted on statistics if these suffice, else
on the distinct values of the column and their counts. Counts may be merged in any order. A state
stores each distinct value once, which takes about 20 bytes for a number and more for a string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import (
    FeatureNotFound,
    FeatureViewDamaged,
    InvalidArgument,
    did_you_mean,
    listing,
)
from featurestore.model.json_object import JsonDict, JsonMapping, JsonObject, MalformedJson
from featurestore.model.statistics import ColumnStatistics
from featurestore.plugins.engine import Accumulator
from featurestore.readers.columns import NumpyArray
from featurestore.transform.apply import to_value
from featurestore.transform.ops import NumpyOps, Value
from featurestore.transform.rules import RULES
from featurestore.transform.rules.rule import ValueSample
from featurestore.transform.steps import Chain, Form, Step, form_of

# Pending tables are merged once they have more values than this and than the merged table.
_PENDING = 1_000_000
ChainsJson = Mapping[str, Sequence[JsonMapping]]
_OPS = NumpyOps()


@dataclass(frozen=True)
class ColumnChain:
    """A column and its chain before fitting. ``FittedColumn`` describes ``narrow``."""

    name: str
    chain: Chain
    form: Form
    type: pa.DataType
    narrow: bool = False


def check_chains(chains: object, schema: pa.Schema) -> tuple[ColumnChain, ...]:
    """Check the ``transformations=`` argument against a schema and return its columns and chains.

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
        dtype = schema.field(name).type
        columns.append(ColumnChain(name, chain, form_of(dtype), dtype))
        output_form(columns[-1].form, chain, name=name)
    return tuple(columns)


def output_form(input_form: Form, chain: Chain, *, name: str) -> Form:
    """Return the output form of a chain; the error for an unsupported input names the column."""
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
    """Fit a chain on statistics only; return None if it needs the column values."""
    steps: list[Step] = []
    form = column.form
    for index, step in enumerate(column.chain.steps):
        rule = RULES[step.rule]
        if rule.fits:
            first_statistics = None
            if index == 0 and not column.form.shape:
                # Statistics describe the stored values, so only the first step can use them. They
                # do not describe the items of lists.
                first_statistics = statistics
            fitted_values = rule.from_statistics(step, first_statistics, form)
            if fitted_values is None:
                return None
            step = step.with_fitted(fitted_values)
        steps.append(step)
        form = rule.output(step, form)
    return Chain(tuple(steps))


def fit_on_sample(
    column: ColumnChain, sample: ValueSample, statistics: ColumnStatistics | None
) -> Chain:
    """Fit a chain on the distinct values of a split.

    Whether a sample exists depends on the chains of other columns. Exact statistics take
    precedence where they exist, so that other columns do not change the result.
    """
    steps: list[Step] = []
    form = column.form.of_items()
    for index, step in enumerate(column.chain.steps):
        rule = RULES[step.rule]
        if rule.for_lists:
            # A sample of a list column contains the items of all lists.
            form = rule.output(step, form).of_items()
            steps.append(step)
            continue
        if rule.fits:
            first_statistics = statistics if index == 0 and not column.form.shape else None
            fitted_values = rule.from_statistics(step, first_statistics, form)
            if fitted_values is None:
                try:
                    fitted_values = rule.fit(step, sample, form)
                except InvalidArgument as error:
                    message = f"Column {column.name!r}: {error.message}"
                    raise InvalidArgument(message, hint=error.hint) from error
            step = step.with_fitted(fitted_values)
        steps.append(step)
        form = rule.output(step, form)
        with np.errstate(all="ignore"):
            value = rule.apply(_OPS, step, sample.value)
        # The next step is fitted on the output of this step. Equal outputs of different values are
        # not merged, because their counts add up to the same result.
        sample = ValueSample(value, sample.counts)
    return Chain(tuple(steps))


def chains_to_json(chains: Mapping[str, Chain], schema: pa.Schema) -> dict[str, list[JsonDict]]:
    """Convert chains to JSON after checking them against the types of known columns.

    Chains of label columns are checked when a dataset is created.
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
                    "cannot store.",
                    hint="view.create_training_dataset(..., transformations={...})",
                )
        payload[name] = [step.to_json() for step in chain.steps]
    return payload


def chains_from_json(payload: ChainsJson, *, view: str) -> dict[str, Chain]:
    """Parse the chains of a feature view.

    Raises:
        FeatureViewDamaged: The JSON is not valid in this release.
    """
    chains = {}
    for name, steps in payload.items():
        try:
            chains[name] = Chain(
                tuple(parse_step(JsonObject.from_value(step, name)) for step in steps)
            )
        except MalformedJson as error:
            raise FeatureViewDamaged(
                f"The transformations of feature view {view!r} are not supported by this release: "
                f"{error}.",
                hint="view.create_training_dataset(..., transformations={...})",
            ) from error
    return chains


def parse_step(data: JsonObject, *, is_fitted: bool = False) -> Step:
    """Parse a step before or after fitting; its rule checks the options and fitted values."""
    rule = RULES.get(data.text("rule"))
    if rule is None:
        raise data.wrong_type_error("rule", "a rule of this release")
    options, fitted = data.object("options"), None
    if is_fitted and rule.fits:
        fitted = data.object("fitted")
    rule.check(options, fitted)
    return Step(rule.name, options.data, None if fitted is None else fitted.data)


@dataclass
class ColumnState:
    """The value counts of a column: tables of (value, n), and the number of missing values."""

    tables: list[pa.Table] = field(default_factory=list)
    pending: int = 0
    missing: int = 0

    def add(self, values: pa.Array) -> None:
        """Count an array of values, including missing values."""
        present = values.drop_null()
        self.missing += len(values) - len(present)
        value_counts = pc.value_counts(present)
        distinct, counts = value_counts.field(0), value_counts.field(1)
        self._append(pa.table({"value": distinct, "n": counts.cast(pa.int64())}))

    def merge(self, state: ColumnState) -> None:
        """Add the counts of another state."""
        self.missing += state.missing
        for table in state.tables:
            self._append(table)

    def merge_tables(self) -> pa.Table | None:
        """Merge the tables into one with distinct values and return it, or None without values."""
        if len(self.tables) > 1:
            joined = pa.concat_tables(self.tables)
            summed = joined.group_by("value").aggregate([("n", "sum")])
            table = summed.select(["value", "n_sum"]).rename_columns(["value", "n"])
            self.tables = [table.combine_chunks()]
        self.pending = 0
        return next(iter(self.tables), None)

    def _append(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.pending += len(table)
        if len(self.tables) > 1 and self.pending > max(_PENDING, len(self.tables[0])):
            self.merge_tables()


CountStates = dict[str, ColumnState]


@dataclass(frozen=True)
class ValueCounts(Accumulator[CountStates, CountStates]):
    """An accumulator that counts the distinct values of columns."""

    columns: tuple[str, ...]

    def start(self) -> CountStates:
        """Return the empty state."""
        return {name: ColumnState() for name in self.columns}

    def update(self, state: CountStates, batch: pa.RecordBatch) -> CountStates:
        """Count the values of a batch."""
        for name, column in state.items():
            column.add(to_countable_values(batch.column(name)))
        return state

    def merge(self, state: CountStates, other_state: CountStates) -> CountStates:
        """Merge two states."""
        for name, column in other_state.items():
            state[name].merge(column)
        return state

    def finish(self, state: CountStates) -> CountStates:
        """Return the state with merged tables."""
        for column in state.values():
            column.merge_tables()
        return state


def to_countable_values(column: pa.Array) -> pa.Array:
    """Convert a column to a type for counting: int64, float64 or bytes.

    NaN becomes null, -0.0 becomes 0.0, and lists are flattened.
    """
    while (
        pat.is_fixed_size_list(column.type)
        or pat.is_list(column.type)
        or pat.is_large_list(column.type)
    ):
        column = column.flatten()
    form = form_of(column.type)
    if form.value_type in ("text", "binary"):
        # The strings of a split may exceed the 2 GiB that 32-bit offsets can address.
        return column.cast(pa.large_binary())
    if form.value_type == "other":
        return column
    value = to_value(column, name="")
    if form.value_type == "whole":
        absent = None if value.present is None else ~value.present
        return pa.array(value.data.astype(np.int64), mask=absent)
    numbers = value.data.astype(np.float64) + 0.0
    return pa.array(numbers, mask=np.isnan(numbers))


def to_sample(state: ColumnState, form: Form, *, narrow: bool) -> ValueSample:
    """Convert the value counts of a column to a sample."""
    if form.item is not None:
        form = Form(form.item)
    table = state.merge_tables()
    values: Sequence[Any] = ()
    counts = np.zeros(0, dtype=np.int64)
    if table is not None:
        # Sorted values make floating-point sums independent of the order in which states were
        # merged.
        table = table.take(pc.sort_indices(table, sort_keys=[("value", "ascending")]))
        values = table.column("value").to_numpy()
        counts = table.column("n").to_numpy()
    data, present = _append_missing_value(np.asarray(values), form, missing=state.missing)
    # Readers return the float32 values of the files, so the chain is fitted on them.
    if narrow and form.value_type == "number":
        with np.errstate(over="ignore"):
            data = data.astype(np.float32).astype(np.float64)
    if state.missing:
        counts = np.append(counts, state.missing)
    value_type = form.value_type
    return ValueSample(Value(value_type, data, present), counts.astype(np.int64))


def _append_missing_value(values: Any, form: Form, *, missing: int) -> tuple[Any, Any | None]:
    """Append a missing value if any row has one; return the values and their mask."""
    dtypes: dict[str, type] = {"number": np.float64, "whole": np.int64}
    data: NumpyArray = np.asarray(values, dtype=dtypes.get(form.value_type, object))
    if not missing:
        return data, None
    zeros: dict[str, float] = {"number": np.nan, "whole": 0}
    absent = np.array([zeros.get(form.value_type, b"")], dtype=data.dtype)
    data = np.concatenate([data, absent])
    if form.value_type == "number":
        return data, None
    return data, np.arange(len(data)) < len(data) - 1
