"""Spark ML pipelines: the classes that their files name, loading, and prediction on DataFrames.

Spark loads each class that a file of the pipeline names, and a ``SQLTransformer`` runs its SQL. A
pipeline is therefore code, and requires the caller's trust.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from featurestore.errors import InvalidArgument, ModelDamaged, listing, missing_extra
from featurestore.experiments.models.conversion import fill_value
from featurestore.ingest import to_relation
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.registered_model import LABEL_TIME, MODEL_VERSION, PREDICTION, ModelSpec
from featurestore.model.times import from_micros
from featurestore.storage import storage_for

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine

# The output column of a transformed DataFrame, by ``register_model(method=)``.
_OUTPUT_COLUMNS = {
    "predict": "prediction",
    "predict_proba": "probability",
    "decision_function": "rawPrediction",
}
# The prefix of the copies of label columns.
_LABEL = "__featurestore_label_"
_PIPELINES = ("pyspark.ml.pipeline.PipelineModel", "org.apache.spark.ml.PipelineModel")
# A stage is loaded from the folder that its identifier names.
_STAGE_UID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_STAGES = 1000
# Stages of other modules may read any column.
_STAGE_MODULES = ("org.apache.spark.ml.", "pyspark.ml.")
# The parameters with the columns that a stage reads and adds.
# fmt: off
_READ_PARAMETERS = ("inputCol", "inputCols", "featuresCol", "userCol", "itemCol", "itemsCol", "offsetCol")
_ADDED_PARAMETERS = ("outputCol", "outputCols", "predictionCol", "probabilityCol", "rawPredictionCol")
# fmt: on


def is_pipeline(path: str) -> bool:
    """Return True for a folder written by ``PipelineModel.save``, without executing code."""
    return all(
        storage_for(path).is_directory(os.path.join(path, name)) for name in ("metadata", "stages")
    )


def find_classes(path: str) -> list[str]:
    """Return the classes that Spark loads for the stages of a pipeline, without loading them.

    Raises:
        ModelDamaged: The folder was not written by Spark, or names a stage outside the folder.
    """
    classes = {str(metadata["class"])[:200] for metadata in _read_stages(path)}
    return sorted(classes - set(_PIPELINES))


def stated_columns(path: str) -> tuple[str, ...] | None:
    """Return the columns that the stages of a pipeline read and no earlier stage adds.

    Returns:
        The columns, or None if a stage does not state them, such as one with SQL or a formula.

    Raises:
        ModelDamaged: The folder was not written by Spark, or names a stage outside the folder.
    """
    columns: dict[str, None] = {}
    added_columns: set[str] = set()
    for metadata in _read_stages(path):
        if metadata["class"] in _PIPELINES:
            continue
        parameters = {**metadata.get("defaultParamMap", {}), **metadata["paramMap"]}
        is_known = str(metadata["class"]).startswith(_STAGE_MODULES)
        read_columns = _parameter_values(parameters, _READ_PARAMETERS)
        if not is_known or not read_columns or "formula" in parameters:
            return None
        columns |= dict.fromkeys(name for name in read_columns if name not in added_columns)
        added_columns.update(_parameter_values(parameters, _ADDED_PARAMETERS))
    return tuple(columns) or None


def _parameter_values(parameters: JsonMapping, names: Sequence[str]) -> list[str]:
    """Return the columns that some parameters of a stage name."""
    values: list[str] = []
    for name in names:
        value = parameters.get(name, ())
        values += [value] if isinstance(value, str) else map(str, value)
    return values


def _read_stages(path: str) -> Iterator[JsonDict]:
    """Yield the metadata of a pipeline and of its stages, in the order in which they transform.

    Raises:
        ModelDamaged: The folder was not written by Spark, or names a stage outside the folder.
    """
    waiting = [path]
    count = 0
    while waiting:
        folder = waiting.pop()
        try:
            metadata = _read_metadata(folder)
            class_name, parameters = metadata["class"], metadata["paramMap"]
            uids = parameters.get("stageUids", ()) if class_name in _PIPELINES else ()
            are_names = all(_STAGE_UID.fullmatch(uid) for uid in uids)
            digits = len(str(len(uids)))
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ModelDamaged(f"{folder!r} was not written by Spark ML: {error!r}") from error
        if not are_names:
            raise ModelDamaged(f"{folder!r} names a stage outside of its folder.")
        if count + len(waiting) + len(uids) > _MAX_STAGES:
            raise ModelDamaged(f"{path!r} has more than {_MAX_STAGES} stages.")
        count += 1
        yield metadata
        stages = [
            os.path.join(folder, "stages", f"{index:0{digits}}_{uid}")
            for index, uid in enumerate(uids)
        ]
        waiting += reversed(stages)


def _read_metadata(folder: str) -> Any:
    """Return the metadata of a stage: the first line of the text files of a folder."""
    storage = storage_for(folder)
    directory = os.path.join(folder, "metadata")
    for name in sorted(storage.list_directory(directory)):
        if not name.startswith((".", "_")) and storage.size(os.path.join(directory, name)):
            text = storage.read_text(os.path.join(directory, name))
            return json.loads(text.partition("\n")[0])
    raise KeyError("metadata")


def load_pipeline(path: str) -> Any:
    """Load the pipeline from a folder, in the Spark session of this process.

    Raises:
        ModelDamaged: The folder was not written by Spark, or names a stage outside the folder.
    """
    find_classes(path)
    return _import_spark_library("pyspark.ml").PipelineModel.load(Path(path).absolute().as_uri())


def add_predictions(pipeline: Any, rows: Any, method: str) -> Any:
    """Transform a DataFrame and add the column ``prediction``.

    Raises:
        InvalidArgument: The pipeline cannot transform the rows, or lacks the output column.
    """
    try:
        transformed = pipeline.transform(rows)
    except _import_spark_library("pyspark.errors").PySparkException as error:
        reason = str(error).strip().split("\n")[0]
        raise InvalidArgument(
            f"The pipeline cannot transform the columns {listing(rows.columns)}: {reason}",
            hint="fit it on the features of the training dataset: "
            "store.get_training_dataset(name).read('train').to_spark()",
        ) from error
    name = _OUTPUT_COLUMNS[method]
    if name not in transformed.columns:
        added = [column for column in transformed.columns if column not in rows.columns]
        raise InvalidArgument(
            f"The pipeline has no output column {name!r}. Available: {listing(added)}."
        )
    column = transformed[name]
    if method != "predict":
        # Probabilities are vectors of Spark ML, a type that does not exist outside Spark.
        column = _import_spark_library("pyspark.ml.functions").vector_to_array(column)
    return transformed.withColumn(PREDICTION, column)


def predict_sample(
    path: str, spec: ModelSpec, batch: pa.RecordBatch, engine: Engine
) -> JsonMapping:
    """Predict a few sample rows with a pipeline, and return numpy arrays.

    Raises:
        InvalidArgument: The engine is not Spark.
    """
    rows = engine.to_spark(to_relation(pa.Table.from_batches([batch]), engine=engine))
    scored_rows = add_predictions(load_pipeline(path), _fill_nulls(spec, rows), spec.method)
    return {"": np.asarray([row[PREDICTION] for row in scored_rows.collect()])}


def score_rows(
    path: str, spec: ModelSpec, rows: Any, *, label_columns: Sequence[str], label_time: int | None
) -> Any:
    """Return a DataFrame of the label columns with predictions and the model version.

    Args:
        path: The pipeline folder.
        spec: The model.
        rows: A DataFrame of labels with features.
        label_columns: The columns of the labels.
        label_time: Time (microseconds since 1970) of rows without a time column.
    """
    functions = _import_spark_library("pyspark.sql.functions")
    # Inputs may be label columns, which the result has without fills.
    labels = [functions.col(name).alias(f"{_LABEL}{name}") for name in label_columns]
    filled_rows = _fill_nulls(spec, rows.select("*", *labels))
    scored_rows = add_predictions(load_pipeline(path), filled_rows, spec.method).select(
        *(functions.col(f"{_LABEL}{name}").alias(name) for name in label_columns), PREDICTION
    )
    scored_rows = scored_rows.withColumn(MODEL_VERSION, functions.lit(spec.version).cast("long"))
    if label_time is not None:
        scored_rows = scored_rows.withColumn(LABEL_TIME, functions.lit(from_micros(label_time)))
    return scored_rows


def _fill_nulls(spec: ModelSpec, rows: Any) -> Any:
    """Return a DataFrame in which the fill values of the inputs replace nulls.

    Raises:
        InvalidArgument: The model takes masks, which a pipeline cannot get.
    """
    functions = _import_spark_library("pyspark.sql.functions")
    if any(model_input.nulls == "mask" for model_input in spec.inputs):
        raise InvalidArgument(
            "A Spark ML pipeline gets no masks: its columns have nulls.",
            hint="nulls=None, and stages of the pipeline that replace nulls, such as an Imputer",
        )
    filled_columns = {}
    for model_input in spec.inputs:
        if model_input.fill is not None:
            name = model_input.name
            value = functions.lit(fill_value(spec, model_input)[0].as_py())
            typed_value = value.cast(rows.schema[name].dataType)
            filled_columns[name] = functions.coalesce(rows[name], typed_value)
    return rows.withColumns(filled_columns) if filled_columns else rows


def _import_spark_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing_extra("pyspark", "spark") from error
