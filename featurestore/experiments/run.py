"""Run: the handle of one run of an experiment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import RunNotFound, listing
from featurestore.experiments import catalog, liveness
from featurestore.experiments.reports import TENSORBOARD
from featurestore.model import html
from featurestore.model.arguments import suggest_arguments
from featurestore.model.run_record import RunRecord
from featurestore.storage.appending import last_lines

if TYPE_CHECKING:
    from featurestore.experiments.progress import Listener
    from featurestore.plugins.launcher import Launcher
    from featurestore.session import Session
    from featurestore.training.dataset import TrainingDataset


@suggest_arguments
@dataclass(frozen=True)
class Run:
    """A run: its arguments, reports, final state and files."""

    session: Session = field(repr=False, compare=False)
    record: RunRecord = field(repr=False)

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.name!r}: {self.state}, {dict(self.metrics)}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.record.id

    @property
    def name(self) -> str:
        """The experiment of the run."""
        return self.record.name

    @property
    def kind(self) -> str:
        """The kind of the run: "launch", "collective_all_reduce", "trial" ..."""
        return self.record.kind

    @property
    def state(self) -> str:
        """The state: "running", "finished", "failed", "stopped" or "interrupted"."""
        if self.record.state == "running" and not liveness.is_driven(self.path):
            return "interrupted"  # its driver died
        return self.record.state

    @property
    def params(self) -> dict[str, Any]:
        """The parameters."""
        return dict(self.record.params)

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric; values that the function returned are the last."""
        if self.record.state != "running":
            return dict(self.record.metrics)
        return {name: series[max(series)] for name, series in self._series().items()}

    @property
    def path(self) -> str:
        """The directory of the run."""
        return catalog.directory_of(self.session, self.record)

    @property
    def log_dir(self) -> str:
        """The directory to show in TensorBoard."""
        return os.path.join(self.path, TENSORBOARD)

    @property
    def reason(self) -> str | None:
        """The reason of a failure, None otherwise."""
        return self.record.reason

    @property
    def seconds(self) -> float | None:
        """The duration of the run in seconds."""
        return self.record.seconds

    @property
    def artifacts(self) -> list[str]:
        """The artifacts of the run, relative to ``path``."""
        return list(catalog.artifacts_of(self.path))

    @property
    def dataset(self) -> TrainingDataset | None:
        """The training dataset of the run, from this store or by its path."""
        from featurestore.experiments.launching import dataset_of

        return dataset_of(self.session, self.record)

    def history(self, metric: str) -> dict[int, float]:
        """Return ``{step: value}`` of a metric.

        Raises:
            RunNotFound: The run did not report the metric; the reported ones are listed.
        """
        series = self._series()
        if metric not in series:
            raise RunNotFound(
                f"Run {self.id!r} did not report metric {metric!r}. Available: {listing(series)}.",
                hint="context.report(step, name=value)",
            )
        return series[metric]

    def logs(self, worker: int = 0, *, lines: int = 100) -> str:
        """Return the last lines that a worker printed."""
        path = os.path.join(self.path, "logs", f"worker-{worker:05d}.log")
        return "\n".join(last_lines(path, lines)).strip("\n")

    def resume(
        self,
        train_fn: Callable[..., Any] | None = None,
        *,
        retries: int | None = None,
        on: str | Launcher | None = None,
        environment: Mapping[str, str] | None = None,
        progress: bool | Listener | None = None,
    ) -> Run:
        """Restart the run from its newest checkpoint and return the finished run.

        Args:
            train_fn: The function; None: the function of the same module and name, if this process
                has loaded it. The record never causes an import or a call.
            retries: How often lost workers are restarted; None: as before.
            on: Another launcher.
            environment: Environment variables of the workers; records do not store them.
            progress: See ``launch``.

        Raises:
            RunRunning: The run is still running.
            InvalidTrainFunction: ``train_fn`` is required.
        """
        from featurestore.experiments.launching import resume

        record = resume(
            self.session,
            self.record.id,
            train_fn,
            retries=retries,
            on=on,
            environment=environment or {},
            progress=progress,
        )
        return Run(self.session, record)

    def to_json(self) -> dict[str, Any]:
        """Return the record with the current state."""
        return {
            **self.record.to_json(),
            "state": self.state,
            "metrics": self.metrics,
            "seconds": self.seconds,
            "path": self.path,
            "artifacts": self.artifacts,
        }

    def _series(self) -> dict[str, dict[int, float]]:
        series: dict[str, dict[int, float]] = {}
        for each in catalog.read_metrics(self.path):
            series.setdefault(each.name, {})[each.step] = each.value
        return series

    def _repr_html_(self) -> str:
        facts = {
            "state": self.state,
            "params": self.params,
            "metrics": self.metrics,
            "seconds": self.seconds,
            "reason": self.reason,
            "path": self.path,
        }
        return html.properties_table(facts, caption=f"Run {self.id} of {self.name}")
