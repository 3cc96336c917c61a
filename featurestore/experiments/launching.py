"""Execution of one run: check the request, start and retry the workers, write the record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    InvalidTrainFunction,
    ManifestMismatch,
    RunFailed,
)
from featurestore.experiments import catalog, functions, status
from featurestore.experiments.context import CHECKPOINTS
from featurestore.experiments.functions import TrainFunction, describe_code, environment
from featurestore.experiments.run_files import final_checksums, metrics_checksum
from featurestore.experiments.status import (
    AttemptEnd,
    Listener,
    WorkerStatus,
    read_status,
    show_logs,
    watch,
)
from featurestore.experiments.tasks import CHIEF, PARAMETER_SERVER, Fold, Member, Task, members
from featurestore.model.arguments import warn_caller
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.run_record import RunDataset, RunRecord, State
from featurestore.model.times import utc_now
from featurestore.plugins.launcher import Gang, Launcher, WorkerTask, find_launcher
from featurestore.readers.checkpoint import newest_checkpoint
from featurestore.storage import storage_for
from featurestore.storage.appending import read_last_lines
from featurestore.training.dataset import TrainingDataset

if TYPE_CHECKING:
    from featurestore.session import Session

_MAX_WORKERS = 4096
_MAX_SEED = 2**63


@dataclass(frozen=True)
class LaunchRequest:
    """A request to launch a run, or the trials of a study.

    ``kind`` is the name of the call. ``strategy`` is "none", "mirrored", "multiworker" or "parameter_server".
    """

    function: TrainFunction
    kind: str
    dataset: TrainingDataset | None = None
    params: JsonMapping | None = None
    name: str | None = None
    on: str | Launcher = "local"
    workers: int = 1
    servers: int = 0
    strategy: str = "none"
    retries: int = 0
    seed: int = 0
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    progress: bool | Listener | None = None


@dataclass(frozen=True)
class _Execution:
    """Common state of all attempts of a run."""

    session: Session
    record: RunRecord
    launcher: Launcher
    function: bytes = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    progress: bool | Listener | None = None

    @property
    def directory(self) -> str:
        """The directory of the run."""
        return catalog.run_directory(self.session, self.record)


def launch(session: Session, request: LaunchRequest) -> RunRecord:
    """Run a training function to completion and return the run record.

    All arguments are checked before a directory is created or a process starts.

    Raises:
        RunFailed: The function failed, or its workers died more often than ``retries`` allows.
    """
    launcher = find_launcher(request.on)
    dumped = check_request(request, launcher, request.params, workers=request.workers)
    record = new_record(request, settings=launch_settings(request, launcher))
    catalog.save(session, record)
    environment = request.environment or {}
    return run_attempts(
        _Execution(session, record, launcher, dumped, environment, progress=request.progress)
    )


def check_request(
    request: LaunchRequest, launcher: Launcher, params: JsonMapping | None, *, workers: int
) -> bytes:
    """Check a launch request and return the pickled function.

    Args:
        request: The request.
        launcher: The launcher of the workers.
        params: The parameters of the function; a search does not know the values.
        workers: The number of processes that run the function at the same time.
    """
    check_integer("workers", workers, minimum=1, maximum=_MAX_WORKERS)
    if request.strategy == PARAMETER_SERVER:
        check_integer("servers", request.servers, minimum=1, maximum=_MAX_WORKERS)
    check_integer("retries", request.retries, minimum=0, maximum=_MAX_SEED)
    check_integer("seed", request.seed, minimum=0, maximum=_MAX_SEED)
    functions.check_function(request.function, functions.check_params(params))
    # Workers of other launchers may run on machines that do not have the user's modules.
    dumped = functions.dump_function(request.function, by_value=launcher.name != "local")
    if request.dataset is not None:
        check_dataset(request.dataset)
    launcher.check(len(members(request.strategy, workers, request.servers)))
    return dumped


def check_integer(argument: str, value: object, *, minimum: int, maximum: int) -> None:
    """Raise InvalidArgument unless the value is an integer within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise InvalidArgument(
            f"{argument}={value!r} is not an integer from {minimum} to {maximum}."
        )


def check_dataset(dataset: object) -> None:
    """Raise an error unless the value is a training dataset with unchanged files."""
    if not isinstance(dataset, TrainingDataset):
        raise InvalidArgument(
            f"dataset={dataset!r} is not a training dataset.",
            hint='dataset=featurestore.get_training_dataset("name", version=1)',
        )
    current = TrainingDataset.open(dataset.path)
    if current.manifest.content_hash != dataset.manifest.content_hash:
        raise ManifestMismatch(
            f"The training dataset at {dataset.path!r} has been replaced since it was opened.",
            hint="open the dataset again",
        )


def check_features(dataset: TrainingDataset, names: tuple[str, ...]) -> None:
    """Check that an ablation removes existing inputs and leaves at least one."""
    inputs = dataset.roles.inputs
    unknown = [name for name in names if name not in inputs]
    if unknown:
        raise InvalidArgument(
            f"Unknown input {unknown[0]!r} of {dataset.name!r}. Available: {', '.join(inputs)}."
        )
    if names and not set(inputs) - set(names):
        raise InvalidArgument("The ablation removes all inputs; training needs at least one.")


def launch_settings(request: LaunchRequest, launcher: Launcher) -> JsonDict:
    """Return the settings of a run in its record."""
    return {
        "on": launcher.name,
        "workers": request.workers,
        "servers": request.servers,
        "strategy": request.strategy,
        "retries": request.retries,
        "without": [],
        "without_layers": [],
        "environment": sorted(request.environment or ()),  # names; values may be secrets
    }


def new_record(
    request: LaunchRequest, *, settings: JsonMapping, study: RunRecord | None = None
) -> RunRecord:
    """Create the record of a run that is about to start, or of the trials of a study."""
    dataset = None if study is None else study.dataset
    if study is None and request.dataset is not None:
        manifest = request.dataset.manifest
        dataset = RunDataset(
            manifest.name, manifest.version, manifest.content_hash, request.dataset.path
        )
    return RunRecord(
        id=catalog.generate_run_id(),
        name=request.name or functions.experiment_name(request.function),
        kind=request.kind if study is None else "trial",
        state="running",
        created=utc_now().isoformat(),
        params=functions.check_params(request.params),
        dataset=dataset,
        parent=None if study is None else study.id,
        seed=request.seed,
        settings=settings,
        code=describe_code(request.function),
        environment=environment(),
        started=utc_now().isoformat(),
    )


def resume(
    session: Session,
    run_id: str,
    function: TrainFunction | None,
    *,
    retries: int | None,
    on: str | Launcher | None,
    environment: Mapping[str, str],
    progress: bool | Listener | None,
) -> RunRecord:
    """Restart a run from its newest checkpoint and return its final record."""
    record = catalog.load(session, run_id)
    # Only the records of studies have no workers.
    if "workers" not in record.settings:
        raise InvalidArgument(
            f"Run {run_id!r} of kind {record.kind!r} has no workers to restart.",
            hint="resume one of its trials; a search continues with "
            f"experiments.get_study({run_id!r}).resume()",
        )
    function = function or functions.find_loaded_function(str(record.code.get("function", "")))
    if function is None:
        raise InvalidTrainFunction(
            f"Run {run_id!r} ran {record.code.get('function')}, which this process has not loaded.",
            hint="run.resume(train_fn)",
        )
    launcher = find_launcher(on or str(record.settings.get("on", "local")))
    functions.check_function(function, record.params)
    dumped = functions.dump_function(function, by_value=launcher.name != "local")
    if record.dataset is not None:
        # Fails before a worker starts if the dataset was replaced.
        Task(run="", dataset=vars(record.dataset)).open_dataset()
    launcher.check(len(run_members(record)))
    code = describe_code(function)
    if code["sha256"] != record.code.get("sha256"):
        warn_caller("The training function has changed since the run was launched.")
    settings = dict(record.settings)
    if retries is not None:
        settings["retries"] = retries
    record = replace(record.running_again(), code=code, settings=settings)
    return run_attempts(
        _Execution(session, record, launcher, dumped, environment, progress=progress)
    )


def run_attempts(execution: _Execution) -> RunRecord:
    """Start the workers until they finish, fail or use up the retries; write the record."""
    session, record, attempt_end = execution.session, execution.record, None
    retries = int(record.settings["retries"])
    storage_for(execution.directory).make_directory(execution.directory)
    with status.lock_driver(execution.directory):
        catalog.save(session, record)
        try:
            for _ in range(retries + 1):
                attempt_start = utc_now().isoformat()
                attempt_end = _run_attempt(execution, number=len(record.attempts) + 1)
                attempt = {
                    "began": attempt_start,
                    "ended": utc_now().isoformat(),
                    "state": attempt_end.state,
                    "exits": list(attempt_end.exits),
                    "reason": attempt_end.reason,
                }
                # Save each attempt, so that it remains recorded if the driver is killed during the
                # next one.
                record = record.with_attempt(attempt)
                catalog.save(session, record)
                if not attempt_end.can_retry:
                    break
        except BaseException as error:
            catalog.save_failure(session, record, error)
            raise
        assert attempt_end is not None
        record = finish_record(
            record,
            attempt_end.state,
            directory=execution.directory,
            reason=attempt_end.reason,
            status=attempt_end.statuses[0],
        )
        catalog.save(session, record)
    if record.state == "failed":
        raise _build_run_error(execution, record, attempt_end)
    return record


def _run_attempt(execution: _Execution, *, number: int) -> AttemptEnd:
    """Start all processes of a run once, and return the end of the attempt."""
    record, team = execution.record, run_members(execution.record)
    strategy = str(record.settings["strategy"])
    # Listed once: the first worker may save again before the last worker starts.
    newest = newest_checkpoint(os.path.join(execution.directory, CHECKPOINTS))
    tasks = []
    for position, member in enumerate(team):
        task = Task(
            run=execution.directory,
            params=record.params,
            dataset=None if record.dataset is None else vars(record.dataset),
            number=position,
            role=member.role,
            # A chief reads the rows of all workers.
            worker=0 if member.role == CHIEF else member.index,
            workers=1 if member.role == CHIEF else int(record.settings["workers"]),
            attempt=number,
            seed=record.seed,
            strategy=strategy,
            without=frozenset(record.settings["without"]),
            without_layers=frozenset(record.settings["without_layers"]),
            fold=Fold.of_run(record.settings),
            checkpoint=newest,
        )
        # TF_CONFIG contains the index within the role, not the number of the process.
        tasks.append(
            build_worker_task(
                task,
                {"task": task.to_json()},
                index=member.index,
                environment=execution.environment,
            )
        )
    gang = Gang(tuple(tasks), execution.function, strategy in ("multiworker", PARAMETER_SERVER))

    def read_worker_status(position: int) -> WorkerStatus | None:
        return read_status(execution.directory, position, attempt=number)

    logs = {f"worker {number}": task.log for number, task in enumerate(tasks)}
    with show_logs(lambda: logs, execution.progress) as show:
        return watch(execution.launcher.start(gang), read_worker_status, team=team, each_poll=show)


def run_members(record: RunRecord) -> tuple[Member, ...]:
    """Return the processes of a run."""
    settings = record.settings
    return members(
        str(settings["strategy"]), int(settings["workers"]), int(settings.get("servers", 0))
    )


def build_worker_task(
    task: Task, settings: JsonMapping, *, index: int, environment: Mapping[str, str]
) -> WorkerTask:
    """Build the launcher's description of a worker: settings, log, directory and environment."""
    name = f"worker-{task.number:05d}"
    return WorkerTask(
        role=task.role,
        index=index,
        settings=settings,
        log=os.path.join(task.run, "logs", f"{name}.log"),
        directory=os.path.join(task.run, "work", name),
        # Python accepts 32-bit hash seeds. With a fixed one, sets have the same order in every
        # attempt.
        environment={"PYTHONHASHSEED": str(task.seed % 2**32), **environment},
    )


def finish_record(
    record: RunRecord,
    state: State,
    *,
    directory: str,
    reason: str | None,
    status: WorkerStatus | None,
) -> RunRecord:
    """Return the final run record, with metrics and file checksums.

    A run fails if its metrics or saved models are damaged.

    Args:
        record: The record of the running run.
        state: The final state, or "running" before another attempt.
        directory: The directory of the run.
        reason: The reason of a failure.
        status: The last status of the first worker, None if unknown.
    """
    metrics: dict[str, float] = {}
    checksums: dict[str, str] = {}
    try:
        metrics = read_last_metrics(directory)
        if state != "running":  # another attempt appends to the metrics
            checksums = metrics_checksum(directory)
        if state in ("finished", "stopped"):
            checksums = final_checksums(directory, {} if status is None else status.saved)
    except FeatureStoreError as error:
        state, reason = "failed", reason or f"{type(error).__name__}: {error.message}"
    if status is not None:
        # Values that the function returned take precedence over reported ones.
        metrics |= status.metrics
    return record.end(
        state,
        reason=reason,
        metrics=metrics,
        readers=() if status is None else status.readers,
        files=checksums,
    )


def read_last_metrics(directory: str) -> dict[str, float]:
    """Return the last reported value of each metric."""
    return {metric.name: metric.value for metric in catalog.read_metrics(directory)}


def _build_run_error(
    execution: _Execution, record: RunRecord, attempt_end: AttemptEnd
) -> FeatureStoreError:
    """Build the error of a failed run, with the traceback or the end of the log."""
    trace = attempt_end.trace
    # A killed process leaves no traceback, so show the end of its log.
    if trace is None:
        log = os.path.join(execution.directory, "logs", "worker-00000.log")
        trace = "\n".join(read_last_lines(log, 15))
    attempts = len(record.attempts)
    return RunFailed(
        f"Run {record.id!r} of {record.name!r} failed after {attempts} "
        f"{'attempt' if attempts == 1 else 'attempts'}: {record.reason}\n{trace.strip()}",
        hint=f"read the logs with featurestore run logs {record.id}; continue from the last checkpoint with "
        f"experiments.get_run({record.id!r}).resume()",
    )


def load_run_dataset(session: Session, record: RunRecord) -> TrainingDataset | None:
    """Load the dataset of a run: by name and version in this store, else by its path."""
    run_dataset = record.dataset
    if run_dataset is None:
        return None
    path = session.training_dataset_path(run_dataset.name, run_dataset.version)
    dataset = TrainingDataset.open(path if session.storage.exists(path) else run_dataset.path)
    return replace(dataset, session=session)
