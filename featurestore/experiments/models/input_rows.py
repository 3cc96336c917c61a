"""Rows of model inputs in the form of the training: arrays, a matrix, or a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.values import assign_rounded
from featurestore.errors import InvalidArgument, NullsInColumns, listing
from featurestore.experiments.models import dataframes
from featurestore.experiments.models.conversion import (
    convert_input,
    fill_array,
    fill_column,
    model_title,
)
from featurestore.experiments.models.predictors import ModelRows, NamedMatrix
from featurestore.model.json_object import JsonDict
from featurestore.model.names import cell_names, mask_name
from featurestore.model.registered_model import DATAFRAMES, ColumnDtype, ModelInput, ModelSpec
from featurestore.readers.columns import NumpyArray, to_numpy
from featurestore.transform.fitted import Transformations

# The dtype of a matrix that is not rounded to float32.
DOUBLE = "float64"


def to_model_input(
    spec: ModelSpec, fitted: Transformations | None, batch: pa.RecordBatch
) -> ModelRows:
    """Convert a batch to the model input: ``{column: array}``, a NamedMatrix, or a DataFrame.

    Arrays equal those of the training dataset's reader or matrix for the same values. A DataFrame
    has the dtypes of the training, with their categories.

    Raises:
        InvalidArgument: A value does not fit the type of its input, or a matrix of float32.
        NullsInColumns: Inputs contain nulls that the model cannot handle.
    """
    if spec.arrays in DATAFRAMES:
        return _to_dataframe(spec, fitted, batch)
    columns = [
        _read_values(spec, fitted, model_input, batch.column(model_input.name))
        for model_input in spec.inputs
    ]
    _refuse_nulls(spec, [column.name for column in columns if column.has_refused_nulls])
    arrays = {name: values for column in columns for name, values in column.arrays().items()}
    if spec.arrays == "columns":
        # Arrow's memory is read-only, and PyTorch refuses such arrays.
        return {name: np.require(values, requirements="W") for name, values in arrays.items()}
    return _to_matrix(spec, arrays, rows=len(batch))


@dataclass(frozen=True)
class InputValues:
    """The values of an input after fills and transformations, of shape (rows, ...).

    ``present`` marks the rows that are not null; None without nulls.
    """

    model_input: ModelInput
    values: NumpyArray
    present: npt.NDArray[np.bool_] | None

    @property
    def name(self) -> str:
        """The name of the input."""
        return self.model_input.name

    @property
    def has_refused_nulls(self) -> bool:
        """Whether there are nulls that the model did not get in its training."""
        if self.present is None or self.model_input.nulls == "mask":
            return False
        # Texts have no NaN.
        return self.model_input.nulls != "nan" or self.values.dtype.kind == "O"

    def arrays(self) -> dict[str, NumpyArray]:
        """Return the values by name, with the mask of a masked input."""
        values = self.values
        nulls = self.model_input.nulls
        if nulls == "nan" and values.dtype.kind in "biu":
            # Batches with and without nulls have one type, which is that of a matrix.
            values = values.astype(np.float64 if _is_double(self.model_input) else np.float32)
        if self.present is not None:
            values = values.copy()
            missing = np.nan if nulls == "nan" else 0
            values[~self.present] = b"" if values.dtype == object else missing
        arrays = {self.name: values}
        if nulls == "mask":
            is_present = self.present
            if is_present is None:
                is_present = np.ones(len(values), dtype=np.bool_)
            arrays[mask_name(self.name)] = is_present
        return arrays


def _read_values(
    spec: ModelSpec, fitted: Transformations | None, model_input: ModelInput, column: pa.Array
) -> InputValues:
    """Convert a column to numpy as the training files store it, filled and transformed."""
    name = model_input.name
    values, present = to_numpy(convert_input(spec, model_input, column), name=name)
    if model_input.fill is not None and present is not None:
        values = values.copy()
        values[~present] = fill_array(spec, model_input)[0]
        present = None
    if fitted is not None and name in fitted:
        values = fitted.apply_chain(name, values, present)
        if name in fitted.null_handling:
            present = None
    return InputValues(model_input, values, present)


def _refuse_nulls(spec: ModelSpec, names: Sequence[str]) -> None:
    if names:
        raise NullsInColumns(
            f"{model_title(spec)} was trained without nulls. Inputs with nulls: {listing(names)}.",
            hint=f"register_model(..., nulls={{{names[0]!r}: 0}}) fills them, nulls='nan' passes "
            'them as NaN; context.reader(..., nulls="mask") adds columns that mark them',
        )


def _to_matrix(spec: ModelSpec, arrays: Mapping[str, NumpyArray], *, rows: int) -> NamedMatrix:
    """Return arrays as one array of float32, or of the training, with a column for each element.

    Raises:
        InvalidArgument: A finite number is infinity in float32.
    """
    names = [name for column, values in arrays.items() for name in _cell_names(column, values)]
    is_double = any(_is_double(model_input) for model_input in spec.inputs)
    matrix: NumpyArray = np.empty((rows, len(names)), np.float64 if is_double else np.float32)
    position = 0
    for name, values in arrays.items():
        numbers = values.reshape(rows, -1)
        target = matrix[:, position : position + numbers.shape[1]]
        if is_double:
            target[:] = numbers
        else:
            _assign(spec, name, target, numbers)
        position += numbers.shape[1]
    return NamedMatrix(matrix, tuple(names))


def _is_double(model_input: ModelInput) -> bool:
    return model_input.dtype is not None and model_input.dtype.name == DOUBLE


def _assign(
    spec: ModelSpec, name: str, target: npt.NDArray[np.float32], numbers: NumpyArray
) -> None:
    too_large = assign_rounded(target, numbers)
    if too_large is not None:
        raise InvalidArgument(
            f"{model_title(spec)} takes float32, in which the input {name!r} has no {too_large!r}.",
            hint="score rows whose numbers are within the range of float32",
        )


def _cell_names(name: str, values: NumpyArray) -> list[str]:
    """Return the names of the matrix columns of an input."""
    if values.ndim == 1:
        return [name]
    return cell_names(name, int(np.prod(values.shape[1:], dtype=np.int64)))


def _to_dataframe(
    spec: ModelSpec, fitted: Transformations | None, batch: pa.RecordBatch
) -> ModelRows:
    """Return a batch as a DataFrame with the dtypes of the training."""
    library = dataframes.LIBRARIES[spec.arrays]
    columns: dict[str, object] = {}
    refused = []
    for model_input in spec.inputs:
        name, dtype = model_input.name, model_input.dtype
        read_column = batch.column(name)
        if takes_arrays(model_input, fitted):
            values = _read_values(spec, fitted, model_input, read_column)
            if values.has_refused_nulls:
                refused.append(name)
            columns |= _array_columns(spec, values, library)
            continue
        column = fill_column(spec, model_input, convert_input(spec, model_input, read_column))
        if column.null_count and model_input.nulls != "nan":
            refused.append(name)
        elif dtype is not None and dtype.categories is not None:
            column = _known_categories(spec, model_input, column)
        columns[name] = library.from_arrow(column, dtype)
    _refuse_nulls(spec, refused)
    return library.to_frame(columns)


def takes_arrays(model_input: ModelInput, fitted: Transformations | None) -> bool:
    """Return whether a DataFrame has the values of a reader or a matrix for an input."""
    if fitted is not None and model_input.name in fitted:
        return True
    return model_input.nulls == "mask" or (
        model_input.dtype is not None and model_input.dtype.from_arrays
    )


def with_dtypes(
    spec: ModelSpec,
    fitted: Transformations | None,
    rows: pa.RecordBatch,
    *,
    recorded: Mapping[str, ColumnDtype],
    form: str,
) -> ModelSpec:
    """Return a model that takes DataFrames with the dtype of each column.

    Args:
        spec: The model. One that takes columns, or a matrix of float32, is returned unchanged.
        fitted: The transformations.
        rows: Some rows of the training dataset, at least one.
        recorded: The dtypes of the training by column, that of a matrix by its own name; empty for
            those that the library reads.
        form: How the training read the dataset: "reader", "matrix" or "frame".

    Raises:
        InvalidArgument: The cells of a vector have several dtypes.
    """
    is_double = spec.arrays == "matrix" and DOUBLE in recorded
    if spec.arrays not in DATAFRAMES and not is_double:
        return spec
    inputs = []
    for model_input in spec.inputs:
        name, narrow = model_input.name, model_input.narrow
        if is_double:
            # The function converted a matrix to doubles after it was rounded.
            narrow, dtype = narrow or form == "matrix", ColumnDtype(DOUBLE, from_arrays=True)
        elif recorded:
            own_dtypes = [recorded[name]] if name in recorded else _cell_dtypes(recorded, name)
            if len(own_dtypes) != 1:
                raise InvalidArgument(
                    f"The run passed the cells of {name!r} as {listing(own_dtypes) or 'no column'}.",
                    hint="pass all cells of a vector with one dtype",
                )
            is_cells = name not in recorded
            dtype = replace(own_dtypes[0], from_arrays=form != "frame" or is_cells)
        else:
            dtype = _read_dtype(spec, fitted, model_input, rows, form=form)
        inputs.append(replace(model_input, narrow=narrow, dtype=dtype))
    return replace(spec, inputs=tuple(inputs))


def _cell_dtypes(recorded: Mapping[str, ColumnDtype], name: str) -> list[ColumnDtype]:
    """Return the distinct dtypes of the cells of a vector."""
    dtypes: list[ColumnDtype] = []
    position = 0
    while (cell := cell_names(name, position + 1)[-1]) in recorded:
        if recorded[cell] not in dtypes:
            dtypes.append(recorded[cell])
        position += 1
    return dtypes


def _read_dtype(
    spec: ModelSpec,
    fitted: Transformations | None,
    model_input: ModelInput,
    rows: pa.RecordBatch,
    *,
    form: str,
) -> ColumnDtype:
    """Return the dtype with which a library reads a column of the training dataset."""
    library = dataframes.LIBRARIES[spec.arrays]
    name = model_input.name
    column = rows.column(name)
    if form == "frame" and not takes_arrays(model_input, fitted):
        if model_input.nulls == "nan":  # the first rows may have no null
            column = pa.concat_arrays([column, pa.nulls(1, column.type)])
        column = fill_column(spec, model_input, convert_input(spec, model_input, column))
        frame = library.to_frame({name: library.from_arrow(column, None)})
        return library.describe(frame)[name]
    values = _read_values(spec, fitted, model_input, column).arrays()[name]
    if form == "matrix":
        values = values.astype(np.float32)
    series = library.from_numpy(np.ascontiguousarray(values.reshape(len(values), -1)[:, 0]), None)
    dtype = library.describe(library.to_frame({name: series}))[name]
    return replace(dtype, from_arrays=True)


def _array_columns(
    spec: ModelSpec, input_values: InputValues, library: dataframes.Library
) -> JsonDict:
    """Return the columns of a DataFrame for the cells of an input, and for its mask."""
    columns = {}
    for name, values in input_values.arrays().items():
        is_mask = name != input_values.name
        dtype = None if is_mask else input_values.model_input.dtype
        cells = values.reshape(len(values), -1)
        if dtype is not None and (dtype.items or dtype.name) in dataframes.FLOAT32:
            rounded = np.empty(cells.shape, np.float32)
            _assign(spec, name, rounded, cells)
            cells = rounded
        for position, cell_name in enumerate(_cell_names(name, values)):
            cell = np.ascontiguousarray(cells[:, position])
            if dtype is not None and dtype.categories is not None:
                column = pa.array(cell, from_pandas=True)  # NaN is null
                column = _known_categories(spec, input_values.model_input, column)
                columns[cell_name] = library.from_arrow(column, dtype)
            else:
                columns[cell_name] = library.from_numpy(cell, dtype)
    return columns


def _known_categories(spec: ModelSpec, model_input: ModelInput, column: pa.Array) -> pa.Array:
    """Return a column in which values other than the categories of the training are null.

    Raises:
        InvalidArgument: There are such values, and the model was trained without nulls.
    """
    assert model_input.dtype is not None
    categories = dataframes.category_array(column.type, model_input.dtype)
    is_known = pc.is_in(column, value_set=categories)
    is_unknown = pc.and_(pc.invert(is_known), column.is_valid())
    if model_input.nulls != "nan" and pc.any(is_unknown).as_py():
        unknown = column.filter(is_unknown).unique().to_pylist()
        raise InvalidArgument(
            f"{model_title(spec)} was trained without nulls, and {listing(unknown)} of "
            f"{model_input.name!r} is not among the {len(categories):,} categories of its training.",
            hint="register_model(..., nulls='nan') passes other values as missing ones",
        )
    return pc.if_else(is_known, column, pa.scalar(None, column.type))
