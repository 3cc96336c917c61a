"""Models with a saved preprocessor predict equally from raw values and transformed batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import transform as t
from featurestore.errors import InvalidArgument
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

ROWS = 600


@pytest.fixture
def dataset(empty_store: FeatureStore) -> TrainingDataset:
    random = np.random.default_rng(5)
    table = pa.table(
        {
            "id": np.arange(ROWS),
            "temp": pa.array(random.normal(size=ROWS), mask=random.random(ROWS) < 0.1),
            "hour": random.integers(0, 24, ROWS),
            "carrier": random.choice(["AA", "B6", "UA"], ROWS),
            "late": random.integers(0, 2, ROWS),
        }
    )
    request = {
        "temp": t.impute("mean") | t.standardize(),
        "hour": t.cyclical(24),
        "carrier": t.one_hot(),
    }
    splits = {"train": 0.5, "test": 0.5}
    return empty_store.create_training_dataset(
        table,
        "late",
        label="late",
        key="id",
        splits=splits,
        transformations=request,
        progress=False,
    )


def test_numpy_preprocessor_equals_reader_batches(dataset: TrainingDataset) -> None:
    preprocess = dataset.preprocessor()
    options: dict[str, Any] = {"global_batch_size": 64, "shuffle": False}
    transformed = dataset.reader("test", **options)
    raw_reader = dataset.reader("test", transformed=False, nulls="mask", **options)
    for batch, raw in zip(transformed.batches(), raw_reader.batches(), strict=True):
        actual = preprocess(raw)
        for name in ("temp", "hour", "carrier"):
            np.testing.assert_array_equal(actual[name], batch[name])


def test_preprocessor_unknown_framework_lists_available(dataset: TrainingDataset) -> None:
    with pytest.raises(InvalidArgument, match="'numpy', 'keras', 'tf_keras', 'torch'"):
        dataset.preprocessor("kerass")


@pytest.mark.tensorflow
@pytest.mark.parametrize("framework", ["keras", "tf_keras"])
def test_training_and_serving_inputs_are_equal(dataset: TrainingDataset, framework: str) -> None:
    keras = pytest.importorskip(framework)
    tf = pytest.importorskip("tensorflow")
    inputs = dataset.keras_inputs(framework=framework)
    assert {name: tuple(tensor.shape) for name, tensor in inputs.items()} == {
        "temp": (None,),
        "hour": (None, 2),
        "carrier": (None, 3),
    }
    temp = keras.layers.Reshape((1,))(inputs["temp"])
    joined = keras.layers.Concatenate()([temp, inputs["hour"], inputs["carrier"]])
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(joined))
    model.compile("adam", "binary_crossentropy")
    reader = dataset.reader("train", global_batch_size=64)
    model.fit(reader.tf_dataset(), epochs=1, shuffle=False, verbose=0)

    raw_inputs = dataset.keras_inputs(transformed=False, nulls="mask", framework=framework)
    prepared = dataset.preprocessor(framework)(raw_inputs)
    serving = keras.Model(raw_inputs, model({name: prepared[name] for name in inputs}))
    options: dict[str, Any] = {"global_batch_size": 64, "shuffle": False}
    raw = next(dataset.reader("test", transformed=False, nulls="mask", **options).batches())
    batch = next(dataset.reader("test", **options).batches())
    request = {name: tf.constant(raw[name]) for name in raw_inputs}
    expected = model({name: tf.constant(batch[name]) for name in inputs})
    np.testing.assert_array_equal(serving(request).numpy(), expected.numpy())
