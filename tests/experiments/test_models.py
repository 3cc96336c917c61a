"""Registered models: stored files, trust and predictions."""

from __future__ import annotations

import json
import os
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import featurestore
from featurestore import experiments
from featurestore import transform as t
from featurestore.cli.main import app
from featurestore.errors import (
    FeatureNotFound,
    FeatureStoreError,
    InvalidArgument,
    ModelDamaged,
    ModelNotFound,
    NullsInColumns,
    TrainingDatasetNotFound,
    UntrustedModel,
    UsedByModel,
)
from featurestore.experiments import catalog
from featurestore.experiments.run import Run
from featurestore.model.run_record import RunDataset, RunRecord
from featurestore.recovery.rebuild import rebuild
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

START = datetime(2013, 1, 1, tzinfo=UTC)


class Line:
    """A model with two inputs whose file is code."""

    def predict(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return x @ np.array([2.0, 1.0], dtype=np.float32)


def hour(number: float) -> datetime:
    return START + timedelta(hours=number)


@pytest.fixture
def flight_labels() -> pa.Table:
    rows = range(24)
    return pa.table(
        {
            "origin": [("JFK", "LGA")[row % 2] for row in rows],
            "plane": [row % 3 for row in rows],
            "asked_at": [hour(2 + row / 2) for row in rows],
            "late": [float(row % 2) for row in rows],
        }
    )


@pytest.fixture
def flights(empty_store: FeatureStore, flight_labels: pa.Table) -> TrainingDataset:
    fill(empty_store)
    frame = empty_store.get_features(
        ["weather.temp", "planes.seats as size"],
        labels=flight_labels,
        label_time="asked_at",
        join_key={"planes": {"plane": "id"}},
    )
    return empty_store.create_training_dataset(
        frame,
        "flights",
        label="late",
        transformations={"size": t.standardize()},
        splits={"train": 0.75, "test": 0.25},
    )


def fill(store: FeatureStore) -> None:
    weather = {
        "origin": ["JFK", "LGA"] * 8,
        "at": [hour(row // 2) for row in range(16)],
        "temp": [float(30 + row) for row in range(16)],
    }
    store.create_featuregroup(pa.table(weather), "weather", primary_key="origin", event_time="at")
    planes = pa.table({"id": [0, 1, 2], "seats": [100, 150, 200]})
    store.create_featuregroup(planes, "planes", primary_key="id")


def a_run(store: FeatureStore, dataset: TrainingDataset, number: int = 1) -> Run:
    """Return a finished run over a matrix, with a pickled model as its only artifact."""
    fitted = dataset.transformations
    matrix = {"split": "train", "columns": None, "transformed": fitted and fitted.sha256}
    noted = RunDataset(dataset.name, dataset.version, dataset.manifest.content_hash, dataset.path)
    record = RunRecord(
        id=f"20130101-000000-{number:06d}",
        name="lines",
        kind="launch",
        state="finished",
        created=START.isoformat(),
        dataset=noted,
        readers=(matrix,),
    )
    catalog.save(store.session, record)
    run = Run(store.session, record)
    os.makedirs(os.path.join(run.path, "artifacts"))
    Path(run.path, "artifacts", "model.pkl").write_bytes(pickle.dumps(Line()))
    return run


def expected(dataset: TrainingDataset) -> dict[tuple[Any, ...], float]:
    """Return the predictions for the reader's batches by key."""
    result = {}
    for split in dataset.splits:
        columns = ["temp", "size", "origin", "plane", "asked_at"]
        reader = dataset.reader(split, global_batch_size=1, columns=columns)
        for batch in reader.batches():
            x = np.stack([batch["temp"], batch["size"]], axis=1).astype(np.float32)
            key = batch["origin"][0].decode(), int(batch["plane"][0]), int(batch["asked_at"][0])
            result[key] = float(Line().predict(x)[0])
    return result


def predicted(frame: Any) -> dict[tuple[Any, ...], float]:
    result = {}
    for row in frame.to_arrow().to_pylist():
        micros = int(row["asked_at"].timestamp() * 1_000_000)
        result[row["origin"], row["plane"], micros] = row["prediction"]
    return result


def test_scores_equal_predictions_of_reader_batches(
    empty_store: FeatureStore, flights: TrainingDataset, flight_labels: pa.Table
) -> None:
    model = experiments.register_model(a_run(empty_store, flights), "line", trust=True)
    assert model.features == ["weather@v1.temp", "planes@v1.seats as size"]
    assert model.label_columns == ("origin", "plane")
    assert (model.inputs, model.outputs, model.label) == (
        ("temp", "size"),
        ("prediction",),
        ("late",),
    )
    scored = empty_store.score(model, labels=flight_labels, trust=True)
    assert scored.columns == [*flight_labels.column_names, "prediction", "model_version"]
    assert predicted(scored) == expected(flights)


def test_predictions_group_has_label_times(
    empty_store: FeatureStore, flights: TrainingDataset, flight_labels: pa.Table
) -> None:
    experiments.register_model(a_run(empty_store, flights), "line", trust=True)
    for _ in range(2):
        empty_store.score("line", labels=flight_labels, featuregroup="predictions", trust=True)
    group = empty_store.featuregroup("predictions")
    assert (group.primary_key, group.event_time) == (("origin", "plane"), "asked_at")
    assert predicted(group.read()) == expected(flights)
    edges = {(edge.kind, edge.name) for edge in empty_store.featuregroup("weather").derived()}
    assert edges >= {("model", "line"), ("featuregroup", "predictions")}
    later = [{"origin": "JFK", "plane": 0, "t": hour(2.25)}]
    past = empty_store.get_features(["predictions.prediction"], labels=later, label_time="t")
    first = empty_store.score("line", labels=flight_labels.slice(0, 1), trust=True).to_arrow()
    assert past.to_arrow()["prediction"].to_pylist() == first["prediction"].to_pylist()
    fixed = empty_store.score(
        "line", labels=flight_labels.select(["origin", "plane"]), label_time=hour(3), trust=True
    )
    assert set(fixed.to_arrow()["label_time"].to_pylist()) == {hour(3)}


def test_models_with_code_need_trust(
    empty_store: FeatureStore, flights: TrainingDataset, flight_labels: pa.Table
) -> None:
    run = a_run(empty_store, flights)
    with pytest.raises(UntrustedModel, match="trust=True"):
        experiments.register_model(run, "line")
    assert experiments.get_models() == []
    model = experiments.register_model(run, "line", trust=True)
    for call in (model.load, lambda: empty_store.score(model, labels=flight_labels)):
        with pytest.raises(UntrustedModel):
            call()
    assert isinstance(model.load(trust=True), Line)
    Path(model.artifact).write_bytes(pickle.dumps(print))
    with pytest.raises(ModelDamaged, match=r"model\.pkl"):
        model.load(trust=True)


def test_rebuilt_registry_has_models_and_stages(
    empty_store: FeatureStore, flights: TrainingDataset
) -> None:
    run = a_run(empty_store, flights)
    first = experiments.register_model(run, "line", trust=True, stage="production")
    second = experiments.register_model(run, "line", trust=True, tags={"team": "traffic"})
    assert [first.version, second.version] == [1, 2]
    first.update(description="of January")
    result = rebuild(empty_store.location)
    assert result.models == ["line@v1", "line@v2"]
    assert result.unreadable == []
    actual = experiments.get_model("line", stage="production")
    assert (actual.version, actual.description) == (1, "of January")
    assert experiments.get_model("line").tags == {"team": "traffic"}
    with pytest.raises(UsedByModel, match=r"(?s)'line version 1'.*force=True"):
        empty_store.delete_training_dataset("flights", version=1)
    shown = CliRunner().invoke(
        app, ["--location", empty_store.location, "--output", "json", "model", "show", "line"]
    )
    assert json.loads(shown.stdout)["dataset"] == "flights@v1"
    for stage in ("staging", "productive"):
        CliRunner().invoke(
            app, ["--location", empty_store.location, "model", "stage", "line@v2", stage]
        )
    assert experiments.get_model("line").stage == "staging"
    empty_store.delete_training_dataset("flights", version=1, force=True)
    with pytest.raises(TrainingDatasetNotFound):
        _ = actual.dataset
    second.delete()
    assert [model.version for model in experiments.get_models("line")] == [1]


def test_invalid_registration_writes_nothing(
    empty_store: FeatureStore, flights: TrainingDataset, flight_labels: pa.Table
) -> None:
    run = a_run(empty_store, flights)
    cases: list[tuple[type[FeatureStoreError], str, dict[str, Any]]] = [
        (ModelNotFound, r"artifacts/model\.pkl", {"artifact": "artifacts/other.keras"}),
        (InvalidArgument, "predict_proba", {"method": "predict_proba"}),
        (InvalidArgument, "columns", {"arrays": "columns"}),
        (InvalidArgument, "stage='production'", {"stage": "productive"}),
    ]
    for error, words, options in cases:
        with pytest.raises(error, match=words):
            experiments.register_model(run, "line", trust=True, **options)
    assert experiments.get_models() == []
    assert not os.path.exists(os.path.join(empty_store.location, "models"))
    model = experiments.register_model(run, "line", trust=True)
    with pytest.raises(ModelNotFound, match="Available: '1 \\(development\\)'"):
        experiments.get_model("line", 2)
    unknown = [{"origin": "EWR", "plane": 0, "asked_at": hour(4)}]
    with pytest.raises(NullsInColumns, match="nulls=\\{'temp': 0\\}"):
        empty_store.score(model, labels=unknown, trust=True).to_arrow()
    filled = experiments.register_model(run, "line", trust=True, nulls={"temp": 5.0})
    assert empty_store.score(filled, labels=unknown, trust=True).count() == 1


def fitted_on_a_matrix(context: Any) -> None:
    from sklearn.linear_model import LinearRegression

    train = context.dataset.matrix("train", **context.params)
    context.save(LinearRegression().fit(train.x, train.y), "line")


def fitted_on_a_reader(context: Any) -> None:
    import keras

    inputs = {name: keras.Input(shape, name=name) for name, shape in (("x", (1,)), ("city", (3,)))}
    joined = keras.layers.Concatenate()(list(inputs.values()))
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    reader = context.reader("train", global_batch_size=10)
    for batch in reader.batches():
        model.train_on_batch({name: batch[name].reshape(10, -1) for name in inputs}, batch["y"])
        break
    context.save(model, "line")


def untouched(context: Any) -> None:
    context.save(Line(), "line")


@pytest.fixture
def trips(empty_store: FeatureStore) -> TrainingDataset:
    """A dataset whose transformed values differ from the raw values."""
    random = np.random.default_rng(0)
    rows = pa.table(
        {
            "id": range(40),
            "x": random.normal(500, 100, 40).astype(np.float32),
            "city": ["a", "b", "c", "b"] * 10,
            "y": random.normal(120, 5, 40).astype(np.float32),
        }
    )
    return empty_store.create_training_dataset(
        rows,
        "trips",
        label="y",
        key="id",
        transformations={"x": t.standardize(), "city": t.one_hot()},
        progress=False,
    )


@pytest.mark.parametrize(
    ("params", "columns"), [({}, None), ({"transformed": False, "columns": ["x"]}, ["x"])]
)
def test_matrix_models_score_their_training_values(
    empty_store: FeatureStore,
    trips: TrainingDataset,
    params: dict[str, Any],
    columns: list[str] | None,
) -> None:
    run = experiments.launch(fitted_on_a_matrix, dataset=trips, params=params, progress=False)
    model = experiments.register_model(run, "line", trust=True)
    matrix = trips.matrix("train", **params)
    rows = trips.read("train").to_arrow()
    scored = empty_store.score(model, labels=rows.drop(["y"]), trust=True).to_arrow()
    assert scored["id"].to_pylist() == rows["id"].to_pylist()
    expected = model.load(trust=True).predict(matrix.x)
    np.testing.assert_array_equal(scored["prediction"].to_numpy(), expected)
    assert abs(expected.mean() - 120) < 5
    assert [field.name for field in model.spec.inputs] == (columns or ["x", "city"])


@pytest.mark.tensorflow
def test_reader_models_score_their_training_values(
    empty_store: FeatureStore, trips: TrainingDataset
) -> None:
    pytest.importorskip("keras")
    run = experiments.launch(fitted_on_a_reader, dataset=trips, progress=False)
    model = experiments.register_model(run, "line")
    (batch,) = trips.reader("train", global_batch_size=40).batches()
    inputs = {name: batch[name].reshape(40, -1) for name in ("x", "city")}
    expected = model.load().predict(inputs, verbose=0)[:, 0]
    rows = trips.read("train").to_arrow()
    scored = empty_store.score(model, labels=rows.drop(["y"])).to_arrow()
    np.testing.assert_array_equal(scored["prediction"].to_numpy(), expected)


def test_register_model_requires_transformed_argument(
    empty_store: FeatureStore, trips: TrainingDataset
) -> None:
    run = experiments.launch(untouched, dataset=trips, progress=False)
    with pytest.raises(InvalidArgument, match="transformed=True"):
        experiments.register_model(run, "line", trust=True)


def test_score_reads_label_inputs_from_labels(empty_store: FeatureStore) -> None:
    rows = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [0.0, 1.0]})
    dataset = empty_store.create_training_dataset(rows, "plain", label="y")
    model = experiments.register_model(a_run(empty_store, dataset), "plain", trust=True)
    assert model.label_columns == ("a", "b")
    scored = empty_store.score(model, labels=rows.select(["a", "b"]), trust=True).to_arrow()
    assert scored["prediction"].to_pylist() == [5.0, 8.0]
    keyed_rows = rows.drop("y").append_column("id", pa.array([1, 2]))
    empty_store.score(model, labels=keyed_rows, featuregroup="sums", key="id", trust=True).show()
    assert empty_store.featuregroup("sums").read().count() == 2
    with pytest.raises(FeatureNotFound, match="requires columns that the labels lack: 'b'"):
        empty_store.score(model, labels=rows.select(["a"]), trust=True)


@pytest.mark.parametrize("column", [[None], [None, "web"]], ids=["alone", "in company"])
def test_null_request_values_keep_model_types(
    empty_store: FeatureStore, column: list[str | None]
) -> None:
    rows = pa.table({"size": [1.0, 2.0], "coupon": ["web", None], "y": [0.0, 1.0]})
    chains = {"coupon": t.vocabulary()}
    dataset = empty_store.create_training_dataset(rows, "d", label="y", transformations=chains)
    request = [{"size": None, "coupon": coupon} for coupon in column]
    codes = empty_store.transform(request, dataset).to_arrow()["coupon"].to_pylist()
    assert codes == [0, 2][: len(column)]
    model = experiments.register_model(a_run(empty_store, dataset), "m", trust=True)
    schema = model.get_features(labels=request).schema
    assert (schema.field("size").type, schema.field("coupon").type) == (pa.float64(), pa.string())


def test_text_inputs_of_matrix_are_refused(
    empty_store: FeatureStore,
) -> None:
    rows = {"a": [1.0, 2.0], "city": ["x", "y"], "b": [3.0, 4.0], "y": [0.0, 1.0]}
    run = a_run(
        empty_store, empty_store.create_training_dataset(pa.table(rows), "plain", label="y")
    )
    with pytest.raises(InvalidArgument, match="Inputs of other types: 'city'") as refused:
        experiments.register_model(run, "plain", trust=True)
    assert "columns=['a', 'b']" in str(refused.value.hint)
    assert not os.path.exists(os.path.join(empty_store.location, "models"))
    model = experiments.register_model(run, "plain", trust=True, columns=["a", "b"])
    assert model.inputs == ("a", "b")


@pytest.mark.tensorflow
def test_keras_models_need_no_trust(empty_store: FeatureStore, flights: TrainingDataset) -> None:
    keras = pytest.importorskip("keras")
    run = a_run(empty_store, flights)
    inputs = {name: keras.Input((1,), name=name) for name in ("temp", "size")}
    joined = keras.layers.Concatenate()(list(inputs.values()))
    network = keras.Model(inputs, keras.layers.Dense(1)(joined))
    network.save(os.path.join(run.path, "artifacts", "model.keras"))
    model = experiments.register_model(run, "dense", artifact="artifacts/model.keras")
    labels = [{"origin": "JFK", "plane": 1, "asked_at": hour(5)}]
    row = model.get_features(labels=labels)
    table = empty_store.transform(row, model.transformations).to_arrow()
    batch = {name: table[name].to_numpy() for name in inputs}
    predictions = empty_store.score(model, labels=labels).to_arrow()["prediction"].to_numpy()
    np.testing.assert_array_equal(predictions, network.predict(batch, verbose=0)[:, 0])


SCORING_JOB = """
import featurestore

@featurestore.job(featuregroup="predicted", primary_key=["origin", "plane"], event_time="asked_at",
                  schedule="0 * * * *", window="1h", start="2013-01-01T02:00Z",
                  closed="left", inputs={"labels": "asked"})
def predict(window, labels):
    return featurestore.score("line", labels=labels, trust=True)
"""


def test_job_writes_predictions_of_window(
    empty_store: FeatureStore, flights: TrainingDataset, flight_labels: pa.Table, tmp_path: Path
) -> None:
    experiments.register_model(a_run(empty_store, flights), "line", trust=True)
    empty_store.create_featuregroup(
        flight_labels, "asked", primary_key=["origin", "plane"], event_time="asked_at"
    )
    (tmp_path / "scoring_job.py").write_text(SCORING_JOB)
    empty_store.register_jobs(tmp_path / "scoring_job.py")
    runs = empty_store.backfill_job("predict", hour(2), hour(4))
    assert [(run.state, run.rows) for run in runs] == [("done", 4)]
    expected_value = expected(flights)
    table = predicted(empty_store.featuregroup("predicted").read())
    assert len(table) == 4
    assert table == {key: expected_value[key] for key in table}


@pytest.mark.tensorflow
def test_trusted_saved_model_predicts_by_signature(
    empty_store: FeatureStore, flights: TrainingDataset, flight_labels: pa.Table
) -> None:
    tf = pytest.importorskip("tensorflow")

    class Doubled(tf.Module):  # type: ignore[misc]
        @tf.function(
            input_signature=[
                tf.TensorSpec((None,), tf.float32, name=name) for name in ("temp", "size")
            ]
        )
        def __call__(self, temp: Any, size: Any) -> Any:
            return {"answer": 2.0 * temp + size}

    run = a_run(empty_store, flights)
    folder = os.path.join(run.path, "artifacts", "saved")
    module = Doubled()
    tf.saved_model.save(module, folder, signatures={"serving_default": module.__call__})
    with pytest.raises(UntrustedModel):
        experiments.register_model(run, "saved", artifact="artifacts/saved")
    model = experiments.register_model(run, "saved", artifact="artifacts/saved", trust=True)
    assert (model.flavor, model.outputs) == ("tensorflow", ("prediction",))
    expected_predictions = expected(flights)
    predictions = predicted(empty_store.score(model, labels=flight_labels, trust=True))
    assert predictions == pytest.approx(expected_predictions, rel=1e-6)
    (Path(model.artifact) / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ModelDamaged, match=r"saved_model\.pb"):
        model.load(trust=True)


@pytest.mark.spark
def test_spark_pipeline_scores_equal_transform(
    empty_store: FeatureStore, flights: TrainingDataset, flight_labels: pa.Table, spark: Any
) -> None:
    del spark
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import VectorAssembler

    spark_store = featurestore.connect(empty_store.location, engine="spark")
    labels = spark_store.get_featuregroup(
        spark_store.create_featuregroup(
            flight_labels, "asked", primary_key="plane", event_time="asked_at"
        ).name
    )
    features = spark_store.get_features(
        ["weather.temp", "planes.seats as size"],
        labels=labels,
        label_time="asked_at",
        join_key={"planes": {"plane": "id"}},
    ).to_spark()
    stages = [
        VectorAssembler(inputCols=["temp", "size"], outputCol="inputs"),
        LogisticRegression(featuresCol="inputs", labelCol="late"),
    ]
    pipeline = Pipeline(stages=stages).fit(features)
    run = a_run(spark_store, flights)
    pipeline.save(Path(run.path, "artifacts", "pipeline").as_uri())
    options: dict[str, Any] = {"artifact": "artifacts/pipeline", "trust": True}
    with pytest.raises(InvalidArgument, match="transformed=False"):
        experiments.register_model(run, "logistic", **options)
    options["transformed"] = False
    with pytest.raises(InvalidArgument, match="engine='spark'"):
        experiments.register_model(Run(empty_store.session, run.record), "logistic", **options)
    with pytest.raises(UntrustedModel):
        experiments.register_model(run, "logistic", **{**options, "trust": False})
    model = experiments.register_model(run, "logistic", **options)
    assert (model.flavor, model.outputs) == ("spark", ("prediction",))
    expected_value = {}
    for row in pipeline.transform(features).collect():
        key = row["origin"], row["plane"], row["asked_at"].timestamp()
        expected_value[key] = row["prediction"]
    scored = spark_store.score("logistic", labels="asked", featuregroup="from_pipeline", trust=True)
    assert scored.columns == [*flight_labels.column_names, "prediction", "model_version"]
    actual = {}
    for row in empty_store.featuregroup("from_pipeline").read().to_arrow().to_pylist():
        actual[row["origin"], row["plane"], row["asked_at"].timestamp()] = row["prediction"]
    assert actual == expected_value
    likely = experiments.register_model(run, "logistic", **options, method="predict_proba")
    chances = (
        spark_store.score(likely, labels="asked", trust=True).to_arrow()["prediction"].to_pylist()
    )
    assert all(sum(pair) == pytest.approx(1) for pair in chances)
    with pytest.raises(InvalidArgument, match="engine='spark'"):
        empty_store.score("logistic", labels=flight_labels, trust=True)


@pytest.mark.spark
def test_spark_predictions_equal_local_predictions(
    empty_store: FeatureStore, flights: TrainingDataset, flight_labels: pa.Table
) -> None:
    experiments.register_model(a_run(empty_store, flights), "line", trust=True)
    spark = featurestore.connect(empty_store.location, engine="spark")
    scored = spark.score("line", labels=flight_labels, featuregroup="from_spark", trust=True)
    assert predicted(scored) == expected(flights)
    assert predicted(empty_store.featuregroup("from_spark").read()) == expected(flights)
