"""Prediction functions of loaded models, by flavor."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from featurestore.errors import InvalidArgument
from featurestore.experiments.models import boosters, jax_files, torch_files
from featurestore.experiments.models.conversion import refuse_inexact_integers
from featurestore.experiments.models.stated_columns import (
    SIGNATURE,
    has_unnamed_inputs,
    network_inputs,
    select_stated,
    stated_columns,
)
from featurestore.model.registered_model import BOOSTERS, FITTED_FLAVORS, KERAS_FLAVORS, Arrays
from featurestore.readers.columns import NumpyArray

# Number of rows per prediction call, independent of the engine's batch size.
PREDICT_ROWS = 8192
_MIN_ROWS = 32

# Maps a model input to predictions by output name ("" for a single output).
Predict = Callable[[Any], Mapping[str, NumpyArray]]


def default_arrays(model: Any, flavor: str) -> Arrays:
    """Return the form in which a loaded model takes its inputs.

    Models of scikit-learn and boosters take a matrix. Networks and exported functions take a matrix
    if it is their only input and has no name of a column.
    """
    takes_matrix = flavor in FITTED_FLAVORS
    if flavor in KERAS_FLAVORS:
        takes_matrix = has_unnamed_inputs(model) and _takes_matrix(network_inputs(model))
    elif flavor == "torch":
        takes_matrix = len(model.graph_signature.user_inputs) == 1
    elif flavor == "jax":
        takes_matrix = jax_files.input_names(model) is None
    return "matrix" if takes_matrix else "columns"


def _takes_matrix(network_input: Any) -> bool:
    """Return whether the input of a network is one array of shape (rows, several numbers)."""
    shape: Any = getattr(network_input, "shape", ())
    # The dtype of Keras 3 is a string, that of tf_keras has one.
    dtype = getattr(network_input, "dtype", "")
    is_number = "float" in str(getattr(dtype, "name", dtype))
    return is_number and len(shape) == 2 and shape[1] not in (None, 1)


def make_predictor(model: Any, flavor: str, *, method: str) -> Predict:
    """Return the prediction function of a model, which gets the columns that it states."""
    predict = _make_array_predictor(model, flavor, method=method)
    stated = stated_columns(model, flavor) if flavor in FITTED_FLAVORS else None
    return lambda model_input: predict(select_stated(model_input, stated, flavor=flavor))


def _make_array_predictor(model: Any, flavor: str, *, method: str) -> Predict:
    """Return the prediction function of a model, which takes arrays or a DataFrame."""
    if flavor in KERAS_FLAVORS:
        predict_batch = _make_network_predictor(model)
        return lambda model_input: _predict_in_batches(predict_batch, model_input)
    if flavor == "jax":
        predict_batch = jax_files.make_predictor(model)
        return lambda model_input: _predict_in_batches(predict_batch, model_input)
    if flavor == "torch":
        return torch_files.make_predictor(model)
    if flavor in BOOSTERS:
        return boosters.make_predictor(model, flavor)
    if flavor == "tensorflow":
        return _signature_predictor(model)
    predict_method = getattr(model, method, None)
    if predict_method is None:
        raise InvalidArgument(
            f"A {type(model).__name__} has no method {method!r}.", hint='method="predict"'
        )
    return lambda model_input: _named_outputs(predict_method(model_input))


def _make_network_predictor(network: Any) -> Callable[[Any], Any]:
    """Return the function that predicts a batch; inputs without names get columns by position."""
    if not has_unnamed_inputs(network):
        return network.predict_on_batch

    def predict_batch(model_input: Any) -> Any:
        if isinstance(model_input, Mapping):
            columns = list(model_input.values())
            model_input = columns if len(columns) > 1 else columns[0]
        return network.predict_on_batch(model_input)

    return predict_batch


def _predict_in_batches(
    predict_batch: Callable[[Any], Any], model_input: Any
) -> Mapping[str, NumpyArray]:
    """Return the predictions for all rows, computed in batches of a few distinct sizes.

    Keras and JAX compile a function for each new size, in 0.2 seconds. The last batch is therefore
    padded to a power of two by repeating its last row.
    """
    arrays = model_input if isinstance(model_input, dict) else {"": model_input}
    rows = len(next(iter(arrays.values())))
    outputs: dict[str, list[NumpyArray]] = {}
    for start in range(0, rows, PREDICT_ROWS):
        stop = min(rows, start + PREDICT_ROWS)
        size = max(_MIN_ROWS, 1 << (stop - start - 1).bit_length())
        padded_arrays = {}
        for name, values in arrays.items():
            padding = np.repeat(values[stop - 1 : stop], size - (stop - start), axis=0)
            padded_arrays[name] = np.concatenate([values[start:stop], padding])
        batch_outputs = _named_outputs(
            predict_batch(padded_arrays if isinstance(model_input, dict) else padded_arrays[""])
        )
        for name, values in batch_outputs.items():
            outputs.setdefault(name, []).append(values[: stop - start])
    return {name: np.concatenate(chunks) for name, chunks in outputs.items()}


def _signature_predictor(model: Any) -> Predict:
    """Return the prediction function of a SavedModel, which calls its default signature."""
    library, signature = importlib.import_module("tensorflow"), model.signatures[SIGNATURE]

    _, input_specs = signature.structured_input_signature

    def predict(model_input: Any) -> Mapping[str, NumpyArray]:
        tensors = {}
        for name, values in model_input.items():
            tensors[name] = library.constant(values)
            if name in input_specs:  # unlike Keras, a signature does not convert types
                dtype = input_specs[name].dtype
                refuse_inexact_integers(name, values, np.dtype(dtype.as_numpy_dtype))
                tensors[name] = library.cast(tensors[name], dtype)
        outputs = {name: values.numpy() for name, values in signature(**tensors).items()}
        return outputs if len(outputs) > 1 else _named_outputs(next(iter(outputs.values())))

    return predict


def _named_outputs(outputs: Any) -> Mapping[str, NumpyArray]:
    """Return the outputs of a model by name; a single output has the name ""."""
    if isinstance(outputs, Mapping):
        return {str(name): np.asarray(values) for name, values in outputs.items()}
    if isinstance(outputs, list | tuple) and outputs and isinstance(outputs[0], np.ndarray):
        return {str(index): values for index, values in enumerate(outputs)}
    return {"": np.asarray(outputs)}
