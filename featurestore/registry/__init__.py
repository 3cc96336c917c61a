"""The SQL index of the store; it can be rebuilt from the Delta tables and manifests.

One module per noun holds plain functions over a connection (``featuregroups``, ``tags``,
``lineage``, ``training_datasets``, ``reports``, ``intents``); ``database`` opens it; ``migrations``
is its history.
"""

from __future__ import annotations

from featurestore.registry.database import Registry, is_store, open_registry

__all__ = ["Registry", "is_store", "open_registry"]
