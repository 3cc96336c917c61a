"""Transformations of whole batches: arrays by name, and Arrow record batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.errors import FeatureNotFound, InvalidArgument, listing
from featurestore.readers.arrow_numpy import to_numpy
from featurestore.readers.ragged import Ragged
from featurestore.readers.selection import PRESENT
from featurestore.transform.fitted import FittedColumn, Transformations
from featurestore.transform.forms import arrow_type


@dataclass(frozen=True)
class TransformBatch:
    """Transforms record batches; engines send it to where the rows are."""

    transformations: Transformations

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with its columns transformed."""
        columns = []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if field.name in self.transformations:
                column = self._transformed(self.transformations[field.name], column)
            columns.append(column)
        schema = self.transformations.schema(batch.schema)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _transformed(self, column: FittedColumn, values: pa.Array) -> pa.Array:
        data, present = to_numpy(values, name=column.name)
        result = self.transformations.apply_chain(column.name, data, present)
        array = pa.array(np.ascontiguousarray(result).reshape(-1))
        for size in reversed(result.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        return array.cast(arrow_type(column.output))


def check_frame(transformations: Transformations, schema: pa.Schema) -> None:
    """Raise unless a frame has the columns that are transformed, of the types they were fitted on.

    Raises:
        FeatureNotFound: Columns are missing.
        InvalidArgument: Columns have a type whose values a chain takes for something else.
    """
    from featurestore.transform.forms import form_of

    missing = []
    for column in transformations.columns:
        if column.name not in schema.names:
            missing.append(column.name)
            continue
        kind = schema.field(column.name).type
        form = form_of(kind)
        numbers = {form.kind, column.given.kind} <= {"number", "whole"}
        if (form.shape, form.item) != (column.given.shape, column.given.item) or (
            form.kind != column.given.kind and not numbers
        ):
            raise InvalidArgument(
                f"Column {column.name!r} is {kind}; the transformation {column.chain} was fitted "
                f"on {column.type}."
            )
    if missing:
        raise FeatureNotFound(
            f"The transformations need {listing(missing, limit=50)}; the frame has "
            f"{listing(schema.names, limit=50)}."
        )


def apply_to_arrays(transformations: Transformations, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of arrays with its columns transformed."""
    result: dict[str, Any] = {}
    for name, given in batch.items():
        if name not in transformations:
            result[name] = given
            continue
        data, present = decoded(transformations[name], given)
        mask = batch.get(name + PRESENT)
        if mask is not None:
            mask = np.asarray(mask, dtype=np.bool_)
            present = mask if present is None else present & mask
        result[name] = transformations.apply_chain(name, data, present)
    return result


def decoded(
    column: FittedColumn, given: Any
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return an array as readers decode it: texts as bytes, missing values told."""
    if column.given.kind in ("text", "binary"):
        return _texts(given)
    if column.given.kind == "list":
        return _lists(given, column.given.item)
    data = np.asarray(given)
    if data.dtype.kind == "M":
        data = data.astype("datetime64[us]").astype(np.int64)
    if data.dtype.kind != "O":
        return data, _present(data, column)
    present = np.array([value is not None for value in data.reshape(-1).tolist()])
    filled = np.where(present.reshape(data.shape), data, 0)
    return filled.astype(np.float64 if column.given.kind == "number" else np.int64), present


def _present(data: npt.NDArray[Any], column: FittedColumn) -> npt.NDArray[np.bool_] | None:
    """Return where whole numbers are present that came as floats with NaN."""
    if column.given.kind == "number" or data.dtype.kind != "f":
        return None
    return ~np.isnan(data)


def _texts(given: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    values = np.asarray(given, dtype=object)
    data = np.full(values.shape, b"", dtype=object)
    present = np.ones(values.shape, dtype=np.bool_)
    flat, there = data.reshape(-1), present.reshape(-1)
    for row, value in enumerate(values.reshape(-1).tolist()):
        if isinstance(value, str):
            flat[row] = value.encode()
        elif isinstance(value, bytes):
            flat[row] = value
        else:
            there[row] = False
    return data, None if present.all() else present


def _lists(given: Any, item: str | None) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return rows of items, or ``Ragged``, as an object array of arrays; None is a missing list."""
    if isinstance(given, Ragged):
        values = given.values
        if item == "text":
            values = np.asarray(values, dtype=object)
        given = np.split(np.asarray(values), np.asarray(given.row_splits)[1:-1])
    data = np.full(len(given), b"", dtype=object)
    there = np.ones(len(given), dtype=np.bool_)
    for row, value in enumerate(given):
        if value is None:
            there[row] = False
        elif item == "text":
            data[row] = _texts(np.asarray(value, dtype=object))[0]
        else:
            data[row] = np.asarray(value)
    return data, None if there.all() else there
