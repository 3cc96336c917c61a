"""Job definitions: a decorator for functions, SQL jobs, and the checks of what they define."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from featurestore.arrow.lists import to_plain_lists
from featurestore.errors import InvalidExpectation, InvalidJob
from featurestore.jobs.definition_checks import check_arguments, check_query, check_transform
from featurestore.jobs.schedule import check_schedule
from featurestore.model.arguments import (
    as_tuple,
    calling_globals,
    calling_position,
    with_suggestions,
)
from featurestore.model.failure_action import OnFailure, parse_on_failure
from featurestore.model.group_options import GroupOptions
from featurestore.model.job import (
    Alerts,
    Closed,
    JobMode,
    JobSpec,
    OnError,
    PythonWork,
    Schedule,
    SqlWork,
)
from featurestore.model.names import check_name
from featurestore.model.source import SourceInput
from featurestore.model.times import parse_duration, parse_moment, parse_ttl

# Global variable of a module that lists the jobs it defines, including jobs without a name.
DEFINED_JOBS = "__featurestore_jobs__"

Duration = timedelta | str
Columns = str | Sequence[str]


@dataclass(frozen=True)
class JobDefinition:
    """A job specification and, for function jobs, the function that a call invokes.

    ``position`` is the file and line of the definition.
    """

    spec: JobSpec
    function: Callable[..., Any] | None = None
    position: tuple[str, int] | None = field(default=None, compare=False, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise InvalidJob(
                f"Job {self.spec.name!r} has no function to call.",
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
    on_failure: OnFailure = None,
    alert: Columns = (),
    tombstone: str | None = None,
    delete_missing: bool = False,
    shared: bool = False,
) -> Callable[[Callable[..., Any]], JobDefinition]:
    """Define a scheduled job by a function ``(window, **inputs)`` that returns a window's rows.

    Args:
        featuregroup: The group that the job writes; the first run creates it.
        schedule: A cron expression; a window ends at each schedule time.
        inputs: ``{argument name: group reference, path of a Delta table or Parquet folder, or
            featurestore.source(...)}``. None: the function only gets the window and loads its rows
            itself.
        name: The job name; defaults to the function name.
        primary_key: As for ``create_featuregroup``.
        event_time: The event time column of the result. If the function does not return it, the
            store adds the end of the window.
        created_time: As for ``create_featuregroup``.
        partition_by: As for ``create_featuregroup``.
        window: The width of a window; defaults to the schedule interval.
        start: The start of the first window; None disables catchup.
        lookback: How far before the window the inputs are read.
        allowed_lateness: How long to wait for late data after a window ends.
        timezone: The time zone of the schedule.
        closed: "right": a window contains the rows with start < event time <= end, which are known
            at its end; "left": [start, end).
        mode: "replace_window", "upsert" or "append".
        validation: The validation policy for writes.
        ttl: As for ``create_featuregroup``.
        expectations: As for ``create_featuregroup``, as plain dicts.
        statistics: Whether commits compute statistics.
        compact: Whether small files of the group are merged automatically.
        description: The description of the feature group.
        tags: The tags of the feature group.
        input_times: ``{input: time column}`` for inputs that are paths; groups have an event time.
        retries: The maximum number of retries of a failed run, with increasing delays.
        catchup: The maximum number of missed windows to compute at once, oldest first; None for no
            limit.
        on_error: Whether later windows "wait" for a failed window or "continue".
        on_failure: What runs when the retries of a run are exhausted: a program with its arguments,
            or a top-level function of the file, which is called with the run.
        alert: The channels to alert when the retries of a run are exhausted or its rows fail
            validation, and when the job recovers (``add_alert_channel``).
        tombstone: A result column that marks deleted keys: true, or not null if it is not boolean.
            The rows of a marked key are deleted up to the time of the marked row. The column is not
            stored. Requires ``mode="upsert"``.
        delete_missing: Delete keys that no longer exist in the job's source. Requires
            ``mode="upsert"``.
        shared: Whether other jobs may write the same group, which must also set it. Requires
            ``mode="append"`` or ``"upsert"``, and keys that differ between the jobs.

    >>> @featurestore.job(
    ...     featuregroup="warm_hours", primary_key="origin", event_time="measured_at",
    ...     schedule="0 * * * *", inputs={"weather": "weather"}, lookback="2h", closed="left",
    ... )
    ... def warm_hours(window, weather):
    ...     return weather.filter("temp > 38")
    >>> (warm_hours.spec.name, warm_hours.spec.work.lookback)
    ('warm_hours', datetime.timedelta(seconds=7200))
    """

    def decorate(function: Callable[..., Any]) -> JobDefinition:
        job_name = name or function.__name__
        work = PythonWork(
            target=check_name(featuregroup, noun="feature group"),
            options=GroupOptions(
                primary_key=as_tuple(primary_key),
                event_time=event_time,
                created_time=created_time,
                partition_by=as_tuple(partition_by),
                ttl=parse_ttl(ttl),
                expectations=plain_expectations(expectations),
                validation=validation,
                statistics=statistics,
                compact=compact,
                description=description,
                tags=dict(tags or {}),
                job=job_name,
            ),
            inputs=_format_inputs(inputs, job=job_name),
            code=read_source_code(function),
            lookback=parse_optional_duration(lookback, "lookback") or timedelta(0),
            closed=closed,
            mode=mode,
            input_times=_complete_input_times(input_times, inputs),
            sources=_select_sources(inputs),
            tombstone=tombstone,
            delete_missing=bool(delete_missing),
            shared=bool(shared),
        )
        spec = JobSpec(
            name=check_name(job_name, noun="job"),
            schedule=define_schedule(
                schedule,
                job=job_name,
                window=window,
                start=start,
                allowed_lateness=allowed_lateness,
                timezone=timezone,
                catchup=catchup,
                retries=retries,
                on_error=on_error,
                on_failure=on_failure,
            ),
            alerts=Alerts(check_channel_names(alert)),
            work=work,
        )
        check_transform(spec, work)
        check_arguments(function, ("window", *spec.inputs), job=job_name)
        return add_to_module(spec, function.__globals__, function)

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
    on_failure: OnFailure = None,
    alert: Columns = (),
    tombstone: str | None = None,
    delete_missing: bool = False,
    shared: bool = False,
) -> JobDefinition:
    """Define a scheduled job by a DuckDB SQL query, which runs on every engine.

    Inputs are table names; ``$window_start`` and ``$window_end`` are bound parameters. One query
    computes several windows if that gives the same rows (see ``docs/how-to/jobs.md``). The other
    arguments are the same as for ``job``; ``featuregroup`` defaults to the job name.

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
    check_name(name, noun="job")  # before that of the group, which it defaults to
    work = SqlWork(
        target=check_name(featuregroup or name, noun="feature group"),
        options=GroupOptions(
            primary_key=as_tuple(primary_key),
            event_time=event_time,
            created_time=created_time,
            partition_by=as_tuple(partition_by),
            ttl=parse_ttl(ttl),
            expectations=plain_expectations(expectations),
            validation=validation,
            statistics=statistics,
            compact=compact,
            description=description,
            tags=dict(tags or {}),
            job=name,
        ),
        inputs=_format_inputs(inputs, job=name),
        code=textwrap.dedent(sql).strip(),
        lookback=parse_optional_duration(lookback, "lookback") or timedelta(0),
        closed=closed,
        mode=mode,
        input_times=_complete_input_times(input_times, inputs),
        sources=_select_sources(inputs),
        tombstone=tombstone,
        delete_missing=bool(delete_missing),
        shared=bool(shared),
    )
    spec = JobSpec(
        name=name,
        schedule=define_schedule(
            schedule,
            job=name,
            window=window,
            start=start,
            allowed_lateness=allowed_lateness,
            timezone=timezone,
            catchup=catchup,
            retries=retries,
            on_error=on_error,
            on_failure=on_failure,
        ),
        alerts=Alerts(check_channel_names(alert)),
        work=work,
    )
    check_transform(spec, work)
    check_query(name, work)
    # A query has no function whose module could be used, so the job is added to the module of the
    # caller.
    return add_to_module(spec, calling_globals())


def add_to_module(
    spec: JobSpec, module: dict[str, Any], function: Callable[..., Any] | None = None
) -> JobDefinition:
    """Add a job to the job list of its module, so that unnamed jobs are also registered."""
    # A module variable, so that the list has the lifetime of the module: a reloaded file starts
    # with an empty one.
    definitions: list[JobDefinition] = module.setdefault(DEFINED_JOBS, [])
    definition = JobDefinition(spec, function, calling_position(module))
    if module.get("__name__") == "__main__":  # a repeated notebook cell replaces its jobs
        definitions[:] = [earlier for earlier in definitions if earlier.spec.name != spec.name]
    definitions.append(definition)
    return definition


def read_source_code(function: Callable[..., Any]) -> str:
    """Return the source code of a job's function; raise InvalidJob if it cannot be read."""
    # The source code is part of the job's hash, by which a changed function is detected.
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InvalidJob(
            f"The source code of {function!r} cannot be read, so changes to it would not be "
            "detected.",
            hint="define jobs in a file",
        ) from error


def define_schedule(
    cron: str,
    *,
    job: str,
    window: Duration | None = None,
    start: datetime | str | None = None,
    allowed_lateness: Duration = "0s",
    timezone: str = "UTC",
    catchup: int | None = None,
    retries: int = 2,
    on_error: OnError = "continue",
    on_failure: OnFailure = None,
) -> Schedule:
    """Return the schedule of a job from the arguments of its definition; it must be computable."""
    return check_schedule(
        Schedule(
            cron=cron,
            width=parse_optional_duration(window, "window"),
            start=None if start is None else parse_moment(start, argument="start"),
            allowed_lateness=parse_duration(allowed_lateness, argument="allowed_lateness"),
            timezone=timezone,
            catchup=catchup,
            retries=retries,
            on_error=on_error,
            on_failure=parse_on_failure(on_failure, job=job),
        )
    )


def _format_inputs(inputs: Mapping[str, str | SourceInput] | None, *, job: str) -> dict[str, str]:
    """Return the inputs as strings by name."""
    references = {}
    for name, source in (inputs or {}).items():
        if isinstance(source, SourceInput):
            # The prefix distinguishes a source from groups and paths in stored definitions and in
            # lineage.
            references[name] = f"source:{source.source}"
        elif isinstance(source, str):
            references[name] = source
        else:
            raise InvalidJob(
                f"Job {job!r}: the input {name!r} is {source!r}, not a group, a path or a source.",
                hint=f"inputs={{{name!r}: featurestore.source('shop', table='orders')}}",
            )
    return references


def _select_sources(inputs: Mapping[str, str | SourceInput] | None) -> dict[str, SourceInput]:
    return {
        name: source for name, source in (inputs or {}).items() if isinstance(source, SourceInput)
    }


def _complete_input_times(
    input_times: Mapping[str, str] | None, inputs: Mapping[str, str | SourceInput] | None
) -> dict[str, str]:
    """Return the time columns of inputs, including those of sources."""
    times = dict(input_times or {})
    for name, source in _select_sources(inputs).items():
        if source.time is not None:
            times.setdefault(name, source.time)
    return times


def check_channel_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Validate the names of alert channels."""
    return tuple(check_name(name, noun="alert channel") for name in as_tuple(names))


def plain_expectations(expectations: object) -> tuple[Mapping[str, Any], ...]:
    """Return the expectations of a job as dicts; registration checks their content.

    Raises:
        InvalidExpectation: The expectations are not a list of dicts.
    """
    # One level more than a single expectation: the list.
    items = to_plain_lists(expectations, levels=4)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidExpectation(
            f"expectations={expectations!r} is not a list of dicts.",
            hint="expectations=[{'type': 'expect_column_values_to_not_be_null', "
            "'kwargs': {'column': 'id'}}]",
        )
    return tuple(items)


def parse_optional_duration(duration: Duration | None, argument: str) -> timedelta | None:
    """Parse a duration, if there is one."""
    return None if duration is None else parse_duration(duration, argument=argument)
