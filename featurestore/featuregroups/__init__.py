"""Feature groups: the write path and the ``FeatureGroup`` handle.

Jobs call ``create`` and ``insert`` with a ``WriteRequest`` that contains the run id, inputs,
transaction and time range to replace. Names are imported lazily: lists of groups do not need the
write path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore._imports import lazy_names

if TYPE_CHECKING:
    from featurestore.featuregroups.handle import FeatureGroup
    from featurestore.featuregroups.maintenance import delete_group, delete_rows
    from featurestore.featuregroups.write import create, create_named, get_or_create, insert
    from featurestore.featuregroups.write_request import WriteRequest

__all__ = [
    "FeatureGroup",
    "WriteRequest",
    "create",
    "create_named",
    "delete_group",
    "delete_rows",
    "get_or_create",
    "insert",
]

_MODULES = {
    "FeatureGroup": "handle",
    **dict.fromkeys(("delete_group", "delete_rows"), "maintenance"),
    **dict.fromkeys(("create", "create_named", "get_or_create", "insert"), "write"),
    "WriteRequest": "write_request",
}
__getattr__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()}
)
