"""Short last batches, padding in predictions, keys of rows and correct metrics."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore.errors import InvalidArgument, ReaderConfigError
from featurestore.readers import Reader
from featurestore.readers.evaluation import balance_over_replicas, has_empty_replica
from featurestore.readers.order import PADDING
from featurestore.readers.tensorflow import _log_once
from featurestore.training import TrainingDataset
from tests.readers.conftest import ROWS, Example
from tests.readers.example_datasets import ROW, make_dataset
from tests.readers.test_reader_contract import open_example

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.mark.parametrize("shuffle", [True, False])
def test_remainder_keep_reads_every_row_once(example: Example, shuffle: bool) -> None:
    reader = open_example(example, remainder="keep", shuffle=shuffle)
    batches = list(reader.batches(1))
    sizes = [len(batch[ROW]) for batch in batches]
    assert sizes == [12] * (ROWS // 12) + [ROWS % 12]
    assert sorted(np.concatenate([batch[ROW] for batch in batches])) == list(range(ROWS))
    assert "sample_weight" not in batches[0]
    assert reader.rows(1, len(batches) - 1).tolist() == batches[-1][ROW].tolist()


@pytest.mark.parametrize("replicas", [2, 3, 4, 50, ROWS + 1])
def test_balanced_over_replicas_gives_each_replica_rows(tfrecord: Example, replicas: int) -> None:
    for replica_rows in range(1, 50):
        batch = replica_rows * replicas
        reader = open_example(tfrecord, global_batch_size=batch, remainder="pad", shuffle=False)
        balanced = balance_over_replicas(reader.plan, replicas, batch=batch)
        rows = balanced.order.epoch(0).batches(0, balanced.steps_per_epoch)
        shares = rows.reshape(balanced.steps_per_epoch, replicas, replica_rows)
        without_rows = (shares == PADDING).all(axis=2).any()
        assert without_rows == has_empty_replica(reader.plan, replicas, batch=batch)
        assert sorted(rows[rows != PADDING]) == list(range(ROWS))


def test_remainder_keep_with_two_workers_raises(tfrecord: Example) -> None:
    reader = open_example(tfrecord, remainder="keep")
    with pytest.raises(ReaderConfigError, match='remainder="keep" supports only one worker'):
        reader.batches(worker=0, workers=2)


def test_remainder_keep_small_split_is_one_short_batch(tfrecord: Example) -> None:
    reader = open_example(tfrecord, remainder="keep", global_batch_size=2 * ROWS)
    assert [len(batch[ROW]) for batch in reader.batches()] == [ROWS]


def test_remainder_keep_state_resumes(tfrecord: Example) -> None:
    dataset = TrainingDataset.open(tfrecord.path)
    reader = dataset.reader("train", global_batch_size=12, remainder="keep", columns=[ROW])
    again, epoch, step = dataset.resume(reader.state(2, 16))
    [batch] = again.batches(epoch, start_step=step)
    assert batch[ROW].tolist() == reader.rows(2, 16).tolist()


def keyed(store: FeatureStore, rows: int) -> TrainingDataset:
    random = np.random.default_rng(0)
    label = random.random(rows) < 0.5
    table = pa.table(
        {
            "customer": [f"c{number}" for number in range(rows)],
            "x": (4 + label * 1.4 + random.normal(size=rows)).astype(np.float32),
            "bought": label.astype(np.float32),
        }
    )
    return store.create_training_dataset(
        table, "buyers", label="bought", key="customer", progress=False
    )


@pytest.mark.parametrize("remainder", ["keep", "pad"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_predict_returns_predictions_by_key(
    empty_store: FeatureStore, remainder: str, shuffle: bool
) -> None:
    dataset = keyed(empty_store, 101)
    reader = dataset.reader("train", global_batch_size=8, remainder=remainder, shuffle=shuffle)
    predictions = np.concatenate([batch["x"] * 2 for batch in reader.batches(3)])
    keys = reader.keys(epoch=3).column("customer").to_pylist()
    actual = dict(zip(keys, reader.unpad(predictions, epoch=3).tolist(), strict=True))
    rows = dataset.read("train").to_pandas()
    assert actual == dict(zip(rows["customer"], (rows["x"] * 2).tolist(), strict=True))


def test_unpad_other_number_of_rows_raises(tfrecord: Example) -> None:
    reader = open_example(tfrecord, remainder="pad")
    with pytest.raises(InvalidArgument, match="an epoch has 203 rows, 204 with padding"):
        reader.unpad(np.zeros(202))


def fitted(library: Any, reader: Reader, **metrics: Any) -> Any:
    model = library.Sequential([library.Input((1,)), library.layers.Dense(1, activation="sigmoid")])
    model.compile(loss="binary_crossentropy", jit_compile=False, **metrics)
    model.layers[-1].set_weights([np.array([[1.0]], np.float32), np.array([-4.7], np.float32)])
    return model


def to_model(features: Any, *targets: Any) -> Any:
    return (features["x"][:, None], *targets)


def exact_auc(dataset: TrainingDataset) -> float:
    rows = dataset.read("train").to_pandas()
    late, punctual = rows["x"][rows["bought"] == 1], rows["x"][rows["bought"] == 0]
    return float((late.to_numpy()[:, None] > punctual.to_numpy()[None, :]).mean())


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_auc_excludes_padding_rows(empty_store: FeatureStore, name: str) -> None:
    pytest.importorskip("tensorflow")
    library = pytest.importorskip(name)
    dataset = keyed(empty_store, 130)
    right = exact_auc(dataset)
    actual = {}
    for remainder in ("pad", "keep"):
        reader = dataset.reader("train", global_batch_size=128, remainder=remainder)
        for argument in ("metrics", "weighted_metrics"):
            model = fitted(library, reader, **{argument: [library.metrics.AUC(name="auc")]})
            result = model.evaluate(reader.tf_dataset().map(to_model), return_dict=True, verbose=0)
            actual[remainder, argument] = result["auc"]
    assert actual["pad", "metrics"] > right + 0.05
    for case in (("pad", "weighted_metrics"), ("keep", "metrics"), ("keep", "weighted_metrics")):
        assert actual[case] == pytest.approx(right, abs=0.01)


@pytest.mark.tensorflow
@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
def test_evaluate_counts_every_row_once_for_any_remainder(
    empty_store: FeatureStore, remainder: str
) -> None:
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    dataset = keyed(empty_store, 130)
    reader = dataset.reader("train", global_batch_size=128, remainder=remainder)
    inputs = keras.Input((), name="x")
    column = keras.layers.Reshape((1,))(inputs)
    score = keras.layers.Dense(1, activation="sigmoid")(column)
    model = keras.Model({"x": inputs}, score)
    model.compile(loss="binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    model.layers[-1].set_weights([np.array([[1.0]], np.float32), np.array([-4.7], np.float32)])
    assert reader.evaluate(model)["auc"] == pytest.approx(exact_auc(dataset), abs=0.01)
    padded = model.predict(reader.tf_dataset(), verbose=0)
    if remainder != "drop":
        assert reader.unpad(padded).shape == (130, 1)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_keras_validation_excludes_padding(
    empty_store: FeatureStore, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("tensorflow")
    library = pytest.importorskip(name)
    dataset = keyed(empty_store, 130)
    reader = dataset.reader("train", global_batch_size=128, remainder="pad")
    inputs = library.Input((), name="x")
    score = library.layers.Dense(1, activation="sigmoid")(library.layers.Reshape((1,))(inputs))
    model = library.Model({"x": inputs}, score)
    auc = library.metrics.AUC(name="auc")
    model.compile(library.optimizers.SGD(0.0), loss="binary_crossentropy", metrics=[auc])
    model.layers[-1].set_weights([np.array([[1.0]], np.float32), np.array([-4.7], np.float32)])
    right = reader.evaluate(model)
    assert right["auc"] == pytest.approx(exact_auc(dataset), abs=0.01)
    assert model.evaluate(reader.tf_dataset(), return_dict=True, verbose=0) == pytest.approx(right)
    training = dataset.reader("train", global_batch_size=64)
    data, checks = training.tf_dataset(), reader.tf_dataset()
    history = model.fit(data, validation_data=checks, shuffle=False, verbose=0)
    checkpoint = training.checkpoint(tmp_path, objects={})
    fitted = checkpoint.fit(model, 1, validation_data=reader.tf_dataset(), verbose=0)
    for figures in (history.history, fitted.history):
        actual = {metric: figures[f"val_{metric}"][0] for metric in right}
        assert actual == pytest.approx(right)
    predictions = model.predict(reader.tf_dataset(), verbose=0)
    assert len(predictions) == 256
    assert reader.unpad(predictions).shape == (130, 1)


@pytest.mark.tensorflow
def test_fit_unweighted_metrics_over_padding_raise(tfrecord: Example, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    library = pytest.importorskip("tf_keras")
    reader = open_example(tfrecord, columns=["ratio", "label"], remainder="pad")
    model = fitted(library, reader, metrics=["AUC"])
    checkpoint = reader.checkpoint(tmp_path / "checkpoints", objects={"model": model})
    with pytest.raises(ReaderConfigError, match=r"weighted_metrics=\['AUC'\]"):
        checkpoint.fit(model, epochs=1)


@pytest.mark.tensorflow
def test_tf_dataset_logs_padding_notice_once(
    tfrecord: Example, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorflow")
    _log_once.cache_clear()
    reader = open_example(tfrecord, remainder="pad")
    with caplog.at_level(logging.WARNING, logger="featurestore.readers"):
        reader.tf_dataset()
        reader.tf_dataset()
    assert [record.getMessage() for record in caplog.records] == [
        'remainder="pad": padding rows have weight 0, but Keras counts them in metrics= and '
        "predict, and in mean losses of other datasets, for instance after map(). Use "
        "checkpoint.fit(model, epochs, validation=reader), reader.evaluate(model) and "
        'weighted_metrics=, or read with remainder="keep".'
    ]


@pytest.mark.tensorflow
@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
def test_weight_column_is_passed_to_loss(empty_store: FeatureStore, remainder: str) -> None:
    pytest.importorskip("tensorflow")
    table = pa.table(
        {
            "id": pa.array(range(30)),
            "x": np.arange(30, dtype=np.float32),
            "sample_weight": pa.array([1 + number % 3 for number in range(30)]),
            "y": pa.array([0, 1] * 15),
        }
    )
    dataset = empty_store.create_training_dataset(
        table, "weighed", label="y", key="id", weight="sample_weight"
    )
    reader = dataset.reader("train", global_batch_size=8, remainder=remainder)
    for batch, (features, _, weight) in zip(reader.batches(), reader.tf_dataset(), strict=True):
        assert list(features) == ["x"]
        assert weight.dtype.as_numpy_dtype == np.float32
        assert weight.numpy().tolist() == batch["sample_weight"].tolist()
    total = sum(float(weight.numpy().sum()) for _, _, weight in reader.tf_dataset())
    if remainder != "drop":
        assert total == 60


def test_weight_column_named_sample_weight_with_padding_raises(tmp_path: Path) -> None:
    table = pa.table({"sample_weight": pa.array(range(9)), "y": pa.array(range(9))})
    manifest = make_dataset(tmp_path, table, labels=["y"])
    dataset = TrainingDataset(str(tmp_path), manifest)
    with pytest.raises(ReaderConfigError, match="weight='sample_weight'"):
        dataset.reader("train", global_batch_size=4, remainder="pad")
    assert dataset.reader("train", global_batch_size=4).steps_per_epoch == 2
