"""From what a job's definition says to its specification.

Durations and times read, and everything checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from featurestore import usersql
from featurestore.errors import InvalidJob, listing
from featurestore.jobs.schedule import Schedule, overlaps
from featurestore.model.durations import parse_duration, parse_ttl
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.model.job import MODES, ON_ERROR, JobKind, JobSpec, parse_on_error
from featurestore.model.names import check_name
from featurestore.model.references import parse_group_reference
from featurestore.model.requests import FeatureJobRequest, TrainingJobRequest
from featurestore.model.source import SourceInput
from featurestore.model.times import parse_moment

_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_BOUND = {"window_start", "window_end"}


def feature_job(asked: FeatureJobRequest, *, kind: JobKind, code: str) -> JobSpec:
    """Return the specification of a job that fills a feature group.

    Args:
        asked: What its definition says.
        kind: "python" or "sql".
        code: The source of the function, or the query.
    """
    inputs, sources = _named_inputs(asked)
    spec = JobSpec(
        name=check_name(asked.name, noun="job"),
        kind=kind,
        target=check_name(asked.featuregroup, noun="feature group"),
        schedule=asked.schedule,
        inputs=inputs,
        code=code,
        window=_duration(asked.window, "window"),
        start=_start(asked.start),
        lookback=_duration(asked.lookback, "lookback") or timedelta(0),
        allowed_lateness=parse_duration(asked.allowed_lateness, argument="allowed_lateness"),
        timezone=asked.timezone,
        closed=asked.closed,
        mode=asked.mode,
        validation=asked.validation,
        primary_key=_columns(asked.primary_key),
        event_time=asked.event_time,
        created_time=asked.created_time,
        partition_by=_columns(asked.partition_by),
        ttl=parse_ttl(asked.ttl),
        expectations=tuple(dict(each) for each in asked.expectations),
        statistics=asked.statistics,
        compact=asked.compact,
        description=asked.description,
        tags=dict(asked.tags or {}),
        input_times=_input_times(asked, sources),
        retries=asked.retries,
        catchup=asked.catchup,
        on_error=parse_on_error(asked.on_error),
        on_failure=asked.on_failure,
        alert=channels(asked.alert),
        sources=sources,
        tombstone=asked.tombstone,
        delete_missing=asked.delete_missing,
    )
    check_choices(spec)
    check_rows(spec)
    _check_inputs(spec)
    _check_overlap(spec)
    if kind == "sql":
        _check_query(spec)
    return spec


def training_job(asked: TrainingJobRequest, *, code: str) -> JobSpec:
    """Return the specification of a job that makes versions of a training dataset.

    ``code`` is its function's source.
    """
    if asked.keep is not None and asked.keep < 1:
        raise InvalidJob(f"keep={asked.keep!r} keeps no version.", hint="keep=3")
    spec = JobSpec(
        name=check_name(asked.name, noun="job"),
        kind="training",
        target=check_name(asked.training_dataset, noun="training dataset"),
        schedule=asked.schedule,
        inputs=asked.inputs or {},
        code=code,
        start=_start(asked.start),
        allowed_lateness=parse_duration(asked.allowed_lateness, argument="allowed_lateness"),
        timezone=asked.timezone,
        description=asked.description,
        tags=dict(asked.tags or {}),
        retries=asked.retries,
        on_failure=asked.on_failure,
        keep=asked.keep,
        alert=channels(asked.alert),
    )
    schedule_of(spec)  # a schedule checks itself
    return spec


def _named_inputs(asked: FeatureJobRequest) -> tuple[dict[str, str], dict[str, SourceInput]]:
    """Return the inputs as texts by name, and those of them that are registered sources."""
    inputs, sources = {}, {}
    for name, given in (asked.inputs or {}).items():
        if isinstance(given, SourceInput):
            sources[name] = given
            inputs[name] = f"source:{given.source}"
        elif isinstance(given, str):
            inputs[name] = given
        else:
            raise InvalidJob(
                f"Job {asked.name!r}: its input {name!r} is {given!r}.",
                hint="a group, a path, or featurestore.source('shop', table='orders')",
            )
    return inputs, sources


def _input_times(asked: FeatureJobRequest, sources: Mapping[str, SourceInput]) -> dict[str, str]:
    times = dict(asked.input_times or {})
    for name, given in sources.items():
        if given.time is not None:
            times.setdefault(name, given.time)
    return times


def schedule_of(spec: JobSpec) -> Schedule:
    """Return the windows that a job's definition describes."""
    return Schedule(spec.schedule, spec.window, spec.start, spec.allowed_lateness, spec.timezone)


def channels(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of alert channels, checked."""
    return tuple(check_name(each, noun="alert channel") for each in _columns(names))


def _duration(value: timedelta | str | None, argument: str) -> timedelta | None:
    return None if value is None else parse_duration(value, argument=argument)


def _start(value: datetime | str | None) -> datetime | None:
    return None if value is None else parse_moment(value, argument="start")


def _columns(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def check_choices(spec: JobSpec) -> None:
    """Refuse choices of a job that there are not."""
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
    """Refuse a job whose rows have no time, or keys that do not go with how they are written."""
    if spec.event_time is None:
        raise InvalidJob(
            f"Job {spec.name!r} has no event_time=.",
            hint="name the column that says when rows were true",
        )
    if spec.event_time in spec.primary_key:
        entity = [name for name in spec.primary_key if name != spec.event_time]
        raise InvalidJob(
            f"Job {spec.name!r}: primary_key holds the event time {spec.event_time!r}, which would "
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
                f"Job {spec.name!r}: an input cannot be called {name!r}.", hint="use a plain name"
            )
        if "/" not in source and name not in spec.sources:
            parse_group_reference(source)
    unknown = [name for name in spec.input_times if name not in spec.inputs]
    if unknown:
        raise InvalidJob(f"Job {spec.name!r}: input_times names no inputs: {listing(unknown)}.")


def _check_overlap(spec: JobSpec) -> None:
    schedule = schedule_of(spec)
    if spec.mode == "replace_window" and overlaps(schedule):
        raise InvalidJob(
            f"Job {spec.name!r}: windows of {spec.window} overlap under the schedule "
            f"{spec.schedule!r}, "
            "and each would replace rows of the one before.",
            hint=(
                "make the window as wide as the schedule interval, and reach further back with "
                "lookback="
            ),
        )


def _check_query(spec: JobSpec) -> None:
    """Refuse SQL that cannot be parsed or does more than read its tables."""
    # What Spark cannot say alike is refused when the job runs there.
    usersql.query(spec.code, tables=list(spec.inputs), dialect=usersql.DIALECT)
    unknown = set(_PARAMETER.findall(spec.code)) - _BOUND
    if unknown:
        raise InvalidJob(
            f"Job {spec.name!r}: unknown parameters {listing(sorted(unknown))}.",
            hint="$window_start and $window_end are bound",
        )
