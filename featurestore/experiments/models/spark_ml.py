"""Models of Spark ML: fitted pipelines that transform DataFrames in the cluster.

Spark loads the classes that the files of a pipeline name, so they are programs, like pickles.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from featurestore.errors import InvalidArgument, listing, missing_extra
from featurestore.ingest import to_relation
from featurestore.model.registered_model import (
    LABEL_TIME,
    MODEL_VERSION,
    PREDICTION,
    ModelSpec,
)
from featurestore.model.times import from_micros
from featurestore.storage import files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from featurestore.plugins.engine import Engine

# The column of a transformed DataFrame by ``register_model(method=)``.
_OUTPUT_COLUMNS = {
    "predict": "prediction",
    "predict_proba": "probability",
    "decision_function": "rawPrediction",
}


def is_pipeline(path: str) -> bool:
    """Return True for a folder of ``PipelineModel.save``, without executing code."""
    return all(files.is_directory(os.path.join(path, each)) for each in ("metadata", "stages"))


def load(path: str) -> Any:
    """Return the pipeline of a folder, in the Spark session of this process."""
    return _library("pyspark.ml").PipelineModel.load(Path(path).absolute().as_uri())


def add_predictions(pipeline: Any, rows: Any, method: str) -> Any:
    """Transform a DataFrame and add the column ``prediction``.

    Raises:
        InvalidArgument: The pipeline cannot transform the rows, or lacks the output column.
    """
    try:
        transformed = pipeline.transform(rows)
    except _library("pyspark.errors").PySparkException as error:
        text = str(error).strip().split("\n")[0]
        raise InvalidArgument(
            f"The pipeline cannot transform the columns {listing(rows.columns)}: {text}",
            hint="fit it on the features of the training dataset: "
            "store.get_training_dataset(name).read('train').to_spark()",
        ) from error
    name = _OUTPUT_COLUMNS[method]
    if name not in transformed.columns:
        added = [each for each in transformed.columns if each not in rows.columns]
        raise InvalidArgument(
            f"The pipeline has no output column {name!r}. Available: {listing(added)}."
        )
    column = transformed[name]
    if method != "predict":
        column = _library("pyspark.ml.functions").vector_to_array(column)
    return transformed.withColumn(PREDICTION, column)


def try_rows(path: str, method: str, batch: pa.RecordBatch, engine: Engine) -> Mapping[str, Any]:
    """Return the predictions of a pipeline for a few rows, as numpy.

    Raises:
        InvalidArgument: The engine is not Spark.
    """
    rows = engine.to_spark(to_relation(pa.Table.from_batches([batch]), engine=engine))
    predictions = [row[PREDICTION] for row in add_predictions(load(path), rows, method).collect()]
    return {"": np.asarray(predictions)}


def score_rows(
    path: str, spec: ModelSpec, rows: Any, *, label_columns: Sequence[str], label_time: int | None
) -> Any:
    """Return a DataFrame of the label columns with predictions and the model version.

    Args:
        path: The folder of the pipeline.
        spec: The model.
        rows: A DataFrame of labels with features.
        label_columns: The columns of the labels.
        label_time: Time (microseconds since 1970) of rows without a time column.
    """
    functions = _library("pyspark.sql.functions")
    scored_rows = add_predictions(load(path), rows, spec.method).select(*label_columns, PREDICTION)
    scored_rows = scored_rows.withColumn(MODEL_VERSION, functions.lit(spec.version).cast("long"))
    if label_time is not None:
        scored_rows = scored_rows.withColumn(LABEL_TIME, functions.lit(from_micros(label_time)))
    return scored_rows


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing_extra("pyspark", "spark") from error
