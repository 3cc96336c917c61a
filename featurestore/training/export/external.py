"""Snapshots of external feature groups, taken before an export to make it reproducible."""

from __future__ import annotations

from featurestore.external import LiveSource, live_sources, take_snapshot
from featurestore.external.groups import external_rows
from featurestore.model.plan import Source
from featurestore.model.source import SourceRead
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.catalog import pinned_source
from featurestore.session import Session


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
