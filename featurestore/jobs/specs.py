"""Build the specification of a job from a request: parse durations and times, check all fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from featurestore import usersql
from featurestore.errors import InvalidJob, listing
from featurestore.jobs.schedule import Schedule, overlaps
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.model.job import MODES, ON_ERROR, JobKind, JobSpec, parse_on_error
from featurestore.model.names import check_name, parse_group_reference
from featurestore.model.requests import FeatureJobRequest, TrainingJobRequest
from featurestore.model.source import SourceInput
from featurestore.model.times import parse_duration, parse_moment, parse_ttl

_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_BOUND = {"window_start", "window_end"}


def feature_job(request: FeatureJobRequest, *, kind: JobKind, code: str) -> JobSpec:
    """Return the specification of a job that fills a feature group.

    Args:
        request: The arguments of the definition.
        kind: "python" or "sql".
        code: The source of the function, or the query.
    """
    inputs, sources = _named_inputs(request)
    spec = JobSpec(
        name=check_name(request.name, noun="job"),
        kind=kind,
        target=check_name(request.featuregroup, noun="feature group"),
        schedule=request.schedule,
        inputs=inputs,
        code=code,
        window=_parse_duration(request.window, "window"),
        start=_parse_start(request.start),
        lookback=_parse_duration(request.lookback, "lookback") or timedelta(0),
        allowed_lateness=parse_duration(request.allowed_lateness, argument="allowed_lateness"),
        timezone=request.timezone,
        closed=request.closed,
        mode=request.mode,
        validation=request.validation,
        primary_key=_as_tuple(request.primary_key),
        event_time=request.event_time,
        created_time=request.created_time,
        partition_by=_as_tuple(request.partition_by),
        ttl=parse_ttl(request.ttl),
        expectations=tuple(dict(each) for each in request.expectations),
        statistics=request.statistics,
        compact=request.compact,
        description=request.description,
        tags=dict(request.tags or {}),
        input_times=_input_times(request, sources),
        retries=request.retries,
        catchup=request.catchup,
        on_error=parse_on_error(request.on_error),
        on_failure=request.on_failure,
        alert=channels(request.alert),
        sources=sources,
        tombstone=request.tombstone,
        delete_missing=request.delete_missing,
    )
    check_choices(spec)
    check_rows(spec)
    _check_inputs(spec)
    _check_overlap(spec)
    if kind == "sql":
        _check_query(spec)
    return spec


def training_job(request: TrainingJobRequest, *, code: str) -> JobSpec:
    """Return the specification of a job that writes versions of a training dataset.

    ``code`` is the source of its function.
    """
    if request.keep is not None and request.keep < 1:
        raise InvalidJob(f"keep={request.keep!r} would keep no version.", hint="keep=3")
    spec = JobSpec(
        name=check_name(request.name, noun="job"),
        kind="training",
        target=check_name(request.training_dataset, noun="training dataset"),
        schedule=request.schedule,
        inputs=request.inputs or {},
        code=code,
        start=_parse_start(request.start),
        allowed_lateness=parse_duration(request.allowed_lateness, argument="allowed_lateness"),
        timezone=request.timezone,
        description=request.description,
        tags=dict(request.tags or {}),
        retries=request.retries,
        on_failure=request.on_failure,
        keep=request.keep,
        alert=channels(request.alert),
    )
    schedule_of(spec)  # the constructor of a schedule validates it
    return spec


def _named_inputs(request: FeatureJobRequest) -> tuple[dict[str, str], dict[str, SourceInput]]:
    """Return the inputs as texts by name, and the registered sources among them."""
    inputs, sources = {}, {}
    for name, source in (request.inputs or {}).items():
        if isinstance(source, SourceInput):
            sources[name] = source
            inputs[name] = f"source:{source.source}"
        elif isinstance(source, str):
            inputs[name] = source
        else:
            raise InvalidJob(
                f"Job {request.name!r}: its input {name!r} is {source!r}.",
                hint="a group, a path, or featurestore.source('shop', table='orders')",
            )
    return inputs, sources


def _input_times(request: FeatureJobRequest, sources: Mapping[str, SourceInput]) -> dict[str, str]:
    times = dict(request.input_times or {})
    for name, source_input in sources.items():
        if source_input.time is not None:
            times.setdefault(name, source_input.time)
    return times


def schedule_of(spec: JobSpec) -> Schedule:
    """Return the schedule of a job."""
    return Schedule(spec.schedule, spec.window, spec.start, spec.allowed_lateness, spec.timezone)


def channels(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the validated names of alert channels."""
    return tuple(check_name(each, noun="alert channel") for each in _as_tuple(names))


def _parse_duration(value: timedelta | str | None, argument: str) -> timedelta | None:
    return None if value is None else parse_duration(value, argument=argument)


def _parse_start(value: datetime | str | None) -> datetime | None:
    return None if value is None else parse_moment(value, argument="start")


def _as_tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def check_choices(spec: JobSpec) -> None:
    """Refuse invalid values of a job's options."""
    for argument, value, allowed in (
        ("mode", spec.mode, MODES),
        ("closed", spec.closed, ("right", "left")),
        ("on_error", spec.on_error, ON_ERROR),
        ("validation", spec.validation, VALIDATION_POLICIES),
    ):
        if value not in allowed:
            raise InvalidJob(
                f"Job {spec.name!r}: {argument}={value!r}.", hint=f"one of {', '.join(allowed)}"
            )


def check_rows(spec: JobSpec) -> None:
    """Refuse a job without event time, or whose keys do not fit the write mode."""
    if spec.event_time is None:
        raise InvalidJob(
            f"Job {spec.name!r} has no event_time=.",
            hint="name the column with the time of the rows",
        )
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
            f"Job {spec.name!r}: tombstone= and delete_missing= delete keys of upserts.",
            hint="mode='upsert'",
        )
    if spec.delete_missing and len(spec.sources) != 1:
        raise InvalidJob(
            f"Job {spec.name!r}: delete_missing= compares keys with one source, and it has "
            f"{len(spec.sources)}.",
            hint="inputs={'orders': featurestore.source('shop', table='orders', time='updated_at')}",
        )
    if spec.tombstone in (*spec.primary_key, spec.event_time):
        raise InvalidJob(f"Job {spec.name!r}: tombstone={spec.tombstone!r} is its key or time.")


def _check_inputs(spec: JobSpec) -> None:
    for name, source in spec.inputs.items():
        if not _INPUT_NAME.fullmatch(name) or name == "window":
            raise InvalidJob(
                f"Job {spec.name!r}: {name!r} is not a valid name of an input.",
                hint="use a plain name",
            )
        if "/" not in source and name not in spec.sources:
            parse_group_reference(source)
    unknown = [name for name in spec.input_times if name not in spec.inputs]
    if unknown:
        raise InvalidJob(f"Job {spec.name!r}: input_times= has unknown inputs: {listing(unknown)}.")


def _check_overlap(spec: JobSpec) -> None:
    schedule = schedule_of(spec)
    if spec.mode == "replace_window" and overlaps(schedule):
        raise InvalidJob(
            f"Job {spec.name!r}: windows of {spec.window} overlap under the schedule "
            f"{spec.schedule!r}, "
            "and each would replace rows of the one before.",
            hint=(
                "make the window as wide as the schedule interval, and read earlier rows with "
                "lookback="
            ),
        )


def _check_query(spec: JobSpec) -> None:
    """Refuse SQL that cannot be parsed or does more than read its tables."""
    # SQL that cannot be transpiled to Spark is refused when the job runs there.
    usersql.query(spec.code, tables=list(spec.inputs), dialect=usersql.DIALECT)
    unknown = set(_PARAMETER.findall(spec.code)) - _BOUND
    if unknown:
        raise InvalidJob(
            f"Job {spec.name!r}: unknown parameters {listing(sorted(unknown))}.",
            hint="$window_start and $window_end are bound",
        )
