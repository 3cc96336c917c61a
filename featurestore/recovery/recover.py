"""Recovery: what dead processes left in flight is settled, at every connect."""

from __future__ import annotations

import logging
import os
import re

from featurestore.errors import FeatureStoreError, StorageError
from featurestore.model.paths import StorePaths
from featurestore.recovery import lease_objects, owners
from featurestore.recovery.owners import Store
from featurestore.recovery.settle import settle
from featurestore.registry import intents
from featurestore.registry import owners as heartbeats
from featurestore.storage import files
from featurestore.storage.location import is_uri

_INTENT = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger("featurestore.recovery")


def recover(store: Store) -> list[str]:
    """Settle every write whose process died; return what was done, one line each.

    Each write stands alone: one that cannot be settled, because its table is damaged, say, is
    logged, and tried again at the next connect.
    """
    registry, location = store.registry, store.location
    with registry.reading() as connection:
        left = []
        for intent in intents.every(connection):
            if not owners.is_alive(connection, location, intent.owner):
                left.append(intent)
        has_future = heartbeats.has_future(connection)
    if has_future:
        with registry.transaction() as connection:
            heartbeats.correct_future(connection)
    done = []
    for intent in left:
        try:
            with registry.transaction() as connection:
                current = intents.find(connection, intent.run_id)
                if current is not None:  # else another process has settled it meanwhile
                    done.append(settle(connection, location, current))
        except FeatureStoreError as error:
            _log.warning(
                "%s of %s version %s could not be settled: %s",
                intent.kind,
                intent.name,
                intent.version,
                error.message,
            )
    if left:
        with registry.transaction() as connection:
            owners.forget_dead(connection, location)
    return done


def remove_unclaimed_stages(store: Store) -> list[str]:
    """Remove staged rows that no write in flight claims; return their directories.

    A write records its intent before it stages rows, so these are of a registry that was lost.

    Raises:
        StorageError: The system refused to remove one; the others are gone.
    """
    refused: StorageError | None = None
    staging = StorePaths(store.location).staging
    names = [name for name in files.list_directory(staging) if _INTENT.fullmatch(name)]
    removed = []
    for name in names:
        with store.registry.reading() as connection:
            claimed = intents.find(connection, name) is not None
        path = os.path.join(staging, name)
        if claimed or (is_uri(path) and not lease_objects.is_silent(store.location, name, path)):
            continue  # below a URI it may be of a write that another registry knows of
        try:
            files.remove(path, below=store.location)
        except StorageError as error:
            refused = refused or error
        else:
            removed.append(path)
    if refused is not None:
        raise refused
    return removed
