"""Online serving: publication of feature views to online stores, and reads of their vectors.

Names are imported lazily: Spark's executors import only the layout of values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurestore._imports import import_uninterrupted

if TYPE_CHECKING:
    from featurestore.serving.publication import Publication, publish
    from featurestore.serving.server import VectorServer
    from featurestore.serving.vectors import FeatureVector
    from featurestore.serving.view_calls import GroupLag

__all__ = ["FeatureVector", "GroupLag", "Publication", "VectorServer", "publish"]

_EXPORTS = {
    "FeatureVector": "vectors",
    "GroupLag": "view_calls",
    "Publication": "publication",
    "VectorServer": "server",
    "publish": "publication",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_uninterrupted(f"{__name__}.{_EXPORTS[name]}"), name)
