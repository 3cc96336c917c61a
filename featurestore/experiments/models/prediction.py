"""Prediction of record batches inside the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.arrow_json import type_from_json
from featurestore.errors import InvalidArgument, NullsInColumns, listing
from featurestore.experiments.models.loading import load_predictor
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
    """Batch function that replaces features by predictions; engines pickle it to their workers.

    ``content`` is the model's ``model.json``. ``label_time`` (microseconds since 1970) is the time
    of rows without a time column.
    """

    directory: str
    content: bytes
    fitted: Transformations | None
    label_columns: tuple[str, ...]
    schema: pa.Schema
    label_time: int | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the label columns with predictions and the model version."""
        spec = ModelSpec.from_bytes(self.content, path=self.directory)
        columns = {name: batch.column(name) for name in self.label_columns}
        columns.update(self._predictions(spec, batch))
        columns[MODEL_VERSION] = pa.repeat(pa.scalar(spec.version, pa.int64()), batch.num_rows)
        if self.label_time is not None:
            kind = self.schema.field(LABEL_TIME).type
            columns[LABEL_TIME] = pa.repeat(pa.scalar(self.label_time, kind), batch.num_rows)
        arrays = [columns[field.name].cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _predictions(self, spec: ModelSpec, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        if not batch.num_rows:
            types = {output.name: type_from_json(output.type) for output in spec.outputs}
            return {name: pa.array([], kind) for name, kind in types.items()}
        predict = load_predictor(self.directory, self.content)
        model_outputs = predict(model_arrays(spec, self.fitted, batch))
        columns = to_columns(model_outputs, batch.num_rows)
        missing_outputs = [output.name for output in spec.outputs if output.name not in columns]
        if missing_outputs:
            raise InvalidArgument(
                f"Model {spec.name!r} version {spec.version} did not return "
                f"{listing(missing_outputs)}. Its outputs: {listing(columns)}.",
                hint="register it again",
            )
        return columns


def output_name(name: str) -> str:
    """Return the column name of an output: ``prediction`` or ``prediction_<name>``."""
    return f"{PREDICTION}_{name}" if name else PREDICTION


def to_columns(model_outputs: Mapping[str, npt.NDArray[Any]], rows: int) -> dict[str, pa.Array]:
    """Convert outputs to columns: (rows,) and (rows, 1) to numbers, (rows, n, ...) to lists.

    Raises:
        InvalidArgument: The number of rows differs from the input, or a type is unsupported.
    """
    columns = {}
    for name, values in model_outputs.items():
        if values.shape[:1] != (rows,):
            raise InvalidArgument(
                f"The model returned an array of shape {values.shape} for {rows} rows.",
                hint="a model must return one row for each input row",
            )
        if values.shape[1:] == (1,):
            values = values[:, 0]
        try:
            array = pa.array(np.ascontiguousarray(values).reshape(-1))
        except pa.ArrowException as error:
            raise InvalidArgument(
                f"The model returned values of the unsupported type {values.dtype}.",
                hint="a model must return numbers, strings or lists of one size",
            ) from error
        for size in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        columns[output_name(name)] = array
    return columns


def model_arrays(spec: ModelSpec, fitted: Transformations | None, batch: pa.RecordBatch) -> Any:
    """Return the model input of a batch: ``{column: array}``, or float32 of (rows, inputs).

    The arrays equal those of the training dataset's reader for the same values.

    Raises:
        NullsInColumns: Inputs contain nulls that the model cannot handle.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    nulls = []
    for each in spec.inputs:
        data, present = _values(each, batch.column(each.name))
        handles_nulls = False
        if fitted is not None and each.name in fitted:
            handles_nulls = each.name in fitted.null_handling
            data = fitted.apply_chain(each.name, data, present)
        if present is not None and not handles_nulls:
            if not each.masked:
                nulls.append(each.name)
            data = data.copy()
            data[~present] = b"" if data.dtype == object else 0
        arrays[each.name] = data
        if each.masked:
            is_present = np.ones(len(data), dtype=np.bool_) if present is None else present
            arrays[each.name + PRESENT] = is_present
    if nulls:
        raise NullsInColumns(
            f"Model {spec.name!r} version {spec.version} was trained without nulls. Inputs with "
            f"nulls: {listing(nulls)}.",
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
    """Return values as stored in files of the training dataset, and a mask of non-null ones."""
    column = column.cast(each.kind)
    if each.fill is not None:
        column = pc.fill_null(column, pa.scalar(each.fill, each.kind))
    data, present = to_numpy(column, name=each.name)
    if each.narrow and pat.is_floating(each.kind):
        data = data.astype(np.float32).astype(data.dtype)
    return data, present
