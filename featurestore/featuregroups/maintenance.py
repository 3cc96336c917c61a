"""Maintenance: compaction of small files, and removal of unused files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from featurestore.delta import commits
from featurestore.delta.compaction import size_to_merge_below
from featurestore.delta.log import latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import WriteConflict
from featurestore.featuregroups.registration import advance
from featurestore.featuregroups.table import open_group
from featurestore.model.durations import parse_duration
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.times import shifted, utc_now
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.recovery.pins import RECLAIM, pinned_versions
from featurestore.session import Session
from featurestore.storage.failures import after_publication


def compact(session: Session, name: str, *, version: int | None = None) -> Commit:
    """Rewrite small files into large ones, without changing rows; return the last commit."""
    group = open_group(session, name, version)
    spec = group.spec
    with in_flight(session, kind="write", name=spec.name, version=spec.version) as run:
        latest = session.engine.compact(group.path)
        if latest is None:
            latest = group.delta_version
        advance(session, spec, latest, run=run)
    return commits.commit_of(group.path, latest)


def compact_when_due(
    session: Session, spec: FeatureGroupSpec, path: str, *, run: InFlight
) -> int | None:
    """Merge small files after a write if a group has too many; return the version, or None.

    The write is committed: failures here are warnings, and the next write tries again.
    """
    if spec.compact is None:
        return None
    delta_version = None
    with after_publication(f"A write into feature group {spec.name!r} version {spec.version}"):
        below = size_to_merge_below(read_snapshot(path))
        if below is not None:
            with suppress(WriteConflict):
                delta_version = session.engine.compact(path, below=below)
    if delta_version is not None:
        advance(session, spec, delta_version, run=run)
    return delta_version


def vacuum(
    session: Session, name: str, *, version: int | None = None, retain: timedelta | str = "30d"
) -> Sequence[str]:
    """Remove data files that no version younger than ``retain`` and no training dataset needs.

    Return their paths. The log entries of pinned versions stay, so that they remain readable.
    """
    group = open_group(session, name, version)
    oldest = shifted(utc_now(), -parse_duration(retain, argument="retain"))
    spec = group.spec
    with in_flight(session, kind=RECLAIM, name=spec.name, version=spec.version) as run:
        pinned = pinned_versions(session, spec.name, spec.version)
        removed = session.engine.vacuum(group.path, keep_versions=pinned, retain=oldest)
        advance(session, spec, latest_version(group.path), run=run)
    return removed
