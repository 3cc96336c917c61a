"""The quality measure of a monitor's model: its version and its label column."""

from __future__ import annotations

from datetime import timedelta

from featurestore.errors import InvalidJob
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.watched_model import MonitoredModel
from featurestore.monitoring.quality import Quality
from featurestore.recovery import models as directories
from featurestore.registry import models
from featurestore.session import Session


def quality_of(
    session: Session,
    watched: MonitoredModel,
    *,
    predictions: OpenGroup,
    labels: OpenGroup,
    wait: timedelta,
) -> Quality:
    """Return the quality measure of a registered model's predictions.

    Args:
        session: The connection.
        watched: The model and the options of its monitor.
        predictions: The group with the predictions.
        labels: The group with the true values.
        wait: How long after its end a window is evaluated.

    Raises:
        ModelNotFound: The model, or its version, is not registered.
        InvalidJob: Predictions and labels cannot be joined or compared.
    """
    with session.registry.reading() as connection:
        model_version = models.get(connection, watched.model, watched.version)
    label = watched.label
    if label is None:
        spec = directories.read(session.paths.model(*model_version), *model_version)
        if len(spec.label) != 1:
            raise InvalidJob(
                f"Model {watched.model!r} has {len(spec.label)} labels.",
                hint='label="late" names the column that predictions are compared with',
            )
        (label,) = spec.label
    return Quality(session.engine, watched, predictions, labels, label, wait)
