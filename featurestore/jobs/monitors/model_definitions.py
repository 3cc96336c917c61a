"""Monitors of models: their definition, and the quality measure of a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from featurestore.errors import InvalidJob
from featurestore.featuregroups.table import OpenGroup
from featurestore.jobs.definitions import JobDefinition, add_to_module
from featurestore.jobs.monitors.definitions import (
    LABELS_INPUT,
    WATCHED_INPUT,
    Duration,
    NotificationOptions,
    Timing,
    monitor_spec,
    parse_freshness,
    pinned_reference,
)
from featurestore.model.arguments import calling_globals, with_suggestions
from featurestore.model.monitor import (
    DEFAULT_BASELINE,
    DEFAULT_DRIFT,
    DEFAULT_VOLUME,
    Baseline,
    Limits,
    MonitoredModel,
    MonitorSpec,
    check_monitor_spec,
    check_monitored_model,
)
from featurestore.model.names import parse_group_reference
from featurestore.model.times import parse_duration
from featurestore.monitoring.custom_metrics import check_metrics
from featurestore.monitoring.quality import Quality
from featurestore.recovery import models as directories
from featurestore.registry import models
from featurestore.session import Session


@with_suggestions
def model_monitor_job(
    name: str,
    *,
    model: str,
    predictions: str,
    labels: str,
    metric: str | Sequence[str],
    schedule: str,
    window: Duration | None = None,
    metrics: Mapping[str, str] | None = None,
    limits: Mapping[str, Limits] | None = None,
    label: str | None = None,
    prediction: str = "prediction",
    within: Duration = "0s",
    threshold: float = 0.5,
    start: datetime | str | None = None,
    allowed_lateness: Duration = "0s",
    timezone: str = "UTC",
    baseline: Baseline | None = None,
    drift: Mapping[str, float] | None = DEFAULT_DRIFT,
    freshness: Duration | Mapping[str, Duration] | None = None,
    volume: tuple[float, float] | None = DEFAULT_VOLUME,
    confirm: int = 2,
    alert: str | Sequence[str] = (),
    remind: Duration | None = "1d",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    retries: int = 2,
    catchup: int | None = None,
) -> JobDefinition:
    """Define a scheduled job that measures a model by the predictions of each window and labels.

    A window is a range of the predictions' event times. Labels that were not known when it ended
    and ``allowed_lateness`` was over (created times, later event times) do not count.

    Args:
        name: Name of the monitor.
        model: A registered model; ``late_flights@v2`` selects the predictions of this version.
        predictions: The group that ``score(featuregroup=)`` writes.
        labels: The group with the true values; joined by its primary key, and by its event time if
            it has one.
        metric: "auc", "accuracy", "precision", "recall", "log_loss", "brier", "mae", "mse" or
            "bias", or several.
        schedule: Cron expression; a window ends at each of its times.
        window: Width of a window; else the schedule interval.
        metrics: ``{name: SQL expression over prediction and label}``.
        limits: ``{metric: (minimum, maximum)}``, exceeded by more than chance for the number of
            labels; a metric without limits is compared with those of the windows before.
        label: Column of the labels; None: the label that the model was trained with.
        prediction: Column of the predictions.
        within: Maximum time between a prediction and its label: the first label counts.
        threshold: Minimum prediction that counts as positive (accuracy, precision, recall).
        start: Start of the first window; None disables catchup.
        allowed_lateness: How long to wait after a window's end for labels.
        timezone: Of the schedule.
        baseline: ``baseline(last=...)``: the windows before; None: of 56 days.
        drift: Bounds for the distribution of the predictions, as of ``monitor_job``.
        freshness: As of ``monitor_job``, of the predictions.
        volume: Minimum and maximum ratio of the number of predictions to the median.
        confirm: How many windows in a row have to be out of bounds before there is an alarm.
        alert: Channels that are alerted when an incident begins and ends (``add_alert_channel``).
        remind: Interval of reminders while an incident lasts; None: never.
        description: Purpose of the monitor.
        tags: Of the monitor.
        retries: How often a failed run is retried.
        catchup: Maximum number of missed windows at once; None: no limit.

    >>> watch = featurestore.model_monitor_job(
    ...     "late_watch", model="late_flights", predictions="late_scores", labels="questions",
    ...     metric="auc", window="7d", schedule="0 5 * * *", limits={"auc": (0.6, None)},
    ... )
    >>> (watch.spec.inputs, watch.spec.watched.metric_names)
    ({'rows': 'late_scores', 'labels': 'questions'}, ('auc', 'labelled'))
    """
    if baseline is not None and not baseline.rolls:
        raise InvalidJob(
            f"The baseline of predictions must be rolling, and it is {baseline}.",
            hint="baseline(last='56d'), or limits={'auc': (0.7, None)} for fixed bounds",
        )
    max_ages = parse_freshness(freshness)
    model_name, version = parse_group_reference(model)
    watched_model = check_monitored_model(
        MonitoredModel(
            model=model_name,
            version=version,
            labels=labels,
            label=label,
            prediction=prediction,
            measures=(metric,) if isinstance(metric, str) else tuple(metric),
            metrics=dict(metrics or {}),
            within=parse_duration(within, argument="within"),
            threshold=threshold,
        )
    )
    watched = check_monitor_spec(
        MonitorSpec(
            featuregroup=predictions,
            baseline=baseline or Baseline(last=DEFAULT_BASELINE),
            drift=dict(drift or {}),
            features=(prediction,),
            freshness=max_ages.event_time,
            commit_freshness=max_ages.commit,
            volume=volume,
            schema=False,
            limits=dict(limits or {}),
            confirm=confirm,
            model=watched_model,
        )
    )
    check_metrics(watched_model.metrics)
    spec = monitor_spec(
        name,
        {
            WATCHED_INPUT: pinned_reference(predictions),
            LABELS_INPUT: pinned_reference(labels),
        },
        watched,
        Timing(
            schedule=schedule,
            window=window,
            start=start,
            allowed_lateness=allowed_lateness,
            timezone=timezone,
            retries=retries,
            catchup=catchup,
        ),
        NotificationOptions(alert=alert, remind=remind, description=description, tags=tags),
    )
    return add_to_module(JobDefinition(spec), calling_globals())


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
