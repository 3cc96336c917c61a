"""Keras layers for Keras 3 and tf_keras: the preprocessor of a dataset, and the inputs of a model.

A saved model contains the layer completely: its graph, and the fitted transformations in its
configuration.
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
        InvalidArgument: A chain has a Python function or decodes images, which graphs do not support.
    """
    without_graphs = {name for name, rule in RULES.items() if not rule.supports_graphs}
    unsupported = [
        column.name
        for column in fitted.columns
        if any(step.rule in without_graphs for step in column.chain.steps)
    ]
    if unsupported:
        raise InvalidArgument(
            f"The chains of {unsupported} have Python functions or decode images, which Keras layers "
            "do not support.",
            hint='dataset.preprocessor("numpy")',
        )
    return _layer_class(framework)(fitted.to_json(), name="preprocessor")


def input_layers(
    forms: Mapping[str, tuple[np.dtype[Any], tuple[int | None, ...]]], framework: str
) -> dict[str, Any]:
    """Return an input layer for each name; a shape of (None,) means ragged tensors."""
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
    """Return the layer class for Keras 3 or tf_keras."""
    keras = _keras(framework)

    @keras.utils.register_keras_serializable(package="featurestore")
    class Preprocessor(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """Layer that applies fitted transformations to a dict and passes other tensors through."""

        def __init__(self, transformations: Mapping[str, Any], **options: Any) -> None:
            # Do not cast the inputs: float64 and integers keep their types.
            super().__init__(**{"trainable": False, "autocast": False, **options})
            self._spec = dict(transformations)
            self._fitted = Transformations.from_json(self._spec)

        def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            return transform_tensors(self._fitted, inputs)

        def compute_output_spec(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            # By default Keras 3 would trace ``call`` with dense tensors, also for ragged inputs.
            result = {}
            for name, tensor in inputs.items():
                form = self._fitted.form(name)
                if form is None:
                    result[name] = keras.KerasTensor(
                        tensor.shape, dtype=tensor.dtype, ragged=tensor.ragged
                    )
                else:
                    dtype, shape = form
                    result[name] = keras.KerasTensor((tensor.shape[0], *shape), dtype=dtype.name)
            return result

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "transformations": self._spec}

    return Preprocessor
