"""Definition of jobs: a decorator for functions, or SQL."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from featurestore.errors import InvalidJob, listing
from featurestore.jobs import specs
from featurestore.model.arguments import calling_globals, with_suggestions
from featurestore.model.job import Closed, JobMode, JobSpec, OnError
from featurestore.model.requests import FeatureJobRequest, TrainingJobRequest
from featurestore.model.source import SourceInput

# The global of a module with the jobs that it defines, including those without a name.
DEFINED_JOBS = "__featurestore_jobs__"

Duration = timedelta | str
Columns = str | Sequence[str]


@dataclass(frozen=True)
class JobDefinition:
    """The specification of a job and its function, if it has one; a call calls the function."""

    spec: JobSpec
    function: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise InvalidJob(
                f"Job {self.spec.name!r} has no function that could be called.",
                hint="run_job(name)",
            )
        return self.function(*args, **kwargs)


@with_suggestions
def job(
    *,
    featuregroup: str,
    schedule: str,
    inputs: Mapping[str, str | SourceInput] | None = None,
    name: str | None = None,
    primary_key: Columns = (),
    event_time: str | None = None,
    created_time: str | None = None,
    partition_by: Columns = (),
    window: Duration | None = None,
    start: datetime | str | None = None,
    lookback: Duration | None = None,
    allowed_lateness: Duration = "0s",
    timezone: str = "UTC",
    closed: Closed = "right",
    mode: JobMode = "replace_window",
    validation: str = "strict",
    ttl: Duration | None = None,
    expectations: Sequence[Mapping[str, Any]] = (),
    statistics: bool = True,
    compact: Literal["auto"] | None = "auto",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    input_times: Mapping[str, str] | None = None,
    retries: int = 2,
    catchup: int | None = None,
    on_error: OnError = "continue",
    on_failure: str | None = None,
    alert: Columns = (),
    tombstone: str | None = None,
    delete_missing: bool = False,
) -> Callable[[Callable[..., Any]], JobDefinition]:
    """Define a scheduled job by a function ``(window, **inputs)`` that returns a window's rows.

    Args:
        featuregroup: The group that the job fills; the first run creates it.
        schedule: Cron expression; a window ends at each of its times.
        inputs: ``{name of an argument: group reference, path of a Delta table or Parquet
            folder, or featurestore.source(...)}``; None: the function gets only the window and
            fetches its rows itself.
        name: Name of the job; else that of the function.
        primary_key: As for ``create_featuregroup``.
        event_time: Column of the result; if the function does not return it, the store adds the
            window's end.
        created_time: As for ``create_featuregroup``.
        partition_by: As for ``create_featuregroup``.
        window: Width of a window; else the schedule interval, from one schedule time to the next.
        start: Start of the first window; None disables catchup.
        lookback: How far before the window inputs are read.
        allowed_lateness: How long to wait after a window's end for late data.
        timezone: Of the schedule.
        closed: "right": rows have start < event time <= end, the time when they became known;
            "left": [start, end).
        mode: "replace_window", "upsert" or "append".
        validation: Validation policy of the writes.
        ttl: As for ``create_featuregroup``.
        expectations: As for ``create_featuregroup``, as plain dicts.
        statistics: Whether commits compute statistics.
        compact: Whether small files of the group are merged automatically.
        description: Of the feature group.
        tags: Of the feature group.
        input_times: ``{input: time column}`` for inputs that are paths; groups have an event time.
        retries: How often a failed run is retried, with increasing delays.
        catchup: Maximum number of missed windows at once, the oldest first; None: no limit.
        on_error: Whether later windows "wait" for a failed one or "continue".
        on_failure: Command to run when the retries of a run are used up.
        alert: Channels that are alerted when the retries of a run are used up or its rows fail
            validation, and when it works again (``add_alert_channel``).
        tombstone: Column of the result that is true (or not null, if it is not boolean) if the
            key of the row is deleted: the key's rows up to its time are deleted, and the column is
            not stored. For ``mode="upsert"``.
        delete_missing: Delete keys that the job's source no longer has. For ``mode="upsert"``.

    >>> @featurestore.job(
    ...     featuregroup="warm_hours", primary_key="origin", event_time="measured_at",
    ...     schedule="0 * * * *", inputs={"weather": "weather"}, lookback="2h", closed="left",
    ... )
    ... def warm_hours(window, weather):
    ...     return weather.filter("temp > 38")
    >>> (warm_hours.spec.name, warm_hours.spec.lookback)
    ('warm_hours', datetime.timedelta(seconds=7200))
    """
    arguments = dict(locals())

    def decorate(function: Callable[..., Any]) -> JobDefinition:
        request = FeatureJobRequest(**{**arguments, "name": name or function.__name__})
        spec = specs.feature_job(request, kind="python", code=_source_text(function))
        _check_arguments(function, ("window", *spec.inputs), spec)
        return add_to_module(JobDefinition(spec, function), function.__globals__)

    return decorate


@with_suggestions
def sql_job(
    name: str,
    *,
    sql: str,
    schedule: str,
    inputs: Mapping[str, str | SourceInput] | None = None,
    featuregroup: str | None = None,
    primary_key: Columns = (),
    event_time: str | None = None,
    created_time: str | None = None,
    partition_by: Columns = (),
    window: Duration | None = None,
    start: datetime | str | None = None,
    lookback: Duration | None = None,
    allowed_lateness: Duration = "0s",
    timezone: str = "UTC",
    closed: Closed = "right",
    mode: JobMode = "replace_window",
    validation: str = "strict",
    ttl: Duration | None = None,
    expectations: Sequence[Mapping[str, Any]] = (),
    statistics: bool = True,
    compact: Literal["auto"] | None = "auto",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    input_times: Mapping[str, str] | None = None,
    retries: int = 2,
    catchup: int | None = None,
    on_error: OnError = "continue",
    on_failure: str | None = None,
    alert: Columns = (),
    tombstone: str | None = None,
    delete_missing: bool = False,
) -> JobDefinition:
    """Define a scheduled job by a query in DuckDB's SQL, which runs on either engine.

    Inputs are table names; ``$window_start`` and ``$window_end`` are bound. Several windows are
    computed in one query if that gives the same rows (see ``docs/how-to/jobs.md``). The other
    arguments are those of ``job``; ``featuregroup`` defaults to the name of the job.

    >>> query = '''
    ...     select origin, date_trunc('day', measured_at) + interval 1 day as day, avg(temp) as temp
    ...     from weather group by all
    ... '''
    >>> definition = featurestore.sql_job(
    ...     "mean_temp", sql=query, primary_key="origin", event_time="day", schedule="0 0 * * *",
    ...     start="2013-01-01T00:00Z", inputs={"weather": "weather"},
    ... )
    >>> definition.spec.target
    'mean_temp'
    """
    arguments = dict(locals())
    del arguments["sql"]
    request = FeatureJobRequest(**{**arguments, "featuregroup": featuregroup or name})
    spec = specs.feature_job(request, kind="sql", code=textwrap.dedent(sql).strip())
    return add_to_module(JobDefinition(spec), calling_globals())


@with_suggestions
def training_job(
    *,
    training_dataset: str,
    schedule: str,
    inputs: Mapping[str, str] | None = None,
    name: str | None = None,
    start: datetime | str | None = None,
    allowed_lateness: Duration = "0s",
    timezone: str = "UTC",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    retries: int = 2,
    on_failure: str | None = None,
    keep: int | None = None,
    alert: Columns = (),
) -> Callable[[Callable[..., Any]], JobDefinition]:
    """Define a scheduled job by a function ``(store, window)`` that describes a training dataset.

    It returns the data, or a dict of arguments of ``create_training_dataset`` including ``data``. A
    new version is written if the inputs changed since the latest one: those in ``inputs``, or else
    the sources of the frame that the function returned.

    Args:
        training_dataset: The dataset that gets new versions.
        schedule: Cron expression.
        inputs: ``{any name: group reference}`` whose changes trigger a new version.
        name: Name of the job; else that of the function.
        start: The earliest schedule time.
        allowed_lateness: How long to wait after a schedule time.
        timezone: Of the schedule.
        description: Of the dataset.
        tags: Of the dataset.
        retries: How often a failed run is retried.
        on_failure: Command to run when the retries of a run are used up.
        keep: How many versions to keep; older ones are deleted. None keeps all.
        alert: Channels that are alerted of failures, as for ``job``.

    >>> @featurestore.training_job(training_dataset="late_flights", schedule="0 3 * * *", keep=5)
    ... def late_flights(store, window):
    ...     frame = store.get_features(["weather.temp"], labels="questions")
    ...     return {"data": frame, "label": "late"}
    >>> late_flights.spec.kind
    'training'
    """
    arguments = dict(locals())

    def decorate(function: Callable[..., Any]) -> JobDefinition:
        request = TrainingJobRequest(**{**arguments, "name": name or function.__name__})
        spec = specs.training_job(request, code=_source_text(function))
        _check_arguments(function, ("store", "window"), spec)
        return add_to_module(JobDefinition(spec, function), function.__globals__)

    return decorate


def add_to_module(definition: JobDefinition, module: dict[str, Any]) -> JobDefinition:
    """Add a job to the list of its module, so that jobs without a name are registered, too."""
    definitions: list[JobDefinition] = module.setdefault(DEFINED_JOBS, [])
    if module.get("__name__") == "__main__":  # a repeated notebook cell replaces its jobs
        definitions[:] = [each for each in definitions if each.spec.name != definition.spec.name]
    definitions.append(definition)
    return definition


def _check_arguments(function: Callable[..., Any], names: Sequence[str], spec: JobSpec) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return
    parameter_names = [each.name for each in parameters]
    if sorted(parameter_names) != sorted(names):
        raise InvalidJob(
            f"Job {spec.name!r}: its function takes {listing(parameter_names)}, but is called with "
            f"{listing(names)}.",
            hint=f"def {spec.name}({', '.join(names)})",
        )


def _source_text(function: Callable[..., Any]) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InvalidJob(
            f"The source of {function!r} cannot be read, so changes could not be detected.",
            hint="define jobs in a file",
        ) from error
