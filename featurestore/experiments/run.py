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
from featurestore.model.arguments import answers_calls
from featurestore.model.run_record import RunRecord
from featurestore.storage.appending import last_lines

if TYPE_CHECKING:
    from featurestore.experiments.progress import Listener
    from featurestore.plugins.launcher import Launcher
    from featurestore.session import Session
    from featurestore.training.dataset import TrainingDataset


@answers_calls
@dataclass(frozen=True)
class Run:
    """One run: what it was given, what it reported, how it ended, and where its files lie."""

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
        """The experiment that it belongs to."""
        return self.record.name

    @property
    def kind(self) -> str:
        """The call that made it: "launch", "collective_all_reduce", "trial" ..."""
        return self.record.kind

    @property
    def state(self) -> str:
        """The state: "running", "finished", "failed", "stopped" or "interrupted"."""
        if self.record.state == "running" and not liveness.is_driven(self.path):
            return "interrupted"  # its driver died without a word
        return self.record.state

    @property
    def params(self) -> dict[str, Any]:
        """The parameters."""
        return dict(self.record.params)

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric; what the function returned counts last."""
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
        """Why it failed, None where it did not."""
        return self.record.reason

    @property
    def seconds(self) -> float | None:
        """How long it ran."""
        return self.record.seconds

    @property
    def artifacts(self) -> list[str]:
        """What it left behind, relative to ``path``."""
        return list(catalog.artifacts_of(self.path))

    @property
    def dataset(self) -> TrainingDataset | None:
        """The training dataset that it read, of this store or by its path."""
        from featurestore.experiments.launching import dataset_of

        return dataset_of(self.session, self.record)

    def history(self, metric: str) -> dict[int, float]:
        """Return ``{step: value}`` of a metric.

        Raises:
            RunNotFound: The run reported no such metric; those it did are listed.
        """
        found = self._series()
        if metric not in found:
            raise RunNotFound(
                f"Run {self.id!r} reported no metric {metric!r}; it reported {listing(found)}.",
                hint="context.report(step, name=value)",
            )
        return found[metric]

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
        """Start the run again where its newest checkpoint is, and return it at its end.

        Args:
            train_fn: The function; None takes the one of the same module and name, if this process
                has loaded it. Nothing that a record says is ever imported or executed.
            retries: How often lost workers are started again; None: as before.
            on: Another launcher.
            environment: Environment variables of the workers; records hold none.
            progress: As of ``launch``.

        Raises:
            RunRunning: It runs still.
            InvalidTrainFunction: The function has to be given.
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
        """Return the record with the state of now."""
        told = {**self.record.to_json(), "state": self.state, "metrics": self.metrics}
        return {**told, "seconds": self.seconds, "path": self.path, "artifacts": self.artifacts}

    def _series(self) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for each in catalog.reported(self.path):
            found.setdefault(each.name, {})[each.step] = each.value
        return found

    def _repr_html_(self) -> str:
        shown = {"state": self.state, "params": self.params, "metrics": self.metrics}
        more = {"seconds": self.seconds, "reason": self.reason, "path": self.path}
        return html.facts({**shown, **more}, caption=f"Run {self.id} of {self.name}")
