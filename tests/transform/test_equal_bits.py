"""Transformations in numpy, TensorFlow, Keras, PyTorch, DuckDB and Spark are bit-identical."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import featurestore
from featurestore.model.names import PRESENT
from featurestore.readers.columns import item_dtype, to_numpy, to_ragged
from featurestore.store import FeatureStore
from featurestore.testing import transform_conformance as conformance
from featurestore.testing.transform_conformance import TransformConformance
from featurestore.transform.fitted import Transformations


def decoded(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
    """Return decoded columns as readers return them, each with its mask."""
    arrays = {}
    for name in table.column_names:
        values, present = to_numpy(table.column(name), name=name)
        arrays[name] = values
        if present is None:
            present = np.ones(len(values), dtype=np.bool_)
        arrays[name + PRESENT] = present
    return arrays


class TestArrays(TransformConformance):
    """``Transformations.apply`` over arrays, after a round trip through their file."""

    def transformed(self, fitted: Transformations, table: pa.Table) -> dict[str, Any]:
        again = Transformations.from_bytes(fitted.to_bytes(), path="")
        result = again.apply(decoded(table))
        return {name: result[name] for name in table.column_names}


@pytest.mark.tensorflow
class TestTensorFlowGraph(TransformConformance):
    """Operations in a traced graph, after optimization by Grappler."""

    def transformed(self, fitted: Transformations, table: pa.Table) -> dict[str, Any]:
        tf = pytest.importorskip("tensorflow")
        from featurestore.transform.keras import transform_tensors

        inputs = {}
        for name, array in decoded(table).items():
            if name in fitted and fitted[name].input_form.value_type == "list":
                input_values = to_ragged(array, item_dtype(table.schema.field(name).type))
                inputs[name] = tf.RaggedTensor.from_row_splits(*input_values)
            else:
                inputs[name] = tf.constant(array)
        result = tf.function(lambda batch: transform_tensors(fitted, batch))(inputs)
        return {name: result[name].numpy() for name in table.column_names}


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install torch"
)
class TestTorch(TransformConformance):
    """The PyTorch operations."""

    def transformed(self, fitted: Transformations, table: pa.Table) -> dict[str, Any]:
        import torch

        from featurestore.transform.torch import preprocessor_module

        batch: dict[str, Any] = {}
        for name, array in decoded(table).items():
            batch[name] = array if array.dtype == object else torch.from_numpy(array.copy())
        result = preprocessor_module(fitted)(batch)
        return {name: result[name].numpy() for name in table.column_names}


class OfFrames(TransformConformance):
    """``store.transform`` on an engine."""

    store: FeatureStore

    def transformed(self, fitted: Transformations, table: pa.Table) -> dict[str, Any]:
        numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
        result = self.store.transform(numbered, fitted).to_arrow()
        order = np.argsort(result.column("row").to_numpy())
        arrays = conformance.to_arrays(result.drop(["row"]))
        return {name: array[order] for name, array in arrays.items()}


class TestDuckDB(OfFrames):
    @pytest.fixture(autouse=True)
    def _store(self, empty_store: FeatureStore) -> None:
        self.store = empty_store


class TestSpark(OfFrames):
    @pytest.fixture(autouse=True)
    def _store(self, spark: Any, tmp_path: Path) -> Any:
        with featurestore.connect(tmp_path / "store", engine="spark") as store:
            self.store = store
            yield


@pytest.mark.tensorflow
@pytest.mark.parametrize("framework", ["keras", "tf_keras"])
def test_saved_keras_model_contains_transformations(framework: str, tmp_path: Path) -> None:
    keras = pytest.importorskip(framework)
    tf = pytest.importorskip("tensorflow")
    from featurestore.transform.keras import input_layers, preprocessor_layer

    few = ("log1p_standardize", "quantile_one_hot", "vocabulary_buckets", "list", "cyclical")
    other_chains = [name for name in conformance.CHAINS if name not in few]
    fitted, table = conformance.fit_all_chains(seed=3, leave_out=other_chains)
    arrays = decoded(table)
    inputs = input_layers({n: (a.dtype, a.shape[1:]) for n, a in arrays.items()}, framework)
    model = keras.Model(inputs, preprocessor_layer(fitted, framework)(inputs))
    path = str(tmp_path / "model")
    if framework == "keras":
        model.export(path, verbose=False)
    else:
        tf.saved_model.save(model, path)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    served = tf.saved_model.load(path)
    tensors = {name: tf.constant(array) for name, array in arrays.items()}
    from_graph = served.serve(tensors) if framework == "keras" else served(tensors)
    expected = conformance.transform_with_numpy(fitted, table)
    for actual in (from_graph, again(tensors)):
        conformance.check_equal({name: actual[name].numpy() for name in expected}, expected)
