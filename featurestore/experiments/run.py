"""Run: the handle of a run, and the comparison of two runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import RunNotFound, listing
from featurestore.experiments import catalog, status
from featurestore.experiments.run_files import TENSORBOARD
from featurestore.model import display
from featurestore.model.arguments import suggest_arguments
from featurestore.model.display import value_text
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.run_record import RunRecord
from featurestore.storage.appending import read_last_lines

if TYPE_CHECKING:
    from featurestore.experiments.status import Listener
    from featurestore.plugins.launcher import Launcher
    from featurestore.session import Session
    from featurestore.training.dataset import TrainingDataset

Differences = dict[str, tuple[Any, Any]]


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
        # A killed driver cannot update the record, so "running" is valid only while its lock is
        # held.
        if self.record.state == "running" and not status.is_driven(self.path):
            return "interrupted"
        return self.record.state

    @property
    def params(self) -> JsonDict:
        """The parameters."""
        return dict(self.record.params)

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric; values that the function returned take precedence."""
        # The record gets its metrics when the run ends; before that they are in the metrics file.
        if self.record.state != "running":
            return dict(self.record.metrics)
        return {name: series[max(series)] for name, series in self._series().items()}

    @property
    def path(self) -> str:
        """The directory of the run."""
        return catalog.run_directory(self.session, self.record)

    @property
    def log_dir(self) -> str:
        """The TensorBoard log directory."""
        return os.path.join(self.path, TENSORBOARD)

    @property
    def reason(self) -> str | None:
        """The reason for a failure, or None."""
        return self.record.reason

    @property
    def seconds(self) -> float | None:
        """The duration of the run in seconds."""
        return self.record.seconds

    @property
    def artifacts(self) -> list[str]:
        """The artifacts of the run, relative to ``path``."""
        return list(catalog.list_artifacts(self.path))

    @property
    def dataset(self) -> TrainingDataset | None:
        """The training dataset of the run, from this store or by its path."""
        from featurestore.experiments.launching import load_run_dataset

        return load_run_dataset(self.session, self.record)

    def history(self, metric: str) -> dict[int, float]:
        """Return the history of a metric as ``{step: value}``.

        Raises:
            RunNotFound: The run did not report the metric; the error lists the reported metrics.
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
        return "\n".join(read_last_lines(path, lines)).strip("\n")

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
            train_fn: The function; None for the function with the same module and name, if this
                process has loaded it. A record never causes an import or a call.
            retries: Maximum number of restarts of lost workers; None for the previous limit.
            on: Another launcher.
            environment: Environment variables of the workers; they are not stored in records.
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

    def to_json(self) -> JsonDict:
        """Return the record as a JSON object, with the current state."""
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
        for value in catalog.read_metrics(self.path):
            series.setdefault(value.name, {})[value.step] = value.value
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
        return display.properties_table(facts, caption=f"Run {self.id} of {self.name}")


@dataclass(frozen=True)
class RunComparison:
    """The differences between two runs, by kind, as ``{name: (first, second)}``.

    ``metrics`` contains all metrics of both runs.
    """

    a: str
    b: str
    params: Differences
    settings: Differences
    dataset: Differences
    code: Differences
    environment: Differences
    metrics: Differences

    __repr__ = display.record_repr

    def __str__(self) -> str:
        lines = [f"{self.a} -> {self.b}"]
        for section in ("params", "settings", "dataset", "code", "environment", "metrics"):
            for name, (first, second) in getattr(self, section).items():
                lines.append(f"  {section} {name}: {value_text(first)} -> {value_text(second)}")
        return "\n".join(lines)

    def to_json(self) -> JsonDict:
        """Return the comparison as a JSON object."""
        return dict(vars(self))


def compare_runs(a: Run, b: Run) -> RunComparison:
    """Compare two runs.

    Raises:
        RunDamaged: The record or the metrics of a run are damaged.
    """
    # Without this check, files that changed after the run would appear as differences of the runs.
    for run in (a, b):
        catalog.verify(run.session, run.record)
    first, second = a.record, b.record
    shared = {"seed", *first.settings, *second.settings}
    settings = []
    for record in (first, second):
        # Kind and seed are fields of the record, but they are compared like settings.
        all_settings = {"kind": record.kind, "seed": record.seed, **record.settings}
        settings.append({name: all_settings.get(name) for name in ("kind", *sorted(shared))})
    return RunComparison(
        a=first.id,
        b=second.id,
        params=differing(first.params, second.params),
        settings=differing(*settings),
        dataset=differing(
            *[vars(record.dataset) if record.dataset else {} for record in (first, second)]
        ),
        code=differing(_flatten_code(first.code), _flatten_code(second.code)),
        environment=differing(
            _flatten_packages(first.environment), _flatten_packages(second.environment)
        ),
        metrics=pair_values(a.metrics, b.metrics),
    )


def pair_values(first: JsonMapping, second: JsonMapping) -> Differences:
    """Pair values by name, with None for missing values."""
    return {name: (first.get(name), second.get(name)) for name in {**first, **second}}


def differing(first: JsonMapping, second: JsonMapping) -> Differences:
    """Return pairs of the values that differ.

    >>> differing({"lr": 1, "units": 8}, {"lr": 2, "units": 8, "dropout": 0.5})
    {'lr': (1, 2), 'dropout': (None, 0.5)}
    """
    return {name: pair for name, pair in pair_values(first, second).items() if pair[0] != pair[1]}


def _flatten_code(code: JsonMapping) -> JsonDict:
    git = code.get("git") or {}
    return {
        "function": code.get("function"),
        "source": code.get("source"),
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
    }


def _flatten_packages(environment: JsonMapping) -> JsonDict:
    versions = {"python": environment.get("python"), "platform": environment.get("platform")}
    packages = environment.get("packages")
    if isinstance(packages, Mapping):
        return {**versions, **packages}
    return versions
