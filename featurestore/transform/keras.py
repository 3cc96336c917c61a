"""TensorFlow operations for transformations, and the Keras layers of a dataset.

A saved model contains the complete preprocessing layer: its graph, and the fitted transformations
in the layer configuration.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from featurestore.errors import InvalidArgument, missing_extra
from featurestore.readers.columns import NumpyDtype, Tensor
from featurestore.transform.apply import transform_columns
from featurestore.transform.fitted import Transformations
from featurestore.transform.ops import KEY, SEPARATORS, Value, siphash
from featurestore.transform.rules import RULES
from featurestore.transform.steps import ValueType

_MANTISSA, _EXPONENT_OF_ONE, _EXPONENT_BIAS = (1 << 52) - 1, 1023 << 52, 1023
# The maximum number of hash buckets in TensorFlow, which is an int64. The hashes of a vocabulary
# are computed modulo this number.
_LARGEST = 2**63 - 1


_EXTRAS = {"keras": "tensorflow", "tf_keras": "keras2"}


class TensorFlowOps:
    """The operations of TensorFlow."""

    def __init__(self) -> None:
        try:
            import tensorflow
        except ImportError as error:
            raise missing_extra("tensorflow", "tensorflow") from error
        self._tf: Any = tensorflow

    def number(self, value: Value) -> Tensor:
        tf = self._tf
        data = tf.cast(value.data, tf.float64)
        present = value.present
        if value.value_type == "code":
            present = value.data != 0
        if present is None:
            return data
        return tf.where(self._broadcast_mask(present, data), data, self._float_constant(np.nan))

    def where(self, condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        # tf.where does not promote types, so scalars are converted to the type of the other
        # argument.
        dtype = getattr(yes, "dtype", getattr(no, "dtype", self._tf.float64))
        yes = self._tf.convert_to_tensor(yes, dtype)
        return self._tf.where(condition, yes, self._tf.convert_to_tensor(no, dtype))

    def is_floating(self, data: Tensor) -> bool:
        return bool(data.dtype.is_floating)

    def isnan(self, data: Tensor) -> Tensor:
        return self._tf.math.is_nan(data)

    def floor(self, data: Tensor) -> Tensor:
        return self._tf.floor(data)

    def exponent(self, data: Tensor) -> tuple[Tensor, Tensor]:
        tf = self._tf
        # TensorFlow has no frexp, so the mantissa and the exponent are extracted from the bits.
        bits = tf.bitcast(data, tf.int64)
        mantissa = tf.bitwise.bitwise_or(
            tf.bitwise.bitwise_and(bits, self._integer_constant(_MANTISSA)),
            self._integer_constant(_EXPONENT_OF_ONE),
        )
        exponent = tf.bitwise.right_shift(
            bits, self._integer_constant(52)
        ) - self._integer_constant(_EXPONENT_BIAS)
        return tf.bitcast(mantissa, tf.float64), tf.cast(exponent, tf.float64)

    def count_up_to(self, edges: Sequence[float], data: Tensor) -> Tensor:
        tf = self._tf
        if not edges:
            return tf.zeros(tf.shape(data), tf.int64)
        counts = self._search(tf.constant(edges, tf.float64), data, side="right")
        return tf.where(tf.math.is_nan(data), self._integer_constant(0), counts)

    def position(self, vocabulary: Sequence[Any], value: Value) -> Any:
        tf = self._tf
        if not vocabulary:
            return tf.fill(tf.shape(value.data), self._integer_constant(-1))
        if value.value_type == "text":
            # Search sorted hashes, since a lookup table would be a resource outside the graph.
            strings = np.array([text.encode() for text in vocabulary], dtype=object)
            keys = (siphash(strings.tolist()) % np.uint64(_LARGEST)).astype(np.int64)
            wanted_keys = tf.strings.to_hash_bucket_strong(value.data, _LARGEST, key=list(KEY))
        else:
            strings = keys = np.array(vocabulary, dtype=np.int64)
            wanted_keys = tf.cast(value.data, tf.int64)
        order = np.argsort(keys, kind="stable")
        candidates = self._search(tf.constant(keys[order]), wanted_keys, side="left")
        candidates = tf.minimum(candidates, self._integer_constant(len(vocabulary) - 1))
        wanted_values = value.data if value.value_type == "text" else wanted_keys
        # An unknown string may have the hash of a known string, so the candidate is compared.
        is_match = tf.gather(tf.constant(strings[order]), candidates) == wanted_values
        return tf.where(is_match, tf.gather(tf.constant(order.astype(np.int64)), candidates), -1)

    def bucket(self, value: Value, buckets: int) -> Tensor:
        tf = self._tf
        strings = value.data
        if value.value_type == "whole":
            strings = tf.strings.as_string(tf.cast(strings, tf.int64))
        return tf.strings.to_hash_bucket_strong(strings, buckets, key=list(KEY))

    def words(self, value: Value, *, lower: bool, length: int) -> Value:
        tf = self._tf
        strings = value.data
        if value.present is not None:
            strings = tf.where(self._broadcast_mask(value.present, strings), strings, "")
        shape = tf.concat([tf.shape(strings), [length]], axis=0)
        strings = tf.reshape(strings, [-1])
        if lower:
            strings = tf.strings.lower(strings)
        words = tf.strings.split(tf.strings.regex_replace(strings, SEPARATORS, " "), sep=None)
        filled = tf.reshape(words.to_tensor(default_value="", shape=(None, length)), shape)
        return Value("text", filled, filled != "")

    def pad_lists(
        self, lists: Tensor, length: int, *, last: bool
    ) -> tuple[ValueType, Tensor, Tensor]:
        tf = self._tf
        if not isinstance(lists, tf.RaggedTensor):
            lists = tf.RaggedTensor.from_tensor(lists)  # lists of equal length
        value_type: ValueType = "text"
        if lists.dtype.is_floating:
            value_type, lists = "number", tf.cast(lists, tf.float64)
        elif lists.dtype != tf.string:
            value_type, lists = "whole", tf.cast(lists, tf.int64)
        if last:
            lists = lists[:, -length:]
        present = tf.sequence_mask(tf.minimum(lists.row_lengths(), length), length)
        return value_type, lists.to_tensor(shape=(None, length)), present

    def stack(self, arrays: Sequence[Tensor]) -> Tensor:
        return self._tf.stack(arrays, axis=-1)

    def one_hot(self, codes: Tensor, size: int) -> Tensor:
        return self._tf.one_hot(codes, size, dtype=self._tf.float64)

    def cast(self, data: Tensor, dtype: str) -> Tensor:
        return self._tf.cast(data, dtype)

    def constant(self, value: Any, value_type: ValueType) -> Tensor:
        if value_type == "text":
            return self._tf.constant(value.encode())
        return self._integer_constant(value)

    def _search(self, ordered: Tensor, data: Tensor, *, side: str) -> Tensor:
        tf = self._tf
        flat = tf.searchsorted(ordered, tf.reshape(data, [-1]), side=side, out_type=tf.int64)
        return tf.reshape(flat, tf.shape(data))

    def _broadcast_mask(self, present: Tensor, data: Tensor) -> Tensor:
        for _ in range(len(data.shape) - len(present.shape)):
            present = present[..., None]
        return present

    def _float_constant(self, value: float) -> Tensor:
        return self._tf.constant(value, self._tf.float64)

    def _integer_constant(self, value: int) -> Tensor:
        return self._tf.constant(value, self._tf.int64)


def transform_tensors(
    transformations: Transformations, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Transform the columns of a batch that have a chain; return the others unchanged.

    A tensor ``<name>_present`` is the mask of a column; missing numbers may also be NaN.
    """
    return transform_columns(
        TensorFlowOps(), transformations, batch, lambda _, tensor: (tensor, None)
    )


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
    forms: Mapping[str, tuple[NumpyDtype, tuple[int | None, ...]]], framework: str
) -> dict[str, Tensor]:
    """Return a Keras input layer for each feature; the shape (None,) means ragged tensors."""
    keras = _import_keras(framework)
    inputs = {}
    for name, (dtype, shape) in forms.items():
        dtype_name = "string" if dtype.kind == "O" else dtype.name
        ragged = None in shape
        inputs[name] = keras.Input(shape, name=name, dtype=dtype_name, ragged=ragged)
    return inputs


def _import_keras(framework: str) -> Any:
    """Import and return Keras 3 or tf_keras; raise MissingExtra if it is not installed."""
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
    keras = _import_keras(framework)

    # The class is defined here, because Keras is imported on demand. The cache ensures that it is
    # registered once per framework.
    @keras.utils.register_keras_serializable(package="featurestore")
    class Preprocessor(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """Layer that applies fitted transformations to a dict and passes other tensors through."""

        def __init__(self, transformations: Mapping[str, Any], **options: Any) -> None:
            # Disable autocast, so that float64 and integer inputs keep their types.
            super().__init__(**{"trainable": False, "autocast": False, **options})
            self._spec = dict(transformations)
            self._fitted = Transformations.from_json(self._spec)

        def call(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return transform_tensors(self._fitted, inputs)

        def compute_output_spec(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            # Without this method, Keras 3 would trace ``call`` with dense tensors even if inputs
            # are ragged.
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
