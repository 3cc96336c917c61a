"""Study: the handle of a search and its trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, InvalidTrainFunction, RunNotFound
from featurestore.experiments import catalog, functions
from featurestore.experiments.run import Run
from featurestore.model import html
from featurestore.model.arguments import answers_calls
from featurestore.model.run_record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

    from featurestore.experiments.progress import Listener
    from featurestore.plugins.launcher import Launcher
    from featurestore.session import Session


def check_study(record: RunRecord) -> RunRecord:
    """Return a record if it is one of a search."""
    if record.kind != "search":
        raise RunNotFound(
            f"Run {record.id!r} is a {record.kind}, no search.",
            hint=f"experiments.get_run({record.id!r})",
        )
    return record


@answers_calls
@dataclass(frozen=True)
class Study:
    """A search: its trials are runs."""

    session: Session = field(repr=False, compare=False)
    record: RunRecord = field(repr=False)

    def __repr__(self) -> str:
        return f"<Study {self.id} of {self.name!r}: {self.run.state}, {dict(self.record.metrics)}>"

    @property
    def id(self) -> str:
        """The id of the study; ``experiments.get_study`` finds it again."""
        return self.record.id

    @property
    def name(self) -> str:
        """The experiment that it belongs to."""
        return self.record.name

    @property
    def run(self) -> Run:
        """The study as a run: state, dataset, code, settings."""
        return Run(self.session, self.record)

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return str(self.record.settings["metric"])

    @property
    def runs(self) -> list[Run]:
        """The trials, by their number."""
        trials = catalog.find(self.session, parent=self.id)
        return [Run(self.session, record) for record in trials]

    @property
    def best(self) -> Run:
        """The finished trial with the best value.

        Raises:
            RunNotFound: No trial has finished.
        """
        from featurestore.experiments.searching import best_of

        trials = catalog.find(self.session, parent=self.id)
        found = best_of(trials, self.metric, str(self.record.settings["direction"]))
        if found is None:
            raise RunNotFound(f"No trial of {self.id!r} has finished.", hint="study.resume()")
        return Run(self.session, found)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one object for each trial: number, state, parameters, metrics."""
        found = []
        for run in self.runs:
            told = {"number": run.record.number, "id": run.id, "state": run.state}
            found.append({**told, **run.params, **run.metrics, "seconds": run.seconds})
        return found

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each trial."""
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
        """Go on with a search that was interrupted, or make more trials, and return it at its end.

        Trials that were running go on from their checkpoints.

        Args:
            train_fn: As of ``Run.resume``.
            trials: How many in all; None: as before.
            parallel: How many at once; None: as before.
            sampler: Has to be given where it was an object of Optuna.
            stop: The same.
            on: Another launcher.
            environment: Environment variables of the workers.
            progress: As of ``launch``.
        """
        from featurestore.experiments.launching import LaunchRequest, dataset_of
        from featurestore.experiments.searching import SearchRequest, resume_study

        told = self.record.settings
        function = train_fn or functions.loaded_function(str(self.record.code.get("function")))
        if function is None:
            raise InvalidTrainFunction(
                f"Study {self.id!r} ran {self.record.code.get('function')}, which this process "
                "has not loaded.",
                hint="study.resume(train_fn)",
            )
        launch = LaunchRequest(
            function,
            "search",
            dataset=dataset_of(self.session, self.record),
            params=self.record.params,
            name=self.name,
            on=on or str(told["on"]),
            retries=int(told["retries"]),
            seed=self.record.seed,
            environment=environment or {},
            progress=progress,
        )
        request = SearchRequest(
            launch,
            {},  # the record has it
            trials or int(told["trials"]),
            parallel or int(told["parallel"]),
            self._named("sampler", sampler),
            self._named("stop", stop),
            self.metric,
            str(told["direction"]),
        )
        return Study(self.session, resume_study(self.session, self.record, request))

    def _named(self, argument: str, given: Any) -> Any:
        from featurestore.experiments.sampling import SAMPLERS, STOPS

        told = self.record.settings[argument]
        if given is not None or told is None or told in (*SAMPLERS, *STOPS):
            return given or told
        raise InvalidArgument(
            f"The {argument} of {self.id!r} was an object, {told}.",
            hint=f"study.resume({argument}=optuna...)",
        )

    def _repr_html_(self) -> str:
        return html.records(self.to_records())
