"""The current store, which functions without a store argument use: the last connected one.

This module only holds the connection: it imports no package, so that every package may import it.
The package ``featurestore`` supplies the function that connects the default store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

store: FeatureStore | None = None
connect_default: Callable[[], FeatureStore] | None = None


def current_store() -> FeatureStore:
    """Return the current store; connect the default store at first use."""
    if store is not None:
        return store
    assert connect_default is not None  # importing any module runs featurestore/__init__.py first
    return connect_default()
