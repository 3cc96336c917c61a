"""Recovery at connect: resolution of intents that dead processes left.

To resolve an intent, published data is registered, or unpublished data is removed. The steps are
the same for all versioned objects.
"""

from __future__ import annotations

import logging
import os
import re

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, InvalidArgument, InvalidName, StorageError
from featurestore.recovery import claims, liveness
from featurestore.recovery.datasets import DATASETS
from featurestore.recovery.groups import GROUPS
from featurestore.recovery.liveness import Store
from featurestore.recovery.models import MODELS
from featurestore.recovery.versioned import VersionedObjects
from featurestore.recovery.views import VIEWS
from featurestore.registry import intents
from featurestore.storage import StorePaths, storage_for

_INTENT = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger("featurestore.recovery")


VERSIONED: tuple[VersionedObjects[object], ...] = (GROUPS, DATASETS, VIEWS, MODELS)
_BY_INTENT = {
    intent: objects
    for objects in VERSIONED
    for intent in (objects.creation, *objects.writes, objects.removal)
}


def recover(store: Store) -> list[str]:
    """Resolve the intents of dead processes, and return a message for each.

    Intents are resolved independently: a failure, for example a damaged table, is logged and
    retried at the next connect.
    """
    registry, location = store.registry, store.location
    with registry.reading() as connection:
        all_intents = intents.list_all(connection)
        abandoned = [
            intent
            for intent in all_intents
            if not liveness.is_alive(connection, location, intent.owner)
        ]
        has_future_heartbeats = intents.has_future_heartbeats(connection)
    # After the clock of the registry was set back, the heartbeats of dead owners would be recent
    # for as long as the clock was ahead.
    if has_future_heartbeats:
        with registry.transaction() as connection:
            intents.correct_future_heartbeats(connection)
    actions = []
    for intent in abandoned:
        try:
            # Each intent has its own transaction, so that one failure does not undo the others.
            with registry.transaction() as connection:
                current = intents.find(connection, intent.run_id)
                if current is not None:  # else another process has resolved it
                    actions.append(resolve(connection, location, current))
        except FeatureStoreError as error:
            _log.warning(
                "%s of %s version %s could not be resolved: %s",
                intent.kind,
                intent.name,
                intent.version,
                error.message,
            )
    if abandoned:
        with registry.transaction() as connection:
            liveness.remove_dead_owners(connection, location)
    return actions


def resolve(connection: Connection, location: str, intent: intents.Intent) -> str:
    """Register the result of a write, or remove its files; return a message about the outcome."""
    paths = StorePaths(location)
    description = f"{intent.kind} of {intent.name} version {intent.version}"
    outcome = "removed its staged files"
    try:
        stage = paths.stage(intent.run_id)
        if intent.kind in _BY_INTENT:
            outcome = _resolve_version(connection, paths, intent, _BY_INTENT[intent.kind])
    except (InvalidName, InvalidArgument) as error:
        # An invalid row was not written by this library and must never cause the removal of files.
        intents.end(connection, intent.run_id)
        return f"dropped an invalid intent: {error.message}"
    try:
        storage_for(stage).remove(stage, below=location)
    except StorageError as error:  # published data is registered anyway
        return f"{description}: {outcome}; will be retried at the next connect: {error.message}"
    # The intent is removed last: after a crash, the resolution is repeated.
    intents.end(connection, intent.run_id)
    return f"{description}: {outcome}"


def _resolve_version(
    connection: Connection,
    paths: StorePaths,
    intent: intents.Intent,
    objects: VersionedObjects[object],
) -> str:
    """Finish a removal, register a published version, or remove an incomplete one."""
    name, version = intent.name, intent.version
    directory = objects.directory(paths, name, version)
    if intent.kind == objects.removal:
        objects.unregister(connection, name, version)
        objects.remove(paths, name, version)
        return "finished"
    if objects.is_published(directory):
        objects.register(connection, directory, name, version)
        return f"registered from its {objects.registered_from}"
    # Writes to an existing version must never remove it.
    if intent.kind != objects.creation:
        return "nothing to do"
    is_local = liveness.is_on_this_machine(paths.location, intent.owner)
    if objects.is_revocable:
        if not claims.revoke(directory, is_certainly_dead=is_local):
            return "kept for a day, because it was about to be published"
        # The claim remains, so that no other export gets the version.
        objects.remove_files(paths, name, version)
    else:
        if objects is GROUPS and liveness.is_on_another_machine(paths.location, intent.owner):
            claims.abandon(directory)
        objects.remove(paths, name, version)
    return f"removed, because it had no {objects.content} yet"


def remove_unclaimed_stages(store: Store) -> list[str]:
    """Remove staging directories without an intent, and return their paths.

    A write records its intent before it stages rows, so such directories belong to a lost registry.

    Raises:
        StorageError: A directory could not be removed; all other directories were removed.
    """
    first_error: StorageError | None = None
    staging = StorePaths(store.location).staging
    storage = storage_for(staging)
    names = [name for name in storage.list_directory(staging) if _INTENT.fullmatch(name)]
    removed = []
    for name in names:
        with store.registry.reading() as connection:
            # The intent is looked up after the directory was listed: a write that began in between
            # has its intent already.
            is_claimed = intents.find(connection, name) is not None
        path = os.path.join(staging, name)
        if is_claimed or (
            storage.needs_claims and not liveness.is_lease_expired(store.location, name, path)
        ):
            continue  # it may belong to a write of another registry
        try:
            storage.remove(path, below=store.location)
        except StorageError as error:
            first_error = first_error or error
        else:
            removed.append(path)
    if first_error is not None:
        raise first_error
    return removed
