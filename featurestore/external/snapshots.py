"""Snapshots of external feature groups: commits to the table with the definition."""

from __future__ import annotations

from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import VersionNotFound, listing
from featurestore.external.live import LiveSource
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.plugins.engine import TableWrite
from featurestore.recovery import groups
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import featuregroups
from featurestore.session import Session
from featurestore.storage.failures import after_publication

OPERATION = "snapshot"


def take_snapshot(session: Session, live: LiveSource) -> int:
    """Copy the rows of an external group into the store in one commit; return its Delta version.

    If plans of ``live`` have read the rows already, these are copied.
    """
    spec, engine = live.spec, session.engine
    path = session.featuregroup_path(spec.name, spec.version)
    rows = engine.read_table(live.path, version=live.delta_version, schema=spec.schema)
    with in_flight(session, kind="write", name=spec.name, version=spec.version) as run:
        commit_metadata = {
            "operation": OPERATION,
            "run": run.run_id,
            "unique": False,
            "inputs": [live.read.to_json()],
            **commits.base_metadata(path, read_snapshot(path).version),
        }
        version = engine.write(path, rows, TableWrite("overwrite", commit_metadata=commit_metadata))
        assert version is not None  # None is only returned for repeated transactions
        run.committed_version = version
        description = f"A snapshot of external feature group {spec.name!r} version {spec.version}"
        with after_publication(description):
            with session.registry.transaction() as connection:
                featuregroups.advance(connection, spec.name, spec.version, delta_version=version)
                groups.add_lineage(connection, spec, commits.commit_of(path, version))
            run.registered = True
    return version


def check_snapshot(path: str, spec: FeatureGroupSpec, delta_version: int) -> None:
    """Check that the store has rows of an external group at a Delta version.

    Raises:
        VersionNotFound: The version is not a snapshot; lists the snapshots.
    """
    snapshots = [
        commit.delta_version for commit in commits.history(path) if commit.operation == OPERATION
    ]
    if any(each <= delta_version for each in snapshots):
        return
    raise VersionNotFound(
        f"External feature group {spec.name!r} version {spec.version} has no snapshot at Delta "
        f"version {delta_version}; its snapshots are {listing(sorted(snapshots))}.",
        hint="omit as_of to read its source; training datasets take snapshots",
    )
