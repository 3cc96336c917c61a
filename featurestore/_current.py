"""The store last connected, for functions that are called without one.

This module only stores the connection: it imports no package, so that every package may import it.
The package ``featurestore`` supplies the call that connects the default store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

store: FeatureStore | None = None
connect_default: Callable[[], FeatureStore] | None = None


def current_store() -> FeatureStore:
    """Return the store last connected; connect the default one at first use."""
    if store is not None:
        return store
    assert connect_default is not None  # importing any module runs featurestore/__init__.py first
    return connect_default()
