"""Changes of a group's metadata, which is in table properties: definition, tags and writers.

A change is a function of the newest snapshot, and the engine calls it again if another writer
commits first. So concurrent changes of different fields and tags are all in the table, even if they
are made through different registries.
"""

from __future__ import annotations

from collections.abc import Callable

from featurestore.delta import iceberg
from featurestore.delta.snapshot import Snapshot
from featurestore.featuregroups.table import OpenGroup, version_title
from featurestore.plugins.engine import PropertyChange
from featurestore.recovery import groups
from featurestore.recovery.in_flight import in_flight
from featurestore.session import Session
from featurestore.storage.failures import warn_after_publication


def change_metadata(
    session: Session, group: OpenGroup, change: Callable[[Snapshot, str], PropertyChange | None]
) -> None:
    """Change the table properties of a group in one commit without rows, then the registry.

    ``change`` gets a snapshot and the id of the run, and may be called several times. If it returns
    None, only the registry is written: another registry may have registered the same change.
    """
    spec = group.spec

    def register() -> None:
        with session.registry.transaction() as connection:
            groups.register_definition(connection, group.path, spec.name, spec.version)

    # An intent is needed only if there is a change.
    if change(group.state, "") is None:
        register()
        return
    with in_flight(session, operation="write", name=spec.name, version=spec.version) as run:
        # The table is written first, because the registry can be rebuilt from it after a crash.
        run.committed_version = session.engine.change_properties(
            group.path, lambda snapshot: change(snapshot, run.run_id)
        )
        if run.committed_version is None:
            register()
            run.registered = True
            return
        title = version_title(spec, run.committed_version)
        # If the registration fails, recovery finds the commit.
        with warn_after_publication(title):
            register()
            run.registered = True
    if spec.iceberg:
        with warn_after_publication(title):
            iceberg.publish(group.path)
