"""Training jobs: a new version of a training dataset when what it is made of changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from featurestore.errors import InvalidJob, listing
from featurestore.jobs.inputs import PinnedInput
from featurestore.jobs.run import Attempt, Recording, Written, recorded
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
    """Write one version for the last window, unless nothing changed since the version before."""
    return recorded(session, attempt, partial(_write_and_retire, session, attempt))


def _write_and_retire(session: Session, attempt: Attempt, recording: Recording) -> Written:
    written = _write(session, attempt, recording)
    # Also when nothing was written: a killed run may have left one version too many.
    if attempt.spec.keep is not None:
        _retire(session, attempt.spec.target, attempt.spec.keep)
    return written


def _write(session: Session, attempt: Attempt, recording: Recording) -> Written:
    spec = attempt.spec
    latest = catalog.last_version(session, spec.target)
    if latest and spec.inputs and not _inputs_changed(session, attempt, recording.inputs):
        return _unchanged(latest)
    given = attempt.call(attempt.definition, attempt.windows[-1])
    arguments = {"data": given}
    if isinstance(given, Mapping):
        arguments = dict(given)
    if "data" not in arguments:
        raise InvalidJob(
            f"Job {spec.name!r} returned the arguments {sorted(arguments)}, and no data.",
            hint="return {'data': frame, 'label': ...}, or the frame alone",
        )
    data = arguments.pop("data")
    request = _request(spec, arguments)
    if latest and not spec.inputs and _same_sources(session, spec.target, data):
        return _unchanged(latest)
    dataset = create(session, data, request, progress=False)
    rows = sum(dataset.num_rows(split) for split in dataset.splits)
    return Written(rows, dataset.version, dataset.version)


def _request(spec: JobSpec, arguments: Mapping[str, Any]) -> TrainingDatasetRequest:
    """Return the request for the next version, as a job's function asks for it."""
    known = {each.name for each in fields(TrainingDatasetRequest)} - {"name"}
    unknown = [key for key in arguments if key not in known]
    if unknown:
        raise InvalidJob(
            f"Job {spec.name!r} returned {listing(unknown)}, which create_training_dataset does "
            "not take.",
            hint=f"it takes {listing(sorted(known))}",
        )
    defaults = {"description": spec.description, "tags": dict(spec.tags)}
    return TrainingDatasetRequest(name=spec.target, **{**defaults, **arguments})


def _unchanged(latest: int) -> Written:
    _log.info("no input changed since version %d", latest)
    return Written(0, latest, latest)


def _inputs_changed(session: Session, attempt: Attempt, inputs: tuple[PinnedInput, ...]) -> bool:
    with session.registry.reading() as connection:
        done = runs.of_job(connection, attempt.spec.name, state=runs.DONE)
    if not done or done[-1].ended is None:
        return True
    seen = {each["input"]: each for each in done[-1].inputs.get("inputs", ())}
    return any(changes(given, seen.get(given.name, {}), since=done[-1].ended) for given in inputs)


def _same_sources(session: Session, name: str, data: object) -> bool:
    """Return whether a frame reads the very Delta versions that the latest version was made from."""
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
