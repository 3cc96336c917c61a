"""Job definitions: a decorator for functions, SQL jobs, and the specification they build."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from featurestore import usersql
from featurestore.arrow.lists import to_plain_lists
from featurestore.errors import InvalidExpectation, InvalidJob, did_you_mean, listing
from featurestore.jobs.schedule import build_schedule, has_overlapping_windows
from featurestore.model.arguments import (
    as_tuple,
    calling_globals,
    calling_position,
    with_suggestions,
)
from featurestore.model.failure_action import OnFailure, parse_on_failure
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.model.job import (
    MODES,
    ON_ERROR,
    Closed,
    JobKind,
    JobMode,
    JobSpec,
    OnError,
    parse_on_error,
)
from featurestore.model.names import check_name, parse_group_reference
from featurestore.model.requests import FeatureJobRequest
from featurestore.model.source import SourceInput
from featurestore.model.times import parse_duration, parse_moment, parse_ttl

# Global variable of a module that lists the jobs it defines, including jobs without a name.
DEFINED_JOBS = "__featurestore_jobs__"

Duration = timedelta | str
Columns = str | Sequence[str]

_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_BOUND = {"window_start", "window_end"}


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
    >>> (warm_hours.spec.name, warm_hours.spec.lookback)
    ('warm_hours', datetime.timedelta(seconds=7200))
    """
    # This must be the first statement: any local variable before it would become an argument.
    arguments = dict(locals())

    def decorate(function: Callable[..., Any]) -> JobDefinition:
        request = FeatureJobRequest(**{**arguments, "name": name or function.__name__})
        spec = feature_job_spec(request, kind="python", code=read_source_code(function))
        check_arguments(function, ("window", *spec.inputs), spec)
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
    # This must be the first statement: any local variable before it would become an argument.
    arguments = dict(locals())
    del arguments["sql"]
    request = FeatureJobRequest(**{**arguments, "featuregroup": featuregroup or name})
    spec = feature_job_spec(request, kind="sql", code=textwrap.dedent(sql).strip())
    # A query has no function whose module could be used, so the job is added to the module of the
    # caller.
    return add_to_module(JobDefinition(spec), calling_globals())


def add_to_module(definition: JobDefinition, module: dict[str, Any]) -> JobDefinition:
    """Add a job to the job list of its module, so that unnamed jobs are also registered."""
    # A module variable, so that the list has the lifetime of the module: a reloaded file starts
    # with an empty one.
    definitions: list[JobDefinition] = module.setdefault(DEFINED_JOBS, [])
    definition = replace(definition, position=calling_position(module))
    if module.get("__name__") == "__main__":  # a repeated notebook cell replaces its jobs
        definitions[:] = [each for each in definitions if each.spec.name != definition.spec.name]
    definitions.append(definition)
    return definition


def check_arguments(function: Callable[..., Any], names: Sequence[str], spec: JobSpec) -> None:
    """Raise an error if the parameters of a function differ from the arguments of its job."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    parameter_names = [parameter.name for parameter in parameters]
    if sorted(parameter_names) != sorted(names):
        raise InvalidJob(
            f"Job {spec.name!r}: its function takes {listing(parameter_names)}, but is called with "
            f"{listing(names)}.",
            hint=f"def {spec.name}({', '.join(names)})",
        )


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


def feature_job_spec(request: FeatureJobRequest, *, kind: JobKind, code: str) -> JobSpec:
    """Build the specification of a job that writes a feature group.

    Args:
        request: The arguments of the definition.
        kind: "python" or "sql".
        code: The source code of the function, or the query.
    """
    inputs, sources = _split_inputs(request)
    spec = JobSpec(
        name=check_name(request.name, noun="job"),
        kind=kind,
        target=check_name(request.featuregroup, noun="feature group"),
        schedule=request.schedule,
        inputs=inputs,
        code=code,
        window=_parse_duration(request.window, "window"),
        start=parse_start(request.start),
        lookback=_parse_duration(request.lookback, "lookback") or timedelta(0),
        allowed_lateness=parse_duration(request.allowed_lateness, argument="allowed_lateness"),
        timezone=request.timezone,
        closed=request.closed,
        mode=request.mode,
        validation=request.validation,
        primary_key=as_tuple(request.primary_key),
        event_time=request.event_time,
        created_time=request.created_time,
        partition_by=as_tuple(request.partition_by),
        ttl=parse_ttl(request.ttl),
        expectations=plain_expectations(request.expectations),
        statistics=request.statistics,
        compact=request.compact,
        description=request.description,
        tags=dict(request.tags or {}),
        input_times=_input_times(request, sources),
        retries=request.retries,
        catchup=request.catchup,
        on_error=parse_on_error(request.on_error),
        on_failure=parse_on_failure(request.on_failure, job=request.name),
        alert=check_channel_names(request.alert),
        sources=sources,
        tombstone=request.tombstone,
        delete_missing=request.delete_missing,
        shared=request.shared,
    )
    check_options(spec)
    check_keys_and_times(spec)
    _check_inputs(spec)
    _check_overlap(spec)
    if kind == "sql":
        _check_query(spec)
    return spec


def _split_inputs(request: FeatureJobRequest) -> tuple[dict[str, str], dict[str, SourceInput]]:
    """Return the inputs as strings by name, and the registered sources among the inputs."""
    inputs, sources = {}, {}
    for name, source in (request.inputs or {}).items():
        if isinstance(source, SourceInput):
            # The prefix distinguishes a source from groups and paths in stored definitions and in
            # lineage.
            sources[name] = source
            inputs[name] = f"source:{source.source}"
        elif isinstance(source, str):
            inputs[name] = source
        else:
            raise InvalidJob(
                f"Job {request.name!r}: the input {name!r} is {source!r}, not a group, a path or a "
                "source.",
                hint=f"inputs={{{name!r}: featurestore.source('shop', table='orders')}}",
            )
    return inputs, sources


def _input_times(request: FeatureJobRequest, sources: Mapping[str, SourceInput]) -> dict[str, str]:
    times = dict(request.input_times or {})
    for name, source_input in sources.items():
        if source_input.time is not None:
            times.setdefault(name, source_input.time)
    return times


def check_channel_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Validate the names of alert channels."""
    return tuple(check_name(each, noun="alert channel") for each in as_tuple(names))


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


def _parse_duration(value: timedelta | str | None, argument: str) -> timedelta | None:
    return None if value is None else parse_duration(value, argument=argument)


def parse_start(value: datetime | str | None) -> datetime | None:
    """Parse the start of a job's first window; None disables catchup."""
    return None if value is None else parse_moment(value, argument="start")


def check_options(spec: JobSpec) -> None:
    """Raise an error for invalid option values of a job."""
    for argument, value, allowed in (
        ("mode", spec.mode, MODES),
        ("closed", spec.closed, ("right", "left")),
        ("on_error", spec.on_error, ON_ERROR),
        ("validation", spec.validation, VALIDATION_POLICIES),
    ):
        if value not in allowed:
            raise InvalidJob(
                f"Job {spec.name!r}: invalid {argument}={value!r}. Available: {listing(allowed)}.",
                hint=did_you_mean(value, allowed, write=f"{argument}={{!r}}"),
            )
    # Both options delete rows that another job has written.
    if spec.shared and (spec.mode == "replace_window" or spec.delete_missing):
        option = "delete_missing=True" if spec.delete_missing else "mode='replace_window'"
        raise InvalidJob(
            f"Job {spec.name!r}: {option} would delete rows of the other jobs that write the shared "
            f"feature group {spec.target!r}.",
            hint="delete_missing=False" if spec.delete_missing else "mode='upsert', or 'append'",
        )


def check_keys_and_times(spec: JobSpec) -> None:
    """Raise an error if a job has no event time, or if its keys do not fit the write mode."""
    if spec.event_time is None:
        raise InvalidJob(
            f"Job {spec.name!r} has no event_time=.",
            hint="name the column with the time of the rows",
        )
    # Joins compare keys by equality, and event times as of the label time. With the event time in
    # the key, a label would only match rows of exactly its own time.
    if spec.event_time in spec.primary_key:
        entity = [name for name in spec.primary_key if name != spec.event_time]
        raise InvalidJob(
            f"Job {spec.name!r}: primary_key contains the event time {spec.event_time!r}, which would "
            "be joined by equality.",
            hint=f"primary_key={entity!r}",
        )
    if spec.mode == "upsert" and not spec.primary_key:
        raise InvalidJob(f"Job {spec.name!r}: mode='upsert' needs primary_key=.")
    if (spec.tombstone is not None or spec.delete_missing) and spec.mode != "upsert":
        raise InvalidJob(
            f"Job {spec.name!r}: tombstone= and delete_missing= need mode='upsert'.",
            hint="mode='upsert'",
        )
    # With several sources, a key that is missing in one source may exist in another.
    if spec.delete_missing and len(spec.sources) != 1:
        raise InvalidJob(
            f"Job {spec.name!r}: delete_missing= needs exactly one source among the inputs, not "
            f"{len(spec.sources)}.",
            hint="inputs={'orders': featurestore.source('shop', table='orders', time='updated_at')}",
        )
    if spec.tombstone in (*spec.primary_key, spec.event_time):
        raise InvalidJob(
            f"Job {spec.name!r}: tombstone={spec.tombstone!r} is a key or the event time of the job."
        )


def _check_inputs(spec: JobSpec) -> None:
    """Raise an error for invalid input names, references and input times."""
    for name, source in spec.inputs.items():
        # The first parameter of a job's function is named "window".
        if not _INPUT_NAME.fullmatch(name) or name == "window":
            raise InvalidJob(
                f"Job {spec.name!r}: {name!r} is not a valid input name.",
                hint="use letters, digits and underscores, such as 'trips'; 'window' is reserved",
            )
        # Names of groups cannot contain a "/", so a reference with one is a path.
        if "/" not in source and name not in spec.sources:
            parse_group_reference(source)
    unknown = [name for name in spec.input_times if name not in spec.inputs]
    if unknown:
        raise InvalidJob(
            f"Job {spec.name!r}: unknown inputs {listing(unknown)} in input_times=. Available: "
            f"{listing(spec.inputs)}."
        )


def _check_overlap(spec: JobSpec) -> None:
    """Raise an error if the windows of a job would replace rows of each other."""
    schedule = build_schedule(spec)
    if spec.mode == "replace_window" and has_overlapping_windows(schedule):
        raise InvalidJob(
            f"Job {spec.name!r}: windows of {spec.window} overlap under the schedule "
            f"{spec.schedule!r}, so each window would replace rows of the previous one.",
            hint=(
                "leave out window=, so that each window is as wide as its schedule interval, and "
                "read earlier rows with lookback="
            ),
        )


def _check_query(spec: JobSpec) -> None:
    """Raise an error for SQL that cannot be parsed or does more than read its tables."""
    # The engine parses the query when the job is registered, since definitions have no engine.
    usersql.query(spec.code, tables=list(spec.inputs), dialect=usersql.DIALECT)
    # An unknown parameter would only fail when the query runs.
    unknown = set(_PARAMETER.findall(spec.code)) - _BOUND
    if unknown:
        raise InvalidJob(
            f"Job {spec.name!r}: unknown parameters {listing(sorted(unknown))}. Available: "
            f"{listing(sorted(_BOUND))}.",
            hint="where left_at >= $window_start and left_at < $window_end",
        )
