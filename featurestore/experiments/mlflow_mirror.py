"""Runs mirrored into MLflow: parameters, metrics by step, dataset, code, files.

The record of a run stays the truth. A mirrored run carries the id of ours as a tag, by which it is
found again: mirroring once more adds what is new.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from featurestore.errors import (
    InvalidArgument,
    MlflowError,
    did_you_mean,
    listing,
    missing_extra,
)
from featurestore.experiments import catalog, run_files
from featurestore.experiments.run import Run
from featurestore.model.run_record import RunRecord
from featurestore.model.sealed import parsed
from featurestore.storage import files

RUN_TAG = "featurestore.run_id"
FOLDERS = ("artifacts", "tensorboard", "checkpoints", "logs")
_STATUS = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
}
# What MLflow takes in one request, and in one value.
_MOST_NAMES = 100
_MOST_METRICS = 1000
_LONGEST_PARAM = 6000
_LONGEST_TAG = 5000
_LONGEST_DIGEST = 36
_OTHER_CHARACTERS = re.compile(r"[^\w.\- /]")


@dataclass(frozen=True)
class _Point:
    """A value of a metric as MLflow keeps it; ``time`` in milliseconds."""

    key: str
    value: float
    time: int
    step: int


@dataclass(frozen=True)
class _Mirror:
    """An MLflow server or database, and what of a run's directory goes there."""

    client: Any
    entities: Any
    artifacts: Sequence[str]

    def put(self, run: Run, parent: str | None) -> str:
        """Mirror a run and the trials below it; return MLflow's id of it."""
        points = points_of(run)  # before anything is made there: names may not fit
        experiment = self._experiment(run.name)
        tags = tags_of(run)
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        query = f"tags.`{RUN_TAG}` = '{run.id}'"
        found = self.client.search_runs([experiment], filter_string=query, max_results=1)
        if found:
            mirrored = str(found[0].info.run_id)
            points = self._new(mirrored, points)
        else:
            began = _milliseconds(run.record.started or run.record.created)
            made = self.client.create_run(
                experiment, start_time=began, tags={RUN_TAG: run.id}, run_name=run.id
            )
            mirrored = str(made.info.run_id)
        self._write(mirrored, run, tags, points)
        for record in catalog.find(run.session, parent=run.id):
            self.put(Run(run.session, record), mirrored)
        return mirrored

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        return str(self.client.create_experiment(name))

    def _new(self, mirrored: str, points: Sequence[_Point]) -> list[_Point]:
        """Return the values that a mirrored run does not have yet."""
        known = set()
        for key in sorted({point.key for point in points}):
            for metric in self.client.get_metric_history(mirrored, key):
                known.add((key, metric.step, metric.value))
        return [point for point in points if (point.key, point.step, point.value) not in known]

    def _write(
        self, mirrored: str, run: Run, tags: Mapping[str, str], points: Sequence[_Point]
    ) -> None:
        entities, client = self.entities, self.client
        params = []
        for name, value in run.params.items():
            params.append(entities.Param(name, _text(value)[:_LONGEST_PARAM]))
        told = [entities.RunTag(name, text[:_LONGEST_TAG]) for name, text in tags.items()]
        for some in _parts(params, _MOST_NAMES):
            client.log_batch(mirrored, params=some)
        for some in _parts(told, _MOST_NAMES):
            client.log_batch(mirrored, tags=some)
        metrics = []
        for each in points:
            metrics.append(entities.Metric(each.key, each.value, each.time, each.step))
        for some in _parts(metrics, _MOST_METRICS):
            client.log_batch(mirrored, metrics=some)
        if run.record.dataset is not None:
            client.log_inputs(mirrored, datasets=[self._dataset(run.record)])
        client.log_dict(mirrored, parsed(run.record.to_bytes()), "run.json")
        for folder in self.artifacts:
            path = os.path.join(run.path, folder)
            if files.list_directory(path):
                run_files.check_own_files(run.path, folder)
                client.log_artifacts(mirrored, path, folder)
        status = _STATUS[run.state]
        if run.state == "running":
            client.update_run(mirrored, status=status)
            return
        ended = _milliseconds(run.record.ended or run.record.created)
        client.set_terminated(mirrored, status, ended)

    def _dataset(self, record: RunRecord) -> Any:
        assert record.dataset is not None
        read = record.dataset
        source = {"path": read.path, "version": read.version, "content_hash": read.manifest}
        dataset = self.entities.Dataset(
            name=f"{read.name}@v{read.version}",
            digest=read.manifest[:_LONGEST_DIGEST],
            source_type="featurestore",
            source=json.dumps(source),
        )
        tag = self.entities.InputTag("mlflow.data.context", "training")
        return self.entities.DatasetInput(dataset, tags=[tag])


def mirror(run: Run, uri: str, *, artifacts: Sequence[str]) -> str:
    """Mirror a run, with the trials of a study, into MLflow; return MLflow's id of the run."""
    unknown = [name for name in artifacts if name not in FOLDERS]
    if unknown:
        raise InvalidArgument(
            f"artifacts={list(artifacts)!r} names {unknown[0]!r}; a run has {listing(FOLDERS)}.",
            hint=did_you_mean(unknown[0], FOLDERS) or 'artifacts=["artifacts", "checkpoints"]',
        )
    try:
        from mlflow import entities
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise missing_extra("mlflow", "mlflow") from error
    try:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        return _Mirror(client, entities, artifacts).put(run, None)
    except MlflowException as error:
        told = str(error.message).replace(uri, without_password(uri))
        raise MlflowError(
            f"MLflow at {without_password(uri)!r} did not take run {run.id!r}: {told}",
            hint="what it has taken stays there; the same call goes on with it",
        ) from error


def points_of(run: Run) -> list[_Point]:
    """Return every value of every metric; what the function returned counts as of the last step.

    Raises:
        InvalidArgument: Two metrics would have one name there.
    """
    reported = catalog.reported(run.path)
    names: dict[str, str] = {}
    for name in [each.name for each in reported] + list(run.metrics):
        key = _OTHER_CHARACTERS.sub("_", name)
        if names.setdefault(key, name) != name:
            raise InvalidArgument(
                f"MLflow would call both {names[key]!r} and {name!r} {key!r}.",
                hint="context.report(step, **{'val_auc': ...}): letters, digits, _ - . / and blank",
            )
    keys = {name: key for key, name in names.items()}
    ended = _milliseconds(run.record.ended or run.record.created)
    points, last, latest = [], {}, 0
    for each in reported:
        time = ended if each.time is None else int(each.time * 1000)
        points.append(_Point(keys[each.name], each.value, time, each.step))
        last[each.name] = each.value
        latest = max(latest, each.step)
    for name, value in run.metrics.items():
        if last.get(name) != value:
            points.append(_Point(keys[name], value, ended, latest))
    return points


def tags_of(run: Run) -> dict[str, str]:
    """Return what MLflow shows beside parameters and metrics."""
    record = run.record
    tags = {
        RUN_TAG: run.id,
        "featurestore.kind": run.kind,
        "featurestore.path": run.path,
        "featurestore.seed": str(record.seed),
        "mlflow.user": str(record.environment.get("user", "")),
        "mlflow.source.name": str(record.code.get("function", "")),
        "mlflow.source.type": "LOCAL",
    }
    git = record.code.get("git")
    if isinstance(git, Mapping):
        tags["mlflow.source.git.commit"] = str(git.get("commit", ""))
        tags["featurestore.git_dirty"] = str(git.get("dirty", "")).lower()
    if record.dataset is not None:
        tags["featurestore.dataset"] = f"{record.dataset.name}@v{record.dataset.version}"
        tags["featurestore.content_hash"] = record.dataset.manifest
    if record.reason is not None:
        tags["featurestore.reason"] = record.reason
    return tags


def without_password(uri: str) -> str:
    """Return a URI as an error may show it.

    >>> without_password("postgresql://me:secret@host/mlflow?password=secret")
    'postgresql://me@host/mlflow'
    """
    try:
        told = urlsplit(uri)
    except ValueError:
        return "..."
    user, at, host = told.netloc.rpartition("@")
    place = f"{user.split(':')[0]}{at}{host}"
    return told._replace(netloc=place, query="", fragment="").geturl()


def _parts(items: Sequence[Any], most: int) -> list[Sequence[Any]]:
    return [items[start : start + most] for start in range(0, len(items), most)]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _milliseconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)
