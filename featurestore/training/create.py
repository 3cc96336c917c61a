"""create_training_dataset: check, claim a version, export, register."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from featurestore.ingest import to_relation
from featurestore.model.names import check_name
from featurestore.model.plan import FeaturePlan, Source
from featurestore.model.requests import TrainingDatasetRequest
from featurestore.plugins.engine import Relation
from featurestore.recovery import datasets
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.pins import check_pinned, pin
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.publication import after_publication
from featurestore.training.dataset import TrainingDataset
from featurestore.training.export.audit import Gate
from featurestore.training.export.pipeline import Dropped, export
from featurestore.training.export.progress import Report, open_progress
from featurestore.training.export.request import check_request


@dataclass(frozen=True)
class Given:
    """The data of an export: rows on demand, the plan behind them, and what the plan says of keys and times."""

    relation: Callable[[], Relation]
    schema: Any
    plan: FeaturePlan | None
    key: tuple[str, ...]
    time: str | None
    not_reproducible: str | None
    dropped: Dropped | None = None

    @property
    def sources(self) -> list[Source]:
        """The Delta versions that the plan reads, each once."""
        if self.plan is None:
            return []
        return list({(s.path, s.delta_version): s for s in self.plan.sources}.values())

    def provenance(self) -> dict[str, Any]:
        """Return the manifest's fields about where the rows came from."""
        plan = self.plan
        return {
            "plan": None if plan is None else plan.to_json(),
            "plan_hash": None if plan is None else plan.hash,
            "sources": tuple(each.to_json() for each in self.sources),
            "reproducible": self.not_reproducible is None,
            "reproducible_reason": self.not_reproducible,
        }


def create(
    session: Session,
    data: object,
    asked: TrainingDatasetRequest,
    *,
    progress: bool | Report | None = None,
) -> TrainingDataset:
    """Create a version of a training dataset; ``FeatureStore.create_training_dataset`` describes the request."""
    check_name(asked.name, noun="training dataset")
    given = given_data(session, data)
    request = check_request(asked, schema=given.schema, default_key=given.key, time=given.time)
    gate = Gate(
        session,
        request,
        expectations=asked.expectations,
        policy=asked.validation,
        statistics=asked.statistics,
    )
    what = f"Training dataset {request.name!r}"
    with (
        in_flight(session, kind="export", name=request.name, version=asked.version) as run,
        open_progress(progress) as reports,
    ):
        files.make_directory(session.paths.staging)
        pin(run, given.sources)

        def check_publishable() -> None:
            run.check_held()
            check_pinned(given.sources)

        directory = session.training_dataset_path(request.name, run.version)
        manifest = export(
            session.engine,
            given.relation(),
            request,
            directory=directory,
            staging=run.staging,
            plan=given.plan,
            version=run.version,
            provenance=given.provenance(),
            progress=reports,
            inspect=gate,
            dropped=given.dropped,
            check_held=check_publishable,
        )
        run.landed = run.version
        with after_publication(f"{what} version {run.version}"):
            with session.registry.transaction() as connection:
                datasets.register(connection, manifest)
            run.registered = True
            gate.record(manifest)
    return TrainingDataset(directory, manifest, session)


def given_data(session: Session, data: object) -> Given:
    """Return what the caller handed over: a frame with a plan, or a loose dataframe."""
    if isinstance(data, FeatureFrame) and data.plan is not None:
        plan = data.plan
        time = plan.time or _event_time(plan)
        key = plan.keys if time is None or time in plan.keys else (*plan.keys, time)
        reason = None if _is_pinned(plan) else "the labels were a dataframe, not a feature group"
        return Given(lambda: data.relation, data.schema, plan, key, time, reason, _dropped(data))
    relation = to_relation(data, engine=session.engine)
    return Given(
        lambda: relation,
        relation.schema,
        None,
        (),
        None,
        "the data was a dataframe, not features of the store",
    )


def _dropped(frame: FeatureFrame) -> Dropped | None:
    """Return what tells the label rows that inner joins drop; None where no join does."""
    return frame.dropped if frame.drops else None


def _event_time(plan: FeaturePlan) -> str | None:
    """Return the label group's event time where the result holds it: it is part of the key even if no join needs it."""
    name = None if plan.left_source is None else plan.left_source.spec.event_time
    return next((output.name for output in plan.left_outputs if output.column == name), None)


def _is_pinned(plan: FeaturePlan) -> bool:
    return (
        _is_pinned(plan.left_plan) if plan.left_plan is not None else plan.left_source is not None
    )
