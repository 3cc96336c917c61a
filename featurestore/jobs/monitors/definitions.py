"""Definitions of monitors, and the quality measure of a monitored model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from featurestore.errors import InvalidJob
from featurestore.featuregroups.table import OpenGroup
from featurestore.jobs.definitions import (
    Duration,
    JobDefinition,
    add_to_module,
    check_channel_names,
    define_schedule,
    parse_optional_duration,
)
from featurestore.model.arguments import calling_globals, with_suggestions
from featurestore.model.job import Alerts, JobSpec, MonitorWork
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
from featurestore.model.names import check_name, parse_group_reference
from featurestore.model.times import parse_duration, parse_version_or_moment
from featurestore.monitoring.metrics import Quality, check_metrics
from featurestore.recovery.models import MODELS
from featurestore.registry.artifacts import models
from featurestore.session import Session

# The input name of the monitored group in a run.
WATCHED_INPUT = "rows"
# The input name of the labels for a model's predictions.
LABELS_INPUT = "labels"


@with_suggestions
def baseline(
    *,
    training_dataset: str | None = None,
    split: str | None = None,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    last: Duration | None = None,
    same_weekday: bool = False,
) -> Baseline:
    """Define the baseline with which a monitor compares windows.

    Args:
        training_dataset: A training dataset; its columns are compared by name.
        split: The split of the training dataset; None for "train".
        version: The version of the training dataset, or else of the group.
        as_of: Compare with the group as of a timestamp or a Delta version.
        last: Compare with the windows of this duration before each window; 56 days by default.
        same_weekday: Only use windows of ``last`` that begin whole weeks earlier.

    >>> print(featurestore.baseline(training_dataset="late_flights", split="train"))
    training dataset 'late_flights', split 'train'
    >>> print(featurestore.baseline(last="56d", same_weekday=True))
    the last 56d, same weekday
    """
    has_source = [training_dataset is not None, as_of is not None, last is not None]
    has_version_only = version is not None and training_dataset is None
    if sum(has_source) + has_version_only > 1:
        raise InvalidJob(
            "A baseline has only one source: a training dataset, a version, as_of= or last=.",
            hint='baseline(training_dataset="late_flights", split="train")',
        )
    if split is not None and training_dataset is None:
        raise InvalidJob("split= needs training_dataset=.", hint="training_dataset=")
    width = None
    if last is not None:
        width = parse_duration(last, argument="last")
    elif not any(has_source) and not has_version_only:
        width = DEFAULT_BASELINE
    if same_weekday and width is None:
        raise InvalidJob("same_weekday= needs last=.", hint='last="56d", same_weekday=True')
    if training_dataset is not None:
        check_name(training_dataset, noun="training dataset")
        split = split or "train"
    version_or_time = None if as_of is None else parse_version_or_moment(as_of, argument="as_of")
    return Baseline(training_dataset, split, version, version_or_time, width, same_weekday)


@with_suggestions
def monitor_job(
    name: str,
    *,
    featuregroup: str,
    schedule: str,
    window: Duration | None = None,
    start: datetime | str | None = None,
    allowed_lateness: Duration = "0s",
    timezone: str = "UTC",
    baseline: Baseline | None = None,
    drift: Mapping[str, float] | None = DEFAULT_DRIFT,
    features: Sequence[str] | None = None,
    freshness: Duration | Mapping[str, Duration] | None = None,
    volume: tuple[float, float] | None = DEFAULT_VOLUME,
    schema: bool = True,
    metrics: Mapping[str, str] | None = None,
    limits: Mapping[str, Limits] | None = None,
    confirm: int = 2,
    alert: str | Sequence[str] = (),
    remind: Duration | None = "1d",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    retries: int = 2,
    catchup: int | None = None,
) -> JobDefinition:
    """Define a scheduled job that compares each window of a feature group with a baseline.

    Args:
        name: The name of the monitor.
        featuregroup: The group, ``weather`` (its latest version) or ``weather@v2``.
        schedule: A cron expression; a window ends at each schedule time.
        window: The width of a window, by event time; defaults to the schedule interval.
        start: The start of the first window; None disables catchup.
        allowed_lateness: How long to wait for late data after a window ends.
        timezone: The time zone of the schedule.
        baseline: The baseline; None for the windows on the same weekday in the last 56 days.
        drift: ``{measure: bound}`` for "psi", "ks" (numbers and booleans), "tv" (at most 50 values),
            "js", "null_share", "new_values", "out_of_range" and "gone_values"; None compares no
            distributions. Differences within sampling error or the variation of the baseline
            windows are not drift.
        features: The features to compare; None for all except keys and times.
        freshness: The maximum age of the latest event time and the last commit, or
            ``{"event_time": "2h", "commit": "1d"}``.
        volume: The minimum and maximum ratio of the window's row count to the median of the same
            windows in eight weeks; None disables the check.
        schema: Whether to report columns that were added, removed or changed their type.
        metrics: ``{name: SQL expression over the rows of a window}``, such as ``avg(late)``.
        limits: ``{metric: (minimum, maximum)}``, None for no bound; a metric without limits is
            compared with the baseline windows.
        confirm: The number of consecutive windows that must be out of bounds to raise an alarm. An
            empty window, freshness and schema raise an alarm at once.
        alert: The channels to alert when an incident begins or ends (``add_alert_channel``).
        remind: The interval of reminders during an incident; None for no reminders.
        description: The purpose of the monitor.
        tags: The tags of the monitor.
        retries: The maximum number of retries of a failed run.
        catchup: The maximum number of missed windows to compute at once; None for no limit.

    >>> watch = featurestore.monitor_job(
    ...     "weather_watch", featuregroup="weather", schedule="0 * * * *",
    ...     baseline=featurestore.baseline(training_dataset="late_flights", split="train"),
    ...     freshness="2h", metrics={"windy": "avg(wind)"},
    ... )
    >>> (watch.spec.kind, watch.spec.work.watched.freshness)
    ('monitor', datetime.timedelta(seconds=7200))
    """
    max_ages = parse_freshness(freshness)
    watched = check_monitor_spec(
        MonitorSpec(
            featuregroup=featuregroup,
            baseline=baseline or Baseline(last=DEFAULT_BASELINE, same_weekday=True),
            drift=dict(drift or {}),
            features=None if features is None else tuple(features),
            freshness=max_ages.event_time,
            commit_freshness=max_ages.commit,
            volume=volume,
            schema=schema,
            metrics=dict(metrics or {}),
            limits=dict(limits or {}),
            confirm=confirm,
        )
    )
    check_metrics(watched.metrics)
    spec = JobSpec(
        name=check_name(name, noun="monitor"),
        schedule=define_schedule(
            schedule,
            job=name,
            window=window,
            start=start,
            allowed_lateness=allowed_lateness,
            timezone=timezone,
            catchup=catchup,
            retries=retries,
        ),
        alerts=Alerts(check_channel_names(alert), parse_optional_duration(remind, "remind")),
        work=MonitorWork(
            target=name,
            inputs={WATCHED_INPUT: normalize_reference(featuregroup)},
            watched=watched,
            description=description,
            tags=dict(tags or {}),
        ),
    )
    return add_to_module(spec, calling_globals())


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
    """Define a scheduled job that measures a model by the predictions and labels of each window.

    A window is a range of prediction event times. Labels with a created time or event time after
    the end of the window plus ``allowed_lateness`` are ignored.

    Args:
        name: The name of the monitor.
        model: A registered model; ``late_flights@v2`` selects the predictions of this version.
        predictions: The group that ``score(featuregroup=)`` writes.
        labels: The group with the true values; joined by its primary key and, if it has one, by its
            event time.
        metric: "auc", "accuracy", "precision", "recall", "log_loss", "brier", "mae", "mse" or
            "bias", or several of these.
        schedule: A cron expression; a window ends at each schedule time.
        window: The width of a window; defaults to the schedule interval.
        metrics: ``{name: SQL expression over prediction and label}``.
        limits: ``{metric: (minimum, maximum)}``; a metric is out of bounds if it exceeds them by
            more than the sampling error for the number of labels. A metric without limits is
            compared with the previous windows.
        label: The label column; None for the label that the model was trained with.
        prediction: The prediction column.
        within: The maximum time between a prediction and its label; the first label is used.
        threshold: The minimum prediction that counts as positive (accuracy, precision, recall).
        start: The start of the first window; None disables catchup.
        allowed_lateness: How long to wait for labels after a window ends.
        timezone: The time zone of the schedule.
        baseline: ``baseline(last=...)`` for previous windows; None for 56 days.
        drift: Bounds for the distribution of the predictions, as for ``monitor_job``.
        freshness: Maximum ages of the predictions, as for ``monitor_job``.
        volume: The minimum and maximum ratio of the number of predictions to the median.
        confirm: The number of consecutive windows that must be out of bounds to raise an alarm.
        alert: The channels to alert when an incident begins or ends (``add_alert_channel``).
        remind: The interval of reminders during an incident; None for no reminders.
        description: The purpose of the monitor.
        tags: The tags of the monitor.
        retries: The maximum number of retries of a failed run.
        catchup: The maximum number of missed windows to compute at once; None for no limit.

    >>> watch = featurestore.model_monitor_job(
    ...     "late_watch", model="late_flights", predictions="late_scores", labels="questions",
    ...     metric="auc", window="7d", schedule="0 5 * * *", limits={"auc": (0.6, None)},
    ... )
    >>> (watch.spec.inputs, watch.spec.work.watched.metric_names)
    ({'rows': 'late_scores', 'labels': 'questions'}, ('auc', 'labelled'))
    """
    if baseline is not None and not baseline.is_moving:
        raise InvalidJob(
            f"The baseline of predictions must be rolling, not {baseline}.",
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
    spec = JobSpec(
        name=check_name(name, noun="monitor"),
        schedule=define_schedule(
            schedule,
            job=name,
            window=window,
            start=start,
            allowed_lateness=allowed_lateness,
            timezone=timezone,
            catchup=catchup,
            retries=retries,
        ),
        alerts=Alerts(check_channel_names(alert), parse_optional_duration(remind, "remind")),
        work=MonitorWork(
            target=name,
            inputs={
                WATCHED_INPUT: normalize_reference(predictions),
                LABELS_INPUT: normalize_reference(labels),
            },
            watched=watched,
            description=description,
            tags=dict(tags or {}),
        ),
    )
    return add_to_module(spec, calling_globals())


def build_quality(
    session: Session,
    watched: MonitoredModel,
    *,
    predictions: OpenGroup,
    labels: OpenGroup,
    wait: timedelta,
) -> Quality:
    """Build the quality measure for the predictions of a registered model.

    Args:
        session: The connection.
        watched: The model and its monitoring options.
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
        spec = MODELS.read(session.paths.model(*model_version), *model_version)
        if len(spec.label) != 1:
            raise InvalidJob(
                f"Model {watched.model!r} has {len(spec.label)} labels, so label= must name the "
                "column to compare with its predictions.",
                hint='label="late"',
            )
        (label,) = spec.label
    return Quality(session.engine, watched, predictions, labels, label, wait)


@dataclass(frozen=True, kw_only=True)
class _Freshness:
    """The maximum ages of the latest event time and the last commit."""

    event_time: timedelta | None = None
    commit: timedelta | None = None


def normalize_reference(reference: str) -> str:
    """Normalize a group reference to its name, with the version if it has one."""
    group, version = parse_group_reference(reference)
    return group if version is None else f"{group}@v{version}"


def parse_freshness(freshness: Duration | Mapping[str, Duration] | None) -> _Freshness:
    """Parse the maximum ages of the latest event time and the last commit."""
    if freshness is None:
        return _Freshness()
    if not isinstance(freshness, Mapping):
        width = parse_duration(freshness, argument="freshness")
        return _Freshness(event_time=width, commit=width)
    max_ages: dict[str, timedelta] = {}
    for name, max_age in freshness.items():
        if name not in ("event_time", "commit"):
            raise InvalidJob(
                f"freshness=: unknown time {name!r}. Available: 'event_time', 'commit'.",
                hint='freshness={"event_time": "2h", "commit": "1d"}',
            )
        max_ages[name] = parse_duration(max_age, argument="freshness")
    return _Freshness(**max_ages)
