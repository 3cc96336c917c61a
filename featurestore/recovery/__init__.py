"""Liveness and crash recovery of feature groups, training datasets and jobs.

A process that writes is an *owner* (``liveness``): it locks a file in the store and sends
heartbeats to the registry while it writes. Before a write, the owner records an *intent*
(``in_flight``) with the kind and target of the write; the intent is removed when the write is
registered. At every connect, the intents of dead owners are *resolved* (``recover``): published
data is registered, and unpublished data is removed. A job *lease* also belongs to an owner and
expires with it. ``rebuild`` recreates the registry from tables, manifests and definition files.
"""

from __future__ import annotations

from featurestore.recovery.recover import recover, remove_unclaimed_stages

__all__ = ["recover", "remove_unclaimed_stages"]
