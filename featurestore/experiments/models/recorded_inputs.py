"""Inputs of a saved model: the form in which the training passed them, and its predictions.

``context.save(model, inputs=rows)`` records the names and dtypes of the columns, and what the model
predicts for a few of the rows. The record has no values of inputs. Registration predicts the same
rows of the dataset and compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json, type_to_json
from featurestore.arrow.types import innermost_type
from featurestore.arrow.values import ConversionError, to_array
from featurestore.errors import InvalidArgument, PredictionsDiffer, RunDamaged
from featurestore.experiments.models import loading
from featurestore.experiments.models.conversion import SAVED, to_columns
from featurestore.experiments.models.dataframes import LIBRARIES, library_of
from featurestore.experiments.models.predictors import LoadedModel, ModelRows, make_predictor
from featurestore.model.codecs import JSON, parsed
from featurestore.model.json_object import JsonDict, JsonMapping, JsonObject, MalformedJson
from featurestore.model.records import Record
from featurestore.model.registered_model import Arrays, ColumnDtype, Method
from featurestore.model.window_features import value_from_json, value_to_json
from featurestore.training.reading import split_batches

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset

_FIRST_ROWS = 8
_MAX_ROWS = 32
_METHODS: tuple[Method, ...] = ("predict", "predict_proba", "decision_function")
# Libraries compute the same numbers with other instructions on other processors.
_ROUNDING = {pa.float32(): 1e-5, pa.float64(): 1e-9}


def _parse_predictions(data: object) -> pa.Array:
    column = JsonObject.from_value(data)
    values = [value_from_json(value) for value in column.array("values")]
    try:
        return to_array(values, type_from_json(column.get("type")))
    except ConversionError as error:
        raise MalformedJson(str(error)) from error


def _predictions_to_json(column: pa.Array) -> JsonDict:
    values = [value_to_json(value) for value in column.to_pylist()]
    return {"type": type_to_json(column.type), "values": values}


_PREDICTIONS = parsed(_parse_predictions, _predictions_to_json, "a column of predictions", JSON)


@dataclass(frozen=True)
class RecordedInputs(Record):
    """The inputs that a training function passed to ``context.save`` with a model.

    Attributes:
        manifest: The content hash of the training dataset.
        arrays: The form of the inputs.
        columns: The names of the columns; None for a matrix.
        dtypes: The dtypes of the columns of a DataFrame, that of a matrix by its own name.
        rows: The row numbers of the predictions in the first split, in canonical order.
        predictions: ``{method: {output column: values}}``; empty for a run of several workers.
    """

    manifest: str
    arrays: Arrays
    columns: tuple[str, ...] | None
    dtypes: Mapping[str, ColumnDtype]
    rows: tuple[int, ...]
    predictions: Mapping[str, Mapping[str, Annotated[pa.Array, _PREDICTIONS]]]

    def check(self, outputs: Mapping[str, pa.Array], *, method: str, split: str) -> None:
        """Compare the columns that registration predicted with those of the run.

        Raises:
            PredictionsDiffer: A value differs by more than rounding.
        """
        predictions = self.predictions.get(method)
        difference = predictions and first_difference(predictions, outputs)
        if difference:
            raise PredictionsDiffer(
                f"The run predicted {difference.expected!r} in {difference.output!r} for row "
                f"{self.rows[difference.row]} of split {split!r}, and the model predicts "
                f"{difference.actual!r} from the dataset.",
                hint="context.save(model, inputs=x) takes the first rows of the split in order, as "
                "dataset.matrix and dataset.read return them; convert columns in the model, for "
                "instance with a pipeline of scikit-learn",
            )


class Difference(NamedTuple):
    """A value that differs between two predictions of the same rows."""

    output: str
    row: int
    expected: Any
    actual: Any


def first_difference(
    expected: Mapping[str, pa.Array], actual: Mapping[str, pa.Array]
) -> Difference | None:
    """Return the first value that differs by more than rounding, None without one."""
    for name, column in expected.items():
        if name not in actual:
            return Difference(name, 0, column[0].as_py(), None)
        row = _differing_row(actual[name], column)
        if row is not None:
            return Difference(name, row, column[row].as_py(), actual[name][row].as_py())
    return None


def record_inputs(
    model: LoadedModel,
    inputs: ModelRows,
    *,
    path: str,
    artifact: str,
    dataset: TrainingDataset,
    predicts: bool = True,
) -> JsonDict:
    """Return the state of a saved model's inputs, with its predictions for a few rows.

    Args:
        model: The trained model.
        inputs: The first rows of the first split in canonical order, as the model takes them: an
            array of (rows, columns), ``{column: array}``, or a DataFrame of pandas or polars.
        path: The file of the model.
        artifact: Its path in the directory of the run.
        dataset: The training dataset.
        predicts: Whether to record predictions.

    Raises:
        InvalidArgument: The inputs have another form, or the format cannot predict.
    """
    flavor = loading.detect_flavor(path)
    if flavor == "spark":
        raise InvalidArgument(
            "inputs= is not for pipelines of Spark ML, which take columns by name.",
            hint="context.save(pipeline)",
        )
    arrays, columns, dtypes = _describe(inputs)
    values = next(iter(inputs.values()), ()) if isinstance(inputs, Mapping) else inputs
    if not len(values):
        raise InvalidArgument("inputs= has no rows.", hint="context.save(model, inputs=x)")
    rows = sample_rows(dataset, dataset.roles.inputs, count=len(values))
    predictions: dict[str, Mapping[str, pa.Array]] = {}
    if predicts:
        sample = _take_rows(inputs, rows)
        for method in _METHODS:
            if method == "predict" or hasattr(model, method):
                predict = make_predictor(model, flavor, method=method)
                predictions[method] = to_columns(predict(sample), len(rows))
    recorded = RecordedInputs(
        manifest=dataset.manifest.content_hash,
        arrays=arrays,
        columns=columns,
        dtypes=dtypes,
        rows=tuple(rows),
        predictions=predictions,
    )
    return {
        "form": SAVED,
        "artifact": artifact,
        "split": dataset.splits[0],
        **recorded.to_json(),
    }


def find_recorded(states: Sequence[JsonMapping], artifact: str) -> RecordedInputs | None:
    """Return what the run recorded for a model file, None if it recorded nothing.

    Raises:
        RunDamaged: The record has other contents than ``record_inputs`` writes.
    """
    for state in reversed(states):
        if state.get("form") == SAVED and state.get("artifact") == artifact:
            try:
                return RecordedInputs.from_json(state)
            except MalformedJson as error:
                raise RunDamaged(
                    f"The recorded inputs of {artifact!r} are damaged: {error}"
                ) from error
    return None


def first_rows(
    dataset: TrainingDataset, columns: Sequence[str], rows: Sequence[int]
) -> pa.RecordBatch:
    """Return rows of the first batch of the first split by number; fewer if it ends before.

    Raises:
        InvalidArgument: The dataset has no rows.
    """
    split = dataset.splits[0]
    for batch in split_batches(dataset.path, dataset.manifest, split, columns=columns):
        return batch.take(pa.array([row for row in rows if row < batch.num_rows], pa.int64()))
    raise InvalidArgument(
        f"Training dataset {dataset.name!r} has no rows for the trial prediction."
    )


def _describe(inputs: ModelRows) -> tuple[Arrays, tuple[str, ...] | None, dict[str, ColumnDtype]]:
    """Return the form of inputs, and the names and dtypes of their columns."""
    library = library_of(inputs)
    if library is not None:
        dtypes = LIBRARIES[library].describe(inputs)
        return library, tuple(dtypes), dtypes  # type: ignore[return-value]
    if isinstance(inputs, Mapping):
        return "columns", tuple(map(str, inputs)), {}
    if getattr(inputs, "ndim", 0) == 2:
        dtype = str(np.asarray(inputs).dtype)
        return "matrix", None, {dtype: ColumnDtype(dtype)}
    raise InvalidArgument(
        f"inputs= is a {type(inputs).__name__}, not the rows that the model takes.",
        hint="an array of (rows, columns), {column: array}, or a DataFrame of pandas or polars",
    )


def _take_rows(inputs: ModelRows, rows: list[int]) -> ModelRows:
    library = library_of(inputs)
    if library is not None:
        return LIBRARIES[library].take(inputs, rows)
    if isinstance(inputs, Mapping):
        return {str(name): np.asarray(values)[rows] for name, values in inputs.items()}
    return np.asarray(inputs)[rows]


def sample_rows(
    dataset: TrainingDataset, columns: Sequence[str], *, count: int | None = None
) -> list[int]:
    """Return the numbers of the first rows of the first split, and of the first null per column.

    A model that treats nulls in another way differs only in rows with nulls.

    Args:
        dataset: The training dataset.
        columns: The columns whose nulls are looked up.
        count: The number of rows to choose from; None for all.
    """
    split = dataset.manifest.splits[0]
    if count is None:
        count = split.rows
    rows = set(range(min(count, _FIRST_ROWS)))
    names = [name for name in columns if split.nulls.get(name)]
    if names:
        batches = split_batches(dataset.path, dataset.manifest, split.name, columns=names)
        for column in next(batches).columns:
            row = pc.index(column.is_null(), pa.scalar(True)).as_py()
            if 0 <= row < count and len(rows) < _MAX_ROWS:
                rows.add(row)
    return sorted(rows)


def _differing_row(actual: pa.Array, expected: pa.Array) -> int | None:
    """Return the first row in which two columns differ by more than rounding, None if none does."""
    if len(actual) != len(expected):
        return 0
    kinds = [innermost_type(column.type) for column in (actual, expected)]
    if not all(map(pat.is_floating, kinds)):
        pairs = zip(actual.to_pylist(), expected.to_pylist(), strict=True)
        return next(
            (row for row, (value, expected_value) in enumerate(pairs) if value != expected_value),
            None,
        )
    numbers = [
        np.array(column.to_pylist(), np.float64).reshape(len(actual), -1)
        for column in (actual, expected)
    ]
    if numbers[0].shape != numbers[1].shape:
        return 0
    largest = np.nanmax(np.abs(numbers[1]), initial=0.0, where=np.isfinite(numbers[1]))
    tolerance = max(_ROUNDING.get(dtype, 1e-5) for dtype in kinds) * largest
    equal = np.isclose(numbers[0], numbers[1], rtol=0, atol=tolerance, equal_nan=True).all(axis=1)
    return None if equal.all() else int(np.argmin(equal))
