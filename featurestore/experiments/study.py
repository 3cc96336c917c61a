"""Hyperparameter search: the study handle, and trials that Optuna proposes and prunes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from featurestore.errors import (
    InvalidArgument,
    InvalidMetric,
    InvalidTrainFunction,
    RunFailed,
    RunNotFound,
    listing,
)
from featurestore.experiments import catalog, functions, launching, spaces, status
from featurestore.experiments.launching import LaunchRequest
from featurestore.experiments.run import Run
from featurestore.experiments.spaces import SAMPLERS, STOPS, PastTrial, Sampling
from featurestore.experiments.status import Listener
from featurestore.experiments.trials import Proposal, Proposals, TrialPool
from featurestore.model import display
from featurestore.model.arguments import suggest_arguments
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.run_record import RunRecord
from featurestore.plugins.launcher import Launcher, find_launcher

if TYPE_CHECKING:
    import pandas as pd

    from featurestore.session import Session

_MAX_TRIALS = 1_000_000


@suggest_arguments
@dataclass(frozen=True)
class Study:
    """A hyperparameter search, whose trials are runs."""

    session: Session = field(repr=False, compare=False)
    record: RunRecord = field(repr=False)

    def __repr__(self) -> str:
        return f"<Study {self.id} of {self.name!r}: {self.run.state}, {dict(self.record.metrics)}>"

    @property
    def id(self) -> str:
        """The id of the study, for ``experiments.get_study``."""
        return self.record.id

    @property
    def name(self) -> str:
        """The experiment of the study."""
        return self.record.name

    @property
    def run(self) -> Run:
        """The run of the study itself: state, dataset, code and settings."""
        return Run(self.session, self.record)

    @property
    def metric(self) -> str:
        """The metric to optimize."""
        return str(self.record.settings["metric"])

    @property
    def runs(self) -> list[Run]:
        """The trials in numerical order."""
        trials = catalog.find(self.session, parent=self.id)
        return [Run(self.session, record) for record in trials]

    @property
    def best(self) -> Run:
        """The finished trial with the best value.

        Raises:
            RunNotFound: No trial has finished.
        """
        trials = catalog.find(self.session, parent=self.id)
        best_record = find_best_trial(trials, self.metric, str(self.record.settings["direction"]))
        if best_record is None:
            raise RunNotFound(f"No trial of {self.id!r} has finished.", hint="study.resume()")
        return Run(self.session, best_record)

    def to_records(self) -> list[JsonDict]:
        """Return one object per trial: number, state, parameters and metrics."""
        records = []
        for run in self.runs:
            identity = {"number": run.record.number, "id": run.id, "state": run.state}
            records.append({**identity, **run.params, **run.metrics, "seconds": run.seconds})
        return records

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per trial."""
        import pandas as pd

        return pd.DataFrame(self.to_records())

    def resume(
        self,
        train_fn: Callable[..., Any] | None = None,
        *,
        trials: int | None = None,
        parallel: int | None = None,
        sampler: Any = None,
        stop: Any = None,
        on: str | Launcher | None = None,
        environment: Mapping[str, str] | None = None,
        progress: bool | Listener | None = None,
    ) -> Study:
        """Resume an interrupted search, or add trials, and return the finished study.

        Interrupted trials continue from their checkpoints.

        Args:
            train_fn: See ``Run.resume``.
            trials: Total number of trials; None for the previous number.
            parallel: Number of concurrent workers; None for the previous number.
            sampler: Required if the study used an Optuna sampler object.
            stop: Required if the study used an Optuna pruner object.
            on: Another launcher.
            environment: Environment variables of the workers.
            progress: See ``launch``.
        """
        settings = self.record.settings
        function = train_fn or functions.find_loaded_function(str(self.record.code.get("function")))
        if function is None:
            raise InvalidTrainFunction(
                f"Study {self.id!r} ran {self.record.code.get('function')}, which this process "
                "has not loaded.",
                hint="study.resume(train_fn)",
            )
        launch = LaunchRequest(
            function,
            "search",
            dataset=launching.load_run_dataset(self.session, self.record),
            params=self.record.params,
            name=self.name,
            on=on or str(settings["on"]),
            retries=int(settings["retries"]),
            seed=self.record.seed,
            environment=environment,
            progress=progress,
        )
        design = SearchDesign(
            {},  # the record has it
            trials or int(settings["trials"]),
            self._sampler_or_pruner("sampler", sampler),
            self._sampler_or_pruner("stop", stop),
            self.metric,
            str(settings["direction"]),
        )
        request = StudyRequest(launch, parallel or int(settings["parallel"]), design)
        return Study(self.session, resume_study(self.session, self.record, request))

    def _sampler_or_pruner(self, argument: str, override: Any) -> Any:
        """Return the sampler or pruner to resume with: the override, or the recorded name."""
        stored_name = self.record.settings[argument]
        if override is not None or stored_name is None or stored_name in (*SAMPLERS, *STOPS):
            return override or stored_name
        example = "samplers.TPESampler()" if argument == "sampler" else "pruners.MedianPruner()"
        raise InvalidArgument(
            f"The {argument} of study {self.id!r} was an Optuna object ({stored_name}), which is "
            "not stored.",
            hint=f"study.resume({argument}=optuna.{example})",
        )

    def _repr_html_(self) -> str:
        return display.records_table(self.to_records())


def check_study(record: RunRecord) -> RunRecord:
    """Check that a record belongs to a search, and return it."""
    if record.kind != "search":
        raise RunNotFound(
            f"Run {record.id!r} of kind {record.kind!r} is not a search.",
            hint=f"experiments.get_run({record.id!r})",
        )
    return record


Design = TypeVar("Design", covariant=True)


@dataclass(frozen=True)
class StudyRequest(Generic[Design]):
    """A request for a study.

    ``launch`` describes the runs of the trials, of which ``parallel`` run at the same time;
    ``design`` describes the trials.
    """

    launch: LaunchRequest
    parallel: int
    design: Design

    def check_parallel(self) -> None:
        """Raise InvalidArgument unless the number of concurrent trials is valid."""
        launching.check_integer("parallel", self.parallel, minimum=1, maximum=4096)

    def dump_function(self, launcher: Launcher, params: JsonMapping | None) -> bytes:
        """Check the launch of the trials, and return the pickled function."""
        return launching.check_request(self.launch, launcher, params, workers=self.parallel)

    def trial_pool(
        self,
        session: Session,
        study: RunRecord,
        function: bytes,
        proposals: Proposals,
        *,
        unfinished: deque[RunRecord] | None = None,
    ) -> TrialPool:
        """Return the pool that runs the proposed trials, after unfinished ones."""
        launcher = find_launcher(self.launch.on)
        settings = launching.launch_settings(self.launch, launcher)
        return TrialPool(
            session,
            launching.new_record(self.launch, settings=settings, study=study),
            launcher,
            function,
            proposals,
            self.parallel,
            environment=self.launch.environment or {},
            progress=self.launch.progress,
            unfinished=unfinished or deque(),
        )


@dataclass(frozen=True)
class SearchDesign:
    """Trials that a sampler proposes, and that ``stop`` may end early."""

    space: JsonMapping
    trials: int | None
    sampler: Any
    stop: Any
    metric: str
    direction: str


def search(session: Session, request: StudyRequest[SearchDesign]) -> RunRecord:
    """Run a search to completion and return the study record."""
    design = request.design
    launcher = find_launcher(request.launch.on)
    space = spaces.check_space(design.space)
    spaces.check_strategies(design.sampler, design.stop, design.direction)
    size = len(spaces.grid(space)) if design.sampler == "grid" else _MAX_TRIALS
    trials = size
    if design.trials is not None:
        launching.check_integer("trials", design.trials, minimum=1, maximum=_MAX_TRIALS)
        trials = min(design.trials, size)
    elif design.sampler != "grid":
        raise InvalidArgument(
            "trials= is required: only a grid has a fixed number of trials.", hint="trials=20"
        )
    request.check_parallel()
    if not isinstance(design.metric, str) or not design.metric.isidentifier():
        raise InvalidArgument(
            f"metric={design.metric!r} is not a valid name.", hint='metric="val_auc"'
        )
    duplicates = sorted(set(space) & set(request.launch.params or ()))
    if duplicates:
        raise InvalidArgument(f"space and params both contain {listing(duplicates)}.")
    fixed = functions.check_params(request.launch.params)
    # The sampled values do not exist yet; the check of the function needs only the names.
    probe = {**fixed, **dict.fromkeys(space)}
    dumped = request.dump_function(launcher, probe)
    settings = {
        "on": launcher.name,
        "retries": request.launch.retries,
        "space": {name: parameter.to_json() for name, parameter in space.items()},
        "trials": trials,
        "parallel": request.parallel,
        "sampler": spaces.strategy_name(design.sampler),
        "stop": spaces.strategy_name(design.stop),
        "metric": design.metric,
        "direction": design.direction,
    }
    # The study records only the fixed parameters; each trial adds its sampled ones.
    record = launching.new_record(request.launch, settings=settings)
    # Saved before the first worker starts, so that a crash leaves a study that can be resumed.
    catalog.save(session, record)
    return run_study(session, record, request, dumped)


def resume_study(
    session: Session, record: RunRecord, request: StudyRequest[SearchDesign]
) -> RunRecord:
    """Resume a study."""
    design = request.design
    launcher = find_launcher(request.launch.on)
    probe = {**record.params, **dict.fromkeys(record.settings["space"])}
    dumped = request.dump_function(launcher, probe)
    launching.check_integer("trials", design.trials, minimum=1, maximum=_MAX_TRIALS)
    settings = {**record.settings, "trials": design.trials, "parallel": request.parallel}
    resumed = replace(record.running_again(), settings=settings)
    return run_study(session, resumed, request, dumped)


def run_study(
    session: Session, record: RunRecord, request: StudyRequest[SearchDesign], dumped: bytes
) -> RunRecord:
    """Run the remaining trials of a study and return its record."""
    design = request.design
    sampling = Sampling(
        spaces.space_from_json(record.settings["space"]),
        sampler=design.sampler,
        stop=design.stop,
        direction=design.direction,
        seed=record.seed,
    )
    proposals = SearchProposals(
        sampling, record.params, record.settings["trials"], design.metric, record.seed
    )
    directory = catalog.run_directory(session, record)
    session.storage.make_directory(directory)
    with status.lock_driver(directory):
        # Listed under the lock, since a previous driver adds trials until it ends.
        past_trials = catalog.find(session, parent=record.id)
        sampling.restore(
            [_past_trial(session, past_trial, design.metric) for past_trial in past_trials]
        )
        # ``trials`` is the total number, so the trials of earlier drivers count.
        proposals.next_number = len(past_trials)
        unfinished = reset_unfinished(past_trials)
        pool = request.trial_pool(session, record, dumped, proposals, unfinished=unfinished)
        catalog.save(session, record)
        finish_pool(session, record, pool)
        final_record = _final_record(session, record)
        catalog.save(session, final_record)
    if final_record.state == "failed":
        raise RunFailed(f"No trial of {record.id!r} finished; {final_record.reason}")
    return final_record


def finish_pool(session: Session, record: RunRecord, pool: TrialPool) -> None:
    """Run the trial pool; on an exception, save the study as failed or interrupted."""
    try:
        pool.run()
    except BaseException as error:
        catalog.save_failure(session, record, error)
        raise


def reset_unfinished(past_trials: list[RunRecord]) -> deque[RunRecord]:
    """Return the trials that were running when their driver ended, reset for another run."""
    # A killed driver leaves its trials in the state "running".
    interrupted = [trial for trial in past_trials if trial.state in ("running", "interrupted")]
    return deque(trial.running_again() for trial in interrupted)


def find_best_trial(trials: list[RunRecord], metric: str, direction: str) -> RunRecord | None:
    """Return the finished trial with the best metric value; the first one in case of a tie."""
    finished = [trial for trial in trials if trial.state == "finished" and metric in trial.metrics]
    if not finished:
        return None
    sign = -1 if direction == "max" else 1
    # ``min`` returns the first of equal trials, for both directions.
    return min(finished, key=lambda trial: sign * trial.metrics[metric])


def _final_record(session: Session, record: RunRecord) -> RunRecord:
    """Return the record of a study whose trials have ended."""
    metric, direction = record.settings["metric"], record.settings["direction"]
    trials = catalog.find(session, parent=record.id)
    best = find_best_trial(trials, metric, direction)
    if best is None:
        return record.end("failed", reason=f"first trial: {trials[0].reason or trials[0].state}")
    settings = {**record.settings, "best": best.id}
    return record.end("finished", settings=settings, metrics={metric: best.metrics[metric]})


def _past_trial(session: Session, record: RunRecord, metric: str) -> PastTrial:
    assert record.number is not None
    values = catalog.read_metrics(catalog.run_directory(session, record))
    history = {point.step: point.value for point in values if point.name == metric}
    value = record.metrics.get(metric)
    return PastTrial(record.number, record.params, record.state, value, history)


@dataclass
class SearchProposals:
    """Trials proposed by Optuna; ``fixed`` contains the parameters common to all trials."""

    sampling: Sampling
    fixed: JsonMapping
    trials: int
    metric: str
    seed: int
    next_number: int = 0
    reported: set[str] = field(default_factory=set)

    def next(self) -> Proposal | None:
        """Return the next trial."""
        if self.next_number >= self.trials:
            return None
        number, params = self.sampling.ask()
        self.next_number = number + 1
        return Proposal(number, {**self.fixed, **params}, seed=self.seed)

    def report(self, number: int, step: int, metrics: Mapping[str, float]) -> bool:
        """Report the objective metric to Optuna and return True to stop the trial."""
        self.reported.update(metrics)
        if self.metric not in metrics:
            return False
        return self.sampling.report(number, step, metrics[self.metric])

    def ended(self, record: RunRecord) -> None:
        """Report the end of a trial to Optuna.

        Raises:
            InvalidMetric: The trial finished without the objective metric.
        """
        assert record.number is not None
        value = record.metrics.get(self.metric)
        if record.state == "finished" and value is None:
            raise InvalidMetric(
                f"The trial {record.id!r} finished without metric {self.metric!r}; it reported "
                f"{listing(sorted(record.metrics))}.",
                hint=f"return {{{self.metric!r}: ...}}, or context.report(step, {self.metric}=...)",
            )
        self.sampling.tell(record.number, record.state, value)
