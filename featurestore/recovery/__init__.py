"""Liveness and what happens after a crash, once for feature groups, training datasets and jobs.

A process that writes is an *owner* (``owners``): it holds a lock file below the location and, while
it writes, sends a heartbeat to the registry. Before a write begins it records an *intent*
(``in_flight``), which names the owner, the kind of the write and what it writes; when the write is
registered, the intent goes. An intent whose owner is dead is *settled* (``groups``, ``datasets``):
what was published is registered, what was not is removed. ``recover`` does that at every connect. A
job's *lease* (``leases``) is held by an owner, too, and is free when that one is dead. ``rebuild``
writes the registry anew from the tables and manifests.
"""

from __future__ import annotations

from featurestore.recovery.recover import recover, remove_unclaimed_stages

__all__ = ["recover", "remove_unclaimed_stages"]
