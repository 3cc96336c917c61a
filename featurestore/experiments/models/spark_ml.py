"""Models of Spark ML: a fitted pipeline in its folder, applied to DataFrames where their rows are.

Spark loads the classes that its files name, so they are programs as pickles are.
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

# Which column of a transformed DataFrame answers what ``register_model(method=)`` asks.
_ANSWERS = {
    "predict": "prediction",
    "predict_proba": "probability",
    "decision_function": "rawPrediction",
}


def is_pipeline(path: str) -> bool:
    """Tell whether a folder is what ``PipelineModel.save`` writes; nothing of it is executed."""
    return all(files.is_directory(os.path.join(path, each)) for each in ("metadata", "stages"))


def load(path: str) -> Any:
    """Return the pipeline of a folder, in the Spark session of this process."""
    return _library("pyspark.ml").PipelineModel.load(Path(path).absolute().as_uri())


def predicted(pipeline: Any, rows: Any, method: str) -> Any:
    """Return a DataFrame with the column ``prediction`` beside those that a pipeline adds.

    Raises:
        InvalidArgument: The pipeline cannot take the rows, or has no such answer.
    """
    try:
        answered = pipeline.transform(rows)
    except _library("pyspark.errors").PySparkException as error:
        text = str(error).strip().split("\n")[0]
        raise InvalidArgument(
            f"The pipeline cannot take the columns {listing(rows.columns)}: {text}",
            hint="fit it on the features of the training dataset: "
            "store.get_training_dataset(name).read('train').to_spark()",
        ) from error
    name = _ANSWERS[method]
    if name not in answered.columns:
        added = [each for each in answered.columns if each not in rows.columns]
        raise InvalidArgument(f"The pipeline answers {listing(added)}, no {name!r}.")
    column = answered[name]
    if method != "predict":
        column = _library("pyspark.ml.functions").vector_to_array(column)
    return answered.withColumn(PREDICTION, column)


def try_rows(path: str, method: str, batch: pa.RecordBatch, engine: Engine) -> Mapping[str, Any]:
    """Return what a pipeline says of a few rows, as numpy.

    Raises:
        InvalidArgument: The engine is not Spark.
    """
    rows = engine.to_spark(to_relation(pa.Table.from_batches([batch]), engine=engine))
    answers = [row[PREDICTION] for row in predicted(load(path), rows, method).collect()]
    return {"": np.asarray(answers)}


def scored(
    path: str, spec: ModelSpec, rows: Any, *, kept: Sequence[str], label_time: int | None
) -> Any:
    """Return a DataFrame of the kept columns with predictions and the model's version.

    Args:
        path: The folder of the pipeline.
        spec: The model.
        rows: A DataFrame of labels with features.
        kept: The columns of the labels.
        label_time: The one time (microseconds since 1970) of rows that have none of their own.
    """
    functions = _library("pyspark.sql.functions")
    answered = predicted(load(path), rows, spec.method).select(*kept, PREDICTION)
    answered = answered.withColumn(MODEL_VERSION, functions.lit(spec.version).cast("long"))
    if label_time is not None:
        answered = answered.withColumn(LABEL_TIME, functions.lit(from_micros(label_time)))
    return answered


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing_extra("pyspark", "spark") from error
