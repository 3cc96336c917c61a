"""Cross-validation over folds of the row hash, without writing datasets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument
from featurestore.experiments.launching import LaunchRequest, check_integer
from featurestore.experiments.planned import run_planned
from featurestore.experiments.tasks import Fold
from featurestore.experiments.trials import Proposal
from featurestore.model import html
from featurestore.training.dataset import TrainingDataset

if TYPE_CHECKING:
    import pandas as pd

    from featurestore.session import Session


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
