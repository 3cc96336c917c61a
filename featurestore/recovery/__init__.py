"""Liveness and crash recovery of feature groups, training datasets and jobs.

A process that writes is an *owner* (``liveness``): it locks a file below the location and, while it
writes, sends heartbeats to the registry. Before a write begins it records an *intent*
(``in_flight``) with the owner, the kind and the target of the write; registration of the write
removes the intent. The intent of a dead owner is *resolved* (``recover``): published data is
registered, unpublished data is removed. This happens at every connect. The *lease* of a job belongs
to an owner, too, and is free when the owner is dead. ``rebuild`` recreates the registry from the
tables, manifests and definition files.
"""

from __future__ import annotations

from featurestore.recovery.recover import recover, remove_unclaimed_stages

__all__ = ["recover", "remove_unclaimed_stages"]
