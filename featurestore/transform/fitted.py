"""Fitted transformations of a training dataset.

They are stored as sealed JSON in the dataset directory, in a file that is named by its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import DatasetDamaged, FeatureNotFound, InvalidArgument, listing
from featurestore.model import display
from featurestore.model.codecs import Codec, array
from featurestore.model.json_object import (
    JsonDict,
    JsonMapping,
    JsonObject,
    MalformedJson,
    seal,
    unseal,
)
from featurestore.model.records import FeatureType, Key, Record, Version
from featurestore.readers.columns import NumpyArray, NumpyDtype, Tensor
from featurestore.transform.apply import apply_chain, apply_to_arrays, decoded_to_value
from featurestore.transform.fit import output_form, parse_step
from featurestore.transform.ops import NumpyOps
from featurestore.transform.rules import RULES
from featurestore.transform.rules.functions import resolve_function
from featurestore.transform.steps import Chain, Form, arrow_type, form_of

if TYPE_CHECKING:
    import pyarrow as pa

TRANSFORMATIONS = "_transformations"
TRANSFORMATIONS_FORMAT = 1
_NUMPY = NumpyOps()


_STEPS = array(Codec(lambda step: parse_step(JsonObject.from_value(step), is_fitted=True)))
_CHAIN = Codec(
    lambda steps: Chain(_STEPS.read(steps)),
    lambda chain: [step.to_json() for step in chain.steps],
)


@dataclass(frozen=True)
class FittedColumn(Record, keys=("name", "type", "narrow", "chain")):
    """A column and its fitted chain.

    Attributes:
        type: The feature type of the column as JSON.
        narrow: Whether the dataset files store the float64 values of the column as float32.
    """

    name: str
    type: FeatureType
    chain: Annotated[Chain, Key("steps"), _CHAIN]
    narrow: bool = False

    @cached_property
    def input_form(self) -> Form:
        """The form of the input values."""
        return form_of(type_from_json(self.type))

    @cached_property
    def output(self) -> Form:
        """The form of the transformed values."""
        return output_form(self.input_form, self.chain, name=self.name)

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, with the output form."""
        return {**super().to_json(), "output": self.output.to_json()}

    def check_json(self, data: JsonMapping) -> FittedColumn:
        """Check that the stored output form is that of this release."""
        try:
            output = self.output.to_json()
        except InvalidArgument as error:
            raise MalformedJson(error.message) from error
        column = JsonObject(data)
        # Models were trained on the stored output form, so a release with other rules must not
        # apply the chain.
        if column.object("output").data != output:
            raise column.wrong_type_error("output", f"{output}")
        return self

    @property
    def handles_missing(self) -> bool:
        """Whether the chain maps missing values to meaningful values."""
        return any(RULES[step.rule].handles_missing for step in self.chain.steps)

    @property
    def fitted_summary(self) -> str:
        """A summary of the fitted values of all steps."""
        steps = self.chain.steps
        return "; ".join(
            RULES[step.rule].fitted_summary(step) for step in steps if RULES[step.rule].fits
        )


@dataclass(frozen=True, repr=False)
class Transformations(
    Record, format=TRANSFORMATIONS_FORMAT, subject="The transformations of {dataset!r}"
):
    """Fitted transformations of the columns of a training dataset.

    ``apply`` (arrays and Arrow batches), readers, the Keras layer, the PyTorch module and frames of
    every engine compute equal numbers.

    >>> from featurestore import transform as t
    >>> dataset = store.get_training_dataset("late_flights")
    >>> fitted = dataset.fit({"seats": t.min_max(), "temp": t.standardize()})
    >>> fitted.apply({"seats": np.array([100, 200, 400])})["seats"].tolist()
    [0.0, 1.0, 3.0]

    Attributes:
        dataset: Name of the training dataset.
        version: Its version.
        fit_on: The split on which the chains were fitted.
        rows: Number of rows of that split.
        columns: The columns with their chains.
    """

    dataset: str
    version: Version
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
            f"Unknown transformation of column {name!r}. Available: "
            f"{listing(each.name for each in self.columns)}."
        )

    def apply(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Transform the columns of a batch that have a chain; return the others unchanged.

        Args:
            batch: ``{column: array of (rows, ...)}``. Missing numbers are NaN, missing strings
                None. A boolean column ``<name>_present`` also marks missing values.

        >>> from featurestore import transform as t
        >>> dataset = store.get_training_dataset("late_flights")
        >>> fitted = dataset.fit({"seats": t.bins([150])})
        >>> fitted.apply({"seats": [100, None]})["seats"].tolist()
        [1, 0]
        """
        return apply_to_arrays(self, batch)

    def apply_chain(
        self, name: str, data: NumpyArray, present: npt.NDArray[np.bool_] | None
    ) -> NumpyArray:
        """Transform the decoded values of a column."""
        column = self[name]
        with np.errstate(all="ignore"):
            value = decoded_to_value(column.input_form, data, present)
            result: NumpyArray = apply_chain(
                _NUMPY, column.chain, value, column.output, narrow=column.narrow
            )
        return result

    def label_offset(self, name: str) -> int:
        """Return the code of the first class; lower codes are missing or unknown values."""
        last = self[name].chain.steps[-1]
        if self[name].output.value_type != "code":
            return 0
        return 1 + int(last.options.get("unknown", 0))

    @cached_property
    def null_handling(self) -> tuple[str, ...]:
        """The columns whose missing values are replaced."""
        return tuple(column.name for column in self.columns if column.handles_missing)

    @cached_property
    def padded(self) -> tuple[str, ...]:
        """The columns whose variable-length lists are padded to a fixed length."""
        return tuple(
            column.name for column in self.columns if column.input_form.value_type == "list"
        )

    @cached_property
    def byte_rows(self) -> tuple[str, ...]:
        """The binary columns that are also accepted as uint8 arrays of shape (rows, bytes)."""
        first_steps = {column.name: column.chain.steps[0] for column in self.columns}
        return tuple(
            name for name, step in first_steps.items() if RULES[step.rule].takes_byte_rows(step)
        )

    def form(self, name: str) -> tuple[NumpyDtype, tuple[int, ...]] | None:
        """Return type and shape of a transformed column, or None if it is not transformed."""
        if name not in self:
            return None
        output = self[name].output
        return np.dtype(output.dtype), output.shape

    def portable(self, *, without: Sequence[str] = ()) -> Transformations:
        """Return a copy with resolved Python functions, which other processes can unpickle.

        Args:
            without: Columns to omit.
        """
        columns = []
        for column in self.columns:
            if column.name not in without:
                steps = tuple(map(resolve_function, column.chain.steps))
                columns.append(replace(column, chain=Chain(steps)))
        return replace(self, columns=tuple(columns))

    def schema(self, stored_schema: pa.Schema) -> pa.Schema:
        """Return the feature types of transformed rows."""
        fields = []
        for field in stored_schema:
            if field.name in self:
                field = field.with_type(arrow_type(self[field.name].output))
            fields.append(field)
        import pyarrow as pa

        return pa.schema(fields)

    def to_bytes(self) -> bytes:
        """Return the content of the transformations file."""
        return seal(self.to_json())

    @classmethod
    def from_bytes(cls, content: bytes, *, path: str) -> Transformations:
        """Parse the content of a transformations file.

        Raises:
            DatasetDamaged: The content is damaged.
        """
        try:
            return cls.from_json(unseal(content))
        except MalformedJson as error:
            raise DatasetDamaged(
                f"The transformations {path!r} are damaged: {error}.",
                hint="restore the file from a copy, or fit them again: dataset.fit(...)",
            ) from error

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the transformations file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def path(self) -> str:
        """The path of the transformations file, relative to the dataset directory."""
        return f"{TRANSFORMATIONS}/{self.sha256}.json"

    def records(self) -> list[dict[str, object]]:
        """Return input, rule, fitted values and output of each column, as in ``repr``.

        >>> from featurestore import transform as t
        >>> dataset = store.get_training_dataset("late_flights")
        >>> dataset.fit({"seats": t.bins([150])}).records()
        [{'input': 'seats', 'rule': 'bins(edges=[150.0])', 'fitted': '', 'output': 'int32, 3 codes'}]
        """
        return [
            {
                "input": column.name,
                "rule": str(column.chain),
                "fitted": column.fitted_summary,
                "output": str(column.output),
            }
            for column in self.columns
        ]

    def __repr__(self) -> str:
        header = ["input", "rule", "fitted on " + self.fit_on, "output"]
        rows = [header, *(list(map(str, record.values())) for record in self.records())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return display.records_table(self.records())


@dataclass(frozen=True, repr=False)
class Preprocessor:
    """A callable that applies fitted transformations to ``{column: array}``."""

    transformations: Transformations

    def __call__(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Transform the columns of a batch that have a chain; return the others unchanged."""
        return self.transformations.apply(batch)

    def __repr__(self) -> str:
        return f"Preprocessor of {{column: array}}:\n{self.transformations!r}"
