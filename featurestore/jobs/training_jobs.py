"""Training jobs: write a new version of a training dataset whenever its inputs have changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import Any

from featurestore.errors import InvalidJob, listing
from featurestore.jobs.definition_checks import check_arguments
from featurestore.jobs.definitions import (
    Columns,
    Duration,
    JobDefinition,
    add_to_module,
    check_channel_names,
    define_schedule,
    read_source_code,
)
from featurestore.jobs.run import JobRun, RunOutput, run_recorded
from featurestore.jobs.stale_windows import find_changes
from featurestore.model.arguments import with_suggestions
from featurestore.model.failure_action import OnFailure
from featurestore.model.job import Alerts, JobSpec, TrainingWork
from featurestore.model.manifest import Manifest
from featurestore.model.names import check_name
from featurestore.model.requests import TrainingRequest
from featurestore.registry import runs, training_datasets
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.training import catalog
from featurestore.training.create import create
from featurestore.training.export.request import export_data

_log = logging.getLogger("featurestore.jobs")


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
    on_failure: OnFailure = None,
    keep: int | None = None,
    alert: Columns = (),
) -> Callable[[Callable[..., Any]], JobDefinition]:
    """Define a scheduled job by a function ``(store, window)`` that describes a training dataset.

    The function returns the data, or a dict of arguments for ``create_training_dataset`` including
    ``data``. A new version is written if the inputs have changed since the latest version: the
    groups in ``inputs``, or else the sources of the returned frame.

    Args:
        training_dataset: The dataset to write new versions of.
        schedule: A cron expression.
        inputs: ``{any name: group reference}``; changes of these groups trigger a new version.
        name: The job name; defaults to the function name.
        start: The earliest schedule time.
        allowed_lateness: How long to wait after a schedule time.
        timezone: The time zone of the schedule.
        description: The description of the dataset.
        tags: The tags of the dataset.
        retries: The maximum number of retries of a failed run.
        on_failure: What runs when the retries of a run are exhausted: a program with its arguments,
            or a top-level function of the file, which is called with the run.
        keep: The number of versions to keep; older versions are deleted. None keeps all.
        alert: The channels to alert of failures, as for ``job``.

    >>> @featurestore.training_job(training_dataset="late_flights", schedule="0 3 * * *", keep=5)
    ... def late_flights(store, window):
    ...     frame = store.get_features(["weather.temp"], labels="questions")
    ...     return {"data": frame, "label": "late"}
    >>> late_flights.spec.kind
    'training'
    """

    def decorate(function: Callable[..., Any]) -> JobDefinition:
        job_name = name or function.__name__
        if keep is not None and keep < 1:
            raise InvalidJob(f"keep= must be at least 1, not {keep!r}.", hint="keep=3")
        spec = JobSpec(
            name=check_name(job_name, noun="job"),
            schedule=define_schedule(
                schedule,
                job=job_name,
                start=start,
                allowed_lateness=allowed_lateness,
                timezone=timezone,
                retries=retries,
                on_failure=on_failure,
            ),
            alerts=Alerts(check_channel_names(alert)),
            work=TrainingWork(
                target=check_name(training_dataset, noun="training dataset"),
                inputs=dict(inputs or {}),
                code=read_source_code(function),
                keep=keep,
                description=description,
                tags=dict(tags or {}),
            ),
        )
        check_arguments(function, ("store", "window"), job=job_name)
        return add_to_module(spec, function.__globals__, function)

    return decorate


def run_training(run: JobRun, work: TrainingWork) -> Run:
    """Write one version for the last window, unless the inputs are those of the latest version."""
    return run_recorded(run, partial(_write_and_retire, work))


def _write_and_retire(work: TrainingWork, run: JobRun) -> RunOutput:
    output = _write_dataset(work, run)
    # Delete old versions even if nothing was written: a killed run may have left one too many.
    if work.keep is not None:
        _delete_old_versions(run.session, work.target, work.keep)
    return output


def _write_dataset(work: TrainingWork, run: JobRun) -> RunOutput:
    """Write the next version from the return value of the job function, if inputs changed."""
    session, name = run.session, run.spec.name
    latest = catalog.last_version(session, work.target)
    # The declared inputs are compared before the function is called, which may be expensive.
    if latest and work.inputs and not _inputs_changed(run):
        return _unchanged_version(latest)
    returned = run.call(run.definition, run.windows[-1])
    arguments = dict(returned) if isinstance(returned, Mapping) else {"data": returned}
    if "data" not in arguments:
        raise InvalidJob(
            f"Job {name!r} returned the arguments {sorted(arguments)} without 'data'.",
            hint="return {'data': frame, 'label': ...}, or the frame alone",
        )
    data = arguments.pop("data")
    request = _build_request(name, work, arguments)
    # Without declared inputs, only the returned frame shows what the version would be created from.
    if latest and not work.inputs and _has_same_sources(session, work.target, data):
        return _unchanged_version(latest)
    dataset = create(session, data, request, progress=False)
    rows = sum(dataset.num_rows(split) for split in dataset.splits)
    return RunOutput(rows, dataset.version, dataset.version)


def _build_request(job: str, work: TrainingWork, arguments: Mapping[str, Any]) -> TrainingRequest:
    """Build the request for the next version from the return value of the job function."""
    argument_names = {field.name for field in fields(TrainingRequest)} - {"name"}
    unknown = [key for key in arguments if key not in argument_names]
    if unknown:
        raise InvalidJob(
            f"Job {job!r} returned unknown arguments {listing(unknown)} of "
            "create_training_dataset.",
            hint=f"available: {listing(sorted(argument_names))}",
        )
    defaults = {"description": work.description, "tags": dict(work.tags)}
    return TrainingRequest(name=work.target, **{**defaults, **arguments})


def _unchanged_version(latest: int) -> RunOutput:
    _log.info("no input changed since version %d", latest)
    return RunOutput(0, latest, latest)


def _inputs_changed(run: JobRun) -> bool:
    """Return whether any declared input has changed since the last successful run."""
    with run.session.registry.reading() as connection:
        finished_runs = runs.runs_of_job(connection, run.spec.name, state=runs.DONE)
    if not finished_runs or finished_runs[-1].ended is None:
        return True
    recorded_inputs = {
        record["input"]: record for record in finished_runs[-1].inputs.get("inputs", ())
    }
    return any(
        find_changes(pinned, recorded_inputs.get(pinned.name, {}), since=finished_runs[-1].ended)
        for pinned in run.inputs
    )


def _has_same_sources(session: Session, name: str, data: object) -> bool:
    """Return whether a frame reads the same Delta versions as the latest dataset version."""
    provenance = export_data(session, data).provenance
    # Data without a reproducible plan, such as a dataframe, may differ at each run.
    if provenance.plan is None or provenance.irreproducible is not None:
        return False
    manifest: Manifest = catalog.get(session, name, None).manifest
    return list(map(dict, provenance.sources)) == list(map(dict, manifest.sources))


def _delete_old_versions(session: Session, name: str, keep: int) -> None:
    with session.registry.reading() as connection:
        versions: list[int] = training_datasets.versions(connection, name)
    for version in sorted(versions)[:-keep]:
        catalog.remove(session, name, version)
        _log.info("deleted %s version %d", name, version)
