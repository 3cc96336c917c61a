"""Recovery at connect: resolve the writes of dead processes."""

from __future__ import annotations

import logging
import os
import re

from featurestore.errors import FeatureStoreError, StorageError
from featurestore.model.paths import StorePaths
from featurestore.recovery import leases, owners
from featurestore.recovery.owners import Store
from featurestore.recovery.resolve import resolve
from featurestore.registry import intents
from featurestore.registry import owners as heartbeats
from featurestore.storage import files
from featurestore.storage.selection import storage_for

_INTENT = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger("featurestore.recovery")


def recover(store: Store) -> list[str]:
    """Resolve every write of a dead process; return one line of text for each.

    Writes are resolved independently: a failure, for example a damaged table, is logged, and retried
    at the next connect.
    """
    registry, location = store.registry, store.location
    with registry.reading() as connection:
        all_intents = intents.every(connection)
        abandoned = [
            each for each in all_intents if not owners.is_alive(connection, location, each.owner)
        ]
        has_future = heartbeats.has_future(connection)
    if has_future:
        with registry.transaction() as connection:
            heartbeats.correct_future(connection)
    actions = []
    for intent in abandoned:
        try:
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
            owners.remove_dead_owners(connection, location)
    return actions


def remove_unclaimed_stages(store: Store) -> list[str]:
    """Remove staged rows without an intent; return their directories.

    A write records its intent before it stages rows, so these belong to a lost registry.

    Raises:
        StorageError: A directory could not be removed; the others were.
    """
    first_error: StorageError | None = None
    staging = StorePaths(store.location).staging
    names = [name for name in files.list_directory(staging) if _INTENT.fullmatch(name)]
    removed = []
    for name in names:
        with store.registry.reading() as connection:
            is_claimed = intents.find(connection, name) is not None
        path = os.path.join(staging, name)
        if is_claimed or (
            storage_for(path).needs_claims and not leases.is_expired(store.location, name, path)
        ):
            continue  # it may belong to a write of another registry
        try:
            files.remove(path, below=store.location)
        except StorageError as error:
            first_error = first_error or error
        else:
            removed.append(path)
    if first_error is not None:
        raise first_error
    return removed
