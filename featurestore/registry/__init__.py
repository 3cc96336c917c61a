"""The registry: a SQL index of the store, which can be rebuilt from Delta tables and manifests.

Each module contains functions on a connection for one subject (``featuregroups``,
``training_datasets``, ``artifacts``, ``jobs``, ``lineage``, ``reports``, ``intents``). ``tables``
defines the schema, ``opening`` opens it, and ``migrations`` creates and upgrades it.
"""

from __future__ import annotations

from featurestore.registry.database import Registry
from featurestore.registry.opening import is_store, open_registry

__all__ = ["Registry", "is_store", "open_registry"]
