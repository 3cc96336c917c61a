"""A served prediction: a small model over the published values of a feature view."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore import FeatureStore, experiments
from featurestore import transform as t
from late_flights.training import QUIET

if TYPE_CHECKING:
    from featurestore.experiments.context import Context

# Weather and traffic of 2013 exceed their ttl, so a server returns null for them now.
FEATURES = ["planes.built", "planes.seats", "airports.dest_lat", "airports.dest_lon"]


class Line:
    """A linear model."""

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        self.weights = weights

    def predict(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the prediction for each row of inputs."""
        prediction: npt.NDArray[np.float64] = x @ self.weights[:-1] + self.weights[-1]
        return prediction


def fit_line(context: Context) -> None:
    """Fit the linear model to the training split and save it."""
    train = context.dataset.matrix("train")
    inputs = np.column_stack([train.x, np.ones(len(train.x))])
    weights, *_ = np.linalg.lstsq(inputs, train.y.astype(np.float64), rcond=None)
    context.save(Line(weights), "line")


def predict(store: FeatureStore) -> tuple[float, float]:
    """Publish a view and return a served prediction with the score of the same question."""
    view = store.create_feature_view(
        "late_flights", features=FEATURES, labels="questions", label="late"
    )
    rules = {name: t.impute("mean") | t.standardize() for name in view.get_features().columns[-4:]}
    dataset = view.create_training_dataset(
        "late_flights_served", data_format="parquet", transformations=rules, progress=False
    )
    run = experiments.launch(
        fit_line, dataset=dataset, name="late_flights_served", environment=QUIET
    )
    model = experiments.register_model(run, "late_flights_served", trust=True, store=store)
    store.publish(view)
    question = {"tailnum": "N14228", "dest": "IAH"}
    server = model.server(trust=True)
    served = server.predict([question]).rows[0]["prediction"]
    server.close()
    labels = [question]
    scored = store.score(model, labels=labels, label_time=datetime.now(UTC), trust=True).to_arrow()
    return served, scored["prediction"][0].as_py()
