"""Online serving: publication of feature views to online stores, and reads of their vectors.

Names are imported lazily: Spark's executors import only the layout of values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore._imports import lazy_names

if TYPE_CHECKING:
    from featurestore.serving.publication import Publication, publish
    from featurestore.serving.server import VectorServer
    from featurestore.serving.vectors import FeatureVector
    from featurestore.serving.view_calls import GroupLag

__all__ = ["FeatureVector", "GroupLag", "Publication", "VectorServer", "publish"]

_MODULES = {
    "FeatureVector": "vectors",
    "GroupLag": "view_calls",
    "Publication": "publication",
    "VectorServer": "server",
    "publish": "publication",
}
__getattr__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()}
)
