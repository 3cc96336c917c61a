"""Loaded models as functions: the columns that they state, and their predictions by flavor.

A model fitted on a DataFrame, and one with named inputs, states its columns. Its statement is
stronger than the order in which a reader yields them, so columns are passed by these names. Only
attributes of a loaded model are read.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, listing
from featurestore.experiments.models import boosters, jax_files, torch_files
from featurestore.experiments.models.conversion import refuse_inexact_integers
from featurestore.model.registered_model import (
    BOOSTERS,
    FITTED_FLAVORS,
    KERAS_FLAVORS,
    PICKLE_FLAVORS,
    Arrays,
)
from featurestore.readers.columns import NumpyArray

# Number of rows per prediction call, independent of the engine's batch size.
PREDICT_ROWS = 8192
_MIN_ROWS = 32
# A loaded model of a library, and the rows that it takes: arrays by name, a matrix or a DataFrame.
LoadedModel: TypeAlias = Any
ModelRows: TypeAlias = Any
# Maps a model input to predictions by output name ("" for a single output).
Predict = Callable[[ModelRows], Mapping[str, NumpyArray]]
# The names that Keras gives to inputs without a name.
_UNNAMED_INPUT = re.compile(r"(keras_tensor|input_layer)(_\d+)?|input_\d+")
# Attributes of scikit-learn: fitted models of searches and of models with a transformed target, and the
# columns of each part of a ``ColumnTransformer``.
_DELEGATES = ("best_estimator_", "regressor_")
_SELECTED = "_transformer_to_input_indices"
# The signature of a SavedModel that predictions call.
SIGNATURE = "serving_default"


class NamedMatrix(NamedTuple):
    """A float32 array of shape (rows, columns), and the names of its columns."""

    values: npt.NDArray[np.float32]
    names: tuple[str, ...]


def stated_columns(model: LoadedModel, flavor: str) -> tuple[str, ...] | None:
    """Return the names of the columns that a loaded model takes, in its order.

    Args:
        model: A model that ``loading.load_object`` returned.
        flavor: Its flavor, except "spark" (see ``spark_pipelines.stated_columns``).

    Returns:
        The names, or None if the model states none.

    >>> class Line:
    ...     feature_names_in_ = ["seats", "temp"]
    >>> stated_columns(Line(), "pickle")
    ('seats', 'temp')
    >>> stated_columns(object(), "pickle") is None
    True
    """
    if flavor in FITTED_FLAVORS:
        return _fitted_names(model)
    if flavor in KERAS_FLAVORS:
        return _keras_names(model)
    if flavor == "torch":
        return torch_files.input_names(model)
    if flavor == "jax":
        return jax_files.input_names(model)
    if flavor != "tensorflow":
        return None
    signature = model.signatures.get(SIGNATURE)
    return None if signature is None else _to_names(signature.structured_input_signature[1])


def select_stated(model_input: ModelRows, stated: Sequence[str] | None, *, flavor: str) -> Any:
    """Return the columns of a matrix or DataFrame that a model states, in its order.

    Pickled models with a statement get a matrix as a DataFrame where pandas is installed, so that
    their library compares the names, too. Arrays by column are returned unchanged.

    Raises:
        InvalidArgument: The model states columns that the matrix does not have.

    >>> matrix = NamedMatrix(np.array([[1.0, 2.0]], dtype=np.float32), ("temp", "seats"))
    >>> select_stated(matrix, None, flavor="pickle").tolist()
    [[1.0, 2.0]]
    >>> select_stated(matrix, ("seats", "temp"), flavor="xgboost").tolist()
    [[2.0, 1.0]]
    """
    if isinstance(model_input, NamedMatrix):
        if stated is None:
            return model_input.values
        return _select_from_matrix(model_input, stated, flavor=flavor)
    columns = list(getattr(model_input, "columns", ()))
    if stated is None or columns == list(stated) or not set(stated) <= set(columns):
        return model_input
    return model_input[list(stated)]


def _select_from_matrix(matrix: NamedMatrix, stated: Sequence[str], *, flavor: str) -> Any:
    """Return the columns of a matrix that a model states as a DataFrame or an array."""
    positions = column_positions(stated, matrix.names)
    if positions is None:
        raise InvalidArgument(
            f"The model was fitted on the columns {listing(stated, limit=50)}, and gets "
            f"{listing(matrix.names, limit=50)}.",
            hint="register_model(run, name, columns=[...]) with the columns of its training",
        )
    values = matrix.values
    if positions != list(range(len(matrix.names))):
        values = values[:, positions]
    if flavor not in PICKLE_FLAVORS:
        return values
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return values
    return pandas.DataFrame(values, columns=list(stated), copy=False)


def column_positions(stated: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Return the position in ``names`` of each column that a model states.

    A stated name that is not in ``names`` is the model's own name of the column at its position.

    Returns:
        The positions, or None if the names contradict each other.

    >>> column_positions(["c", "a"], ["a", "b", "c"])
    [2, 0]
    >>> column_positions(["a", "total"], ["a", "sum"])
    [0, 1]
    >>> column_positions(["b", "total"], ["a", "b"]) is None
    True
    """
    position_by_name = {name: position for position, name in enumerate(names)}
    if all(name in position_by_name for name in stated):
        return [position_by_name[name] for name in stated]
    pairs = zip(stated, names, strict=False)
    has_own_names = len(stated) == len(names) and all(
        own == name or own not in position_by_name for own, name in pairs
    )
    return list(range(len(names))) if has_own_names else None


def _fitted_names(model: LoadedModel) -> tuple[str, ...] | None:
    """Return the names that a fitted model of scikit-learn, XGBoost or LightGBM has."""
    library = type(model).__module__.partition(".")[0]
    if library == "sklearn":
        for attribute in _DELEGATES:  # these pass on their input as it is
            if hasattr(model, attribute):
                return _fitted_names(getattr(model, attribute))
    if isinstance(getattr(model, "steps", None), list):
        # A pipeline passes its input through these first steps.
        skipped = (None, "passthrough")
        steps = [
            step for step in model.steps if isinstance(step, tuple) and step[-1] not in skipped
        ]
        return _fitted_names(steps[0][-1]) if steps else None
    if hasattr(model, _SELECTED):
        return _selected_names(model)
    if library == "lightgbm" and hasattr(model, "feature_name"):
        names = _to_names(model.feature_name())
        # LightGBM names the columns of an array.
        is_unnamed = names == tuple(f"Column_{position}" for position in range(len(names or ())))
        return None if is_unnamed else names
    attribute = "feature_names_in_"
    if library == "xgboost" and not hasattr(model, attribute):
        attribute = "feature_names"
    # Libraries raise subclasses of AttributeError if a model was fitted without names.
    return _to_names(getattr(model, attribute, None))


def _selected_names(transformer: LoadedModel) -> tuple[str, ...] | None:
    """Return the columns that a ``ColumnTransformer`` uses; it may lack those that it drops."""
    names = _to_names(getattr(transformer, "feature_names_in_", None))
    if names is None:
        return None
    positions = getattr(transformer, _SELECTED)
    dropped = {name for name, chosen, _ in transformer.transformers_ if chosen == "drop"}
    used = {index for name in positions if name not in dropped for index in positions[name]}
    return tuple(name for index, name in enumerate(names) if index in used) or None


def has_unnamed_inputs(network: LoadedModel) -> bool:
    """Return True for a network of Keras with a list of inputs, or one input, without names."""
    return bool(_keras_inputs(network)) and _keras_names(network) is None


def _keras_names(network: LoadedModel) -> tuple[str, ...] | None:
    """Return the names of the inputs of a network, None if they have no names."""
    names = _to_names(_keras_inputs(network))
    is_unnamed = names is not None and all(map(_UNNAMED_INPUT.fullmatch, names))
    return None if is_unnamed else names


def network_inputs(network: LoadedModel) -> Any:
    """Return the inputs of a network as one tensor, a list or a dict; None if they are not fixed."""
    try:
        return network.input
    except (AttributeError, RuntimeError, ValueError):  # a subclass, or a sequence of layers
        inputs = getattr(network, "inputs", None) or [None]
        return inputs[0] if len(inputs) == 1 else inputs


def _keras_inputs(network: LoadedModel) -> list[Any]:
    """Return the names of the inputs of a network, empty for a network without fixed inputs."""
    inputs = network_inputs(network)
    if isinstance(inputs, Mapping):
        return list(inputs)
    tensors = inputs if isinstance(inputs, list | tuple) else [inputs]
    return [tensor.name for tensor in tensors if hasattr(tensor, "name")]


def _to_names(names: Any) -> tuple[str, ...] | None:
    """Return names as a tuple of strings; None if there are none, or others than strings."""
    if not isinstance(names, Iterable) or isinstance(names, str):
        return None
    texts = tuple(str(name) if isinstance(name, str) else None for name in names)
    return None if not texts or None in texts else texts  # type: ignore[return-value]


def default_arrays(model: LoadedModel, flavor: str) -> Arrays:
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


def make_predictor(model: LoadedModel, flavor: str, *, method: str) -> Predict:
    """Return the prediction function of a model, which gets the columns that it states."""
    predict = _make_array_predictor(model, flavor, method=method)
    stated = stated_columns(model, flavor) if flavor in FITTED_FLAVORS else None
    return lambda model_input: predict(select_stated(model_input, stated, flavor=flavor))


def _make_array_predictor(model: LoadedModel, flavor: str, *, method: str) -> Predict:
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


def _make_network_predictor(network: LoadedModel) -> Callable[[ModelRows], Any]:
    """Return the function that predicts a batch; inputs without names get columns by position."""
    if not has_unnamed_inputs(network):
        return network.predict_on_batch

    def predict_batch(model_input: ModelRows) -> ModelRows:
        if isinstance(model_input, Mapping):
            columns = list(model_input.values())
            model_input = columns if len(columns) > 1 else columns[0]
        return network.predict_on_batch(model_input)

    return predict_batch


def _predict_in_batches(
    predict_batch: Callable[[ModelRows], Any], model_input: ModelRows
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


def _signature_predictor(model: LoadedModel) -> Predict:
    """Return the prediction function of a SavedModel, which calls its default signature."""
    library, signature = importlib.import_module("tensorflow"), model.signatures[SIGNATURE]

    _, input_specs = signature.structured_input_signature

    def predict(model_input: ModelRows) -> Mapping[str, NumpyArray]:
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
