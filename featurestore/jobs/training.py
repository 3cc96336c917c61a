"""Training jobs: write a new version of a training dataset when its inputs changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from featurestore.errors import InvalidJob, listing
from featurestore.jobs.inputs import PinnedInput
from featurestore.jobs.run import Attempt, RunOutput, StartedRun, run_recorded
from featurestore.jobs.stale import changes
from featurestore.model.job import JobSpec
from featurestore.model.manifest import Manifest
from featurestore.model.requests import TrainingDatasetRequest
from featurestore.registry import runs, training_datasets
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.training import catalog
from featurestore.training.create import create
from featurestore.training.export.data import export_data

_log = logging.getLogger("featurestore.jobs")


def run_training(session: Session, attempt: Attempt) -> Run:
    """Write one version for the last window, unless nothing changed since the latest version."""
    return run_recorded(session, attempt, partial(_write_and_retire, session, attempt))


def _write_and_retire(session: Session, attempt: Attempt, recording: StartedRun) -> RunOutput:
    output = _write(session, attempt, recording)
    # Also if nothing was written: a killed run may have left one version too many.
    if attempt.spec.keep is not None:
        _retire(session, attempt.spec.target, attempt.spec.keep)
    return output


def _write(session: Session, attempt: Attempt, recording: StartedRun) -> RunOutput:
    spec = attempt.spec
    latest = catalog.last_version(session, spec.target)
    if latest and spec.inputs and not _inputs_changed(session, attempt, recording.inputs):
        return _unchanged_version(latest)
    returned = attempt.call(attempt.definition, attempt.windows[-1])
    arguments = {"data": returned}
    if isinstance(returned, Mapping):
        arguments = dict(returned)
    if "data" not in arguments:
        raise InvalidJob(
            f"Job {spec.name!r} returned the arguments {sorted(arguments)} without 'data'.",
            hint="return {'data': frame, 'label': ...}, or the frame alone",
        )
    data = arguments.pop("data")
    request = _request(spec, arguments)
    if latest and not spec.inputs and _same_sources(session, spec.target, data):
        return _unchanged_version(latest)
    dataset = create(session, data, request, progress=False)
    rows = sum(dataset.num_rows(split) for split in dataset.splits)
    return RunOutput(rows, dataset.version, dataset.version)


def _request(spec: JobSpec, arguments: Mapping[str, Any]) -> TrainingDatasetRequest:
    """Return the request for the next version, from the arguments that a job's function returned."""
    argument_names = {each.name for each in fields(TrainingDatasetRequest)} - {"name"}
    unknown = [key for key in arguments if key not in argument_names]
    if unknown:
        raise InvalidJob(
            f"Job {spec.name!r} returned unknown arguments {listing(unknown)} of "
            "create_training_dataset.",
            hint=f"available: {listing(sorted(argument_names))}",
        )
    defaults = {"description": spec.description, "tags": dict(spec.tags)}
    return TrainingDatasetRequest(name=spec.target, **{**defaults, **arguments})


def _unchanged_version(latest: int) -> RunOutput:
    _log.info("no input changed since version %d", latest)
    return RunOutput(0, latest, latest)


def _inputs_changed(session: Session, attempt: Attempt, inputs: tuple[PinnedInput, ...]) -> bool:
    with session.registry.reading() as connection:
        finished_runs = runs.of_job(connection, attempt.spec.name, state=runs.DONE)
    if not finished_runs or finished_runs[-1].ended is None:
        return True
    recorded_inputs = {each["input"]: each for each in finished_runs[-1].inputs.get("inputs", ())}
    return any(
        changes(pinned, recorded_inputs.get(pinned.name, {}), since=finished_runs[-1].ended)
        for pinned in inputs
    )


def _same_sources(session: Session, name: str, data: object) -> bool:
    """Return whether a frame reads the same Delta versions as the latest version did."""
    provenance = export_data(session, data).provenance
    if provenance.plan is None or not provenance.reproducible:
        return False
    manifest: Manifest = catalog.get(session, name, None).manifest
    return list(map(dict, provenance.sources)) == list(map(dict, manifest.sources))


def _retire(session: Session, name: str, keep: int) -> None:
    with session.registry.reading() as connection:
        versions: list[int] = training_datasets.versions(connection, name)
    for version in sorted(versions)[:-keep]:
        catalog.remove(session, name, version)
        _log.info("%s version %d retired", name, version)
