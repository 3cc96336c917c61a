"""Trial prediction: a model predicts rows of its dataset before it is registered.

The predictions have the types of the outputs. They must equal those of the run, if it recorded any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.arrow.schemas import type_to_json
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    MissingExtra,
    PredictionsDiffer,
    listing,
)
from featurestore.experiments.models import spark_pipelines
from featurestore.experiments.models.conversion import check_output_types, recorded_form, to_columns
from featurestore.experiments.models.input_rows import to_model_input, with_dtypes
from featurestore.experiments.models.predictors import LoadedModel, ModelRows, make_predictor
from featurestore.experiments.models.recorded_inputs import (
    first_difference,
    first_rows,
    sample_rows,
)
from featurestore.model.json_object import JsonMapping
from featurestore.model.registered_model import DATAFRAMES, ModelOutput, ModelSpec
from featurestore.readers.columns import NumpyArray

if TYPE_CHECKING:
    from featurestore.experiments.models.recorded_inputs import RecordedInputs
    from featurestore.experiments.models.training_inputs import TrainingInputs
    from featurestore.session import Session
    from featurestore.training.dataset import TrainingDataset
    from featurestore.transform.fitted import Transformations


@dataclass(frozen=True)
class Trial:
    """A model and the rows of a training dataset that it predicts.

    ``model`` is absent (None) for the files of Spark in ``path``. ``states`` are the reads of the run.
    """

    session: Session
    path: str
    model: LoadedModel
    dataset: TrainingDataset
    states: tuple[JsonMapping, ...]
    recorded: RecordedInputs | None

    def complete(self, spec: ModelSpec, training: TrainingInputs) -> ModelSpec:
        """Return the model with the dtypes of its inputs, and with its outputs.

        Raises:
            InvalidArgument: The model does not accept the inputs.
            PredictionsDiffer: The run predicted other values.
        """
        return self._complete(spec, training)[0]

    def complete_frames(self, spec: ModelSpec, training: TrainingInputs) -> ModelSpec:
        """Return a model that takes DataFrames of the library that it was trained with.

        A run does not record which library its function used. Nulls, for instance, are None in
        polars and NaN in pandas, which an encoder of categories distinguishes.

        Raises:
            InvalidArgument: The model does not accept the inputs, or predicts other values from
                another library.
        """
        completed: list[tuple[ModelSpec, dict[str, pa.Array]]] = []
        errors = []
        for library in DATAFRAMES:
            try:
                completed.append(self._complete(replace(spec, arrays=library), training))
            except (InvalidArgument, MissingExtra) as error:
                errors.append(error)
        if not completed:
            raise errors[0]
        first_spec, first_outputs = completed[0]
        if any(first_difference(first_outputs, outputs) for _, outputs in completed[1:]):
            raise InvalidArgument(
                "The model predicts other values from a DataFrame of pandas than from one of "
                "polars, and the run did not record which one it was trained with.",
                hint=f"register_model(run, {spec.name!r}, arrays='pandas'), or arrays='polars', or "
                "context.save(model, inputs=x)",
            )
        return first_spec

    def _complete(
        self, spec: ModelSpec, training: TrainingInputs
    ) -> tuple[ModelSpec, dict[str, pa.Array]]:
        """Return the model with dtypes and outputs, and the values of the outputs."""
        spec = replace(spec, inputs=training.inputs)
        rows = first_rows(self.dataset, training.names, self._row_numbers(training))
        form = "frame"
        if training.readers:
            form = recorded_form(self.states[training.readers[0]])
        dtypes = {} if self.recorded is None else self.recorded.dtypes
        spec = with_dtypes(spec, training.fitted, rows, recorded=dtypes, form=form)
        outputs = self._predict(spec, training.fitted, rows)
        check_output_types(outputs)
        if self.recorded is not None and self._is_same_dataset:
            self.recorded.check(outputs, method=spec.method, split=self.dataset.splits[0])
        types = {name: type_to_json(column.type) for name, column in outputs.items()}
        return replace(spec, outputs=tuple(map(ModelOutput, types, types.values()))), outputs

    def is_equal(self, spec: ModelSpec, training: TrainingInputs) -> bool:
        """Return whether the model accepts some inputs and predicts what the run predicted."""
        try:
            self.complete(spec, training)
        except (InvalidArgument, PredictionsDiffer):
            return False
        return True

    @property
    def _is_same_dataset(self) -> bool:
        manifest = self.dataset.manifest.content_hash
        return self.recorded is not None and self.recorded.manifest == manifest

    def _row_numbers(self, training: TrainingInputs) -> Sequence[int]:
        if self.recorded is not None and self._is_same_dataset and self.recorded.predictions:
            return self.recorded.rows
        # Other nulls are refused.
        nullable = [
            model_input.name for model_input in training.inputs if model_input.nulls != "error"
        ]
        return sample_rows(self.dataset, nullable)

    def _predict(
        self, spec: ModelSpec, fitted: Transformations | None, rows: pa.RecordBatch
    ) -> dict[str, pa.Array]:
        if spec.flavor == "spark":
            engine = self.session.engine
            outputs = spark_pipelines.predict_sample(self.path, spec, rows, engine)
        else:
            outputs = _predict(spec, self.model, _to_model_input(spec, fitted, rows))
        return to_columns(outputs, rows.num_rows)


def _to_model_input(
    spec: ModelSpec, fitted: Transformations | None, rows: pa.RecordBatch
) -> ModelRows:
    """Convert rows to the model input.

    Raises:
        InvalidArgument: The inputs of a matrix are not numbers.
    """
    if spec.arrays == "matrix":
        columns = to_model_input(replace(spec, arrays="columns"), fitted, rows)
        non_numeric = [name for name, values in columns.items() if values.dtype.kind not in "biuf"]
        if non_numeric:
            numeric = [
                model_input.name
                for model_input in spec.inputs
                if model_input.name not in non_numeric
            ]
            raise InvalidArgument(
                f"arrays='matrix' requires numeric inputs. Inputs of other types: {listing(non_numeric)}.",
                hint=f"columns={numeric!r} if the model was fitted without them, dataset "
                "transformations that convert them to numbers, arrays='pandas' for a model fitted "
                "on a DataFrame, or arrays='columns'",
            )
    return to_model_input(spec, fitted, rows)


def _predict(
    spec: ModelSpec, model: LoadedModel, model_input: ModelRows
) -> Mapping[str, NumpyArray]:
    """Predict with the model; raise InvalidArgument if it does not accept the input."""
    predict = make_predictor(model, spec.flavor, method=spec.method)
    try:
        return predict(model_input)
    except FeatureStoreError:
        # It already has a message for the user.
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        names = [model_input.name for model_input in spec.inputs]
        raise InvalidArgument(
            f"The model cannot use the inputs {listing(names)} as {spec.arrays!r}: {reason}",
            hint=_trial_hint(spec),
        ) from error


def _trial_hint(spec: ModelSpec) -> str:
    """Return the hint for a model that does not accept its inputs."""
    missing = [model_input.name for model_input in spec.inputs if model_input.nulls == "nan"]
    if spec.arrays in DATAFRAMES:
        hint = "context.save(model, inputs=x) records the dtypes and categories of a DataFrame"
    else:
        hint = (
            'arrays="matrix" passes one array of shape (rows, inputs), arrays="columns" one '
            'array per input, arrays="pandas" a DataFrame; columns=[...] sets their order'
        )
    if missing:
        hint += f"; nulls={{{missing[0]!r}: 0}} if the function filled nulls"
    if spec.flavor == "torch":
        hint += "; export with dynamic_shapes for any number of rows"
    return hint
