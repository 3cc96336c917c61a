"""Served predictions: a registered model over the vectors of a published feature view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.errors import InvalidArgument
from featurestore.experiments.models import loading
from featurestore.experiments.models.conversion import convert_outputs
from featurestore.experiments.models.input_rows import to_model_input
from featurestore.experiments.models.predictors import Predict
from featurestore.model.runtime import ForkSafeLock
from featurestore.serving.server import VectorServer
from featurestore.serving.stores import open_online_store
from featurestore.serving.vectors import Entities, Status, VectorForm, entity_rows
from featurestore.views import definition

if TYPE_CHECKING:
    from featurestore.experiments.models.catalog import Model


@dataclass(frozen=True)
class Predictions:
    """The predictions for some entities, in their order, with the origin of their vectors.

    ``table`` has the output columns with one row for each entity; ``delta_versions`` are the
    published Delta versions by feature group.
    """

    model: str
    model_version: int
    view: str
    view_version: int
    table: pa.Table
    statuses: Sequence[Status]
    delta_versions: Mapping[str, int]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The output columns of each entity as a dict."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    @property
    def origin(self) -> dict[str, Any]:
        """The versions of the model, the view and the groups, and the statuses of the vectors."""
        return {name: value for name, value in vars(self).items() if name != "table"}


class ModelServer:
    """A model that predicts from the published view of its training dataset; thread-safe.

    The model and its transformations are loaded once. Predictions equal those of
    ``store.score`` for the same entities and time.
    """

    def __init__(self, model: Model, *, online: str | None, trust: bool) -> None:
        spec = model.spec
        view = model.dataset.manifest.view
        if spec.flavor == "spark" or view is None:
            reason = "was not created from a feature view" if view is None else "has a Spark model"
            raise InvalidArgument(
                f"Model {spec.name!r} version {spec.version} cannot be served: its training dataset "
                f"{reason}.",
                hint="view.create_training_dataset(...), and train a model of another library",
            )
        self._spec, self._model, self._trust = spec, model, trust
        self._fitted = model.transformations
        self._loading = ForkSafeLock()
        self._predict: Predict | None = None
        self._view = definition.get(model.session, view["name"], view["version"])
        form = VectorForm(
            pa.schema([(model_input.name, model_input.kind) for model_input in spec.inputs])
        )
        store = open_online_store(model.session, online)
        self.vectors = VectorServer(model.session, self._view, store, form)

    def load(self) -> Predict:
        """Return the function that predicts; other threads wait only for the first load."""
        with self._loading:
            if self._predict is None:
                self._predict = loading.load_predictor(
                    self._model.path, self._spec.to_bytes(), trust=self._trust
                )
            return self._predict

    def predict(self, entities: Entities) -> Predictions:
        """Return the predictions for entities, from one read of the online store.

        Raises:
            InvalidArgument: There are no entities, an entity lacks a column, or a value has the
                wrong type.
            NullsInColumns: An entity has no value of an input that must not be null.
        """
        rows = entity_rows(entities)
        if not rows:
            raise InvalidArgument("predict needs at least one entity.", hint="predict([{...}])")
        predict = self.load()
        served = self.vectors.read_batch(rows)
        outputs = predict(to_model_input(self._spec, self._fitted, served.batch))
        table = pa.table(convert_outputs(self._spec, outputs, served.batch.num_rows))
        return Predictions(
            model=self._spec.name,
            model_version=self._spec.version,
            view=self._view.name,
            view_version=self._view.version,
            table=table,
            statuses=served.statuses,
            delta_versions=served.delta_versions,
        )

    def close(self) -> None:
        """Close the connections to the online store."""
        self.vectors.close()
