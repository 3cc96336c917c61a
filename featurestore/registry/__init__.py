"""The SQL index of the store; it can be rebuilt from the Delta tables and manifests.

One module per noun contains functions over a connection (``featuregroups``, ``training_datasets``,
``artifacts``, ``jobs``, ``lineage``, ``reports``, ``intents``); ``tables`` defines the schema,
``database`` opens it, and ``migrations`` creates and upgrades it.
"""

from __future__ import annotations

from featurestore.registry.database import Registry, is_store, open_registry

__all__ = ["Registry", "is_store", "open_registry"]
