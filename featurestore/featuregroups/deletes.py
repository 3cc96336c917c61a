"""Deletion of rows of a group, and of a version of a group."""

from __future__ import annotations

from featurestore.delta import commits
from featurestore.delta.deleted import record_deletion
from featurestore.errors import InvalidArgument, PinnedByTrainingDataset, listing
from featurestore.featuregroups.dependents import refuse_used
from featurestore.featuregroups.registration import advance
from featurestore.featuregroups.table import open_stored, resolve
from featurestore.model.featuregroup import Commit
from featurestore.model.times import utc_now
from featurestore.recovery import groups
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.pins import RECLAIM, pinned_by, pinned_by_exports
from featurestore.session import Session
from featurestore.storage.failures import after_publication
from featurestore.usersql import fix_clock, predicate


def delete_rows(
    session: Session,
    name: str,
    where: str,
    *,
    version: int | None = None,
    run_id: str | None = None,
) -> Commit:
    """Delete the rows for which a predicate (DuckDB's SQL) is true.

    Without such rows nothing is committed.
    """
    group = open_stored(session, name, version, to="delete any")
    if not isinstance(where, str) or not where.strip():
        raise InvalidArgument(
            f"where={where!r} is not a condition.", hint="where=\"event_time < '2020-01-01'\""
        )
    spec = group.spec
    where = fix_clock(where, now=utc_now())
    condition = predicate(where, schema=spec.schema, dialect=session.engine.dialect)
    with in_flight(
        session, kind="write", name=spec.name, version=spec.version, run_id=run_id
    ) as run:
        note = {"operation": "delete", "run": run.run_id, "where": where, "unique": "kept"}
        note |= group.seen_by_writer()
        delta_version = session.engine.delete(group.path, condition, commit_metadata=note)
        if delta_version is None:
            delta_version = group.delta_version
        advance(session, spec, delta_version, run=run)
    return commits.commit_of(group.path, delta_version)


def delete_group(session: Session, name: str, *, version: int, force: bool = False) -> None:
    """Delete a version of a group with its data, quarantine and statistics.

    Raises:
        PinnedByTrainingDataset: A training dataset was made from it; ``force=True`` deletes it
            anyway.
        UsedByFeatureView: A feature view reads it; ``force=True`` deletes it anyway.
    """
    if version is None:
        raise InvalidArgument("delete_featuregroup needs a version.", hint="version=1")
    name, version = resolve(session, name, version)
    with in_flight(session, kind=RECLAIM, name=name, version=version) as reclaim_run:
        if not force:
            _refuse_pinned(session, name, version)
        refuse_used(session, name, version, force=force)
        with in_flight(session, kind="delete", name=name, version=version) as run:
            with session.registry.transaction() as connection:
                groups.forget(connection, name, version)
            record_deletion(session.featuregroup_path(name, version))
            with after_publication(f"The deletion of feature group {name!r} version {version}"):
                groups.remove_files(session.paths, name, version)
                run.registered = True
        reclaim_run.registered = True


def _refuse_pinned(session: Session, name: str, version: int) -> None:
    if pinned_by_exports(session, name, version):
        raise PinnedByTrainingDataset(
            f"A training dataset is being made from feature group {name!r} version {version}.",
            hint="wait for it, or force=True: then it fails",
        )
    users = pinned_by(session, name, version)
    if users:
        dataset_names = [f"{each.dataset} version {each.dataset_version}" for each in users]
        raise PinnedByTrainingDataset(
            f"Feature group {name!r} version {version} is pinned by the training datasets "
            f"{listing(dataset_names)}.",
            hint="delete those first, or force=True: they stay readable, but cannot be recomputed "
            "any more",
        )
