"""Maintenance of a group: compaction, vacuum, verification, and deletion of rows or versions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from featurestore.delta import commits, iceberg
from featurestore.delta.deletions import record_deletion
from featurestore.delta.log import LOG_FOLDER, latest_version
from featurestore.delta.maintenance import find_merge_size_limit
from featurestore.delta.snapshot import read_snapshot
from featurestore.delta.verification import Witness, verify_table
from featurestore.errors import (
    FeatureViewWarning,
    InvalidArgument,
    JobWarning,
    PinnedByTrainingDataset,
    UsedByFeatureView,
    WriteConflict,
    listing,
)
from featurestore.featuregroups.table import open_group, open_stored, resolve, version_title
from featurestore.model.arguments import check_count, warn_caller
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.times import parse_duration, shift_time, utc_now
from featurestore.model.verification import GroupVerifyReport
from featurestore.recovery.groups import GROUPS
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.recovery.pins import (
    RECLAIM,
    find_pinning_datasets,
    pinned_versions,
    versions_pinned_by_exports,
)
from featurestore.registry import featuregroups, jobs
from featurestore.registry.artifacts import feature_views
from featurestore.session import Session
from featurestore.storage.failures import warn_after_publication
from featurestore.usersql import fix_clock, predicate


def register_delta_version(
    session: Session,
    spec: FeatureGroupSpec,
    delta_version: int,
    *,
    run: InFlight,
) -> None:
    """Register the Delta version of a maintenance commit."""
    # The version is set before the registration, so that recovery knows of the commit if the
    # registration fails.
    run.committed_version = delta_version
    with warn_after_publication(version_title(spec, delta_version)):
        with session.registry.transaction() as connection:
            featuregroups.advance(connection, spec.name, spec.version, delta_version=delta_version)
        run.registered = True
    if spec.iceberg:
        with warn_after_publication(version_title(spec, delta_version)):
            iceberg.publish(session.featuregroup_path(spec.name, spec.version))


def compact(session: Session, name: str, *, version: int | None = None) -> Commit:
    """Rewrite small files into larger ones without changing rows, and return the latest commit."""
    group = open_group(session, name, version)
    spec = group.spec
    with in_flight(session, operation="write", name=spec.name, version=spec.version) as run:
        latest = session.engine.compact(group.path)
        if latest is None:
            latest = group.delta_version
        register_delta_version(session, spec, latest, run=run)
    return commits.commit_of(group.path, latest)


def compact_when_due(
    session: Session, spec: FeatureGroupSpec, path: str, *, run: InFlight
) -> int | None:
    """Merge small files after a write if a group has too many.

    Return the new Delta version, or None if nothing was merged. Failures are only warnings, because
    the write is already committed; the next write tries again.
    """
    if spec.compact is None:
        return None
    delta_version = None
    with warn_after_publication(f"A write into feature group {spec.name!r} version {spec.version}"):
        below = find_merge_size_limit(read_snapshot(path))
        if below is not None:
            # Another writer has committed; the next write compacts the files.
            with suppress(WriteConflict):
                delta_version = session.engine.compact(path, below=below)
    if delta_version is not None:
        register_delta_version(session, spec, delta_version, run=run)
    return delta_version


def vacuum(
    session: Session, name: str, *, version: int | None = None, retain: timedelta | str = "30d"
) -> Sequence[str]:
    """Remove data files that no version younger than ``retain`` and no training dataset needs.

    Return the paths of the removed files. Log entries of pinned versions are retained, so that
    these versions remain readable.
    """
    group = open_group(session, name, version)
    oldest = shift_time(utc_now(), -parse_duration(retain, argument="retain"))
    spec = group.spec
    with in_flight(session, operation=RECLAIM, name=spec.name, version=spec.version) as run:
        # The pins are read after the intent is recorded, so that no export can pin a version
        # without being noticed (see recovery.pins).
        pinned = pinned_versions(session, spec.name, spec.version)
        if spec.iceberg:
            # The files of an older version that is still published are about to be removed.
            published_version = iceberg.publish(group.path)
            iceberg.remove_old_metadata(group.path, version=published_version)
        removed = session.engine.vacuum(group.path, keep_versions=pinned, retain=oldest)
        register_delta_version(session, spec, latest_version(group.path), run=run)
    return removed


def check_unused_by_views(session: Session, name: str, version: int, *, force: bool) -> None:
    """Raise an error if feature views read a version; with ``force`` only warn.

    Raises:
        UsedByFeatureView: Feature views read the version; the message lists them.
    """
    with session.registry.reading() as connection:
        reading = feature_views.views_reading(connection, name, version)
    if not reading:
        return
    users = listing(f"{view.name} version {view.version}" for view in reading)
    description = f"Feature group {name!r} version {version} is read by the feature views {users}"
    if not force:
        raise UsedByFeatureView(
            f"{description}.",
            hint="delete the views first, or force=True: the views can no longer be read",
        )
    warn_caller(f"{description}, which can no longer be read.", FeatureViewWarning)


def delete_rows(
    session: Session,
    name: str,
    where: str,
    *,
    version: int | None = None,
    run_id: str | None = None,
) -> Commit:
    """Delete the rows that match a predicate in DuckDB's SQL dialect.

    If no row matches, nothing is committed.
    """
    group = open_stored(session, name, version, to="delete rows")
    if not isinstance(where, str) or not where.strip():
        raise InvalidArgument(
            f"where={where!r} is not a condition.", hint="where=\"event_time < '2020-01-01'\""
        )
    spec = group.spec
    # The commit records the condition with constants, which identifies the deleted rows later.
    predicate_text = fix_clock(where, now=utc_now())
    condition = predicate(predicate_text, schema=spec.schema, dialect=session.engine.dialect)
    with in_flight(
        session, operation="write", name=spec.name, version=spec.version, run_id=run_id
    ) as run:
        metadata = {
            "operation": "delete",
            "run": run.run_id,
            "where": predicate_text,
            # Deleting rows cannot create duplicate keys.
            "unique": "kept",
            **group.metadata_for_next_commit(),
        }
        delta_version = session.engine.delete(group.path, condition, commit_metadata=metadata)
        if delta_version is None:
            delta_version = group.delta_version
        register_delta_version(session, spec, delta_version, run=run)
    return commits.commit_of(group.path, delta_version)


def delete_group(session: Session, name: str, *, version: int, force: bool = False) -> None:
    """Delete a version of a group with its data, quarantine and statistics.

    Raises:
        PinnedByTrainingDataset: A training dataset was created from the version;
            ``force=True`` deletes it anyway.
        UsedByFeatureView: A feature view reads the version; ``force=True`` deletes it anyway.
    """
    if version is None:
        raise InvalidArgument("delete_featuregroup needs a version.", hint="version=1")
    name, version = resolve(session, name, version)
    # While this intent exists, no export can pin the version.
    with in_flight(session, operation=RECLAIM, name=name, version=version) as reclaim_run:
        if not force:
            _check_unpinned(session, name, version)
        check_unused_by_views(session, name, version, force=force)
        with in_flight(session, operation="delete", name=name, version=version) as run:
            with session.registry.transaction() as connection:
                # The group is unregistered before its files are removed: a crash in between leaves
                # only orphan files, which recovery removes.
                GROUPS.unregister(connection, name, version)
                writers = jobs.writers_of(connection, name)
            record_deletion(session.featuregroup_path(name, version))
            with warn_after_publication(
                f"The deletion of feature group {name!r} version {version}"
            ):
                GROUPS.remove(session.paths, name, version)
                run.registered = True
        reclaim_run.registered = True
    for job in writers:
        if job.watermark is not None:
            warn_caller(
                f"Job {job.spec.name!r} computes feature group {name!r} again from "
                f"{job.watermark.isoformat()} on. backfill_job({job.spec.name!r}, start, end) "
                "computes earlier windows.",
                JobWarning,
            )


def _check_unpinned(session: Session, name: str, version: int) -> None:
    """Raise PinnedByTrainingDataset if a dataset or a running export pins the version."""
    if versions_pinned_by_exports(session, name, version):
        raise PinnedByTrainingDataset(
            f"A training dataset is being created from feature group {name!r} version {version}.",
            hint="wait until it is complete, or force=True: its creation fails",
        )
    users = find_pinning_datasets(session, name, version)
    if users:
        dataset_names = [f"{pin.dataset} version {pin.dataset_version}" for pin in users]
        raise PinnedByTrainingDataset(
            f"Feature group {name!r} version {version} is pinned by the training datasets "
            f"{listing(dataset_names)}.",
            hint="delete the datasets first, or force=True: they remain readable, but can no longer "
            "be recomputed",
        )


def verify(
    session: Session, name: str, *, version: int | None = None, sample: int | None = None
) -> GroupVerifyReport:
    """Verify the files of a group; see ``FeatureStore.verify_featuregroup``."""
    if sample is not None:
        check_count(sample, argument="sample", minimum=1)
    name, version = resolve(session, name, version)
    path = session.featuregroup_path(name, version)
    result = verify_table(path, sample=sample, witnesses=_witnesses(session, name, version))
    problems, unverified = list(result.problems), list(result.unverified)
    quarantine = session.quarantine_path(name, version)
    if session.storage.exists(os.path.join(quarantine, LOG_FOLDER)):
        refused_rows = verify_table(quarantine, sample=sample)
        folder = os.path.basename(quarantine)
        problems += [
            replace(problem, file=f"{folder}/{problem.file}") for problem in refused_rows.problems
        ]
        unverified += [f"{folder}/{name}" for name in refused_rows.unverified]
    return GroupVerifyReport(
        featuregroup=f"{name} version {version}",
        delta_version=result.latest,
        rows=result.rows,
        files=result.files,
        bytes=result.bytes,
        commits=result.commits,
        checkpoints=result.checkpoints,
        problems=tuple(problems),
        unverified=tuple(unverified),
    )


def _witnesses(session: Session, name: str, version: int) -> tuple[Witness, ...]:
    """Return the versions of a group in the registry and in training datasets."""
    with session.registry.reading() as connection:
        registered = featuregroups.get(connection, name, version)
    # Without the names of the datasets, which the reader of the group may not see.
    pinned = [
        Witness(delta_version, "a training dataset")
        for delta_version in pinned_versions(session, name, version)
    ]
    return (Witness(registered.delta_version, "the registry"), *pinned)
