"""Mirror runs into MLflow: parameters, metrics by step, dataset, code, files.

The run record remains authoritative. A mirrored run is tagged with the id of our run, so that a
repeated call only adds new values.
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

from featurestore.errors import InvalidArgument, MlflowError, did_you_mean, listing, missing_extra
from featurestore.experiments import catalog, run_files
from featurestore.experiments.run import Run
from featurestore.model.json_object import parse_object
from featurestore.model.run_record import RunRecord
from featurestore.storage import storage_for

RUN_TAG = "featurestore.run_id"
FOLDERS = ("artifacts", "tensorboard", "checkpoints", "logs")
_STATUS = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
}
# MLflow limits: items per request, and characters per value.
_MAX_NAMES = 100
_MAX_METRICS = 1000
_MAX_PARAM_LENGTH = 6000
_MAX_TAG_LENGTH = 5000
_MAX_DIGEST_LENGTH = 36
_INVALID_CHARACTERS = re.compile(r"[^\w.\- /]")


@dataclass(frozen=True)
class _MetricPoint:
    """An MLflow metric value; ``time`` is in milliseconds."""

    key: str
    value: float
    time: int
    step: int


@dataclass(frozen=True)
class _Mirror:
    """Client of an MLflow server or database; ``artifacts`` are the run folders to upload."""

    client: Any
    entities: Any
    artifacts: Sequence[str]

    def mirror_run(self, run: Run, parent: str | None) -> str:
        """Mirror a run and its trials; return the MLflow id of the run."""
        points = collect_points(run)  # first, since it raises on conflicting names
        experiment = self._get_experiment_id(run.name)
        tags = build_tags(run)
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        query = f"tags.`{RUN_TAG}` = '{run.id}'"
        matching_runs = self.client.search_runs([experiment], filter_string=query, max_results=1)
        if matching_runs:
            mirrored = str(matching_runs[0].info.run_id)
            points = self._select_new_points(mirrored, points)
        else:
            started = _milliseconds(run.record.started or run.record.created)
            created_run = self.client.create_run(
                experiment, start_time=started, tags={RUN_TAG: run.id}, run_name=run.id
            )
            mirrored = str(created_run.info.run_id)
        self._write(mirrored, run, tags, points)
        for record in catalog.find(run.session, parent=run.id):
            self.mirror_run(Run(run.session, record), mirrored)
        return mirrored

    def _get_experiment_id(self, name: str) -> str:
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        return str(self.client.create_experiment(name))

    def _select_new_points(
        self, mirrored: str, points: Sequence[_MetricPoint]
    ) -> list[_MetricPoint]:
        """Return the values that the mirrored run does not have yet."""
        logged_values = set()
        for key in sorted({point.key for point in points}):
            for metric in self.client.get_metric_history(mirrored, key):
                logged_values.add((key, metric.step, metric.value))
        return [
            point for point in points if (point.key, point.step, point.value) not in logged_values
        ]

    def _write(
        self, mirrored: str, run: Run, tags: Mapping[str, str], points: Sequence[_MetricPoint]
    ) -> None:
        """Write the parameters, tags, metrics, files and state of a run to its mirrored run."""
        entities, client = self.entities, self.client
        param_texts = {
            name: (json.dumps(value) if isinstance(value, dict | list) else str(value))
            for name, value in run.params.items()
        }
        params = [
            entities.Param(name, text[:_MAX_PARAM_LENGTH]) for name, text in param_texts.items()
        ]
        run_tags = [entities.RunTag(name, text[:_MAX_TAG_LENGTH]) for name, text in tags.items()]
        # MLflow refuses another value for an existing parameter, but accepts the same value again,
        # so a call can be repeated.
        for batch in _batches(params, _MAX_NAMES):
            client.log_batch(mirrored, params=batch)
        for batch in _batches(run_tags, _MAX_NAMES):
            client.log_batch(mirrored, tags=batch)
        metrics = [
            entities.Metric(point.key, point.value, point.time, point.step) for point in points
        ]
        for batch in _batches(metrics, _MAX_METRICS):
            client.log_batch(mirrored, metrics=batch)
        if run.record.dataset is not None:
            client.log_inputs(mirrored, datasets=[self._to_mlflow_dataset(run.record)])
        client.log_dict(mirrored, parse_object(run.record.to_bytes()), "run.json")
        for folder in self.artifacts:
            path = os.path.join(run.path, folder)
            if storage_for(path).list_directory(path):
                # A symbolic link must not upload files from outside the run.
                run_files.check_own_files(run.path, folder)
                client.log_artifacts(mirrored, path, folder)
        status = _STATUS[run.state]
        if run.state == "running":
            # ``set_terminated`` would also set an end time.
            client.update_run(mirrored, status=status)
            return
        ended = _milliseconds(run.record.ended or run.record.created)
        client.set_terminated(mirrored, status, ended)

    def _to_mlflow_dataset(self, record: RunRecord) -> Any:
        assert record.dataset is not None
        run_dataset = record.dataset
        source = {
            "path": run_dataset.path,
            "version": run_dataset.version,
            "content_hash": run_dataset.manifest,
        }
        dataset = self.entities.Dataset(
            name=f"{run_dataset.name}@v{run_dataset.version}",
            digest=run_dataset.manifest[:_MAX_DIGEST_LENGTH],
            source_type="featurestore",
            source=json.dumps(source),
        )
        tag = self.entities.InputTag("mlflow.data.context", "training")
        return self.entities.DatasetInput(dataset, tags=[tag])


def mirror(run: Run, uri: str, *, artifacts: Sequence[str]) -> str:
    """Mirror a run, or a study with its trials, into MLflow; return the MLflow id."""
    unknown = [name for name in artifacts if name not in FOLDERS]
    if unknown:
        raise InvalidArgument(
            f"Unknown folder {unknown[0]!r} in artifacts=. Available: {listing(FOLDERS)}.",
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
        return _Mirror(client, entities, artifacts).mirror_run(run, None)
    except MlflowException as error:
        # Errors of database drivers may contain the URI with its password.
        message = str(error.message).replace(uri, without_password(uri))
        raise MlflowError(
            f"MLflow at {without_password(uri)!r} rejected run {run.id!r}: {message}",
            hint="uploaded values remain in MLflow; repeat the call to continue",
        ) from error


def collect_points(run: Run) -> list[_MetricPoint]:
    """Return all metric values; values that the function returned belong to the last step.

    Raises:
        InvalidArgument: Two metrics would have the same name in MLflow.
    """
    reported = catalog.read_metrics(run.path)
    names: dict[str, str] = {}
    for name in [value.name for value in reported] + list(run.metrics):
        key = _INVALID_CHARACTERS.sub("_", name)
        if names.setdefault(key, name) != name:
            raise InvalidArgument(
                f"The metrics {names[key]!r} and {name!r} have the same name {key!r} in MLflow.",
                hint="context.report(step, **{'val_auc': ...}); MLflow allows letters, digits, _ - . / "
                "and spaces",
            )
    keys = {name: key for key, name in names.items()}
    ended = _milliseconds(run.record.ended or run.record.created)
    points, last, latest = [], {}, 0
    for point in reported:
        time = ended if point.time is None else int(point.time * 1000)
        points.append(_MetricPoint(keys[point.name], point.value, time, point.step))
        last[point.name] = point.value
        latest = max(latest, point.step)
    # A value that the function returned has no step of its own.
    for name, value in run.metrics.items():
        if last.get(name) != value:
            points.append(_MetricPoint(keys[name], value, ended, latest))
    return points


def build_tags(run: Run) -> dict[str, str]:
    """Return the MLflow tags of a run."""
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
    """Return a URI without its password, for error messages.

    >>> without_password("postgresql://me:secret@host/mlflow?password=secret")
    'postgresql://me@host/mlflow'
    """
    try:
        url = urlsplit(uri)
    except ValueError:
        return "..."
    user, separator, host = url.netloc.rpartition("@")
    netloc = f"{user.split(':')[0]}{separator}{host}"
    return url._replace(netloc=netloc, query="", fragment="").geturl()


def _batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _milliseconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)
