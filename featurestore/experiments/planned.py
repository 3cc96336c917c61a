"""Studies with a fixed list of trials: ablations and cross-validations."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, InvalidMetric, RunFailed, listing
from featurestore.experiments import catalog, functions, status
from featurestore.experiments.launching import (
    LaunchRequest,
    check_integer,
    check_request,
    new_record,
)
from featurestore.experiments.searching import finish_pool
from featurestore.experiments.tasks import Fold
from featurestore.experiments.trials import Proposal, TrialPool
from featurestore.model import html
from featurestore.model.run_record import RunRecord
from featurestore.model.times import utc_now
from featurestore.plugins.launcher import find_launcher
from featurestore.storage import files
from featurestore.training.dataset import TrainingDataset

if TYPE_CHECKING:
    import pandas as pd

    from featurestore.session import Session


@dataclass
class PlannedTrials:
    """Trials in a fixed order. Each must report ``metric``, unless it is None."""

    plan: Sequence[Proposal]
    metric: str | None
    next_index: int = 0

    def next(self) -> Proposal | None:
        """Return the next trial."""
        if self.next_index == len(self.plan):
            return None
        self.next_index += 1
        return self.plan[self.next_index - 1]

    def report(self, number: int, step: int, metrics: Mapping[str, float]) -> bool:
        """Return False: no trial is stopped early."""
        return False

    def ended(self, record: RunRecord) -> None:
        """Raise an error if a trial failed, since the comparison needs all of them."""
        if record.state != "finished":
            raise RunFailed(
                f"Trial {record.number} ({record.id!r}) {record.state}: {record.reason}",
                hint=f"featurestore run logs {record.id}",
            )
        if self.metric is not None and self.metric not in record.metrics:
            raise InvalidMetric(
                f"The trial {record.id!r} finished without metric {self.metric!r}; it reported "
                f"{listing(sorted(record.metrics))}.",
                hint=f"return {{{self.metric!r}: ...}}",
            )


def run_planned(
    session: Session,
    request: LaunchRequest,
    plan: Sequence[Proposal],
    *,
    parallel: int,
    metric: str | None,
    settings: Mapping[str, Any],
) -> tuple[RunRecord, list[RunRecord]]:
    """Run all trials of a plan and return the records of the study and of the trials."""
    if request.dataset is None:
        raise InvalidArgument(f"{request.kind} needs dataset=.")
    check_integer("parallel", parallel, minimum=1, maximum=4096)
    launcher = find_launcher(request.on)
    dumped = check_request(replace(request, workers=parallel), launcher)
    record = new_record(request, launcher)
    study_settings = {"on": launcher.name, "parallel": parallel, "metric": metric, **settings}
    record = replace(record, settings=study_settings, params=functions.check_params(request.params))
    directory = catalog.directory_of(session, record)
    files.make_directory(directory)
    with status.driving(directory):
        catalog.save(session, record)
        template = replace(new_record(request, launcher), kind="trial", parent=record.id)
        pool = TrialPool(
            session,
            replace(template, name=record.name),
            launcher,
            dumped,
            PlannedTrials(plan, metric),
            parallel,
            environment=request.environment,
            progress=request.progress,
        )
        finish_pool(session, record, pool)
        trials = catalog.find(session, parent=record.id)
        record = replace(record, state="finished", ended=utc_now().isoformat())
        catalog.save(session, record)
    return record, trials


@dataclass(frozen=True)
class CrossValidation:
    """The metrics of each fold.

    ``runs`` are the ids of the runs, ``folds`` their metrics, both by the number of the fold.
    """

    id: str
    runs: tuple[str, ...]
    folds: tuple[Mapping[str, float], ...]

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each metric over the folds."""
        return {name: statistics.fmean(values) for name, values in self._by_metric().items()}

    @property
    def std(self) -> dict[str, float]:
        """The standard deviation of each metric over the folds (n - 1)."""
        return {name: statistics.stdev(values) for name, values in self._by_metric().items()}

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each fold."""
        import pandas as pd

        return pd.DataFrame([dict(each) for each in self.folds])

    def __str__(self) -> str:
        std = self.std
        return "\n".join(
            f"{name}: {mean:.4g} +- {std[name]:.4g}" for name, mean in self.mean.items()
        )

    def _repr_html_(self) -> str:
        return html.records_table([dict(each) for each in self.folds])

    def _by_metric(self) -> dict[str, list[float]]:
        values = {}
        for name in sorted(set(self.folds[0]).intersection(*self.folds)):
            values[name] = [fold[name] for fold in self.folds]
        return values


def cross_validate(
    session: Session,
    request: LaunchRequest,
    *,
    folds: int,
    split: str,
    held_out: str,
    parallel: int,
) -> CrossValidation:
    """Train once for each fold on the rows of the other folds."""
    check_integer("folds", folds, minimum=2, maximum=1000)
    dataset = request.dataset
    if not isinstance(dataset, TrainingDataset):
        raise InvalidArgument("cross_validate needs dataset=.")
    rows = dataset.num_rows(split)
    if rows < folds:
        raise InvalidArgument(f"Split {split!r} has {rows} rows, fewer than {folds} folds.")
    if held_out == split:
        raise InvalidArgument(
            f"held_out={held_out!r} is the split to divide.", hint='held_out="validation"'
        )
    plan: list[Proposal] = []
    for number in range(folds):
        fold: dict[str, Any] = vars(Fold(split, held_out, number, folds))
        settings = {"fold": fold}
        plan.append(Proposal(number, request.params, seed=request.seed, settings=settings))
    study_settings = {"folds": folds, "split": split, "held_out": held_out}
    record, trials = run_planned(
        session, request, plan, parallel=parallel, metric=None, settings=study_settings
    )
    ids = tuple(each.id for each in trials)
    return CrossValidation(record.id, ids, tuple(each.metrics for each in trials))
