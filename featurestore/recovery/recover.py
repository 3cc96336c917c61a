"""Recovery: what dead processes left in flight is settled, at every connect."""

from __future__ import annotations

import logging

from featurestore.errors import FeatureStoreError
from featurestore.recovery import owners
from featurestore.recovery.owners import Store
from featurestore.recovery.settle import settle
from featurestore.registry import intents

_log = logging.getLogger("featurestore.recovery")


def recover(store: Store) -> list[str]:
    """Settle every write whose process died; return what was done, one line each.

    Each write stands alone: one that cannot be settled, because its table is damaged, say, is logged, and tried again
    at the next connect.
    """
    registry, location = store.registry, store.location
    with registry.reading() as connection:
        left = []
        for intent in intents.every(connection):
            if not owners.is_alive(connection, location, intent.owner):
                left.append(intent)
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
