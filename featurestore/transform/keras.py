"""Keras layers, of Keras 3 and of tf_keras: a dataset's preprocessor, and the inputs of a model.

A saved model holds the whole layer: its graph, and in its configuration the fitted transformations.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from featurestore.errors import InvalidArgument, missing_extra
from featurestore.transform.fitted import Transformations
from featurestore.transform.rules import RULES
from featurestore.transform.tensorflow import transform_tensors

_EXTRAS = {"keras": "tensorflow", "tf_keras": "keras2"}


def preprocessor_layer(fitted: Transformations, framework: str) -> Any:
    """Return a layer that transforms a dict of tensors.

    Raises:
        InvalidArgument: A chain has a Python function or decodes images, which no graph can hold.
    """
    outside = []
    for column in fitted.columns:
        if not all(RULES[step.rule].in_graphs for step in column.chain.steps):
            outside.append(column.name)
    if outside:
        raise InvalidArgument(
            f"The chains of {outside} have Python functions or decode images, which a Keras layer "
            "cannot hold.",
            hint='dataset.preprocessor("numpy")',
        )
    return _layer_class(framework)(fitted.to_json(), name="preprocessor")


def input_layers(
    forms: Mapping[str, tuple[np.dtype[Any], tuple[int | None, ...]]], framework: str
) -> dict[str, Any]:
    """Return an input layer for each name; a shape of (None,) is that of ragged tensors."""
    keras = _keras(framework)
    inputs = {}
    for name, (dtype, shape) in forms.items():
        kind = "string" if dtype.kind == "O" else dtype.name
        ragged = None in shape
        inputs[name] = keras.Input(shape, name=name, dtype=kind, ragged=ragged)
    return inputs


def _keras(framework: str) -> Any:
    if framework not in _EXTRAS:
        raise InvalidArgument(f"framework={framework!r} is not 'keras' or 'tf_keras'.")
    try:
        importlib.import_module("tensorflow")
        return importlib.import_module(framework)
    except ImportError as error:
        raise missing_extra(framework, _EXTRAS[framework]) from error


@cache
def _layer_class(framework: str) -> Any:
    """Return the class of the layer for one of the two Keras."""
    keras = _keras(framework)

    @keras.utils.register_keras_serializable(package="featurestore")
    class Preprocessor(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """Applies fitted transformations to a dict of tensors; the others pass through."""

        def __init__(self, transformations: Mapping[str, Any], **options: Any) -> None:
            # Inputs keep their own types: float64 and whole numbers are not cast.
            super().__init__(**{"trainable": False, "autocast": False, **options})
            self._spec = dict(transformations)
            self._fitted = Transformations.from_json(self._spec)

        def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            return transform_tensors(self._fitted, inputs)

        def compute_output_spec(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            # Keras 3 would try the call on dense tensors, also where inputs are ragged.
            result = {}
            for name, given in inputs.items():
                form = self._fitted.form(name)
                if form is None:
                    result[name] = keras.KerasTensor(
                        given.shape, dtype=given.dtype, ragged=given.ragged
                    )
                else:
                    dtype, shape = form
                    result[name] = keras.KerasTensor((given.shape[0], *shape), dtype=dtype.name)
            return result

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "transformations": self._spec}

    return Preprocessor
