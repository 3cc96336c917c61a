"""Feature groups: the write path and the ``FeatureGroup`` handle.

Jobs call ``create`` and ``insert`` with a ``Write`` that contains the run id, inputs, transaction
and time range to replace. Names are imported lazily: lists of groups do not need the write path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurestore._imports import import_uninterrupted

if TYPE_CHECKING:
    from featurestore.featuregroups.handle import FeatureGroup
    from featurestore.featuregroups.maintenance import delete_group, delete_rows
    from featurestore.featuregroups.write import Write, create, create_named, get_or_create, insert

__all__ = [
    "FeatureGroup",
    "Write",
    "create",
    "create_named",
    "delete_group",
    "delete_rows",
    "get_or_create",
    "insert",
]

_EXPORTS = {
    "FeatureGroup": "handle",
    **dict.fromkeys(("delete_group", "delete_rows"), "maintenance"),
    **dict.fromkeys(("Write", "create", "create_named", "get_or_create", "insert"), "write"),
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_uninterrupted(f"{__name__}.{_EXPORTS[name]}"), name)
