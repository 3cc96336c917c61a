"""The data of an export: lazy rows, their provenance, and snapshots of external groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featurestore.arrow.untyped import refuse_untyped, sql_casts, typing_lines
from featurestore.external import LiveSource, live_sources, take_snapshot
from featurestore.external.groups import external_rows
from featurestore.ingest import to_relation
from featurestore.model.plan import FeaturePlan, Source
from featurestore.model.roles import RoleRequest
from featurestore.model.source import SourceRead, SourceReads
from featurestore.plugins.engine import Relation
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.catalog import pinned_source
from featurestore.retrieval.labels import refuse_times_outside
from featurestore.session import Session


@dataclass(frozen=True)
class Provenance:
    """The provenance of rows, as recorded in the manifest.

    The plan, its sources and whether it reproduces the rows. ``reads`` grows while the rows are
    read from registered sources.
    """

    plan: Mapping[str, Any] | None = None
    plan_hash: str | None = None
    sources: tuple[Mapping[str, Any], ...] = ()
    reproducible: bool = True
    reproducible_reason: str | None = None
    view: Mapping[str, Any] | None = None
    reads: Sequence[SourceRead] = ()


@dataclass(frozen=True)
class ExportData:
    """Lazy rows, their plan, and the keys and roles of the plan.

    ``dropped_rows`` computes from the number of rows how many label rows the inner joins dropped;
    None without such a join. ``warn_of_nulls`` takes the rows and the nulls of each column.
    """

    relation: Callable[[], Relation]
    schema: pa.Schema
    provenance: Provenance
    plan: FeaturePlan | None = None
    key: tuple[str, ...] = ()
    roles: RoleRequest = field(default_factory=RoleRequest)
    dropped_rows: Callable[[int], int | None] | None = None
    warn_of_nulls: Callable[[int, Mapping[str, int]], None] | None = None

    @property
    def sources(self) -> list[Source]:
        """The distinct Delta versions that the plan reads."""
        if self.plan is None:
            return []
        return _sources(self.plan)


def export_data(session: Session, data: object, *, reads: Sequence[SourceRead] = ()) -> ExportData:
    """Return the data of the caller: a frame with a plan, or a dataframe.

    ``reads`` are the reads of sources so far.
    """
    if isinstance(data, FeatureFrame) and data.plan is not None:
        return _planned_data(data, data.plan, reads)
    relation = to_relation(data, engine=session.engine)
    if not relation.single_use and not isinstance(data, FeatureFrame):
        refuse_times_outside(relation, engine=session.engine)
    reason = "the data was a dataframe, not features of the store"
    if isinstance(data, FeatureFrame) and data.reads is not None:
        reason = "the data was read from a source, of which the store keeps no snapshot"
        reads = data.reads
    provenance = Provenance(reproducible=False, reproducible_reason=reason, reads=reads)
    return ExportData(lambda: relation, relation.schema, provenance)


def check_typed(schema: pa.Schema, *, language: str) -> None:
    """Refuse columns without a type, which no format supports.

    Raises:
        UnsupportedType: Lists them; the hint casts them with the library of the dataframe.
    """

    def casts(columns: pa.Schema) -> str:
        lines = typing_lines(language, columns)
        return f"cast the columns first: {lines or f'in SQL, {sql_casts(columns)}'}"

    refuse_untyped(schema, subject="The training dataset", hint=casts)


def with_snapshots(session: Session, data: object) -> tuple[object, list[SourceRead]]:
    """Take snapshots of the external groups of a frame; return the pinned frame and the reads.

    Groups without snapshots and data without a plan stay unchanged.
    """
    if not isinstance(data, FeatureFrame) or data.plan is None:
        return data, []
    snapshots: dict[LiveSource, Source] = {}
    for live in live_sources(data.plan):
        if external_rows(live.spec).snapshots == "training":
            path = session.featuregroup_path(live.spec.name, live.spec.version)
            snapshots[live] = pinned_source(path, delta_version=take_snapshot(session, live))
    if not snapshots:
        return data, []

    def snapshot_of(source: Source) -> Source:
        if isinstance(source, LiveSource):
            return snapshots.get(source, source)
        return source

    plan = data.plan.with_sources(snapshot_of)
    frame = FeatureFrame.planned(session, plan, labels=data.labels, reads=data.label_reads)
    if data.view is not None:
        frame = frame.of_view(*data.view)
    return frame, [live.read for live in snapshots]


def _planned_data(
    frame: FeatureFrame, plan: FeaturePlan, reads: Sequence[SourceRead]
) -> ExportData:
    time = plan.time or _event_time(plan)
    key = plan.keys
    if time is not None and time not in key:
        key = (*key, time)
    reason = _why_not_reproducible(frame, plan)
    view = None
    if frame.view is not None:
        view = {"name": frame.view[0], "version": frame.view[1]}
    provenance = Provenance(
        plan=plan.to_json(),
        plan_hash=plan.hash,
        sources=tuple(source.to_json() for source in _sources(plan)),
        reproducible=reason is None,
        reproducible_reason=reason,
        view=view,
        # An empty list may grow while the rows are read.
        reads=reads if frame.reads is None else SourceReads(frame.reads, reads),
    )
    return ExportData(
        relation=lambda: frame.relation,
        schema=frame.schema,
        provenance=provenance,
        plan=plan,
        key=key,
        roles=_plan_roles(plan, time),
        dropped_rows=frame.dropped if frame.drops else None,
        warn_of_nulls=frame.warn_of_nulls,
    )


def _plan_roles(plan: FeaturePlan, time: str | None) -> RoleRequest:
    """Return the column roles that a retrieval determines."""
    selected_names = plan.asked
    if selected_names is not None:
        selected_names = tuple(name for name in selected_names if name in plan.columns)
    return RoleRequest(
        requested_features=selected_names, keys=(*plan.keys, *plan.join_columns), time=time
    )


def _sources(plan: FeaturePlan) -> list[Source]:
    sources = {(source.path, source.delta_version): source for source in plan.sources}
    return list(sources.values())


def _event_time(plan: FeaturePlan) -> str | None:
    """Return the output name of the label group's event time; None if it is not selected.

    It is part of the key even if no join uses it.
    """
    if plan.left_source is None:
        return None
    name = plan.left_source.spec.event_time
    for output in plan.left_outputs:
        if output.column == name:
            return output.name
    return None


def _why_not_reproducible(frame: FeatureFrame, plan: FeaturePlan) -> str | None:
    """Return why a plan may not reproduce its rows; None if all sources are pinned."""
    for live in live_sources(plan):
        return (
            f"feature group {live.spec.name!r} is external and keeps no snapshots "
            f"(snapshots='never'): its rows were read from {live.spec.external}"
        )
    while plan.left_plan is not None:
        plan = plan.left_plan
    if plan.left_query is not None:
        if plan.left_query.varies is None:
            return None
        return f"the rows of the query may vary: {plan.left_query.varies}"
    if plan.left_source is None and frame.label_reads is not None:
        return "the labels were read from a source, of which the store keeps no snapshot"
    if plan.left_source is None:
        return "the labels were a dataframe, not a feature group"
    return None
