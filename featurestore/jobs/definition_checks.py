"""Checks of job definitions: their options, keys, inputs, queries and functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from featurestore import usersql
from featurestore.errors import InvalidJob, did_you_mean, listing
from featurestore.jobs.schedule import has_overlapping_windows
from featurestore.model.featuregroup import VALIDATION_POLICIES
from featurestore.model.job import (
    MODES,
    ON_ERROR,
    GroupWork,
    JobSpec,
    SqlWork,
    TransformWork,
    WindowedWork,
)
from featurestore.model.names import parse_group_reference
from featurestore.model.source import SourceInput

_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_BOUND = {"window_start", "window_end"}


def check_choices(job: str, choices: Mapping[str, tuple[str, Sequence[str]]]) -> None:
    """Raise an error for an invalid value of an argument; ``choices`` are (value, valid values)."""
    for argument, (value, allowed) in choices.items():
        if value not in allowed:
            raise InvalidJob(
                f"Job {job!r}: invalid {argument}={value!r}. Available: {listing(allowed)}.",
                hint=did_you_mean(value, allowed, write=f"{argument}={{!r}}"),
            )


def check_windowed_work(
    spec: JobSpec, work: WindowedWork, *, sources: Mapping[str, SourceInput] | None = None
) -> None:
    """Raise an error for invalid options, keys and inputs of a job that computes windows."""
    choices: dict[str, tuple[str, Sequence[str]]] = {
        "mode": (work.mode, MODES),
        "closed": (work.closed, ("right", "left")),
        "on_error": (spec.schedule.on_error, ON_ERROR),
        "validation": (work.options.validation, VALIDATION_POLICIES),
    }
    check_choices(spec.name, choices)
    check_keys_and_times(spec.name, work, mode=work.mode)
    for name, reference in work.inputs.items():
        # The first parameter of a job's function is named "window".
        if not _INPUT_NAME.fullmatch(name) or name == "window":
            raise InvalidJob(
                f"Job {spec.name!r}: {name!r} is not a valid input name.",
                hint="use letters, digits and underscores, such as 'trips'; 'window' is reserved",
            )
        # Names of groups cannot contain a "/", so a reference with one is a path.
        if "/" not in reference and name not in (sources or ()):
            parse_group_reference(reference)
    if work.mode == "replace_window" and has_overlapping_windows(spec.schedule):
        raise InvalidJob(
            f"Job {spec.name!r}: windows of {spec.schedule.width} overlap under the schedule "
            f"{spec.schedule.cron!r}, so each window would replace rows of the previous one.",
            hint=(
                "leave out window=, so that each window is as wide as its schedule interval, and "
                "read earlier rows with lookback="
            ),
        )


def check_keys_and_times(job: str, work: GroupWork, *, mode: str) -> None:
    """Raise an error if a job has no event time, or if its keys do not fit the write mode."""
    options = work.options
    if options.event_time is None:
        raise InvalidJob(
            f"Job {job!r} has no event_time=.", hint="name the column with the time of the rows"
        )
    # Joins compare keys by equality, and event times as of the label time. With the event time in
    # the key, a label would only match rows of exactly its own time.
    if options.event_time in options.primary_key:
        entity = [name for name in options.primary_key if name != options.event_time]
        raise InvalidJob(
            f"Job {job!r}: primary_key contains the event time {options.event_time!r}, which would "
            "be joined by equality.",
            hint=f"primary_key={entity!r}",
        )
    if mode == "upsert" and not options.primary_key:
        raise InvalidJob(f"Job {job!r}: mode='upsert' needs primary_key=.")


def check_transform(spec: JobSpec, work: TransformWork) -> None:
    """Raise an error for the options of a query or function that contradict each other."""
    check_windowed_work(spec, work, sources=work.sources)
    unknown = [name for name in work.input_times if name not in work.inputs]
    if unknown:
        raise InvalidJob(
            f"Job {spec.name!r}: unknown inputs {listing(unknown)} in input_times=. Available: "
            f"{listing(work.inputs)}."
        )
    # Both options delete rows that another job has written.
    if work.shared and (work.mode == "replace_window" or work.delete_missing):
        option = "delete_missing=True" if work.delete_missing else "mode='replace_window'"
        raise InvalidJob(
            f"Job {spec.name!r}: {option} would delete rows of the other jobs that write the shared "
            f"feature group {work.target!r}.",
            hint="delete_missing=False" if work.delete_missing else "mode='upsert', or 'append'",
        )
    if (work.tombstone is not None or work.delete_missing) and work.mode != "upsert":
        raise InvalidJob(
            f"Job {spec.name!r}: tombstone= and delete_missing= need mode='upsert'.",
            hint="mode='upsert'",
        )
    # With several sources, a key that is missing in one source may exist in another.
    if work.delete_missing and len(work.sources) != 1:
        raise InvalidJob(
            f"Job {spec.name!r}: delete_missing= needs exactly one source among the inputs, not "
            f"{len(work.sources)}.",
            hint="inputs={'orders': featurestore.source('shop', table='orders', time='updated_at')}",
        )
    if work.tombstone in (*work.options.primary_key, work.options.event_time):
        raise InvalidJob(
            f"Job {spec.name!r}: tombstone={work.tombstone!r} is a key or the event time of the job."
        )


def check_query(job: str, work: SqlWork) -> None:
    """Raise an error for SQL that cannot be parsed or does more than read its tables."""
    # The engine parses the query when the job is registered, since definitions have no engine.
    usersql.query(work.code, tables=list(work.inputs), dialect=usersql.DIALECT)
    # An unknown parameter would only fail when the query runs.
    unknown = set(_PARAMETER.findall(work.code)) - _BOUND
    if unknown:
        raise InvalidJob(
            f"Job {job!r}: unknown parameters {listing(sorted(unknown))}. Available: "
            f"{listing(sorted(_BOUND))}.",
            hint="where left_at >= $window_start and left_at < $window_end",
        )


def check_arguments(function: Callable[..., Any], names: Sequence[str], *, job: str) -> None:
    """Raise an error if the parameters of a function differ from the arguments of its job."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    parameter_names = [parameter.name for parameter in parameters]
    if sorted(parameter_names) != sorted(names):
        raise InvalidJob(
            f"Job {job!r}: its function takes {listing(parameter_names)}, but is called with "
            f"{listing(names)}.",
            hint=f"def {job}({', '.join(names)})",
        )
