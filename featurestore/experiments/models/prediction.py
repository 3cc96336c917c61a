"""Record batches of features with predictions in place of them, where the rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, NullsInColumns, listing
from featurestore.experiments.models.loading import loaded
from featurestore.model.arrow_json import type_from_json
from featurestore.model.registered_model import (
    LABEL_TIME,
    MODEL_VERSION,
    PREDICTION,
    ModelInput,
    ModelSpec,
)
from featurestore.readers.arrow_numpy import to_numpy
from featurestore.readers.selection import PRESENT
from featurestore.transform.fitted import Transformations


@dataclass(frozen=True)
class PredictBatch:
    """Adds predictions to record batches; engines send it to where the rows are.

    ``content`` is the model's ``model.json``, ``kept`` are the columns of the labels, and
    ``label_time`` is the one time (microseconds since 1970) of rows that have none of their own.
    """

    directory: str
    content: bytes
    fitted: Transformations | None
    kept: tuple[str, ...]
    schema: pa.Schema
    label_time: int | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the kept columns with predictions and the model's version."""
        spec = ModelSpec.from_bytes(self.content, path=self.directory)
        columns = {name: batch.column(name) for name in self.kept}
        columns.update(self._predicted(spec, batch))
        columns[MODEL_VERSION] = pa.repeat(pa.scalar(spec.version, pa.int64()), batch.num_rows)
        if self.label_time is not None:
            kind = self.schema.field(LABEL_TIME).type
            columns[LABEL_TIME] = pa.repeat(pa.scalar(self.label_time, kind), batch.num_rows)
        arrays = []
        for field in self.schema:
            arrays.append(columns[field.name].cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _predicted(self, spec: ModelSpec, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        if not batch.num_rows:
            empty = {}
            for output in spec.outputs:
                empty[output.name] = pa.array([], type_from_json(output.type))
            return empty
        predict = loaded(self.directory, self.content)
        answers = predict(model_arrays(spec, self.fitted, batch))
        found = to_columns(answers, batch.num_rows)
        absent = [output.name for output in spec.outputs if output.name not in found]
        if absent:
            raise InvalidArgument(
                f"Model {spec.name!r} version {spec.version} gave no {listing(absent)} but "
                f"{listing(found)}.",
                hint="register it again",
            )
        return found


def output_name(name: str) -> str:
    """Return the column of an output: ``prediction``, or ``prediction_<name>`` of several."""
    return f"{PREDICTION}_{name}" if name else PREDICTION


def to_columns(answers: Mapping[str, npt.NDArray[Any]], rows: int) -> dict[str, pa.Array]:
    """Return answers as columns: (rows,) and (rows, 1) as numbers, (rows, n, ...) as lists.

    Raises:
        InvalidArgument: A model gave another number of rows than it got, or values without a type.
    """
    columns = {}
    for name, values in answers.items():
        if values.shape[:1] != (rows,):
            raise InvalidArgument(
                f"The model gave an array of shape {values.shape} for {rows} rows.",
                hint="a model answers with one row for each that it gets",
            )
        if values.shape[1:] == (1,):
            values = values[:, 0]
        try:
            array = pa.array(np.ascontiguousarray(values).reshape(-1))
        except pa.ArrowException as error:
            raise InvalidArgument(
                f"The model gave values of the type {values.dtype}, which no column can have.",
                hint="a model answers with numbers, texts or lists of one size",
            ) from error
        for size in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        columns[output_name(name)] = array
    return columns


def model_arrays(spec: ModelSpec, fitted: Transformations | None, batch: pa.RecordBatch) -> Any:
    """Return what a model takes of a batch: ``{column: array}``, or float32 of (rows, inputs).

    The arrays are those that the training dataset's reader gives for the same values.

    Raises:
        NullsInColumns: Inputs have nulls that the model cannot take.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    nulls = []
    for each in spec.inputs:
        data, present = _values(each, batch.column(each.name))
        settled = False
        if fitted is not None and each.name in fitted:
            settled = each.name in fitted.settled
            data = fitted.apply_chain(each.name, data, present)
        if present is not None and not settled:
            if not each.masked:
                nulls.append(each.name)
            data = data.copy()
            data[~present] = b"" if data.dtype == object else 0
        arrays[each.name] = data
        if each.masked:
            there = np.ones(len(data), dtype=np.bool_) if present is None else present
            arrays[each.name + PRESENT] = there
    if nulls:
        raise NullsInColumns(
            f"Model {spec.name!r} version {spec.version} was trained without nulls; these inputs "
            f"have some: {listing(nulls)}.",
            hint=f"register_model(..., nulls={{{nulls[0]!r}: 0}}) fills them, or train with "
            'context.reader(..., nulls="mask")',
        )
    if spec.arrays == "columns":
        return arrays
    flat = [values.reshape(len(values), -1).astype(np.float32) for values in arrays.values()]
    return np.concatenate(flat, axis=1)


def _values(
    each: ModelInput, column: pa.Array
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return values as the files of the training dataset held them, and which are there."""
    column = column.cast(each.kind)
    if each.fill is not None:
        column = pc.fill_null(column, pa.scalar(each.fill, each.kind))
    data, present = to_numpy(column, name=each.name)
    if each.narrow and pat.is_floating(each.kind):
        data = data.astype(np.float32).astype(data.dtype)
    return data, present
