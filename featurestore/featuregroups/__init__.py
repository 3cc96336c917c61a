"""Feature groups: the write path and the ``FeatureGroup`` handle.

Jobs call ``create`` and ``insert`` with a ``Write`` that contains the run id, inputs, transaction
and time range to replace.
"""

from __future__ import annotations

from featurestore.featuregroups.definition import Declaration
from featurestore.featuregroups.handle import FeatureGroup
from featurestore.featuregroups.maintenance import delete_group, delete_rows
from featurestore.featuregroups.write import Write, create, create_named, get_or_create, insert

__all__ = [
    "Declaration",
    "FeatureGroup",
    "Write",
    "create",
    "create_named",
    "delete_group",
    "delete_rows",
    "get_or_create",
    "insert",
]
