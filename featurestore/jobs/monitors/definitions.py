"""How people define monitors: jobs that compare the windows of a group with a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from featurestore.errors import InvalidJob
from featurestore.jobs.definitions import JobDefinition, made_by_caller
from featurestore.jobs.specs import channels, schedule_of
from featurestore.model.arguments import answering
from featurestore.model.callers import calling_globals
from featurestore.model.durations import parse_duration
from featurestore.model.job import JobSpec
from featurestore.model.monitor import DRIFT, LAST, VOLUME, Baseline, Limits, Watched, check_watched
from featurestore.model.names import check_name
from featurestore.model.references import parse_group_reference
from featurestore.model.times import parse_moment
from featurestore.monitoring.custom_metrics import check_metrics

Duration = timedelta | str
# The name under which a monitor's group is among the inputs of its runs.
WATCHED_INPUT = "rows"
# And that of the labels of a model's predictions.
LABELS_INPUT = "labels"


@answering
def baseline(
    *,
    training_dataset: str | None = None,
    split: str | None = None,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    last: Duration | None = None,
    same_weekday: bool = False,
) -> Baseline:
    """Return what the windows of a monitor are compared with.

    Args:
        training_dataset: A training dataset; its columns are compared by name.
        split: One of its splits; "train" when None.
        version: Of the training dataset, else of the group.
        as_of: The group as it was at an instant, or at a Delta version.
        last: The windows of so much time before each window; 56 days when nothing else is given.
        same_weekday: Of these only those that begin whole weeks earlier.

    >>> print(featurestore.baseline(training_dataset="late_flights", split="train"))
    training dataset 'late_flights', split 'train'
    >>> print(featurestore.baseline(last="56d", same_weekday=True))
    the last 56d, same weekday
    """
    given = [training_dataset is not None, as_of is not None, last is not None]
    alone = version is not None and training_dataset is None
    if sum(given) + alone > 1:
        raise InvalidJob(
            "A baseline is one thing: a training dataset, a version, as_of= or last=.",
            hint='baseline(training_dataset="late_flights", split="train")',
        )
    if split is not None and training_dataset is None:
        raise InvalidJob("split= is of a training dataset.", hint="training_dataset=")
    width = None
    if last is not None:
        width = parse_duration(last, argument="last")
    elif not any(given) and not alone:
        width = LAST
    if same_weekday and width is None:
        raise InvalidJob("same_weekday= goes with last=.", hint='last="56d", same_weekday=True')
    if training_dataset is not None:
        check_name(training_dataset, noun="training dataset")
        split = split or "train"
    if isinstance(as_of, str):
        as_of = parse_moment(as_of, argument="as_of")
    return Baseline(training_dataset, split, version, as_of, width, same_weekday)


@dataclass(frozen=True, kw_only=True)
class _Freshness:
    """How old the newest event time and the last commit may be."""

    event_time: timedelta | None = None
    commit: timedelta | None = None


@answering
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
    drift: Mapping[str, float] | None = DRIFT,
    features: Sequence[str] | None = None,
    freshness: Duration | Mapping[str, Duration] | None = None,
    volume: tuple[float, float] | None = VOLUME,
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
    """Make a scheduled job that compares each window of a feature group with a baseline.

    Args:
        name: Name of the monitor.
        featuregroup: The group, ``weather`` (its latest version) or ``weather@v2``.
        schedule: Cron expression; a window ends at each of its times.
        window: Width of a window, by event time; else the schedule interval.
        start: Beginning of the first window; None leaves the past alone.
        allowed_lateness: How long to wait after a window's end for late data.
        timezone: Of the schedule.
        baseline: What to compare with; None: the windows of the same weekday of the last 56 days.
        drift: ``{measure: bound}`` of "psi", "ks", "js", "null_share", "new_values",
            "gone_values"; None compares no distributions. What chance or the baseline's own
            windows exceed is no drift.
        features: The features to compare; None: all but keys and times.
        freshness: How old the newest event time and the last commit may be, or
            ``{"event_time": "2h", "commit": "1d"}``.
        volume: Least and greatest ratio of the window's rows to the median of the same windows of
            eight weeks; None does not look.
        schema: Whether columns that came, went or changed their type are told.
        metrics: ``{name: SQL expression over the rows of a window}``, such as ``avg(late)``.
        limits: ``{metric: (least, greatest)}``, None for no bound; a metric without limits is
            compared with those of the baseline's windows.
        confirm: How many windows in a row have to be out of bounds before there is an alarm. A
            window without any row, freshness and schema need one.
        alert: Channels that are told when something begins and ends (``add_alert_channel``).
        remind: How often they are told again meanwhile; None: never.
        description: What it is for.
        tags: Of the monitor.
        retries: How often a failed run is tried again.
        catchup: At most so many missed windows at once; None takes all.

    >>> watch = featurestore.monitor_job(
    ...     "weather_watch", featuregroup="weather", schedule="0 * * * *",
    ...     baseline=featurestore.baseline(training_dataset="late_flights", split="train"),
    ...     freshness="2h", metrics={"windy": "avg(wind)"},
    ... )
    >>> (watch.spec.kind, watch.spec.watched.freshness)
    ('monitor', datetime.timedelta(seconds=7200))
    """
    aged = parse_freshness(freshness)
    watched = check_watched(
        Watched(
            featuregroup=featuregroup,
            baseline=baseline or Baseline(last=LAST, same_weekday=True),
            drift=dict(drift or {}),
            features=None if features is None else tuple(features),
            freshness=aged.event_time,
            commit_freshness=aged.commit,
            volume=volume,
            schema=schema,
            metrics=dict(metrics or {}),
            limits=dict(limits or {}),
            confirm=confirm,
        )
    )
    check_metrics(watched.metrics)
    inputs = {WATCHED_INPUT: pinned_reference(featuregroup)}
    spec = monitor_spec(
        name,
        inputs,
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
        Told(alert=alert, remind=remind, description=description, tags=tags),
    )
    return made_by_caller(JobDefinition(spec), calling_globals())


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When a monitor looks, at which windows, as it was given."""

    schedule: str
    window: Duration | None
    start: datetime | str | None
    allowed_lateness: Duration
    timezone: str
    retries: int
    catchup: int | None


@dataclass(frozen=True, kw_only=True)
class Told:
    """Who is told, how often, and what is said of a monitor."""

    alert: str | Sequence[str]
    remind: Duration | None
    description: str
    tags: Mapping[str, str] | None


def monitor_spec(
    name: str, inputs: Mapping[str, str], watched: Watched, timing: Timing, told: Told
) -> JobSpec:
    """Return the specification of a monitor, its schedule checked."""
    width = timing.window
    spec = JobSpec(
        name=check_name(name, noun="monitor"),
        kind="monitor",
        target=name,
        schedule=timing.schedule,
        inputs=inputs,
        code="",
        window=None if width is None else parse_duration(width, argument="window"),
        start=None if timing.start is None else parse_moment(timing.start, argument="start"),
        allowed_lateness=parse_duration(timing.allowed_lateness, argument="allowed_lateness"),
        timezone=timing.timezone,
        closed="left",
        description=told.description,
        tags=dict(told.tags or {}),
        retries=timing.retries,
        catchup=timing.catchup,
        alert=channels(told.alert),
        remind=None if told.remind is None else parse_duration(told.remind, argument="remind"),
        watched=watched,
    )
    schedule_of(spec)  # a schedule checks itself
    return spec


def pinned_reference(text: str) -> str:
    """Return a reference to a group, checked: its name, and its version where one is said."""
    group, version = parse_group_reference(text)
    return group if version is None else f"{group}@v{version}"


def parse_freshness(given: Duration | Mapping[str, Duration] | None) -> _Freshness:
    """Return how old the newest event time and the last commit may be."""
    if given is None:
        return _Freshness()
    if not isinstance(given, Mapping):
        width = parse_duration(given, argument="freshness")
        return _Freshness(event_time=width, commit=width)
    found: dict[str, timedelta] = {}
    for name, each in given.items():
        if name not in ("event_time", "commit"):
            raise InvalidJob(
                f"freshness={{{name!r}: ...}}: there is no such time.",
                hint='freshness={"event_time": "2h", "commit": "1d"}',
            )
        found[name] = parse_duration(each, argument="freshness")
    return _Freshness(**found)
