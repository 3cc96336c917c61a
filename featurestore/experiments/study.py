"""Study: the handle of a search and its trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, InvalidTrainFunction, RunNotFound
from featurestore.experiments import catalog, functions
from featurestore.experiments.run import Run
from featurestore.model import html
from featurestore.model.arguments import suggest_arguments
from featurestore.model.run_record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

    from featurestore.experiments.status import Listener
    from featurestore.plugins.launcher import Launcher
    from featurestore.session import Session


def check_study(record: RunRecord) -> RunRecord:
    """Return a record after checking that it is of a search."""
    if record.kind != "search":
        raise RunNotFound(
            f"Run {record.id!r} is a {record.kind}, not a search.",
            hint=f"experiments.get_run({record.id!r})",
        )
    return record


@suggest_arguments
@dataclass(frozen=True)
class Study:
    """A search: its trials are runs."""

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
        """The study as a run: state, dataset, code, settings."""
        return Run(self.session, self.record)

    @property
    def metric(self) -> str:
        """The metric to optimize."""
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
        best_record = best_of(trials, self.metric, str(self.record.settings["direction"]))
        if best_record is None:
            raise RunNotFound(f"No trial of {self.id!r} has finished.", hint="study.resume()")
        return Run(self.session, best_record)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one object for each trial: number, state, parameters, metrics."""
        records = []
        for run in self.runs:
            identity = {"number": run.record.number, "id": run.id, "state": run.state}
            records.append({**identity, **run.params, **run.metrics, "seconds": run.seconds})
        return records

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
        """Resume an interrupted search, or add trials, and return the finished study.

        Interrupted trials continue from their checkpoints.

        Args:
            train_fn: See ``Run.resume``.
            trials: Total number of trials; None: as before.
            parallel: Number of concurrent workers; None: as before.
            sampler: Required if the study used a sampler object of Optuna.
            stop: Required if the study used a pruner object of Optuna.
            on: Another launcher.
            environment: Environment variables of the workers.
            progress: See ``launch``.
        """
        from featurestore.experiments.launching import LaunchRequest, dataset_of
        from featurestore.experiments.searching import SearchRequest, resume_study

        settings = self.record.settings
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
            on=on or str(settings["on"]),
            retries=int(settings["retries"]),
            seed=self.record.seed,
            environment=environment or {},
            progress=progress,
        )
        request = SearchRequest(
            launch,
            {},  # the record has it
            trials or int(settings["trials"]),
            parallel or int(settings["parallel"]),
            self._sampler_or_pruner("sampler", sampler),
            self._sampler_or_pruner("stop", stop),
            self.metric,
            str(settings["direction"]),
        )
        return Study(self.session, resume_study(self.session, self.record, request))

    def _sampler_or_pruner(self, argument: str, override: Any) -> Any:
        from featurestore.experiments.sampling import SAMPLERS, STOPS

        stored_name = self.record.settings[argument]
        if override is not None or stored_name is None or stored_name in (*SAMPLERS, *STOPS):
            return override or stored_name
        raise InvalidArgument(
            f"The {argument} of {self.id!r} was an object, {stored_name}.",
            hint=f"study.resume({argument}=optuna...)",
        )

    def _repr_html_(self) -> str:
        return html.records_table(self.to_records())
