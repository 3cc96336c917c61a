"""Functions of JAX (``.jax``, the bytes of ``jax.export.Exported.serialize``): loading, and prediction.

A file is a compiled program of StableHLO without Python code. Its parser reads other memory or ends
the process for bytes that JAX did not write, and a program may call functions of the process by
name, so it requires the caller's trust.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from featurestore.errors import InvalidArgument, MissingExtra, listing
from featurestore.experiments.models.conversion import refuse_inexact_integers
from featurestore.readers.columns import NumpyArray

ENDING = ".jax"


def load_function(content: bytes) -> Any:
    """Load an exported function from the bytes of its file.

    Raises:
        MissingExtra: JAX or a library that it needs is not installed.
    """
    try:
        return importlib.import_module("jax.export").deserialize(bytearray(content))
    except ImportError as error:
        raise MissingExtra(
            "Files of jax.export need the libraries 'jax' and 'flatbuffers'.",
            hint="pip install jax flatbuffers",
        ) from error


def input_names(exported: Any) -> tuple[str, ...] | None:
    """Return the columns of a function of one dict or of keyword arguments, None for others."""
    arguments, keywords = _positions(exported)
    if not arguments and keywords:
        return tuple(keywords)
    if len(arguments) == 1 and isinstance(arguments[0], dict) and not keywords:
        return tuple(arguments[0])
    return None


def make_predictor(exported: Any) -> Callable[[Any], Mapping[str, NumpyArray]]:
    """Return the prediction function of an exported function.

    A matrix is its only argument. Columns are one dict, or keyword arguments.
    """
    arguments, keywords = _positions(exported)
    names = input_names(exported)
    takes_matrix = arguments == (0,) and not keywords

    def predict(model_input: Any) -> Mapping[str, NumpyArray]:
        if not isinstance(model_input, Mapping):
            if not takes_matrix:
                raise InvalidArgument(
                    f"The function takes {listing(names or ['several arrays'])}, not one matrix.",
                    hint='register_model(..., arrays="columns")',
                )
            return _named_outputs(exported.call(_convert(exported, 0, "the matrix", model_input)))
        if names is None or set(names) != set(model_input):
            raise InvalidArgument(
                f"The function takes {listing(names or ['arrays without names'])}, not "
                f"{listing(model_input)}.",
                hint="export a function of one dict whose keys are the columns, or a function of "
                'one matrix and use arrays="matrix"',
            )
        positions = keywords or arguments[0]
        columns = {
            name: _convert(exported, positions[name], name, values)
            for name, values in model_input.items()
        }
        outputs = exported.call(**columns) if keywords else exported.call(columns)
        return _named_outputs(outputs)

    return predict


def _positions(exported: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the position of each array in their place."""
    unflatten = importlib.import_module("jax.tree_util").tree_unflatten
    arguments, keywords = unflatten(exported.in_tree, range(len(exported.in_avals)))
    return tuple(arguments), dict(keywords)


def _convert(exported: Any, position: int, name: str, values: NumpyArray) -> Any:
    """Convert an array to the type that the function takes, which JAX does not."""
    dtype = np.dtype(exported.in_avals[position].dtype)
    refuse_inexact_integers(name, values, dtype)
    return values.astype(dtype, copy=False)


def _named_outputs(outputs: Any) -> Mapping[str, NumpyArray]:
    """Return the outputs by name; a single output has the empty name."""
    if isinstance(outputs, list | tuple):
        outputs = {str(index): values for index, values in enumerate(outputs)}
    elif not isinstance(outputs, Mapping):
        outputs = {"": outputs}
    return {str(name): np.asarray(values) for name, values in outputs.items()}
