"""Transformations: fitted chains of a training dataset's columns, applied to batches.

Their file is sealed JSON beside the manifest, named by its own hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import DatasetDamaged, FeatureNotFound, InvalidArgument, listing
from featurestore.model import html
from featurestore.model.arrow_json import type_from_json
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.sealed import sealed, unsealed
from featurestore.transform.apply import apply_chain
from featurestore.transform.fit import output_of
from featurestore.transform.forms import Form, arrow_type, form_of
from featurestore.transform.ops import NumpyOps
from featurestore.transform.rules import RULES
from featurestore.transform.rules.functions import resolved
from featurestore.transform.steps import Chain, Step

if TYPE_CHECKING:
    import pyarrow as pa

TRANSFORMATIONS = "_transformations"
TRANSFORMATIONS_FORMAT = 1
_OPS = NumpyOps()


@dataclass(frozen=True)
class FittedColumn:
    """A column and its fitted chain.

    ``type`` is the column's feature type as JSON. ``narrow``: the files of the dataset hold its
    float64 values as float32.
    """

    name: str
    type: Any
    chain: Chain
    narrow: bool = False

    @cached_property
    def given(self) -> Form:
        """The form of the stored values."""
        return form_of(type_from_json(self.type))

    @cached_property
    def output(self) -> Form:
        """The form of the results."""
        return output_of(self.given, self.chain, name=self.name)

    @property
    def settles_missing(self) -> bool:
        """Whether a missing value comes out as a value that means something."""
        return any(RULES[step.rule].settles_missing for step in self.chain.steps)

    @property
    def fitted_text(self) -> str:
        """The fitted values of all steps."""
        texts = []
        for step in self.chain.steps:
            if RULES[step.rule].fits:
                texts.append(RULES[step.rule].fitted_text(step))
        return "; ".join(texts)


@dataclass(frozen=True, repr=False)
class Transformations:
    """Fitted transformations of the columns of a training dataset.

    The same numbers come from ``apply`` (arrays and Arrow batches), from the readers, from the
    Keras layer and the PyTorch module, and from frames of every engine.

    >>> from featurestore import transform as t
    >>> dataset = store.get_training_dataset("late_flights")
    >>> fitted = dataset.fit({"seats": t.min_max(), "temp": t.standardize()})
    >>> fitted.apply({"seats": np.array([100, 200, 400])})["seats"].tolist()
    [0.0, 1.0, 3.0]

    Attributes:
        dataset: Name of the training dataset.
        version: Its version.
        fit_on: The split that they were fitted on.
        rows: The rows of that split.
        columns: The columns and their chains.
    """

    dataset: str
    version: int
    fit_on: str
    rows: int
    columns: tuple[FittedColumn, ...]

    def __contains__(self, name: object) -> bool:
        return any(column.name == name for column in self.columns)

    def __getitem__(self, name: str) -> FittedColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise FeatureNotFound(
            f"There is no transformation of {name!r}; there are those of "
            f"{listing(each.name for each in self.columns)}."
        )

    def apply(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return columns with those that have a chain transformed, the others as they are.

        Args:
            batch: ``{column: array of (rows, ...)}``. Missing numbers are NaN, missing texts None;
                a column ``<name>_present`` of booleans tells missing values, too, and stays.

        >>> from featurestore import transform as t
        >>> dataset = store.get_training_dataset("late_flights")
        >>> fitted = dataset.fit({"seats": t.bins([150])})
        >>> fitted.apply({"seats": [100, None]})["seats"].tolist()
        [1, 0]
        """
        from featurestore.transform.batches import apply_to_arrays

        return apply_to_arrays(self, batch)

    def apply_chain(
        self, name: str, data: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[Any]:
        """Return the results of a column of values as readers decode them."""
        from featurestore.transform.arrow_values import read_value

        column = self[name]
        with np.errstate(all="ignore"):
            value = read_value(column.given, data, present)
            result: npt.NDArray[Any] = apply_chain(
                _OPS, column.chain, value, column.output, narrow=column.narrow
            )
        return result

    def label_offset(self, name: str) -> int:
        """Return the code of the first class of a column; codes below are missing or unknown."""
        last = self[name].chain.steps[-1]
        if self[name].output.kind != "code":
            return 0
        return 1 + int(last.options.get("unknown", 0))

    @cached_property
    def settled(self) -> tuple[str, ...]:
        """The columns whose missing values come out as values."""
        return tuple(column.name for column in self.columns if column.settles_missing)

    @cached_property
    def padded(self) -> tuple[str, ...]:
        """The columns whose lists of varying length get one length."""
        return tuple(column.name for column in self.columns if column.given.kind == "list")

    @cached_property
    def byte_rows(self) -> tuple[str, ...]:
        """The binary columns that are also taken as uint8 of (rows, bytes)."""
        names = []
        for column in self.columns:
            first = column.chain.steps[0]
            if RULES[first.rule].takes_byte_rows(first):
                names.append(column.name)
        return tuple(names)

    def form(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Return numpy type and shape of a column's results; None: it is not transformed."""
        if name not in self:
            return None
        output = self[name].output
        return np.dtype(output.dtype), output.shape

    def portable(self, *, without: Sequence[str] = ()) -> Transformations:
        """Return the transformations with their functions, for other processes.

        Args:
            without: Columns to leave out.
        """
        columns = []
        for column in self.columns:
            if column.name not in without:
                steps = tuple(map(resolved, column.chain.steps))
                columns.append(replace(column, chain=Chain(steps)))
        return replace(self, columns=tuple(columns))

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the feature types of transformed rows."""
        fields = []
        for field in given:
            if field.name in self:
                field = field.with_type(arrow_type(self[field.name].output))
            fields.append(field)
        import pyarrow as pa

        return pa.schema(fields)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that ``from_json`` reads back equal."""
        columns = []
        for column in self.columns:
            steps = [step.to_json() for step in column.chain.steps]
            columns.append(
                {
                    "name": column.name,
                    "type": column.type,
                    "narrow": column.narrow,
                    "steps": steps,
                    "output": column.output.to_json(),
                }
            )
        return {
            "format": TRANSFORMATIONS_FORMAT,
            "dataset": self.dataset,
            "version": self.version,
            "fit_on": self.fit_on,
            "rows": self.rows,
            "columns": columns,
        }

    @classmethod
    def from_json(cls, data: object) -> Transformations:
        """Return the transformations that ``to_json`` wrote; MalformedJson says what is wrong."""
        given = JsonObject.of(data)
        known = given.number("format", least=1)
        if known > TRANSFORMATIONS_FORMAT:
            raise MalformedJson(
                f"it has format {known}; this release reads up to {TRANSFORMATIONS_FORMAT}"
            )
        return cls(
            dataset=given.text("dataset"),
            version=given.number("version", least=1),
            fit_on=given.text("fit_on"),
            rows=given.number("rows"),
            columns=tuple(map(_column, given.objects("columns"))),
        )

    def to_bytes(self) -> bytes:
        """Return the content of their file."""
        return sealed(self.to_json())

    @classmethod
    def from_bytes(cls, content: bytes, *, path: str) -> Transformations:
        """Return the transformations that ``to_bytes`` wrote.

        Raises:
            DatasetDamaged: The content is not what was written.
        """
        try:
            return cls.from_json(unsealed(content))
        except MalformedJson as error:
            raise DatasetDamaged(
                f"The transformations {path!r} are damaged: {error}.",
                hint="restore the file from a copy, or fit them again: dataset.fit(...)",
            ) from error

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of their file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def path(self) -> str:
        """Where their file lies below the dataset."""
        return f"{TRANSFORMATIONS}/{self.sha256}.json"

    def records(self) -> list[dict[str, object]]:
        """Return the table that is printed: input, rule, fitted values and output of each column.

        >>> from featurestore import transform as t
        >>> dataset = store.get_training_dataset("late_flights")
        >>> dataset.fit({"seats": t.bins([150])}).records()
        [{'input': 'seats', 'rule': 'bins(edges=[150.0])', 'fitted': '', 'output': 'int32, 3 codes'}]
        """
        records: list[dict[str, object]] = []
        for column in self.columns:
            records.append(
                {
                    "input": column.name,
                    "rule": str(column.chain),
                    "fitted": column.fitted_text,
                    "output": str(column.output),
                }
            )
        return records

    def __repr__(self) -> str:
        rows = [["input", "rule", "fitted on " + self.fit_on, "output"]]
        for record in self.records():
            rows.append([str(value) for value in record.values()])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html.records(self.records())


def _column(data: JsonObject) -> FittedColumn:
    kind = data.get("type")
    try:
        type_from_json(kind)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise data.wrong("type", "a feature type") from error
    steps = Chain(tuple(map(_step, data.objects("steps"))))
    column = FittedColumn(data.text("name"), kind, steps, data.flag("narrow"))
    try:
        output = column.output.to_json()
    except InvalidArgument as error:
        raise MalformedJson(error.message) from error
    if data.object("output").data != output:
        raise data.wrong("output", f"{output}")
    return column


def _step(data: JsonObject) -> Step:
    name = data.text("rule")
    rule = RULES.get(name)
    if rule is None:
        raise data.wrong("rule", "a rule that this release knows")
    options, fitted = data.object("options"), None
    if rule.fits:
        fitted = data.object("fitted")
    rule.check(options, fitted)
    return Step(name, options.data, None if fitted is None else fitted.data)
