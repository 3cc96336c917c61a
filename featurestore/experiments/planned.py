"""Studies with a fixed list of trials: ablations and cross-validations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, InvalidMetric, RunFailed, listing
from featurestore.experiments import catalog, functions, liveness
from featurestore.experiments.launching import (
    LaunchRequest,
    check_integer,
    check_request,
    new_record,
)
from featurestore.experiments.searching import finish_pool
from featurestore.experiments.trials import Proposal, TrialPool
from featurestore.model.run_record import RunRecord
from featurestore.model.times import utc_now
from featurestore.plugins.launcher import find_launcher
from featurestore.storage import files

if TYPE_CHECKING:
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
    with liveness.driving(directory):
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
