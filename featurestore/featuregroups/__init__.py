"""The one write path of feature groups, and the handle FeatureGroup.

For jobs: ``create`` and ``insert`` with a ``Write`` that carries run, inputs, transaction and the
range to replace.
"""

from __future__ import annotations

from featurestore.featuregroups.definition import Declaration
from featurestore.featuregroups.handle import FeatureGroup
from featurestore.featuregroups.maintenance import delete_group, delete_rows
from featurestore.featuregroups.write import Write, create, get_or_create, insert

__all__ = [
    "Declaration",
    "FeatureGroup",
    "Write",
    "create",
    "delete_group",
    "delete_rows",
    "get_or_create",
    "insert",
]
