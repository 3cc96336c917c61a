"""External feature groups of an export: copied into the store first, so that it can be repeated."""

from __future__ import annotations

from featurestore.external import LiveSource, live_sources, take_snapshot
from featurestore.external.live import external_rows
from featurestore.model.plan import Source
from featurestore.model.source import SourceRead
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.catalog import pinned_source
from featurestore.session import Session


def with_snapshots(session: Session, data: object) -> tuple[object, list[SourceRead]]:
    """Return data whose external groups are snapshots of the store, taken now, and their reads.

    Groups that are defined without snapshots stay as they are, and so does what has no plan.
    """
    if not isinstance(data, FeatureFrame) or data.plan is None:
        return data, []
    taken: dict[LiveSource, Source] = {}
    for live in live_sources(data.plan):
        if external_rows(live.spec).snapshots == "training":
            path = session.featuregroup_path(live.spec.name, live.spec.version)
            taken[live] = pinned_source(path, delta_version=take_snapshot(session, live))
    if not taken:
        return data, []

    def snapshot_of(source: Source) -> Source:
        if isinstance(source, LiveSource):
            return taken.get(source, source)
        return source

    plan = data.plan.with_sources(snapshot_of)
    frame = FeatureFrame.planned(session, plan, labels=data.labels, reads=data.label_reads)
    if data.view is not None:
        frame = frame.of_view(*data.view)
    return frame, [live.read for live in taken]
