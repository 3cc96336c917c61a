"""Exact conversion of model inputs, fill values and model outputs; nulls of inputs.

Inputs and outputs are converted like the columns of a write (``arrow.values``): a value without an
equal in the type is refused. Training files may store floating-point columns as float32; inputs are
then rounded to float32 like the rows of the files.

A reader refuses, fills or masks nulls. A matrix has NaN, a DataFrame the missing value of its
dtype. A column without nulls in the training dataset was never read as NaN, so its nulls are
refused in each case unless a value fills them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow import values as arrow_values
from featurestore.arrow.fitting import can_fit, can_widen
from featurestore.arrow.frames import array_from_values
from featurestore.arrow.json_text import short_repr
from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.types import describe, feature_schema, innermost_type, with_innermost_type
from featurestore.arrow.values import ConversionError
from featurestore.errors import InvalidArgument, UnsupportedType, listing
from featurestore.model.json_object import JsonMapping
from featurestore.model.manifest import Manifest
from featurestore.model.registered_model import PREDICTION, ModelInput, ModelSpec, NullForm
from featurestore.model.window_features import value_from_json, value_to_json
from featurestore.readers.columns import NumpyArray, NumpyDtype, columns_with_nulls, to_numpy
from featurestore.readers.fills import parse_fill

ModelNulls: TypeAlias = Literal["error", "mask", "nan"] | JsonMapping
# The form of ``dataset.read``, and that of a state without a read: the inputs that a function passed
# to ``context.save``.
FRAME, SAVED = "frame", "saved"


def model_title(spec: ModelSpec) -> str:
    """Return a model version as the subject of a message."""
    return f"Model {spec.name!r} version {spec.version}"


def convert_input(spec: ModelSpec, model_input: ModelInput, column: pa.Array) -> pa.Array:
    """Convert a column to the type of an input, rounded to float32 if the training files are.

    Raises:
        InvalidArgument: A value has no equal in the type, or is too large for float32.
    """
    dtype = model_input.kind
    is_rounded = model_input.narrow and pat.is_float64(innermost_type(dtype))
    narrow_type = with_innermost_type(dtype, pa.float32())
    try:
        if pat.is_float64(innermost_type(column.type)) and pat.is_float32(innermost_type(dtype)):
            doubles = with_innermost_type(dtype, pa.float64())
            return arrow_values.round_to_float32(arrow_values.cast_column(column, doubles))
        if is_rounded:
            # The reader yields the rounded values with the type of the column.
            return arrow_values.cast_column(
                arrow_values.round_to_float32(arrow_values.cast_column(column, dtype)), dtype
            )
        return arrow_values.cast_column(column, dtype)
    except ConversionError as error:
        trained_type = describe(dtype)
        hint = (
            f"pass {model_input.name!r} as {trained_type}, or train with a dataset in which it is "
        )
        hint += describe(column.type)
        if is_rounded and can_widen(column.type, dtype):
            trained_type += f" stored as {describe(narrow_type)}"
            hint = 'create_training_dataset(..., data_format="parquet") stores doubles'
        raise InvalidArgument(
            f"{model_title(spec)} was trained with {model_input.name!r} as {trained_type}, and the "
            f"input {error}.",
            hint=hint,
        ) from error


def check_input_types(spec: ModelSpec, schema: pa.Schema) -> None:
    """Check before rows are read that the inputs may fit; the values are checked as they are read.

    Raises:
        InvalidArgument: No value of an input's type fits; lists all such inputs.
    """
    misfits = []
    for model_input in spec.inputs:
        column_type = schema.field(model_input.name).type
        if not can_fit(column_type, model_input.kind):
            misfits.append(
                f"{model_input.name!r} is {describe(column_type)} instead of "
                f"{describe(model_input.kind)}"
            )
    if misfits:
        raise InvalidArgument(
            f"{model_title(spec)} was trained with other types: {'; '.join(misfits)}.",
            hint="pass the types of the training dataset, "
            f"store.get_training_dataset({spec.dataset['name']!r}, "
            f"version={spec.dataset['version']}).schema",
        )


def to_stored_fill(name: str, value: Any, dtype: pa.DataType) -> Any:
    """Convert a fill value of ``nulls=`` to its JSON form in ``model.json``.

    One value fills all items of an array.

    Raises:
        InvalidArgument: The type has no such value, or null lists cannot be filled.
    """
    if value is None:
        return None
    if pat.is_nested(dtype) and not pat.is_fixed_size_list(dtype):
        raise InvalidArgument(
            f"nulls={{{name!r}: {short_repr(value)}}}: null lists cannot be filled.",
            hint=f"transformations={{{name!r}: t.pad(8)}} reads them as empty lists",
        )
    try:
        return value_to_json(arrow_values.to_value(_repeat_in_array(value, dtype), dtype))
    except ConversionError as error:
        hint = f"a value of the type {describe(dtype)}, without rounding"
        if (
            pat.is_float32(dtype)
            and isinstance(value, float)
            and not arrow_values.rounds_to_infinity(value)
        ):
            hint = f"nulls={{{name!r}: np.float32({value!r})}}"
        raise InvalidArgument(
            f"nulls={{{name!r}: {short_repr(value)}}} is not a value of the input {name!r}, which is "
            f"{describe(dtype)}.",
            hint=hint,
        ) from error


def parse_reader_fill(value: Any, dtype: pa.DataType) -> Any:
    """Convert a fill value of a reader, or one in ``model.json``, to a value of the type.

    Readers yield dates as days and times as microseconds since 1970, and take fills in this form.
    They round to float32. A value that the type does not have is returned unchanged.
    """
    value = _repeat_in_array(value_from_json(value), dtype)
    if isinstance(value, str) and pat.is_binary(dtype):
        return value.encode()
    for parse in (parse_fill, arrow_values.from_json):
        with suppress(ConversionError):
            return parse(value, dtype)
    return value


def fill_array(spec: ModelSpec, model_input: ModelInput) -> NumpyArray:
    """Return the fill value of an input as an array of shape (1, ...), as the reader yields it.

    Raises:
        InvalidArgument: An older release registered a value that the type does not have.
    """
    values = fill_value(spec, model_input)
    data, _ = to_numpy(values, name=model_input.name)
    return data


def fill_value(spec: ModelSpec, model_input: ModelInput) -> pa.Array:
    """Return the fill value of an input as an array of one value of its type."""
    dtype = model_input.kind
    try:
        return arrow_values.to_array([parse_reader_fill(model_input.fill, dtype)], dtype)
    except ConversionError as error:
        raise InvalidArgument(
            f"{model_title(spec)} fills nulls of {model_input.name!r}, which is {describe(dtype)}, "
            f"with a value that does not fit: {error}.",
            hint=f"register it again with nulls={{{model_input.name!r}: ...}}",
        ) from error


def fill_column(spec: ModelSpec, model_input: ModelInput, column: pa.Array) -> pa.Array:
    """Return a column in which the fill value of its input replaces nulls, if it has one.

    Raises:
        InvalidArgument: An older release registered a value that the type does not have.
    """
    if model_input.fill is None or not column.null_count:
        return column
    return pc.if_else(column.is_valid(), column, fill_value(spec, model_input)[0])


def output_name(name: str) -> str:
    """Return the column name of an output: ``prediction`` or ``prediction_<name>``."""
    return f"{PREDICTION}_{name}" if name else PREDICTION


def to_columns(model_outputs: Mapping[str, NumpyArray], rows: int) -> dict[str, pa.Array]:
    """Convert outputs to columns: (rows,) and (rows, 1) to scalars, (rows, n, ...) to lists.

    Half-precision numbers (float16, bfloat16) become float32, which has all their values.

    Raises:
        InvalidArgument: The number of rows differs from the input, or the type is unsupported.
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
        array = _to_feature_array(np.ascontiguousarray(values).reshape(-1))
        for size in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        columns[output_name(name)] = array
    return columns


def check_output_types(columns: Mapping[str, pa.Array]) -> None:
    """Check that each output of a trial prediction has a type.

    Raises:
        InvalidArgument: An output has only nulls.
    """
    untyped = [name for name, column in columns.items() if pat.is_null(innermost_type(column.type))]
    if untyped:
        raise InvalidArgument(
            f"The model returned only nulls in {listing(untyped)} for the first rows of its "
            "dataset, so the type is unknown.",
            hint="return NaN instead of None for missing predictions",
        )


def convert_outputs(
    spec: ModelSpec, model_outputs: Mapping[str, NumpyArray], rows: int
) -> dict[str, pa.Array]:
    """Convert outputs to columns of the registered types.

    Raises:
        InvalidArgument: The model did not return an output, or a value of another type.
    """
    columns = to_columns(model_outputs, rows)
    missing_outputs = [output.name for output in spec.outputs if output.name not in columns]
    if missing_outputs:
        raise InvalidArgument(
            f"{model_title(spec)} did not return {listing(missing_outputs)}. "
            f"Its outputs: {listing(columns)}.",
            hint="register it again",
        )
    converted = {}
    for output in spec.outputs:
        dtype = type_from_json(output.type)
        column = columns[output.name]
        try:
            converted[output.name] = arrow_values.cast_column(column, dtype)
        except ConversionError as error:
            raise InvalidArgument(
                f"{model_title(spec)} returned {describe(column.type)} in {output.name!r}, which is "
                f"{describe(dtype)} since its registration: {error}.",
                hint="return one type for all rows, such as float64, and register the model again",
            ) from error
    return converted


def refuse_inexact_integers(name: str, values: NumpyArray, dtype: NumpyDtype) -> None:
    """Refuse numbers without an equal in the integer type of a model's tensor.

    Models round to their floating-point types, as in training.

    Raises:
        InvalidArgument: A number would be truncated; the message names the first one.
    """
    if dtype.kind not in "iu" or values.dtype.kind not in "iuf":
        return
    try:
        arrow_values.cast_column(pa.array(values.reshape(-1)), pa.from_numpy_dtype(dtype))
    except ConversionError as error:
        raise InvalidArgument(
            f"The model takes {name!r} as {dtype}, and the input {error}.",
            hint=f"export the model with a floating-point input {name!r}",
        ) from error


def _to_feature_array(values: NumpyArray) -> pa.Array:
    """Convert the values of an output to an array of a feature type."""
    # bfloat16 has the kind "V" in numpy.
    is_half = values.dtype.kind in "fV" and values.dtype.itemsize < 4
    if is_half and np.can_cast(values.dtype, np.float32):
        values = values.astype(np.float32)
    try:
        if values.dtype == object:
            array = array_from_values(values.tolist(), name=PREDICTION)
        else:
            array = pa.array(values)
        dtype = feature_schema(pa.schema([(PREDICTION, array.type)])).field(0).type
        if not pat.is_null(dtype):
            return arrow_values.cast_column(array, dtype)
    except (pa.ArrowException, UnsupportedType, ConversionError) as error:
        raise InvalidArgument(
            f"The model returned values of the unsupported type {values.dtype}: {error}",
            hint="a model must return numbers, strings or lists of one size",
        ) from error
    return array


def _repeat_in_array(value: Any, dtype: pa.DataType) -> Any:
    """Return the array of a fixed shape whose items are one value; other values are unchanged."""
    if pat.is_fixed_size_list(dtype) and not isinstance(value, list | tuple | np.ndarray):
        return [_repeat_in_array(value, dtype.value_type)] * dtype.list_size
    return value


class PlannedNulls(NamedTuple):
    """The form of a column's nulls, and the JSON value of ``form`` "fill"."""

    form: NullForm
    fill: Any = None


def recorded_nulls(state: JsonMapping) -> ModelNulls:
    """Return the null policy in the state of a reader, a matrix or a DataFrame.

    >>> recorded_nulls({"split": "train", "columns": None, "transformed": None})
    'nan'
    >>> recorded_nulls({"order_version": 1, "nulls": {"seats": 0}})
    {'seats': 0}
    >>> recorded_nulls({})  # the run read nothing
    'error'
    """
    # Earlier releases recorded no policy for a matrix, whose nulls were NaN as well.
    return state.get("nulls", "nan" if state else "error")


def recorded_form(state: JsonMapping) -> str:
    """Return how a state of a run was read: "reader", "matrix", "frame" or "saved".

    "frame" is ``dataset.read``, ``SAVED`` are inputs without a read.
    """
    # Earlier releases recorded no form.
    return str(state.get("form", "reader" if "order_version" in state else "matrix"))


def plan_nulls(
    manifest: Manifest, names: Sequence[str], *, requested: ModelNulls | None, state: JsonMapping
) -> dict[str, PlannedNulls]:
    """Return what a model gets for the nulls of each input.

    Args:
        manifest: The training dataset.
        names: The inputs.
        requested: The argument ``nulls=`` of ``register_model``; None for the policy in ``state``.
        state: The state of the reader, matrix or DataFrame with which the model was trained.

    Raises:
        InvalidArgument: The policy is unknown, names a column that is not an input, or fills a
            column with a value that its type does not have.
    """
    nulls = requested if requested is not None else recorded_nulls(state)
    _check_policy(nulls, names, is_requested=requested is not None)
    if isinstance(nulls, Mapping):
        return {
            name: _plan_fill(manifest, name, nulls.get(name), is_recorded=requested is None)
            for name in names
        }
    # Masks are those of the reader, which uses the same ones for all splits.
    with_nulls = columns_with_nulls(manifest)
    if requested == "nan":
        with_nulls = set(names)
    form: NullForm = nulls
    return {name: PlannedNulls(form if name in with_nulls else "error") for name in names}


def _plan_fill(manifest: Manifest, name: str, value: Any, *, is_recorded: bool) -> PlannedNulls:
    if value is None:
        return PlannedNulls("error")
    dtype = type_from_json(manifest.column(name).type)
    if is_recorded:
        value = parse_reader_fill(value, dtype)
    return PlannedNulls("fill", to_stored_fill(name, value, dtype))


def _check_policy(nulls: ModelNulls, names: Sequence[str], *, is_requested: bool) -> None:
    if not isinstance(nulls, Mapping) and nulls not in ("error", "mask", "nan"):
        raise InvalidArgument(
            f"nulls={nulls!r} is not supported.",
            hint='nulls="error", "mask", "nan" or {input: value}',
        )
    # A reader may also fill keys and weights, which are not inputs.
    if is_requested and isinstance(nulls, Mapping):
        unknown = [name for name in nulls if name not in names]
        if unknown:
            raise InvalidArgument(
                f"nulls= contains columns that are not inputs: {listing(unknown)}. "
                f"Available: {listing(names)}."
            )
