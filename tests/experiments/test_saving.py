"""Models of each library are saved as run files, published by one worker with a rename."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featurestore.experiments.run_files import save_model

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def saved_by_two(model: Any, directory: Path, name: str) -> Path:
    """Save as the second and the first of two workers, and return the published path."""
    options: dict[str, Any] = {"directory": str(directory), "name": name}
    before = sorted(directory.rglob("*"))
    promised = save_model(model, worker=1, **options)
    assert sorted(directory.rglob("*")) == before
    path = save_model(model, worker=0, **options)
    assert path == promised
    assert [file.name for file in directory.iterdir()] == [Path(path).name]
    return Path(path)


@pytest.mark.tensorflow
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_saved_keras_models_predict_as_before(library: str, tmp_path: Path) -> None:
    keras = importlib.import_module(library)
    for seed in (1, 2):  # the second replaces the first
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        path = saved_by_two(model, tmp_path / "artifacts", "net")
    assert path.name == "net.keras"
    assert np.array_equal(keras.models.load_model(path)(X), model(X))


@pytest.mark.spark
def test_saved_spark_pipelines_transform_as_before(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.regression import LinearRegression

    rows = spark.createDataFrame([(float(x), 2.0 * x) for x in range(5)], "x double, y double")
    stages = [VectorAssembler(inputCols=["x"], outputCol="inputs")]
    regression = LinearRegression(featuresCol="inputs", labelCol="y")
    for depth in (1, 2):  # a folder replaces a folder whole
        pipeline = Pipeline(stages=[*stages, regression][:depth]).fit(rows)
        path = saved_by_two(pipeline, tmp_path / "artifacts", "pipeline")
    loaded = PipelineModel.load(path.as_uri())
    assert len(loaded.stages) == 2
    assert loaded.transform(rows).collect() == pipeline.transform(rows).collect()
