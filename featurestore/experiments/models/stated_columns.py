"""The columns that a model states: the names that its library stored at the fit, in their order.

A model fitted on a DataFrame, and one with named inputs, states its columns. Its statement is
stronger than the order in which a reader yields them, so columns are passed by these names. Only
attributes of a loaded model are read.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, listing
from featurestore.experiments.models import jax_files, torch_files
from featurestore.model.registered_model import FITTED_FLAVORS, KERAS_FLAVORS, PICKLE_FLAVORS

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


def stated_columns(model: Any, flavor: str) -> tuple[str, ...] | None:
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


def select_stated(model_input: Any, stated: Sequence[str] | None, *, flavor: str) -> Any:
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


def _fitted_names(model: Any) -> tuple[str, ...] | None:
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


def _selected_names(transformer: Any) -> tuple[str, ...] | None:
    """Return the columns that a ``ColumnTransformer`` uses; it may lack those that it drops."""
    names = _to_names(getattr(transformer, "feature_names_in_", None))
    if names is None:
        return None
    positions = getattr(transformer, _SELECTED)
    dropped = {name for name, chosen, _ in transformer.transformers_ if chosen == "drop"}
    used = {index for name in positions if name not in dropped for index in positions[name]}
    return tuple(name for index, name in enumerate(names) if index in used) or None


def has_unnamed_inputs(network: Any) -> bool:
    """Return True for a network of Keras with a list of inputs, or one input, without names."""
    return bool(_keras_inputs(network)) and _keras_names(network) is None


def _keras_names(network: Any) -> tuple[str, ...] | None:
    """Return the names of the inputs of a network, None if they have no names."""
    names = _to_names(_keras_inputs(network))
    is_unnamed = names is not None and all(map(_UNNAMED_INPUT.fullmatch, names))
    return None if is_unnamed else names


def network_inputs(network: Any) -> Any:
    """Return the inputs of a network as one tensor, a list or a dict; None if they are not fixed."""
    try:
        return network.input
    except (AttributeError, RuntimeError, ValueError):  # a subclass, or a sequence of layers
        inputs = getattr(network, "inputs", None) or [None]
        return inputs[0] if len(inputs) == 1 else inputs


def _keras_inputs(network: Any) -> list[Any]:
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
