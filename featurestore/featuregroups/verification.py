"""Verification of a feature group: its table, and records of its versions in the store."""

from __future__ import annotations

import os
from dataclasses import replace

from featurestore.delta.log import LOG_FOLDER
from featurestore.delta.verification import Witness, verify_table
from featurestore.featuregroups.table import resolve
from featurestore.model.arguments import check_count
from featurestore.model.verification import GroupVerifyReport
from featurestore.recovery.pins import pinned_versions
from featurestore.registry import featuregroups
from featurestore.session import Session
from featurestore.storage import files


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
    if files.exists(os.path.join(quarantine, LOG_FOLDER)):
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
